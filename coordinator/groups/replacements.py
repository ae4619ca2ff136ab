"""Where replicas are made anew: on which server, and how many copies are under way at a time. Pure.

A server that is lost, or is to be left, has replicas of many tablets, and a tserver copies only so
many at a time, as receiver and as source. No more begin than can go on: whoever had to wait for its
turn as a member would seem to make no progress, and be let go for it. Tablets that have lost most
voters come first, then those that only move.

Source: seed Kudu tablet copy (bounded copies per server);
`stelae.coordinator.placement.assignment`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.groups.group import Group, Replica
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.placement.assignment import Load, choose_another
from stelae.coordinator.placement.doubted import DoubtedServers, KnownFailures
from stelae.core.backoff import doubled_s
from stelae.core.ids import OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.records import ReplicaMove, TabletState

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""Pauses before a server is added again that was added in vain."""
FORGOTTEN_AFTER_S = 1800.0
"""Time after such a pause until the failures are forgotten."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Of each server."""

    receives_max: int
    gives_max: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tablet that is to get one more replica."""

    group: Group
    leader: Replica
    lost: int
    """Of its voters."""


@dataclass(slots=True)
class _Failure:
    """What became of the additions of one server to one tablet: they ended without a voter."""

    count: int
    until: float
    """The server is not chosen again before."""


class Additions:
    """What leaders were told to add, until members are others than they were then; and what became
    of it.

    A choice is deterministic: a server that is chosen, and never becomes a voter (its disk is full,
    or the masters hear it and the leader does not), would be chosen again and again while others
    are never tried. So it is left alone for a pause that doubles, and put last after that. A server
    that was added in vain to one tablet after the other is doubted: no tablet waits for its turn
    there, and replicas are not moved there for the sake of evenness until its pause is over.

    Only in memory: without it a copy could begin too many, or a failed target be tried once more,
    and no harm be done.
    """

    def __init__(self) -> None:
        self._given: dict[TabletId, tuple[OpId, ServerUuid]] = {}
        self._kept: dict[TabletId, tuple[OpId, ServerUuid]] = {}
        self._coming: dict[TabletId, tuple[ServerUuid, ...]] = {}
        """Non-voters at the last look."""
        self._come: dict[TabletId, tuple[ServerUuid, ...]] = {}
        self._failures: dict[TabletId, dict[ServerUuid, _Failure]] = {}
        self._doubted: DoubtedServers[TabletId] = DoubtedServers()
        self._moves: dict[TabletId, tuple[ReplicaMove, int]] = {}
        """Moves at the last look, and how often the target had failed when each was first seen."""
        self._seen_moves: dict[TabletId, tuple[ReplicaMove, int]] = {}
        self._released: dict[tuple[TabletId, ServerUuid], None] = {}
        self._releasing: dict[tuple[TabletId, ServerUuid], None] = {}
        """Members that the masters let go of, as nobody needs them any more."""

    def release(self, tablet_id: TabletId, uuid: ServerUuid) -> None:
        """A learner is let go of because nobody needs it: that is no failure of its own."""
        self._releasing[tablet_id, uuid] = None

    def look(self, group: Group, now: float) -> None:
        """Note what became of the servers that were to be added."""
        tablet_id, members = group.tablet.tablet_id, group.newest
        expected = dict.fromkeys(self._coming.get(tablet_id, ()))
        given = self._given.get(tablet_id)
        if given is not None and given[0] != members.op_id:
            expected[given[1]] = None
        for uuid in expected:
            peer = members.peer(uuid)
            was_released = (tablet_id, uuid) in self._released
            if peer is None:
                if not was_released:
                    self._failed(tablet_id, uuid, now)
            elif peer.voter:
                self._failures.get(tablet_id, {}).pop(uuid, None)
                self._doubted.succeeded(uuid)
            elif was_released:  # the order is on its way
                self._releasing[tablet_id, uuid] = None
        coming = tuple([peer.uuid for peer in members.non_voters])
        if coming:
            self._come[tablet_id] = coming

    def _failed(self, tablet_id: TabletId, uuid: ServerUuid, now: float) -> None:
        of_tablet = self._failures.setdefault(tablet_id, {})
        before = of_tablet.get(uuid)
        count = 0 if before is None else before.count
        pause_s = doubled_s(FIRST_PAUSE_S, count, LONGEST_PAUSE_S)
        of_tablet[uuid] = _Failure(count + 1, now + pause_s)
        self._doubted.failed(tablet_id, uuid, now)

    def failed(self, tablet_id: TabletId) -> dict[ServerUuid, float]:
        """The servers that were added in vain, and until when each is left alone."""
        return {uuid: each.until for uuid, each in self._failures.get(tablet_id, {}).items()}

    def known_failures(self) -> KnownFailures:
        """The same, with the servers that were added in vain to one tablet after the other."""
        return KnownFailures(self.failed, self.doubted())

    def doubted(self) -> dict[ServerUuid, float]:
        """The servers that were added in vain to several tablets, and until when each is paused."""
        return self._doubted.pauses()

    def is_vain(self, tablet_id: TabletId, move: ReplicaMove) -> bool:
        """Whether the target of a move was added in vain since this leader first saw the move.
        Earlier failures do not count: operators may want it tried once more."""
        failure = self._failures.get(tablet_id, {}).get(move.target)
        count = 0 if failure is None else failure.count
        known = self._moves.get(tablet_id)
        first = (move, count) if known is None or known[0] != move else known
        self._seen_moves[tablet_id] = first
        return count > first[1]

    def target(self, group: Group) -> ServerUuid | None:
        """The server that is to be added to a tablet's members, by the last order."""
        given = self._given.get(group.tablet.tablet_id)
        return given[1] if given is not None and given[0] == group.newest.op_id else None

    def keep(self, group: Group, target: ServerUuid) -> None:
        """It was told (again), or is being done."""
        self._kept[group.tablet.tablet_id] = group.newest.op_id, target

    def end_of_look(self, now: float) -> None:
        """What was not kept since the last end was not done, and is wanted no more."""
        self._given, self._kept = self._kept, {}
        self._moves, self._seen_moves = self._seen_moves, {}
        self._coming, self._come = self._come, {}
        self._released, self._releasing = self._releasing, {}
        self._doubted.prune(now)
        old = now - FORGOTTEN_AFTER_S
        for of_tablet in self._failures.values():
            for uuid in [uuid for uuid, each in of_tablet.items() if each.until <= old]:
                del of_tablet[uuid]
        self._failures = {i: of_tablet for i, of_tablet in self._failures.items() if of_tablet}


class Replacements:
    """One look's choices; each counts for the next."""

    def __init__(
        self,
        catalog: Catalog,
        liveness: Liveness,
        now: float,
        loads: Callable[[], list[Load]],
        limits: CopyLimits,
        additions: Additions,
        groups: Iterable[Group],
    ) -> None:
        """``groups``: all that are not at rest: copies are under way in no others."""
        self._catalog = catalog
        self._liveness = liveness
        self._now = now
        self._loads = loads
        self._limits = limits
        self._additions = additions
        self._receiving: dict[ServerUuid, int] = {}
        self._giving: dict[ServerUuid, int] = {}
        self._full: dict[ServerUuid, None] = {}
        self._beside: dict[TableId, dict[ServerUuid, int]] = {}
        self._wanted: list[Wanted] = []
        for group in groups:
            self._count(group)

    def _count(self, group: Group) -> None:
        """Who copies, or will: non-voters, and voters that were too far behind."""
        self._additions.look(group, self._now)
        receivers = {
            uuid: None for uuid, r in group.replicas.items() if r.group.role is ReplicaRole.COPYING
        }
        if group.tablet.state is TabletState.RUNNING:
            receivers |= {peer.uuid: None for peer in group.newest.non_voters}
        is_changing = group.leader is not None and group.leader.group.is_changing
        coming = self._additions.target(group)
        if coming is not None and is_changing:
            self._additions.keep(group, coming)
            receivers[coming] = None
        for uuid in receivers:
            self._receiving[uuid] = self._receiving.get(uuid, 0) + 1
        for uuid, replica in group.replicas.items():
            if replica.is_full:
                self._full[uuid] = None
        if group.leader is not None:
            source = group.leader.seen.server.uuid
            self._giving[source] = self._giving.get(source, 0) + len(receivers)

    # ---- the choice -------------------------------------------------------------------------

    def may_go_to(self, group: Group, uuid: ServerUuid) -> bool:
        """Whether a server can be given a replica of the tablet at all."""
        if group.configuration.peer(uuid) is not None or self._is_broken(group, uuid):
            return False
        return self._load_of(uuid) is not None

    def _is_broken(self, group: Group, uuid: ServerUuid) -> bool:
        replica = group.replicas.get(uuid)
        return replica is not None and replica.group.role is ReplicaRole.FAILED

    def spare(self, group: Group, but_not: Iterable[ServerUuid] = ()) -> Load | None:
        """The server that one is to be moved to, or the best for one more replica.

        Not one whose replica of it is broken, nor one whose disk is full, nor one of ``but_not``.
        Servers that were added in vain come last, and after a pause.
        """
        move = group.tablet.move
        if move is not None and self.may_go_to(group, move.target):
            return self._load_of(move.target)
        failed = self._additions.failed(group.tablet.tablet_id)
        paused = [uuid for uuid, until in failed.items() if self._now < until]
        best = self._best(group, [*failed, *but_not])
        return best or (self._best(group, [*paused, *but_not]) if failed else None)

    def has_spare(self, group: Group) -> bool:
        """Whether there is a server for one more replica, now or after a pause."""
        return self._best(group, ()) is not None

    def _best(self, group: Group, but_not: Iterable[ServerUuid]) -> Load | None:
        configuration = group.configuration
        taken: dict[ServerUuid, None] = {peer.uuid: None for peer in configuration.peers}
        taken |= {uuid: None for uuid in group.replicas if self._is_broken(group, uuid)}
        taken |= self._full | dict.fromkeys(but_not)
        live = [self._liveness.live_server(peer.uuid, self._now) for peer in configuration.peers]
        servers = [seen.server for seen in live if seen is not None]
        return choose_another(servers, taken, self._loads(), self._of_table(group.tablet.table_id))

    def _of_table(self, table_id: TableId) -> dict[ServerUuid, int]:
        """How many tablets of a table each server has; counted once in a look."""
        found = self._beside.get(table_id)
        if found is None:
            found = self._beside[table_id] = {}
            for tablet in self._catalog.tablets_of(table_id):
                for peer in tablet.configuration.peers if tablet.configuration is not None else ():
                    found[peer.uuid] = found.get(peer.uuid, 0) + 1
        return found

    # ---- how many ---------------------------------------------------------------------------

    def want(self, wanted: Wanted) -> None:
        """Have one more replica, if not now, then in a later look."""
        self._wanted.append(wanted)

    def begin(self) -> Iterator[tuple[Wanted, Load]]:
        """Those that begin now, and where; the others wait for a copy to end, or for a server.

        What was ordered in the last look, and is not done, comes first, and is the same again.
        """
        new: list[Wanted] = []
        for wanted in self._wanted:
            target = self._additions.target(wanted.group)
            load = self._load_of(target) if target is not None else None
            if load is None or not self.may_go_to(wanted.group, load.server.uuid):
                new.append(wanted)
            else:
                yield wanted, self._take(wanted, load)
        for wanted in sorted(new, key=lambda wanted: -wanted.lost):
            if not any(self._may_receive(load.server.uuid) for load in self._loads()):
                break
            source = wanted.leader.seen.server.uuid
            if self._giving.get(source, 0) >= self._limits.gives_max:
                continue
            load = self.spare(wanted.group)
            # A wait for a server that finishes no copy would be for nothing. It may be the best
            # for each tablet, as the only one on a node, or in a rack, that has none.
            busy = [u for u in self._additions.doubted() if not self._may_receive(u)]
            if load is not None and load.server.uuid in busy:
                load = self.spare(wanted.group, busy)
            if load is not None and self._may_receive(load.server.uuid):
                yield wanted, self._take(wanted, load)
            # else the best server is worth waiting for: others are on the wrong node

    def _take(self, wanted: Wanted, load: Load) -> Load:
        """Count it, so that the next choice knows."""
        source, target = wanted.leader.seen.server.uuid, load.server.uuid
        load.opening += 1
        load.tablets += 1
        self._receiving[target] = self._receiving.get(target, 0) + 1
        self._giving[source] = self._giving.get(source, 0) + 1
        beside = self._of_table(wanted.group.tablet.table_id)
        beside[target] = beside.get(target, 0) + 1
        self._additions.keep(wanted.group, target)
        return load

    def _load_of(self, uuid: ServerUuid) -> Load | None:
        return next((load for load in self._loads() if load.server.uuid == uuid), None)

    def _may_receive(self, uuid: ServerUuid) -> bool:
        return self._receiving.get(uuid, 0) < self._limits.receives_max


def leaves_by_move(group: Group, *, can_go: bool) -> ServerUuid | None:
    """Whose replica is moved elsewhere; nobody's while the other server can get none (``can_go``
    False), and has none: it must not be made on a third."""
    move = group.tablet.move
    if move is None:
        return None
    return move.source if can_go or group.newest.peer(move.target) is not None else None


def move_left(
    group: Group,
    liveness: Liveness,
    retiring: Container[ServerUuid],
    now: float,
    lost_s: float,
    *,
    is_vain: bool,
) -> ReplicaMove | None:
    """What is left of the tablet's move: None if the source is a member no more, or if it is given
    up, since the target is lost, retires, cannot hold the tablet, or was added in vain, and is no
    member. To add it again and again would leave the tablet with one move for ever.

    ``lost_s``: of silence. ``is_vain``: see `Additions.is_vain`.
    """
    move, members = group.tablet.move, group.newest
    if move is None or members.peer(move.source) is None:
        return None
    if members.peer(move.target) is not None:
        return move
    replica = group.replicas.get(move.target)
    is_broken = replica is not None and replica.group.role is ReplicaRole.FAILED
    is_lost = (
        liveness.live_server(move.target, now) is None
        and liveness.silent_s(move.target, now) >= lost_s
    )
    return None if is_broken or is_lost or is_vain or move.target in retiring else move
