"""A tserver's right to serve: it ends by the server's own clock, whatever the network does.

The leader master gives a tablet to another server only after every lease it granted to the old
one has ended (or the process is surely gone), so two servers never serve one tablet at a time.
"""

from __future__ import annotations

from stelae.core.runtime import Clock


class Lease:
    """Valid until the sending of the last heartbeat that the leader answered, plus its length."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = float("-inf")
        self._term = 0

    @property
    def is_valid(self) -> bool:
        return self._clock.monotonic() < self._until

    def grant(self, term: int, sent: float, length_s: float) -> bool:
        """Take a leader's answer to a heartbeat sent at ``sent``; false if its term is outdated.

        A lease only grows: an older leader's grant stays good, as the newer one waited for it.
        """
        if term < self._term:
            return False
        self._term = term
        self._until = max(self._until, sent + length_s)
        return True

    def revoke(self) -> None:
        """Stop serving now."""
        self._until = float("-inf")
