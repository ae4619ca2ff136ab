"""What the leader should do now: a pure function of the catalog, what servers report, and the time.

Level-triggered: nothing is remembered of past events, so a new leader carries on where the old one
died, and an action that was lost is simply wanted again. Every action is idempotent. The only
memory is `Pacing`: what was tried a moment ago is not tried again at once.

A tablet's life, each arrow one catalog entry that compares the record's generation:

- CREATING or RECOVERING, owner live: the owner is told to open it; once it reports PREPARED in this
  term: -> RUNNING, and the owner is told to serve;
- owner dead, and surely not serving any more: -> a new owner in the next term, RECOVERING, or
  CREATING if it never ran (then nothing was acknowledged, and it starts empty);
- owner live but FAILED in this term, or no longer reporting what it should serve: the same;
- owner live but waiting in vain for servers that others reach, or not to be told anything: the
  same, after a while (`stelae.coordinator.backoff.owners`); what it serves it is told to close;
- owner dead while it opened the tablet, as the one before it: the same, after a pause that grows;
- CREATING for too long, whoever was given it: REPLACED, and a tablet with a new id is CREATING in
  its place, in one entry. Whatever of the old one turns up late is closed;
- DELETED or REPLACED: tservers are told to close it, backups to free it.

Tablets with ``replicas(n)`` have another life: `stelae.coordinator.decide_groups`.

Only what is not at rest is looked at (`stelae.coordinator.liveness.standing`): a look at a cluster
where nothing happens costs nothing per tablet. A live owner that has not yet told this leader what
it holds is waited for: it will, or it will be dead.

Source: seed Kudu multi-master (background tasks, heartbeat handling, appendix A); design §7, §9.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from stelae.coordinator.backoff.complaints import Complaints
from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl.alter import Alter, FinishAlter, alter_actions
from stelae.coordinator.ddl.succession import SuccessionAction, reports_of, succession_actions
from stelae.coordinator.decide_groups import GroupAction, GroupRound
from stelae.coordinator.decide_indexes import IndexAction, IndexRound
from stelae.coordinator.groups.group import absent_members, group_of
from stelae.coordinator.groups.replacements import CopyLimits
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Liveness, Run, Seen, run_of
from stelae.coordinator.liveness.standing import HAD, has_all_rows, knows_less, standing_of
from stelae.coordinator.moves.departures import Close
from stelae.coordinator.moves.planned_moves import planned_closes
from stelae.coordinator.placement.assignment import Load, beside_of, choose_members, choose_owners
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.coordinator.timelines.placement import first_timelines, fleet_of
from stelae.core.errors import NotEnoughServers
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ServerInfo, ServerKind, TabletRecord, TabletState
from stelae.core.records.timelines import TimelineConfiguration
from stelae.core.schema.durability import Durability, Replicas

LONGEST_CREATION = 6
"""The time allowed for a tablet's creation doubles with each attempt, so often at most."""


# ---- actions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """Give tablets of one table (back) to a server in a new term: one catalog entry."""

    table_id: TableId
    tablets: tuple[TabletRecord, ...]
    """The new records."""
    reasons: tuple[str, ...]
    failed_at: Mapping[TabletId, ServerUuid] = field(default_factory=dict)
    """Of those that failed at a living owner: which."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Put new tablets in the place of some that were not created in time: one catalog entry."""

    table_id: TableId
    stuck: tuple[TabletRecord, ...]
    """As they are now."""
    holders: tuple[tuple[ServerInfo, ...], ...]
    """Of each one's replacement: its owner, or the members of its group."""
    timelines: tuple[TimelineConfiguration, ...] = ()
    """Of a ``wal`` table: where the logs of the replacements are to be."""
    failed_at: Mapping[TabletId, tuple[ServerUuid, ...]] = field(default_factory=dict)
    """Of each of ``stuck``: the servers for which it could not be created."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """PREPARED tablets of a table become RUNNING, whole ones inherit no more: one catalog entry."""

    table_id: TableId
    tablets: tuple[TabletRecord, ...]
    """The new records."""


@dataclass(frozen=True, slots=True)
class Open:
    """Tell a CREATING tablet's owner to open it, empty."""

    tablet: TabletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class Recover:
    """Fence, plan, and tell a RECOVERING tablet's owner to open it with its sources."""

    tablet: TabletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class Serve:
    """Tell the owner of a RUNNING tablet that it may serve."""

    tablet: TabletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class Learn:
    """Tell the owner of a ``wal`` tablet who the safekeepers of its log are now."""

    tablet: TabletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fence a dead run of a tserver for good."""

    run: Run


Action: TypeAlias = (
    Move
    | Replace
    | HandOver
    | Open
    | Recover
    | Serve
    | Learn
    | Close
    | GiveUp
    | Alter
    | FinishAlter
    | GroupAction
    | SuccessionAction
    | IndexAction
)


COPY_LIMITS = CopyLimits(receives_max=2, gives_max=4)


# ---- deciding -------------------------------------------------------------------------------


def decide(
    catalog: Catalog,
    liveness: Liveness,
    pacing: Pacing,
    now: float,
    *,
    missing_after_s: float,
    creation_timeout_s: float = 30.0,
    replica_dead_after_s: float = 30.0,
    rebalance_after_s: float = 0.0,
    copy_limits: CopyLimits = COPY_LIMITS,
    indexlet_entries_max: int = 1 << 62,
) -> list[Action]:
    """Everything there is to do now, in the order in which to do it.

    ``missing_after_s``: how long a live owner may leave a RUNNING tablet out of its reports.
    ``creation_timeout_s``: how long the first attempt to create a tablet may take.
    ``replica_dead_after_s``, ``rebalance_after_s``: see `Settings`.
    ``copy_limits``: how many tablet copies each server receives and gives at a time.
    ``indexlet_entries_max``: an indexlet with more entries is split.
    """
    round_ = _Round(catalog, liveness, pacing, now, missing_after_s, creation_timeout_s)
    return round_.actions(
        replica_dead_after_s, rebalance_after_s, copy_limits, indexlet_entries_max
    )


class _Round:
    """One look at everything."""

    def __init__(
        self,
        catalog: Catalog,
        liveness: Liveness,
        pacing: Pacing,
        now: float,
        missing_after_s: float,
        creation_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._liveness = liveness
        self._pacing = pacing
        self._now = now
        self._missing_after_s = missing_after_s
        self._creation_timeout_s = creation_timeout_s
        self._live = {run_of(s): s for s in liveness.live(ServerKind.TSERVER, now)}
        self._waits: dict[TableId, list[tuple[TabletRecord, str]]] = {}
        self._stuck: dict[TableId, list[TabletRecord]] = {}
        self._ready: dict[TableId, list[TabletRecord]] = {}
        self._failed: dict[TabletId, ServerUuid] = {}
        self._orders: list[Action] = []
        self._given_up: dict[Run, None] = {}
        self._loads: list[Load] | None = None
        self._complaints: Complaints | None = None
        pacing.begin_round(now)
        pacing.sizes.forget(catalog.opening_tablets, now)

    def actions(
        self,
        replica_dead_after_s: float,
        rebalance_after_s: float,
        copy_limits: CopyLimits,
        indexlet_entries_max: int,
    ) -> list[Action]:
        self._given_up = {
            run: None
            for seen in self._liveness.newest_runs()
            if seen.server.kind is ServerKind.TSERVER
            and not self._liveness.is_live(run := run_of(seen), self._now)
            and not self._liveness.is_given_up(run)
            and self._has_to_go(seen)
        }
        self._note_creating()
        for owner in self._catalog.owners():
            run = Run(*owner)
            seen = self._live.get(run)
            if seen is None:
                self._note_death(run)
                for tablet in self._catalog.owned_by(*owner):
                    self._owner_not_heard(tablet, run)
            elif seen.picture.is_exact:
                for tablet_id in standing_of(self._catalog, seen).unsettled:
                    self._look_at(self._catalog.tablets[tablet_id], seen)
            else:
                for tablet in self._catalog.owned_by(*owner):
                    self._wait_for_report(tablet)
        groups = GroupRound(
            self._catalog,
            self._liveness,
            self._now,
            dead_after_s=replica_dead_after_s,
            rebalance_after_s=rebalance_after_s,
            unwell=self._pacing.unwell,
            is_stuck=self._is_stuck,
            loads=self._all_loads,
            limits=copy_limits,
            additions=self._pacing.additions,
            transfers=self._pacing.transfers,
        )
        of_groups = groups.actions()
        for tablet in groups.stuck:
            self._stuck.setdefault(tablet.table_id, []).append(tablet)
        if not self._waits:
            self._orders += self._planned_closes(may_even_out=groups.is_even)
        moves = [*self._replacements(), *self._moves()]
        hand_overs = [HandOver(table, tuple(ready)) for table, ready in self._ready.items()]
        of_indexes = self._of_indexes(indexlet_entries_max)
        reporters = self._liveness.reporters(self._now).of
        alters = alter_actions(self._catalog, self._live, reporters)
        reports = reports_of(self._live, reporters)
        choices = (self._all_loads, self._new_timelines, self._to_blame)
        successions = succession_actions(self._catalog, reports, *choices, self._pacing, self._now)
        orders = [*self._orders, *of_groups, *alters, *successions, *self._closes()]
        return [*map(GiveUp, self._given_up), *hand_overs, *moves, *of_indexes, *orders]

    def _note_creating(self) -> None:
        opening = self._catalog.opening_tablets()
        creating = [t.tablet_id for t in opening if t.state is TabletState.CREATING]
        self._pacing.creating(creating, self._now)
        for tablet_id in creating:  # also those with replicas, which have no owner to be looked at
            self._pacing.owners.unsettled(tablet_id, self._now)

    def _planned_closes(self, *, may_even_out: bool) -> list[Close]:
        """The tablet that is to leave its server by plan, if there is one."""
        where = (self._catalog, self._live, self._pacing.departures, self._all_loads, self._now)
        owners = self._pacing.owners
        known = KnownFailures(owners.avoid, owners.doubted())
        closes = planned_closes(*where, known, may_even_out=may_even_out)
        for close in closes:  # once it is closed, nobody reports how large it is
            seen = self._live.get(Run(close.server.uuid, close.server.incarnation))
            if seen is not None:
                report = seen.reports.get(close.tablet_id)
                self._pacing.sizes.note(close.tablet_id, report, self._now)
        return closes

    def _of_indexes(self, entries_max: int) -> list[IndexAction]:
        indexes = IndexRound(
            self._catalog,
            self._liveness,
            self._live,
            self._now,
            missing_after_s=self._missing_after_s,
            entries_max=entries_max,
            loads=self._all_loads,
            failed=self._pacing.indexlets,
        )
        actions = list(indexes.actions())
        self._given_up |= indexes.given_up
        return actions

    def _has_to_go(self, seen: Seen) -> bool:
        """It may own tablets, which go to others, or its host ended it. One that has only replicas,
        which need no lease of the masters, may be silent for a while and go on."""
        server = seen.server
        catalog, run = self._catalog, run_of(seen)
        if seen.announced_dead or catalog.count_owned(*run) or catalog.indexes.count_owned(*run):
            return True
        held = any(report.group is not None for report in seen.reports.values())
        return not held and not self._catalog.count_replicas(server.uuid)

    def _look_at(self, tablet: TabletRecord, seen: Seen) -> None:
        """At a tablet whose owner is live and has told what it holds."""
        self._pacing.owners.unsettled(tablet.tablet_id, self._now)
        report = seen.reports.get(tablet.tablet_id)
        if report is not None and report.term != tablet.term:
            report = None
        if self._is_stuck(tablet) and (report is None or report.progress not in HAD):
            self._stuck.setdefault(tablet.table_id, []).append(tablet)
        elif report is not None:
            self._reported(tablet, seen, report)
        elif reason := self._pacing.owners.given_up(tablet.tablet_id, tablet.term):
            self._give_up_owner(tablet, reason)
        elif tablet.state is not TabletState.RUNNING:
            if self._pacing.owners.is_untold(tablet.tablet_id, tablet.term, self._now):
                self._give_up_owner(tablet, f"{seen.server.name} cannot be told to open it")
            elif self._pacing.may_order(tablet.tablet_id, self._now):
                order = Open if tablet.state is TabletState.CREATING else Recover
                self._orders.append(order(tablet, seen.server))
        elif (departure := self._pacing.departures.of(tablet)) is not None:
            self._move(tablet, departure.reason)
        elif self._vanished(tablet, seen):
            self._move(tablet, f"{seen.server.name} no longer has it")

    def _wait_for_report(self, tablet: TabletRecord) -> None:
        """Its owner is live, and has not told this leader what it holds: but not for ever."""
        self._pacing.owners.unsettled(tablet.tablet_id, self._now)
        if self._is_stuck(tablet):
            self._stuck.setdefault(tablet.table_id, []).append(tablet)

    def _note_death(self, run: Run) -> None:
        """If an owner has died: what it was opening then may be what it died of."""
        if self._liveness.is_live(run, self._now):
            return
        seen = self._liveness.find(run)
        owned = sorted(self._catalog.owned_by(*run), key=lambda t: (t.table_id, t.number))
        opening = []
        for tablet in owned:
            report = None if seen is None else seen.reports.get(tablet.tablet_id)
            if report is not None and report.term == tablet.term and has_all_rows(report):
                self._pacing.owners.was_open(tablet.tablet_id)
            else:
                opening.append((tablet.tablet_id, tablet.term))
        if seen is None or not seen.heartbeat.ends_by_order:
            self._pacing.owners.ended(run.uuid, opening, self._now)

    def _owner_not_heard(self, tablet: TabletRecord, run: Run) -> None:
        """Its owner is dead, or was never heard by this master: is it surely not serving?"""
        self._pacing.owners.unsettled(tablet.tablet_id, self._now)
        if self._is_stuck(tablet):
            self._stuck.setdefault(tablet.table_id, []).append(tablet)
        elif not tablet.owner:
            self._move(tablet, "it has no owner yet")
        elif self._liveness.is_live(run, self._now):
            return  # not heard yet: it may be talking to the other masters
        elif not self._pacing.owners.may_open(tablet.tablet_id, self._now):
            return  # the next owner might die of it as well
        elif not tablet.may_be_served or self._now >= self._liveness.free_at(run):
            seen = self._liveness.find(run)
            if seen is None:  # it might speak for the first time before the entry is committed
                self._given_up[run] = None
            name = seen.server.name if seen is not None else run.uuid
            self._move(tablet, f"{name} is dead")

    def _reported(self, tablet: TabletRecord, seen: Seen, report: TabletReport) -> None:
        """Its live owner speaks of it, in the right term."""
        self._pacing.owners.told(tablet.tablet_id)  # also if no answer to the order was heard
        if knows_less(tablet, report):
            self._orders.append(Learn(tablet, seen.server))
        waits_in_vain = self._waits_in_vain(tablet, report)
        if report.progress is TabletProgress.FAILED:
            if self._pacing.owners.may_move(tablet.tablet_id, self._now):
                self._give_up_owner(tablet, f"{seen.server.name} gave it up: {report.problem}")
        elif waits_in_vain:
            reason = f"{seen.server.name} does not reach what others do: {report.problem}"
            if tablet.may_be_served:  # it answers by its lease, until it has closed it
                self._pacing.owners.give_up(tablet.tablet_id, tablet.term, reason, self._now)
                self._pacing.sizes.note(tablet.tablet_id, report, self._now)
                self._orders.append(Close(seen.server, tablet.tablet_id, tablet.term))
            else:
                self._give_up_owner(tablet, reason)
        elif tablet.state is TabletState.RUNNING:
            if report.progress is TabletProgress.PREPARED:
                self._orders.append(Serve(tablet, seen.server))
            elif tablet.inherits is not None and report.is_whole:
                whole = replace(tablet, inherits=None, generation=tablet.generation + 1)
                self._ready.setdefault(tablet.table_id, []).append(whole)
        elif report.progress in HAD:
            self._pacing.owners.opened(tablet.owner)
            mark = max(
                (tablet.valid_segment, tablet.valid_epoch),
                (report.head_segment, 0),
            )
            self._ready.setdefault(tablet.table_id, []).append(
                replace(
                    tablet,
                    state=TabletState.RUNNING,
                    valid_segment=mark[0],
                    valid_epoch=mark[1],
                    kept=None,
                    generation=tablet.generation + 1,
                )
            )

    def _waits_in_vain(self, tablet: TabletRecord, report: TabletReport) -> bool:
        """Whether its owner has waited for long for servers that others reach."""
        if tablet.state is TabletState.CREATING or not report.unreached:
            return False
        if self._complaints is None:
            self._complaints = Complaints(self._catalog, self._liveness, self._now)
        is_vain = self._complaints.waits_in_vain
        if not is_vain(report.unreached, tablet.owner, serves=tablet.may_be_served):
            return False
        return self._pacing.owners.waits_in_vain(tablet.tablet_id, tablet.term, self._now)

    def _give_up_owner(self, tablet: TabletRecord, reason: str) -> None:
        """It failed where it is, and goes elsewhere."""
        self._move(tablet, reason)
        self._failed[tablet.tablet_id] = tablet.owner

    def _is_stuck(self, tablet: TabletRecord) -> bool:
        """It has been CREATING for too long, whoever was given it."""
        if tablet.state is not TabletState.CREATING:
            return False
        allowed_s = self._creation_timeout_s * (1 << min(tablet.attempt, LONGEST_CREATION))
        return self._pacing.created_for_s(tablet.tablet_id, self._now) >= allowed_s

    def _vanished(self, tablet: TabletRecord, seen: Seen) -> bool:
        """A live owner has left a RUNNING tablet out of its reports for long, or was told to."""
        if self._catalog.mark(seen.server.uuid).retiring:
            return True
        picture = seen.picture
        since = picture.vanished_at.get(tablet.tablet_id, picture.exact_since)
        return self._now >= since + self._missing_after_s

    def _move(self, tablet: TabletRecord, reason: str) -> None:
        seen = self._liveness.find(Run(tablet.owner, tablet.owner_incarnation))
        report = None if seen is None else seen.reports.get(tablet.tablet_id)
        if report is not None and report.term == tablet.term:
            self._pacing.sizes.note(tablet.tablet_id, report, self._now)
        self._waits.setdefault(tablet.table_id, []).append((tablet, reason))

    def _replacements(self) -> list[Action]:
        """New tablets for those that could not be created, best not where that was tried."""
        found: list[Action] = []
        for (table_id, durability), stuck in self._stuck_alike():
            failed_at = {each.tablet_id: self._to_blame(each) for each in stuck}
            avoid = {i: self._avoided_by(i, at) for i, at in failed_at.items()}
            if isinstance(durability, Replicas):
                holders = self._choose_members(table_id, stuck, durability.count, avoid)
            else:
                owners = self._choose(table_id, stuck, avoid)
                holders = {tablet_id: (owner,) for tablet_id, owner in owners.items()}
            failed = [avoid[each.tablet_id] for each in stuck]
            timelines = self._new_timelines(durability, failed) if holders else None
            if timelines is not None:
                chosen = tuple(holders[tablet.tablet_id] for tablet in stuck)
                found.append(Replace(table_id, tuple(stuck), chosen, timelines, failed_at))
        return found

    def _to_blame(self, tablet: TabletRecord) -> tuple[ServerUuid, ...]:
        """The servers for which a tablet could not be created: its owner, and the safekeepers that
        this one does not reach; or members of its group."""
        if tablet.configuration is None:
            seen = self._live.get(Run(tablet.owner, tablet.owner_incarnation))
            report = None if seen is None else seen.reports.get(tablet.tablet_id)
            is_its = report is not None and report.term == tablet.term
            unreached = report.unreached if report is not None and is_its else ()
            return (tablet.owner, *unreached) if tablet.owner else unreached
        group = group_of(tablet, self._liveness.reporters(self._now).of.get(tablet.tablet_id, ()))
        return absent_members(group)

    def _stuck_alike(self) -> Iterable[tuple[tuple[TableId, Durability], list[TabletRecord]]]:
        """While a table's durability is altered, not all of its tablets have the same."""
        alike: dict[tuple[TableId, Durability], list[TabletRecord]] = {}
        for table_id, stuck in self._stuck.items():
            for tablet in stuck:
                durability = self._catalog.tables[table_id].durability_of(tablet)
                alike.setdefault((table_id, durability), []).append(tablet)
        return alike.items()

    def _new_timelines(
        self, durability: Durability, avoid: Sequence[Mapping[ServerUuid, float]]
    ) -> tuple[TimelineConfiguration, ...] | None:
        """For the logs of new tablets, if they need any; None: too few safekeepers. ``avoid``: of
        each tablet, the servers with which one like it failed."""
        fleet = fleet_of(self._catalog, self._liveness, self._now)
        try:
            return first_timelines(
                self._catalog,
                fleet,
                durability,
                len(avoid),
                what="a tablet",
                now=self._now,
                silence_s=self._missing_after_s,
                avoid=avoid,
            )
        except NotEnoughServers:
            return None

    def _choose_members(
        self,
        table_id: TableId,
        stuck: Sequence[TabletRecord],
        count: int,
        avoid: Mapping[TabletId, Mapping[ServerUuid, float]],
    ) -> dict[TabletId, tuple[ServerInfo, ...]]:
        """Members of groups of one table; empty if there are too few live servers."""
        leaving = {tablet.tablet_id: None for tablet in stuck}
        beside = self._beside(table_id, leaving)
        try:
            return choose_members(list(leaving), self._all_loads(), count, beside, avoid)
        except NotEnoughServers:
            return {}

    def _moves(self) -> list[Action]:
        """Choose new owners. Without any live tserver everything waits."""
        moves: list[Action] = []
        failed = {tablet_id: (owner,) for tablet_id, owner in self._failed.items()}
        avoid = {
            tablet.tablet_id: self._avoided_by(tablet.tablet_id, failed.get(tablet.tablet_id, ()))
            for waiting in self._waits.values()
            for tablet, _ in waiting
        }
        for table_id, waiting in self._waits.items():
            tablets = [tablet for tablet, _ in waiting]
            owners = self._choose(table_id, tablets, avoid)
            if not owners:
                continue
            records = tuple(moved(tablet, owners[tablet.tablet_id]) for tablet in tablets)
            crowded = self._crowded(owners)
            reasons = tuple(reason + crowded.get(t.tablet_id, "") for t, reason in waiting)
            failed_at = {i: self._failed[i] for i in owners if i in self._failed}
            moves.append(Move(table_id, records, reasons, failed_at))
        return moves

    def _crowded(self, owners: Mapping[TabletId, ServerInfo]) -> dict[TabletId, str]:
        """What to tell people of tablets whose new owners have too little memory for them."""
        loads = {load.server.uuid: load for load in self._all_loads()}
        sizes = {tablet_id: self._pacing.sizes.of(tablet_id) for tablet_id in owners}
        return {
            tablet_id: f"; {owner.name} lacks memory for its {sizes[tablet_id]} bytes, and no "
            "better tserver lives: add tservers, or give them more memory"
            for tablet_id, owner in owners.items()
            if sizes[tablet_id] and loads[owner.uuid].room_bytes < 0
        }

    def _avoided_by(
        self, tablet_id: TabletId, failed: Iterable[ServerUuid]
    ) -> dict[ServerUuid, float]:
        """The servers where a tablet failed, and until when each is paused. ``failed``: where it
        failed just now."""
        avoid = dict(self._pacing.owners.avoid(tablet_id))
        for uuid in failed:
            avoid[uuid] = math.inf  # the last of all: the pause begins with the entry of this move
        return avoid

    def _choose(
        self,
        table_id: TableId,
        tablets: Iterable[TabletRecord],
        avoid: Mapping[TabletId, Mapping[ServerUuid, float]],
    ) -> dict[TabletId, ServerInfo]:
        """Owners of tablets of one table, apart from its others; empty if there is nobody."""
        leaving = {tablet.tablet_id: tablet for tablet in tablets}
        beside = self._beside(table_id, leaving)
        found = {i: self._pacing.departures.of(tablet) for i, tablet in leaving.items()}
        wishes = {i: each.target for i, each in found.items() if each and each.target}
        sizes = {tablet_id: self._pacing.sizes.of(tablet_id) for tablet_id in leaving}
        try:
            return choose_owners(list(leaving), self._all_loads(), avoid, beside, wishes, sizes)
        except NotEnoughServers:
            return {}

    def _beside(self, table_id: TableId, but: Container[TabletId]) -> dict[ServerUuid, int]:
        """How many other tablets of a table each server has."""
        return beside_of(t for t in self._catalog.tablets_of(table_id) if t.tablet_id not in but)

    def _all_loads(self) -> list[Load]:
        """What live tservers carry; whoever chooses counts into it."""
        if self._loads is None:
            sizes = self._pacing.sizes
            self._loads = tserver_loads(self._catalog, self._live.values(), sizes)
        return self._loads

    def _closes(self) -> Iterable[Action]:
        """What live tservers hold and should not: tablets given away, deleted, or replaced."""
        for seen in self._live.values():
            if seen.picture.reports:
                for tablet_id, term in standing_of(self._catalog, seen).closes:
                    yield Close(seen.server, tablet_id, term)


def moved(tablet: TabletRecord, owner: ServerInfo) -> TabletRecord:
    """The record that gives a tablet to ``owner`` in the next term."""
    never_ran = tablet.state is TabletState.CREATING
    return replace(
        tablet,
        state=TabletState.CREATING if never_ran else TabletState.RECOVERING,
        term=tablet.term + 1,
        owner=owner.uuid,
        owner_incarnation=owner.incarnation,
        generation=tablet.generation + 1,
    )


def note_replaced(catalog: Catalog, pacing: Pacing, action: Replace, now: float) -> None:
    """Remember where tablets could not be created, once their replacements are in the catalog,
    which inherit that. One that was given up meanwhile, as the successor of another, has none."""
    for old in action.stuck:
        gone = catalog.tablets.get(old.tablet_id)
        new = None if gone is None else catalog.tablets.get(gone.replaced_by)
        if new is not None and new.attempt == old.attempt + 1:
            pacing.owners.failed(old.tablet_id, action.failed_at[old.tablet_id], now)
            pacing.owners.inherit(old.tablet_id, [new.tablet_id], now)
