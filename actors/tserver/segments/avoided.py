"""Backups that do not take what this server's logs write to them: the masters may hear them well.

Rules:

1. A backup that failed is avoided for a pause, which doubles with each failure after the one
   before has ended. Pauses of several such backups overlap in the end, so that one is chosen that
   answers, also if those that do not are the emptiest.
2. What one segment learns counts for all logs of the server: a new head does not begin with them.
3. Avoided is not excluded: where nothing else is left, the one is tried whose pause ends first.
   After the owner itself was cut off it finds them all again, and does not wait.
4. A backup that answers is not avoided any more.
5. Masters are told of those that failed more than once. What most tservers avoid, all take last
   (`stelae.coordinator.liveness.shunned_backups`).
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid

LONGEST_PAUSE_S = 60.0
REPORTED_AFTER_S = 60.0
"""Time after a pause for which masters are told: then it is tried again, as nobody probes it."""
FORGOTTEN_AFTER_S = 600.0
"""Time after a pause until the failures before it are forgotten."""


@dataclass(slots=True)
class _Failures:
    count: int
    until: float


class AvoidedBackups:
    """See the module. ``now`` is the server's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._known: dict[ServerUuid, _Failures] = {}

    def failed(self, backup: ServerUuid, now: float, first_s: float) -> None:
        """It did not take a replica. ``first_s``: the pause after its first failure."""
        old = now - FORGOTTEN_AFTER_S
        self._known = {uuid: each for uuid, each in self._known.items() if each.until > old}
        known = self._known.setdefault(backup, _Failures(0, now))
        if now >= known.until:  # several segments learn of one failure
            known.count += 1
        known.until = now + doubled_s(first_s, known.count - 1, max(first_s, LONGEST_PAUSE_S))

    def answered(self, backup: ServerUuid) -> None:
        """It took something."""
        if self._known:
            self._known.pop(backup, None)

    def lasting(self, now: float) -> tuple[ServerUuid, ...]:
        """Those that failed again after a pause, and have not answered since: for the masters."""
        old = now - REPORTED_AFTER_S
        return tuple([u for u, each in self._known.items() if each.count > 1 and each.until > old])

    def at(self, now: float) -> dict[ServerUuid, float]:
        """Those that are avoided now, and until when."""
        return {uuid: each.until for uuid, each in self._known.items() if each.until > now}
