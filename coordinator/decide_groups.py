"""What the leader master should do now about tablets with ``replicas(n)``: part of `decide`.

Level-triggered, as all of it. Of each tablet that is not at rest:

- CREATING: each of the first members that is live and does not report it is told to create it.
  Once one leads and a majority says that it takes part: -> RUNNING. Too long without a leader:
  replaced, by the caller. Nobody is told where its replicas are before it runs, so nothing was ever
  written to a tablet that is replaced;
- a newer committed configuration is reported: it becomes the catalog's. All such records of one
  look are one entry;
- DELETED or REPLACED, and reported: whoever reports it is told to delete it for ever. A server no
  longer reports what it has deleted for ever;
- a server has a replica and is no member, by a configuration that is the catalog's and the
  leader's: it is told to delete it. It refuses if it knows a newer one (compare-and-set);
- otherwise at most one step of healing (`stelae.coordinator.groups.healing`), for the tablet's
  leader to do, if the committed configuration is still the one it was decided from. Who is well is
  said by `stelae.coordinator.groups.health`; where replicas are made anew, and how many at
  a time, by `stelae.coordinator.groups.replacements`.

A replica of a tablet that the catalog does not know is left alone.

Source: seed Kudu tablet copy (the master adds and removes peers and keeps no state of it);
seed Kudu multi-master, appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from stelae.coordinator.backoff.transfers import Transfers
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl.alter import told
from stelae.coordinator.groups.group import Group, Replica, group_of, is_at_rest
from stelae.coordinator.groups.healing import Add, Evict, HandOn, Health, Member, next_step
from stelae.coordinator.groups.health import Judge, Unwell, is_marked
from stelae.coordinator.groups.replacements import (
    Additions,
    CopyLimits,
    Replacements,
    Wanted,
    leaves_by_move,
    move_left,
)
from stelae.coordinator.groups.spreading import layout_of
from stelae.coordinator.groups.spreading import next_step as spread
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.placement.assignment import Load
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import (
    ChangeKind,
    ChangeReplicas,
    CreateReplica,
    DeleteReplica,
    TransferLeadership,
)
from stelae.core.messages.servers import ReplicaRole
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove, ServerInfo, TabletRecord, TabletState
from stelae.core.records.replication import Configuration
from stelae.core.schema.durability import Replicas

UPDATES_MAX = 1000
"""Records of one catalog entry; the next look brings the rest."""


@dataclass(frozen=True, slots=True)
class UpdateGroups:
    """Take over what leaders report: configurations, and that tablets run. One catalog entry."""

    tablets: tuple[TabletRecord, ...]
    """The new records."""


@dataclass(frozen=True, slots=True)
class Create:
    """Tell a first member to create its replica."""

    server: ServerInfo
    order: CreateReplica


@dataclass(frozen=True, slots=True)
class Delete:
    """Tell a server to delete its replica."""

    server: ServerInfo
    order: DeleteReplica


@dataclass(frozen=True, slots=True)
class Change:
    """Tell a tablet's leader to change its members by one."""

    leader: ServerInfo
    order: ChangeReplicas
    reason: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Tell a tablet's leader to make another the leader."""

    leader: ServerInfo
    order: TransferLeadership
    term: int
    """The one in which it leads."""


GroupAction: TypeAlias = UpdateGroups | Create | Delete | Change | Transfer


@dataclass(frozen=True, slots=True)
class _AtRest:
    """What of the reports of one moment there is to look at, as of one state of the catalog."""

    applied: int
    unsettled: tuple[TabletId, ...]


class GroupRound:
    """One look at all tablets with replicas."""

    def __init__(
        self,
        catalog: Catalog,
        liveness: Liveness,
        now: float,
        *,
        dead_after_s: float,
        rebalance_after_s: float,
        unwell: Unwell,
        is_stuck: Callable[[TabletRecord], bool],
        loads: Callable[[], list[Load]],
        limits: CopyLimits,
        additions: Additions,
        transfers: Transfers,
    ) -> None:
        """``dead_after_s``: how long a server is not heard before its replicas are replaced.

        ``loads`` is asked for when a server has to be chosen; the choice is counted in.
        """
        self.stuck: list[TabletRecord] = []
        """Not created in time: the caller puts new ones in their place."""
        self.is_even = False
        """It was time to spread replicas and leaders more evenly, and they are even enough."""
        self._catalog = catalog
        self._liveness = liveness
        self._now = now
        self._dead_after_s = dead_after_s
        self._rebalance_after_s = rebalance_after_s
        self._unwell = unwell
        self._is_stuck = is_stuck
        self._loads = loads
        self._limits = limits
        self._additions = additions
        self._transfers = transfers
        self._retiring = {u: None for u, mark in catalog.marks.items() if mark.retiring}
        self._judge = Judge(liveness, unwell, catalog.mark, now, dead_after_s)
        self._reporters = liveness.reporters(now)
        self._updates: list[TabletRecord] = []
        self._orders: list[GroupAction] = []

    def actions(self) -> list[GroupAction]:
        """Everything there is to do; entries first."""
        self._look_at_transfers()
        unsettled = [self._catalog.tablets[tablet_id] for tablet_id in self._unsettled()]
        groups = [
            group_of(tablet, self._reporters.of.get(tablet.tablet_id, ())) for tablet in unsettled
        ]
        self._replacements = Replacements(
            self._catalog,
            self._liveness,
            self._now,
            self._loads,
            self._limits,
            self._additions,
            groups,
        )
        for group in groups:
            if group.tablet.state.is_gone:
                self._delete_all(group.tablet)
            else:
                self._look_at(group)
        for wanted, load in self._replacements.begin():
            self._add(wanted.group, wanted.leader, load.server)
        self._additions.end_of_look(self._now)
        self._unwell.end_of_look(self._now, self._dead_after_s)
        self._spread(is_calm=not unsettled)
        updates = self._updates[:UPDATES_MAX]
        first: list[GroupAction] = [UpdateGroups(tuple(updates))] if updates else []
        return [*first, *self._orders]

    def _look_at_transfers(self) -> None:
        """See what became of orders to hand over; their tablets may be at rest."""
        for tablet_id in self._transfers.pending():
            tablet = self._catalog.tablets.get(tablet_id)
            leader = None
            if tablet is not None and not tablet.state.is_gone:
                leader = group_of(tablet, self._reporters.of.get(tablet_id, ())).leader
            if leader is None:
                self._transfers.look(tablet_id, None, 0, 0.0, self._now)
            else:
                seen = leader.seen
                about = (seen.server.uuid, leader.report.term, seen.heard_at)
                self._transfers.look(tablet_id, *about, self._now)
        for tablet_id in self._transfers.take_missed():
            self._unwell.calm.cooling.forget(tablet_id)

    def _unsettled(self) -> Sequence[TabletId]:
        """Tablets to look at; found once for each state of catalog and reports."""
        known = self._reporters.at_rest
        if isinstance(known, _AtRest) and known.applied == self._catalog.applied:
            return known.unsettled
        found = [
            tablet.tablet_id
            for tablet in self._catalog.groups()
            if self._is_marked(tablet)
            or not is_at_rest(
                group_of(tablet, self._reporters.of.get(tablet.tablet_id, ())),
                self._wanted(tablet),
            )
        ]
        tablets = self._catalog.tablets
        held = (tablets.get(tablet_id) for tablet_id in self._reporters.of)
        found += [t.tablet_id for t in held if t is not None and t.is_group and t.state.is_gone]
        self._reporters.at_rest = _AtRest(self._catalog.applied, tuple(found))
        return found

    def _is_marked(self, tablet: TabletRecord) -> bool:
        """One of its servers is to be left, or in maintenance."""
        marks = self._catalog.marks
        if not marks or tablet.configuration is None:
            return False
        return any(p.uuid in marks and is_marked(marks[p.uuid]) for p in tablet.configuration.peers)

    def _wanted(self, tablet: TabletRecord) -> int:
        durability = self._catalog.tables[tablet.table_id].durability_of(tablet)
        assert isinstance(durability, Replicas), f"{tablet.tablet_id} has replicas"
        return durability.count

    def _look_at(self, group: Group) -> None:
        tablet = group.tablet
        if tablet.state is TabletState.CREATING:
            if group.leader is None and self._is_stuck(tablet):
                self.stuck.append(tablet)
                return
            self._create(group)
        update = self._updated(group)
        if update is not None:
            self._updates.append(update)
        elif tablet.state is TabletState.RUNNING and group.leader is not None:
            self._care(group, group.leader)
        elif tablet.state is TabletState.RUNNING:
            self._create_absent(group)

    # ---- creating and deleting --------------------------------------------------------------

    def _create(self, group: Group) -> None:
        """Only while its members are the first ones: later ones get a copy from their leader."""
        configuration = group.configuration
        if configuration.op_id.index or group.newest.op_id.index:
            return
        self._create_at(group, [peer.uuid for peer in configuration.peers], configuration)

    def _create_absent(self, group: Group) -> None:
        """Nobody leads, and a voter has nothing: it was not there when the tablet was created, and
        no leader could have it copied since. Empty it has what it ever had, and may vote."""
        members = msgspec.structs.replace(group.newest, op_id=OpId(0, 0))  # before its log's first
        self._create_at(group, members.voters, members)

    def _create_at(
        self, group: Group, uuids: Sequence[ServerUuid], configuration: Configuration
    ) -> None:
        """On those of these servers that surely have nothing of it."""
        table = told(self._catalog, group.tablet)
        for uuid in uuids:
            seen = self._liveness.live_server(uuid, self._now)
            if seen is not None and seen.picture.is_exact and uuid not in group.replicas:
                order = CreateReplica(group.tablet.tablet_id, table, configuration)
                self._orders.append(Create(seen.server, order))

    def _delete_all(self, tablet: TabletRecord) -> None:
        """Of a tablet that the catalog says is gone."""
        for seen in self._reporters.of.get(tablet.tablet_id, ()):
            order = DeleteReplica(tablet.tablet_id, True, OpId(0, 0))
            self._orders.append(Delete(seen.server, order))

    def _delete_former(self, group: Group, leader: Replica) -> None:
        """Replicas of servers that are members no more, by what catalog and leader agree on,
        which is the newest that anybody reports."""
        agreed = group.configuration
        for uuid, replica in group.replicas.items():
            if replica.group.role is ReplicaRole.TOMBSTONE or agreed.peer(uuid) is not None:
                continue
            tablet_id = group.tablet.tablet_id
            order = DeleteReplica(tablet_id, False, agreed.op_id, leader.report.term)
            self._orders.append(Delete(replica.seen.server, order))

    # ---- healing ----------------------------------------------------------------------------

    def _care(self, group: Group, leader: Replica) -> None:
        """The catalog has the newest configuration that is known: is it as it should be?"""
        if leader.group.configuration != group.configuration or leader.group.is_changing:
            return
        self._delete_former(group, leader)
        move, places = group.tablet.move, self._replacements
        can_go = move is not None and places.may_go_to(group, move.target)
        leaves = leaves_by_move(group, can_go=can_go)
        refused = self._transfers.avoid(group.tablet.tablet_id)
        members = self._judge.members(group, leader, leaves, refused)
        wanted = self._wanted(group.tablet)
        if sum(member.voter for member in members) > wanted:
            members = self._with_burdens(members)
        uuid = leader.seen.server.uuid
        is_broken = any(member.health is Health.BROKEN for member in members)
        has_spare = not is_broken or places.has_spare(group)
        step = next_step(members, uuid, wanted, has_spare=has_spare, now=self._now)
        match step:
            case Add():
                lost = sum(member.voter and member.is_lost for member in members)
                self._replacements.want(Wanted(group, leader, lost))
            case Evict(victim, reason):
                if any(m.uuid == victim and not m.voter and not m.is_lost for m in members):
                    self._additions.release(group.tablet.tablet_id, victim)
                self._evict(group, leader, victim, reason)
            case HandOn(target):
                self._transfer(group.tablet.tablet_id, leader, target)
            case None:
                pass

    def _transfer(self, tablet_id: TabletId, leader: Replica, target: ServerUuid) -> None:
        order = TransferLeadership(tablet_id, target)
        self._orders.append(Transfer(leader.seen.server, order, leader.report.term))

    def _with_burdens(self, members: Sequence[Member]) -> list[Member]:
        """The members, and how badly each is placed."""
        places: dict[ServerUuid, Place] = {}
        for member in members:
            seen = self._liveness.live_server(member.uuid, self._now)
            if seen is not None:
                places[member.uuid] = seen.server.place

        def crowd(uuid: ServerUuid) -> tuple[int, int]:
            others = [places[other] for other in places if other != uuid]
            return places[uuid].crowd(others) if uuid in places else (0, 0)

        return [
            replace(
                member,
                burden=(*crowd(member.uuid), self._catalog.count_replicas(member.uuid)),
            )
            for member in members
        ]

    # ---- spreading --------------------------------------------------------------------------

    def _spread(self, *, is_calm: bool) -> None:
        """Begin one move, or hand one leadership on, if nothing else has been to do for long."""
        calm, now = self._unwell.calm, self._now
        if not calm.is_over(now, self._rebalance_after_s, is_calm=is_calm):
            return
        layout = layout_of(self._catalog, self._liveness, now, self._loads())
        step = None
        if layout is not None:
            failed = self._additions.known_failures(), self._transfers.known_failures()
            step = spread(layout, calm.cooling, now, *failed)
        if layout is None or step is None:
            self.is_even = layout is not None
            return
        tablet_id, what = step
        if isinstance(what, ReplicaMove):
            old = self._catalog.tablets[tablet_id]
            moved = msgspec.structs.replace(old, move=what, generation=old.generation + 1)
            self._updates.append(moved)
        else:
            self._transfer(tablet_id, layout.leaders[tablet_id], what)

    def _add(self, group: Group, leader: Replica, server: ServerInfo) -> None:
        order = ChangeReplicas(
            group.tablet.tablet_id,
            ChangeKind.ADD,
            server.uuid,
            server.address,
            server.name,
            group.configuration.op_id,
        )
        reason = f"{server.name} is to hold a replica in the place of one that is lost or leaves"
        self._orders.append(Change(leader.seen.server, order, reason))

    def _evict(self, group: Group, leader: Replica, victim: ServerUuid, reason: str) -> None:
        peer = group.configuration.peer(victim)
        assert peer is not None, "members are evicted"
        order = ChangeReplicas(
            group.tablet.tablet_id,
            ChangeKind.REMOVE,
            victim,
            peer.address,
            peer.name,
            group.configuration.op_id,
        )
        self._orders.append(Change(leader.seen.server, order, f"{peer.name or victim}: {reason}"))

    def _updated(self, group: Group) -> TabletRecord | None:
        """The record as it should be by the reports; None if it is so."""
        tablet = group.tablet
        newest: Configuration = group.newest
        runs = tablet.state is TabletState.RUNNING
        if not runs and group.leader is not None and group.has_majority:
            runs = True
        state = TabletState.RUNNING if runs else tablet.state
        is_vain = tablet.move is not None and self._additions.is_vain(tablet.tablet_id, tablet.move)
        where = (group, self._liveness, self._retiring, self._now, self._dead_after_s)
        move = move_left(*where, is_vain=is_vain)
        if (state, newest, move) == (tablet.state, tablet.configuration, tablet.move):
            return None
        return msgspec.structs.replace(
            tablet, state=state, configuration=newest, move=move, generation=tablet.generation + 1
        )
