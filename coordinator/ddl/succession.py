"""How a table gets another durability: tablet by tablet, each gives way to a successor. Pure.

Level-triggered, as `stelae.coordinator.decide` is; a new leader goes on from catalog and
reports:

- a tablet that has the former durability, and runs: a **successor** is made for it, with a new id
  and the new durability, which nobody finds, where there is memory for its rows
  (`stelae.coordinator.ddl.successor_rooms`). `SUCCESSIONS_MAX` tablets of the cluster at a
  time;
- the successor runs: the tablet's owner, or its leader, is told to bring everything over;
- it says that the successor has everything, and that it answers nobody any more (CLOSED): the
  successor takes its place. That entry is the commit point; before it everything can be taken back;
- it says that the successor cannot be brought up to date, or the successor does not run once the
  tablet is CLOSED: the successor is given up, the tablet is told so, and another one is made;
- nothing can be brought over for `STUCK_S`, as the successor's server has no memory for it any more
  or the source is loading rows: the same, after a pause that grows; and what is stuck leaves its
  turn to others before;
- all tablets have the new durability: so does the table, which is RUNNING again.

What an owner says holds for its term: the entry compares the record that names it. What a group's
log says holds for good. Only whom the catalog has given up a tablet is told to release.

A second alter back to the former durability takes the first one back: tablets not yet changed are
as they should be, the others change again. Source: `docs/decisions.md`, §34.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.backoff.successions import IDLE_S, STUCK_S, SuccessionPacing
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.successor_rooms import (
    NoMemory,
    SuccessorRooms,
    holders_of,
)
from stelae.coordinator.ddl.tables import given_up, new_tablet
from stelae.coordinator.groups.group import group_of
from stelae.coordinator.liveness.liveness import Run, Seen
from stelae.coordinator.placement.assignment import Load, beside_of
from stelae.coordinator.placement.tablet_sizes import live_bytes
from stelae.core.errors import InvalidArgument, NotEnoughServers
from stelae.core.ids import ServerUuid, TabletId, make_uuid
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import (
    ServerInfo,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.succession import SuccessionReport, SuccessionStage, TransferTablet
from stelae.core.records.timelines import TimelineConfiguration
from stelae.core.schema.durability import Durability, Replicas

SUCCESSIONS_MAX = 2
"""Tablets that give way at a time: each is in memory twice, and is copied over the network."""

ReportOf: TypeAlias = Callable[[TabletRecord], tuple[Seen | None, TabletReport | None]]
"""A tablet's live owner, or leader, and what it says of it in its present term."""
NewTimelines: TypeAlias = Callable[
    [Durability, Sequence[Mapping[ServerUuid, float]]], tuple[TimelineConfiguration, ...] | None
]
"""For the logs of new tablets, if they need any; None: too few safekeepers. Of each tablet it is
given the servers where one like it failed."""
ToBlame: TypeAlias = Callable[[TabletRecord], tuple[ServerUuid, ...]]
"""The servers by whose fault a tablet in creation does not run."""


@dataclass(frozen=True, slots=True)
class BeginSuccession:
    """Make a successor for a tablet: one catalog entry."""

    tablet: TabletRecord
    holders: tuple[ServerInfo, ...]
    """Of the successor: its owner, or the members of its group."""
    durability: Durability
    timelines: tuple[TimelineConfiguration, ...]


@dataclass(frozen=True, slots=True)
class OrderTransfer:
    """Tell a tablet's owner, or leader, for whom to make way, or for whom no more."""

    server: ServerInfo
    order: TransferTablet


@dataclass(frozen=True, slots=True)
class Swap:
    """The successor takes the tablet's place: one catalog entry."""

    tablet: TabletRecord
    successor: TabletRecord


@dataclass(frozen=True, slots=True)
class GiveUpSuccessor:
    """It will never take the tablet's place: one catalog entry."""

    successor: TabletRecord
    reason: str


SuccessionAction: TypeAlias = BeginSuccession | OrderTransfer | Swap | GiveUpSuccessor


# ---- the alter ------------------------------------------------------------------------------


def with_durability(catalog: Catalog, table: TableRecord, wanted: Durability) -> CatalogBatch:
    """The table as it is to become, and its tablets where that changes them.

    Raises:
        InvalidArgument: it is being altered, to something else.
    """
    if table.becoming is None:
        if table.state is not TableState.RUNNING:
            raise InvalidArgument(
                f"table {table.name!r} is being altered: wait until that is done, and give it "
                f"{wanted} then"
            )
        return CatalogBatch((_becoming(table, table.durability, wanted),))
    if wanted == table.becoming:
        return CatalogBatch((msgspec.structs.replace(table, generation=table.generation + 1),))
    if wanted != table.durability:
        raise InvalidArgument(
            f"table {table.name!r} changes from {table.durability} to {table.becoming}: wait until "
            f"that is done, or alter it back to {table.durability}"
        )
    changed = _becoming(table, table.becoming, wanted)
    tablets: list[TabletRecord] = []
    for tablet in catalog.tablets_of(table.table_id):
        successor = catalog.successor_of(tablet.tablet_id)
        if successor is not None:
            tablets.append(given_up(successor))
        if not table.has_changed(tablet):
            # It keeps its count, by which its index entries are stamped; but who has decided
            # something about it by now meets another generation.
            tablets.append(msgspec.structs.replace(tablet, generation=tablet.generation + 1))
    return CatalogBatch((changed,), tuple(tablets))


def _becoming(table: TableRecord, before: Durability, after: Durability) -> TableRecord:
    return msgspec.structs.replace(
        table,
        durability=before,
        becoming=after,
        change=table.change + 1,
        state=TableState.ALTERING,
        generation=table.generation + 1,
    )


# ---- deciding -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look goes by."""

    catalog: Catalog
    report_of: ReportOf
    loads: Callable[[], list[Load]]
    timelines: NewTimelines
    to_blame: ToBlame
    pacing: SuccessionPacing
    now: float


def succession_actions(
    catalog: Catalog,
    report_of: ReportOf,
    loads: Callable[[], list[Load]],
    timelines: NewTimelines,
    to_blame: ToBlame,
    pacing: Pacing,
    now: float,
) -> Iterator[SuccessionAction]:
    """What is to be done now for tables whose durability was ever altered.

    ``report_of`` as said; of a successor too. ``loads`` is asked for when servers are to be chosen.
    """
    look = _Look(catalog, report_of, loads, timelines, to_blame, pacing.successions, now)
    waiting: list[tuple[TableRecord, TabletRecord]] = []
    for table_id in list(catalog.altered):
        table = catalog.tables[table_id]
        if table.change:
            waiting += [(table, tablet) for tablet in catalog.tablets_of(table_id)]
    sources = [each.tablet_id for table, each in waiting if not table.has_changed(each)]
    look.pacing.begin_look(sources, [each.succeeds for each in catalog.successors()], now)
    begins = _Begins(look)
    for table, tablet in waiting:
        if tablet.state.is_gone:
            continue
        seen, report = report_of(tablet)
        if seen is not None and report is not None and report.succession is not None:
            yield from _releases(catalog, tablet, seen, report)
        if table.has_changed(tablet):
            continue
        successor = catalog.successor_of(tablet.tablet_id)
        if successor is not None:
            yield from _goes_on(look, tablet, successor, seen, report)
        elif tablet.state is TabletState.RUNNING and report is not None:
            yield from begins.begin(table, tablet, report)


def _releases(
    catalog: Catalog, tablet: TabletRecord, seen: Seen, report: TabletReport
) -> Iterator[OrderTransfer]:
    """It makes way for one that was given up."""
    assert report.succession is not None, "it says so"
    said = report.succession.successor
    known = catalog.tablets.get(said)
    if known is not None and known.state.is_gone:
        order = TransferTablet(tablet.tablet_id, _term(tablet), TabletId(""), release=said)
        yield OrderTransfer(seen.server, order)


def _goes_on(
    look: _Look,
    tablet: TabletRecord,
    successor: TabletRecord,
    seen: Seen | None,
    report: TabletReport | None,
) -> Iterator[SuccessionAction]:
    said: SuccessionReport | None = None if report is None else report.succession
    if said is not None and said.successor != successor.tablet_id:
        said = None
    if said is not None and said.is_lost:
        yield GiveUpSuccessor(successor, "it cannot be brought up to its source any more")
        return
    if said is not None and said.stage is SuccessionStage.CLOSED:
        if successor.state is not TabletState.RUNNING:
            yield GiveUpSuccessor(successor, f"it is {successor.state.value}")
        elif tablet.state is TabletState.RUNNING:
            yield Swap(tablet, successor)
        return
    if (stuck := _stuck_for_long(look, tablet, successor, report, said)) is not None:
        yield stuck
        return
    if successor.state is not TabletState.RUNNING or tablet.state is not TabletState.RUNNING:
        return
    at, _ = look.report_of(successor)
    if seen is None or report is None or at is None:
        return
    order = TransferTablet(
        tablet.tablet_id,
        _term(tablet),
        successor.tablet_id,
        at.server.address,
        at.server.uuid,
    )
    yield OrderTransfer(seen.server, order)


def _stuck_for_long(
    look: _Look,
    tablet: TabletRecord,
    successor: TabletRecord,
    report: TabletReport | None,
    said: SuccessionReport | None,
) -> GiveUpSuccessor | None:
    """Nothing could be brought over for a while. What is there takes memory that others need, be
    it the source itself for what it loads; and the source forgets no tombstone meanwhile."""
    why = _stuck(tablet, successor, report, said)
    stuck_s = look.pacing.look_at(tablet.tablet_id, look.now, is_stuck=bool(why))
    if stuck_s >= IDLE_S:
        look.pacing.waits[tablet.tablet_id] = why
    patience_s = STUCK_S
    if successor.state is TabletState.CREATING:  # it may only be slow
        patience_s = look.pacing.patience_s(tablet.tablet_id, successor.tablet_id)
    if stuck_s < patience_s:
        return None
    at_fault = _at_fault(look, report, successor, said)
    look.pacing.refuse(tablet.tablet_id, successor.tablet_id, at_fault, why, look.now)
    return GiveUpSuccessor(successor, why)


def _stuck(
    tablet: TabletRecord,
    successor: TabletRecord,
    report: TabletReport | None,
    said: SuccessionReport | None,
) -> str:
    """Why nothing is brought over just now; empty: it is, or may be in a moment."""
    if tablet.state is not TabletState.RUNNING or report is None:
        return f"tablet {tablet.tablet_id} is not served just now"
    if _is_loading(report):
        return _loading(tablet)
    if successor.state is not TabletState.RUNNING:
        return f"tablet {tablet.tablet_id}: its successor is {successor.state.value}"
    if said is not None and said.lacks_room:
        return f"tablet {tablet.tablet_id}: its successor takes no more rows: {said.problem}"
    return ""


def _at_fault(
    look: _Look, report: TabletReport | None, successor: TabletRecord, said: SuccessionReport | None
) -> tuple[ServerUuid, ...]:
    """The servers of the successor in whose place others could have done better: none where the
    source is loading or offline, since it holds up every successor."""
    if report is None or _is_loading(report):
        return ()
    if successor.state is TabletState.CREATING:
        return look.to_blame(successor)
    return holders_of(successor) if said is not None and said.lacks_room else ()


def _is_loading(report: TabletReport) -> bool:
    """Not all rows are there yet since it was recovered: until then none are brought over."""
    return report.remote_bytes > 0


def _loading(tablet: TabletRecord) -> str:
    return f"tablet {tablet.tablet_id} is still loading its rows, since it was recovered or split"


def _term(tablet: TabletRecord) -> int:
    return 0 if tablet.is_group else tablet.term


class _Begins:
    """Those that are begun in one look."""

    def __init__(self, look: _Look) -> None:
        self._look = look
        begun = [each.succeeds for each in look.catalog.successors()]
        idle = sum(look.pacing.stuck_s(source, look.now) >= IDLE_S for source in begun)
        # They leave their turns to others, but not for ever more of them: each has some memory.
        left = SUCCESSIONS_MAX - (len(begun) - idle)
        self._left = min(left, 2 * SUCCESSIONS_MAX - len(begun))
        self._rooms: SuccessorRooms | None = None

    def begin(
        self, table: TableRecord, tablet: TabletRecord, report: TabletReport
    ) -> Iterator[BeginSuccession]:
        """Make a successor for it, or note why that has to wait. Whose turn it is not yet is not
        looked at."""
        look = self._look
        refused = look.pacing.refused(tablet.tablet_id)
        if _is_loading(report) or tablet.inherits is not None:
            look.pacing.waits[tablet.tablet_id] = _loading(tablet)
        elif refused is not None and look.now < refused.until:
            left_s = refused.until - look.now
            look.pacing.waits[tablet.tablet_id] = f"{refused.why}; tried again in {left_s:.0f} s"
        elif self._left > 0:
            try:
                begun = self._choose(table, tablet, report)
            except (NotEnoughServers, NoMemory) as error:
                look.pacing.waits[tablet.tablet_id] = str(error)
                return
            if begun is not None:
                self._left -= 1
                yield begun

    def _choose(
        self, table: TableRecord, tablet: TabletRecord, report: TabletReport
    ) -> BeginSuccession | None:
        """None: there are too few safekeepers just now. Raises NotEnoughServers, NoMemory."""
        look, wanted = self._look, table.becoming
        assert wanted is not None, "the table changes"
        if self._rooms is None:
            self._rooms = SuccessorRooms(
                look.catalog, look.loads(), lambda source: look.report_of(source)[1]
            )
        logs = look.timelines(wanted, [look.pacing.targets.avoid(tablet.tablet_id)])
        if logs is None:
            look.pacing.waits[tablet.tablet_id] = "too few safekeepers live just now"
            return None
        holders = self._rooms.choose(
            tablet,
            table.name,
            live_bytes(report),
            wanted.count if isinstance(wanted, Replicas) else 1,
            _beside(look.catalog, table),
            look.pacing.targets.avoid(tablet.tablet_id),
        )
        return BeginSuccession(tablet, holders, wanted, logs)


def _beside(catalog: Catalog, table: TableRecord) -> Mapping[ServerUuid, int]:
    """How many tablets of a table, and successors of some, each server has."""
    found = [
        catalog.successor_of(tablet.tablet_id) for tablet in catalog.tablets_of(table.table_id)
    ]
    # Those that have still to go count for nothing.
    found += [each for each in catalog.tablets_of(table.table_id) if table.has_changed(each)]
    return beside_of([each for each in found if each is not None])


# ---- drafts ---------------------------------------------------------------------------------


def draft_begin(
    catalog: Catalog, action: BeginSuccession, rng: random.Random
) -> CatalogBatch | None:
    """The successor, hidden, and the tablet under another generation: who deletes the table, or
    alters it back, meets one or the other. None: there is no need of it any more."""
    tablet = catalog.tablets[action.tablet.tablet_id]
    table = catalog.tables[tablet.table_id]
    wanted = table.becoming == action.durability and not table.has_changed(tablet)
    if not wanted or tablet.state is not TabletState.RUNNING or table.becoming is None:
        return None
    if catalog.successor_of(tablet.tablet_id) is not None:
        return None
    successor = new_tablet(
        TabletId(make_uuid(rng)),
        tablet.table_id,
        tablet.number,
        action.holders,
        is_group=isinstance(action.durability, Replicas),
        timeline=action.timelines[0] if action.timelines else None,
        change=table.change,
        succeeds=tablet.tablet_id,
    )
    touched = msgspec.structs.replace(tablet, generation=tablet.generation + 1)
    return CatalogBatch(tablets=(touched, successor))


def draft_swap(catalog: Catalog, action: Swap) -> CatalogBatch | None:
    """None if either has changed since: then what was said of them may not hold any more."""
    tablet, successor = action.tablet, action.successor
    now: Sequence[TabletRecord] = [catalog.tablets[each.tablet_id] for each in (tablet, successor)]
    if now != [tablet, successor]:
        return None
    gone = msgspec.structs.replace(
        tablet,
        state=TabletState.REPLACED,
        replaced_by=successor.tablet_id,
        generation=tablet.generation + 1,
    )
    found = msgspec.structs.replace(
        successor, succeeds=TabletId(""), generation=successor.generation + 1
    )
    return CatalogBatch(tablets=(gone, found))


def draft_give_up(catalog: Catalog, action: GiveUpSuccessor) -> CatalogBatch | None:
    """None if it has changed since."""
    if catalog.tablets[action.successor.tablet_id] != action.successor:
        return None
    return CatalogBatch(tablets=(given_up(action.successor),))


def reports_of(live: Mapping[Run, Seen], reporters: Mapping[TabletId, Sequence[Seen]]) -> ReportOf:
    """From what live servers say."""

    def report_of(tablet: TabletRecord) -> tuple[Seen | None, TabletReport | None]:
        if tablet.is_group:
            leader = group_of(tablet, reporters.get(tablet.tablet_id, ())).leader
            return (None, None) if leader is None else (leader.seen, leader.report)
        seen = live.get(Run(tablet.owner, tablet.owner_incarnation))
        report = None if seen is None else seen.reports.get(tablet.tablet_id)
        if report is None or report.term != tablet.term:
            return seen, None
        return seen, report

    return report_of
