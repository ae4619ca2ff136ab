"""Owners that cannot open their tablets, or write their logs: whom the masters give up, and when.

A part of `stelae.coordinator.backoff.pacing`: in memory only, and lost with the leadership. A new
leader waits once more, and tries every server once more.

Rules:

1. An owner is given up if it reports servers that it does not reach (`TabletReport.unreached`),
   masters hear one of them, and that lasts. Where nobody hears them, another owner would wait too.
2. The same holds for an owner that the leader cannot tell to open the tablet.
3. Patience doubles with each failure of the tablet, so that a tablet that nobody can open does not
   move from server to server, a term each time, without end.
4. Each failure is remembered by server. One that failed is chosen after all that have not, and of
   those that have, the one whose pause ends first.

Source: decisions §61, §62.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid, TabletId

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Pauses between two moves of one tablet whose owners say themselves that they gave it up."""
PATIENCE_S = 10.0
LONGEST_PATIENCE_S = 600.0
"""Time for which an owner may wait for servers that masters hear."""
SERVER_PAUSE_S = 10.0
LONGEST_SERVER_PAUSE_S = 600.0
"""Pauses by which servers are ranked that failed with one tablet."""
FORGOTTEN_AFTER_S = 1800.0
"""Time after which failures, and owners that waited, are forgotten."""


@dataclass(slots=True)
class _Failure:
    """Failures of one server with one tablet."""

    count: int
    until: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An owner in one term, and since when it waits."""

    term: int
    since: float


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """The owner of a served tablet, which was told to close it."""

    term: int
    reason: str


class FailedOwners:
    """See the module. ``now`` is the leader's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._failures: dict[TabletId, dict[ServerUuid, _Failure]] = {}
        self._not_moved_before: dict[TabletId, float] = {}
        self._times: dict[TabletId, int] = {}
        """Failures of each tablet, wherever it was."""
        self._waiting: dict[TabletId, _Waiting] = {}
        self._untold: dict[TabletId, _Waiting] = {}
        self._given_up: dict[TabletId, _GivenUp] = {}

    def failed(self, tablet_id: TabletId, server: ServerUuid, now: float) -> None:
        """The tablet failed at ``server``, and moves: next time after a pause that doubles."""
        self._forget_old(now)
        times = self._times.get(tablet_id, 0)
        self._times[tablet_id] = times + 1
        self._not_moved_before[tablet_id] = now + doubled_s(FIRST_PAUSE_S, times, LONGEST_PAUSE_S)
        known = self._failures.setdefault(tablet_id, {}).setdefault(server, _Failure(0, now))
        known.until = now + doubled_s(SERVER_PAUSE_S, known.count, LONGEST_SERVER_PAUSE_S)
        known.count += 1

    def may_move(self, tablet_id: TabletId, now: float) -> bool:
        return now >= self._not_moved_before.get(tablet_id, now)

    def avoid(self, tablet_id: TabletId) -> Mapping[ServerUuid, float]:
        """The servers with which the tablet failed, and until when each is paused."""
        return {uuid: each.until for uuid, each in self._failures.get(tablet_id, {}).items()}

    def succeeded(self, tablet_id: TabletId) -> None:
        """The tablet is served, and its log takes writes."""
        self._not_moved_before.pop(tablet_id, None)
        for known in (self._failures, self._times, self._waiting, self._untold, self._given_up):
            known.pop(tablet_id, None)

    # ---- waiting ----------------------------------------------------------------------------

    def waits(self, tablet_id: TabletId, term: int, now: float, *, in_vain: bool) -> bool:
        """Note whether the owner waits for servers that masters hear. Returns whether it is to be
        given up."""
        if not in_vain:
            self._waiting.pop(tablet_id, None)
            return False
        return self._is_over(self._waiting, tablet_id, term, now)

    def untold(self, tablet_id: TabletId, term: int, now: float) -> None:
        """The leader could not tell the owner to open the tablet."""
        known = self._untold.get(tablet_id)
        if known is None or known.term != term:
            self._forget_old(now)
            self._untold[tablet_id] = _Waiting(term, now)

    def told(self, tablet_id: TabletId) -> None:
        """The owner has the order."""
        self._untold.pop(tablet_id, None)

    def is_untold(self, tablet_id: TabletId, term: int, now: float) -> bool:
        """Whether the owner is to be given up, as no order reaches it."""
        known = self._untold.get(tablet_id)
        if known is None or known.term != term:
            return False
        return self._is_over(self._untold, tablet_id, term, now)

    def _is_over(
        self, known: dict[TabletId, _Waiting], tablet_id: TabletId, term: int, now: float
    ) -> bool:
        waiting = known.get(tablet_id)
        if waiting is None or waiting.term != term:
            self._forget_old(now)
            waiting = known[tablet_id] = _Waiting(term, now)
        times = self._times.get(tablet_id, 0)
        return now >= waiting.since + doubled_s(PATIENCE_S, times, LONGEST_PATIENCE_S)

    def _forget_old(self, now: float) -> None:
        """Forget what nobody asked for in a long time: tablets are dropped while they wait."""
        old = now - FORGOTTEN_AFTER_S
        for known in (self._waiting, self._untold):
            for tablet_id in [i for i, each in known.items() if each.since < old]:
                del known[tablet_id]
        for tablet_id, servers in list(self._failures.items()):
            if all(each.until < old for each in servers.values()):
                self.succeeded(tablet_id)

    # ---- served tablets ---------------------------------------------------------------------

    def give_up(self, tablet_id: TabletId, term: int, reason: str) -> None:
        """The owner serves the tablet, and is told to close it: it moves once it is closed."""
        self._given_up[tablet_id] = _GivenUp(term, reason)

    def given_up(self, tablet_id: TabletId, term: int) -> str:
        """Why the owner was told to close the tablet in this term; empty: it was not."""
        known = self._given_up.get(tablet_id)
        return known.reason if known is not None and known.term == term else ""
