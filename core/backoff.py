"""Pauses between repeated calls: they grow up to a limit, and no two callers share them.

Pure: the random generator and the clock are handed in.

1. A pause is drawn evenly from 75 % to 125 % of the present one (jitter). Servers that failed
   together would otherwise call together again after each pause, and overload what they wait for.
2. No pause is above the longest one. The present one stops growing at 80 % of it, so that the
   longest pauses are spread as well: if draws were cut at the limit, half of them would be equal.
3. `Backoff.pause` sleeps until the deadline if less than a first pause would be left afterwards. A
   call without time for its answer ends as `OutcomeUnknown`, and hides that none was executed.
4. The same generator gives the same pauses, so a simulated run can be repeated.

Source: "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import random

from stelae.core.runtime import Clock

LEAST_SHARE = 0.75
"""Smallest share of the present pause that may be drawn."""
LARGEST_SHARE = 1.25
"""Largest share of the present pause that may be drawn."""
DOUBLINGS_MAX = 60
"""Maximum doublings that `doubled_s` computes, so that no count overflows a float."""


def jittered_s(pause_s: float, rng: random.Random) -> float:
    """Draw evenly from 75 % to 125 % of a pause, in seconds."""
    return pause_s * (LEAST_SHARE + (LARGEST_SHARE - LEAST_SHARE) * rng.random())


def doubled_s(first_s: float, times: int, longest_s: float) -> float:
    """Return ``first_s`` seconds doubled ``times`` times, at most ``longest_s``; no jitter."""
    return min(first_s * 2.0 ** min(times, DOUBLINGS_MAX), longest_s)


class Backoff:
    """The pauses of one caller that repeats one call."""

    __slots__ = ("_factor", "_first_s", "_largest_s", "_longest_s", "_present_s", "_rng")

    def __init__(
        self, rng: random.Random, first_s: float, longest_s: float, *, factor: float = 2.0
    ) -> None:
        """Begin with pauses of about ``first_s`` seconds, none above ``longest_s`` seconds.

        ``factor``: growth of the present pause with each pause made.
        """
        assert 0.0 < first_s <= longest_s, "pauses are positive"
        assert factor >= 1.0, "pauses do not shrink"
        self._rng = rng
        self._longest_s = longest_s
        self._largest_s = longest_s / LARGEST_SHARE  # rule 2: no draw from it needs to be cut
        self._first_s = min(first_s, self._largest_s)
        self._factor = factor
        self._present_s = self._first_s

    def next_s(self) -> float:
        """Return the pause to make now, in seconds; the one after it is longer."""
        pause_s = jittered_s(self._present_s, self._rng)
        self._present_s = min(self._present_s * self._factor, self._largest_s)
        return min(pause_s, self._longest_s)  # against rounding only

    def reset(self) -> None:
        """Begin again with the first pause: the call has succeeded."""
        self._present_s = self._first_s

    async def pause(self, clock: Clock, until: float | None = None) -> None:
        """Sleep for `next_s`, but not beyond the deadline ``until``.

        ``until``: monotonic seconds of ``clock``; None: no deadline. Once it has passed, the sleep
        takes no time.
        """
        pause_s = self.next_s()
        if until is not None:
            left_s = max(until - clock.monotonic(), 0.0)
            if pause_s + self._first_s > left_s:  # rule 3: too little for another attempt
                pause_s = left_s
        await clock.sleep(pause_s)
