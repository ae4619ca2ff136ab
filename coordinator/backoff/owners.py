"""Owners that cannot open their tablets, or write their logs: whom the masters give up, and when.

A part of `stelae.coordinator.backoff.pacing`: in memory only, and lost with the leadership. A new
leader waits once more, and tries every server once more. What is owned is named by a key: a tablet,
an indexlet, or a tablet whose leadership is handed over.

Rules:

1. An owner is given up if it waits in vain (`stelae.coordinator.backoff.complaints`) in every
   round for as long as patience lasts. One round in which it does not ends the wait.
2. The same holds for an owner that the leader cannot tell to open the tablet.
3. Patience doubles with each failure of the tablet, so that a tablet that nobody can open does not
   move from server to server, a term each time, without end.
4. Each failure is remembered by key and server: a server that fails for one tablet need not fail
   for another. One that failed is chosen after all that have not, and of those that have, the one
   whose pause ends first. Where nobody waits for the choice, a server is left alone during its
   pause.
5. Failures are forgotten once the tablet has been settled, and its last pause has been over, for
   minutes. At the hand-over would be too early: a link that comes and goes would move the tablet to
   and fro with the least patience. At the end of the pause would be too early as well: a move that
   nobody waits for would begin again with the first pause each time.
6. A server at which one tablet after the other failed is doubted
   (`stelae.coordinator.placement.doubted`): where nobody waits for the choice, every tablet avoids
   it (`doubted`).
7. What takes a tablet's place, its parts or its replacement, inherits its failures (`inherit`): it
   has the same log, or the same rows to come.
8. An owner that dies while it opens a tablet may have died of that (`ended`): of a damaged image,
   or for want of memory. This is a failure by rule 4, of each tablet that it had been told to open
   in this term and of which it did not report yet that all rows are in memory.
9. From the second such death in a row on, the tablet is given to nobody for a pause that doubles.
   Tablets that one server was opening when it died are spread over a second pause of the same
   length. One that kills nobody is then open, and out of the row, before the next one is opened.
10. The row ends once an owner had all rows of the tablet in memory (`was_open`).
11. A death is one failure of the server by rule 6, whatever it was opening: a server that lost its
   power with a hundred tablets on their way is no worse than one that lost it with two.

12. Who is ended by order has not died: an operator restarts or stops a server while rows load, or
    its node is drained. It says so before (`Heartbeat.ends_by_order`), and `decide` leaves it out.

Source: decisions §61, §62, §73, §84.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from stelae.coordinator.placement.doubted import DoubtedServers
from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Pauses between two moves of one tablet whose owners say themselves that they gave it up."""
PATIENCE_S = 10.0
LONGEST_PATIENCE_S = 600.0
"""Time for which an owner may wait for servers that masters hear."""
SERVER_PAUSE_S = 10.0
LONGEST_SERVER_PAUSE_S = 600.0
"""Pauses by which servers are ranked that failed with one tablet."""
DEATH_PAUSE_S = 2.0
LONGEST_DEATH_PAUSE_S = 600.0
"""Pauses of a tablet whose owners died one after the other while they opened it."""
ROW_OF_DEATHS = 2
"""Deaths in a row from which on the tablet is suspected."""
FORGOTTEN_AFTER_S = 300.0
"""Time for which a tablet must be settled, and its pauses be over, before its failures are
forgotten."""
PRUNE_PERIOD_S = 10.0
"""Time between two searches for what can be forgotten."""


@dataclass(slots=True)
class _Failure:
    """Failures of one server with one tablet."""

    count: int
    until: float


@dataclass(slots=True)
class _Waiting:
    """An owner in one term, since when it waits, and when that was noted last."""

    term: int
    since: float
    seen_at: float


@dataclass(slots=True)
class _Failures:
    """Failures of one tablet, wherever it was."""

    unsettled_at: float
    """When the tablet was last seen not to be settled."""
    count: int = 0
    not_moved_before: float = 0.0
    servers: dict[ServerUuid, _Failure] = field(default_factory=dict)
    deaths: int = 0
    """Owners in a row that died while they opened it."""
    died_last: ServerUuid | None = None
    """The last of them."""
    not_opened_before: float = 0.0

    def is_over(self, old: float) -> bool:
        """Whether the tablet was settled at ``old``, and no server was paused then (rule 5)."""
        return self.unsettled_at < old and all(s.until < old for s in self.servers.values())


class Deaths(NamedTuple):
    """Owners of one tablet that died one after the other while they opened it."""

    times: int
    last: ServerUuid | None
    wait_s: float
    """Seconds until it is given to another one; 0: it may be at once, or was."""


@dataclass(slots=True)
class _GivenUp:
    """The owner of a served tablet, which was told to close it."""

    term: int
    reason: str
    unsettled_at: float


class FailedOwners(Generic[K]):
    """See the module. ``now`` is the leader's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._failures: dict[K, _Failures] = {}
        self._doubted: DoubtedServers[K] = DoubtedServers()
        self._waiting: dict[K, _Waiting] = {}
        """Owners that wait in vain, as seen in this round."""
        self._waited: dict[K, _Waiting] = {}
        """The same as seen in the round before."""
        self._untold: dict[K, _Waiting] = {}
        self._given_up: dict[K, _GivenUp] = {}
        self._opening: dict[K, _Waiting] = {}
        """Tablets that this leader has told an owner to open, until their fate is known."""
        self._pruned_at = 0.0

    def begin_round(self, now: float) -> None:
        """The leader looks at every tablet that is not settled: `unsettled` names each."""
        self._waited, self._waiting = self._waiting, {}
        if now >= self._pruned_at + PRUNE_PERIOD_S:
            self._pruned_at = now
            self._prune(now - FORGOTTEN_AFTER_S)
            self._doubted.prune(now)

    def _prune(self, old: float) -> None:
        """Forget what concerns tablets that have been settled since ``old``, or are gone."""
        for tablet_id in [i for i, each in self._failures.items() if each.is_over(old)]:
            del self._failures[tablet_id]
        for tablet_id in [i for i, each in self._given_up.items() if each.unsettled_at < old]:
            del self._given_up[tablet_id]
        for tablet_id in [i for i, each in self._untold.items() if each.seen_at < old]:
            del self._untold[tablet_id]
        for tablet_id in [i for i, each in self._opening.items() if each.seen_at < old]:
            del self._opening[tablet_id]

    def unsettled(self, tablet_id: K, now: float) -> None:
        """The tablet does not run yet, or its owner lacks something: it may still be failing."""
        if (failures := self._failures.get(tablet_id)) is not None:
            failures.unsettled_at = now
        if (given_up := self._given_up.get(tablet_id)) is not None:
            given_up.unsettled_at = now
        if (opening := self._opening.get(tablet_id)) is not None:
            opening.seen_at = now

    def failed(self, tablet_id: K, servers: Sequence[ServerUuid], now: float) -> None:
        """The tablet failed once at each of ``servers``, which had it together, and moves: next
        time after a pause that doubles."""
        if not servers:
            return
        failures = self._failures.setdefault(tablet_id, _Failures(now))
        failures.unsettled_at = now
        pause_s = doubled_s(FIRST_PAUSE_S, failures.count, LONGEST_PAUSE_S)
        failures.not_moved_before = now + pause_s
        failures.count += 1
        for server in servers:
            _failed_at(failures, server, now)
            self._doubted.failed(tablet_id, server, now)

    def may_move(self, tablet_id: K, now: float) -> bool:
        failures = self._failures.get(tablet_id)
        return failures is None or now >= failures.not_moved_before

    def avoid(self, tablet_id: K) -> Mapping[ServerUuid, float]:
        """The servers with which the tablet failed, and until when each is paused."""
        failures = self._failures.get(tablet_id)
        if failures is None:
            return {}
        return {uuid: each.until for uuid, each in failures.servers.items()}

    def doubted(self) -> Mapping[ServerUuid, float]:
        """The servers that failed with one tablet after the other, and their pauses (rule 6)."""
        return self._doubted.pauses()

    def opened(self, server: ServerUuid) -> None:
        """``server`` has opened a tablet. Its own failures there stay for a while (rule 5)."""
        self._doubted.succeeded(server)

    def succeeded(self, tablet_id: K, server: ServerUuid) -> None:
        """It worked with ``server``, whose failures with this tablet count no more."""
        self._doubted.succeeded(server)
        if (failures := self._failures.get(tablet_id)) is not None:
            failures.servers.pop(server, None)

    def inherit(self, parent: K, children: Iterable[K], now: float) -> None:
        """What takes the place of ``parent`` failed where that did, and may go there last."""
        failures = self._failures.get(parent)
        if failures is None:
            return
        for child in children:
            known = self._failures.setdefault(child, _Failures(now))
            known.unsettled_at = max(known.unsettled_at, now)
            known.count = max(known.count, failures.count)
            if known.deaths < failures.deaths:
                known.deaths, known.died_last = failures.deaths, failures.died_last
            for uuid, each in failures.servers.items():
                mine = known.servers.get(uuid)
                if mine is None or mine.until < each.until:
                    known.servers[uuid] = replace(each)

    # ---- waiting ----------------------------------------------------------------------------

    def waits_in_vain(self, tablet_id: K, term: int, now: float) -> bool:
        """Note in this round that the owner waits for servers that others reach. Returns whether it
        is to be given up."""
        known = self._waited.get(tablet_id)
        if known is None or known.term != term:
            known = _Waiting(term, now, now)
        self._waiting[tablet_id] = known
        return self._is_over(known, tablet_id, now)

    def untold(self, tablet_id: K, term: int, now: float) -> None:
        """The leader could not tell the owner to open the tablet."""
        known = self._untold.get(tablet_id)
        if known is None or known.term != term:
            known = self._untold[tablet_id] = _Waiting(term, now, now)
        known.seen_at = now

    def told(self, tablet_id: K) -> None:
        """The owner has the order."""
        self._untold.pop(tablet_id, None)

    def is_untold(self, tablet_id: K, term: int, now: float) -> bool:
        """Whether the owner is to be given up, as no order reaches it."""
        known = self._untold.get(tablet_id)
        return known is not None and known.term == term and self._is_over(known, tablet_id, now)

    def _is_over(self, waiting: _Waiting, tablet_id: K, now: float) -> bool:
        """Whether patience is at its end."""
        failures = self._failures.get(tablet_id)
        times = 0 if failures is None else failures.count
        return now >= waiting.since + doubled_s(PATIENCE_S, times, LONGEST_PATIENCE_S)

    # ---- deaths -----------------------------------------------------------------------------

    def opening(self, tablet_id: K, term: int, now: float) -> None:
        """The leader tells the owner to open the tablet; whether that arrives is not known."""
        self._opening[tablet_id] = _Waiting(term, now, now)

    def was_open(self, tablet_id: K) -> None:
        """An owner that is dead had all rows of the tablet in memory (rule 10)."""
        self._opening.pop(tablet_id, None)
        if (failures := self._failures.get(tablet_id)) is not None:
            failures.deaths = 0

    def ended(self, server: ServerUuid, owned: Sequence[tuple[K, int]], now: float) -> None:
        """A run of ``server`` has died. ``owned``: what it did not report as open, with the terms.
        What it was not told to open, and what was counted before, does not count."""
        suspects = []
        for tablet_id, term in owned:
            known = self._opening.pop(tablet_id, None)
            if known is not None and known.term == term:
                suspects.append(tablet_id)
        for number, tablet_id in enumerate(suspects):
            failures = self._failures.setdefault(tablet_id, _Failures(now))
            failures.unsettled_at, failures.died_last = now, server
            failures.deaths += 1
            _failed_at(failures, server, now)
            if (times := failures.deaths - ROW_OF_DEATHS) >= 0:
                pause_s = doubled_s(DEATH_PAUSE_S, times, LONGEST_DEATH_PAUSE_S)
                # Rule 9: no two of them are opened at the same moment.
                failures.not_opened_before = now + pause_s * (1 + number / len(suspects))
        if suspects:  # rule 11
            self._doubted.failed(suspects[0], server, now)

    def may_open(self, tablet_id: K, now: float) -> bool:
        """Whether another owner may be told to open the tablet: no pause of rule 9 is under way."""
        failures = self._failures.get(tablet_id)
        return failures is None or now >= failures.not_opened_before

    def deaths(self, now: float) -> dict[K, Deaths]:
        """The tablets of which owners died one after the other."""
        return {
            tablet_id: Deaths(f.deaths, f.died_last, max(0.0, f.not_opened_before - now))
            for tablet_id, f in self._failures.items()
            if f.deaths >= ROW_OF_DEATHS
        }

    # ---- served tablets ---------------------------------------------------------------------

    def give_up(self, tablet_id: K, term: int, reason: str, now: float) -> None:
        """The owner serves the tablet, and is told to close it: it moves once it is closed."""
        self._given_up[tablet_id] = _GivenUp(term, reason, now)

    def given_up(self, tablet_id: K, term: int) -> str:
        """Why the owner was told to close the tablet in this term; empty: it was not."""
        known = self._given_up.get(tablet_id)
        return known.reason if known is not None and known.term == term else ""


def _failed_at(failures: _Failures, server: ServerUuid, now: float) -> None:
    """Note one more failure of a tablet at ``server`` (rule 4)."""
    known = failures.servers.setdefault(server, _Failure(0, now))
    known.until = now + doubled_s(SERVER_PAUSE_S, known.count, LONGEST_SERVER_PAUSE_S)
    known.count += 1
