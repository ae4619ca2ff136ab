"""How successions go, look by look: which are stuck, which were refused, and what they wait for.

A part of `stelae.coordinator.backoff.pacing`: in memory only, and lost with the leadership, which
does no harm: a new leader waits as long before it gives a successor up, and tries again without a
pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stelae.coordinator.backoff.owners import FailedOwners
from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid, TabletId

IDLE_S = 3.0
"""A tablet from which nothing could be brought over for so long leaves its turn to another."""
STUCK_S = 20.0
"""Its successor is given up after so long."""
PATIENCE_DOUBLES = 4
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A tablet's last successor was given up, as nothing could be brought to it."""

    successor: TabletId
    times: int
    until: float
    why: str


class SuccessionPacing:
    """See the module."""

    def __init__(self) -> None:
        self.waits: dict[TabletId, str] = {}
        """By the last look, why tablets do not change that have to."""
        self._stuck_since: dict[TabletId, float] = {}
        self._refused: dict[TabletId, Refused] = {}
        self.targets: FailedOwners[TabletId] = FailedOwners()
        """Where successors of a tablet failed: the next one is rather elsewhere."""

    def begin_look(
        self, sources: Sequence[TabletId], begun: Iterable[TabletId], now: float
    ) -> None:
        """These have to change, and these of them have successors; all else is forgotten, though
        where successors failed only once the tablet has had none for minutes."""
        self.waits = {}
        self.targets.begin_round(now)
        for source in sources:
            self.targets.unsettled(source, now)
        refused, stuck = self._refused, self._stuck_since
        self._refused = {each: refused[each] for each in sources if each in refused}
        self._stuck_since = {each: stuck[each] for each in begun if each in stuck}

    def look_at(self, source: TabletId, now: float, *, is_stuck: bool) -> float:
        """Whether nothing is brought over from it, as this look finds it. Returns how long that
        has been so, also if its successor was replaced by another one meanwhile."""
        if is_stuck:
            self._stuck_since.setdefault(source, now)
        else:
            self._stuck_since.pop(source, None)
        return self.stuck_s(source, now)

    def stuck_s(self, source: TabletId, now: float) -> float:
        """How long it has been stuck at every look; 0: it is not."""
        return now - self._stuck_since.get(source, now)

    def patience_s(self, source: TabletId, successor: TabletId) -> float:
        """How long this one may be in creation: longer each time."""
        refused = self._refused.get(source)
        before = 0 if refused is None else refused.times - (refused.successor == successor)
        return STUCK_S * (1 << min(before, PATIENCE_DOUBLES))

    def refuse(
        self,
        source: TabletId,
        successor: TabletId,
        by: Sequence[ServerUuid],
        why: str,
        now: float,
    ) -> None:
        """That successor is given up; another one is made after a pause that doubles, and comes to
        ``by`` last: the servers at fault."""
        before = self._refused.get(source)
        if before is not None and before.successor == successor:
            return  # until the catalog says so it is seen again and again
        times = 1 if before is None else before.times + 1
        pause_s = doubled_s(FIRST_PAUSE_S, times - 1, LONGEST_PAUSE_S)
        self._refused[source] = Refused(successor, times, now + pause_s, why)
        self.targets.failed(source, by, now)

    def refused(self, source: TabletId) -> Refused | None:
        return self._refused.get(source)
