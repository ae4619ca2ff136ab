"""What the leader should do now for indexlets: a part of `stelae.coordinator.decide`. Pure.

Level-triggered, as all of it is. An indexlet's life, each arrow one catalog entry that compares the
record's generation:

- FILLING, owner live: the owner is told to open it; once it has everything in this term -> SERVING;
- owner dead, and surely neither answering nor taking entries any more: -> another owner in the next
  term, FILLING. Its successors, if there are any, are given up in the same entry;
- owner live, but the indexlet FAILED there, or is SERVING and no longer there: the same;
- SERVING, and too large, or on a server that is to be retired: **successors** are made, two or one,
  which nobody finds; once they are open, the owner is told to bring them everything. When it says
  that they have it and that it is closed, they take its place;
- a successor is lost, or fails: all of them are given up, and the owner, told so, is as before.
  Between the two, taking its place and being given up, the one entry that comes first decides;
- its index, or its table, is gone: so is the record, and whoever holds it is told to forget it.

Source: design §11; docs/decisions.md, the sections on indexes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stelae.coordinator.assignment import Load
from stelae.coordinator.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness import Liveness, Run, Seen
from stelae.coordinator.standing import standing_of
from stelae.core.ids import IndexletId, ServerUuid, TableId, make_uuid
from stelae.core.indexlets import (
    END,
    HandOverIndexlet,
    IndexletProgress,
    IndexletRecord,
    IndexletReport,
    IndexletState,
    Successor,
)
from stelae.core.records import ServerInfo, TableRecord

INDEXLETS_LEAVING_MAX = 2
"""Indexlets of the cluster that make way for successors at a time."""


@dataclass(frozen=True, slots=True)
class ChangeIndexlets:
    """New records of indexlets of one index: one catalog entry."""

    records: tuple[IndexletRecord, ...]
    reason: str
    failed_at: ServerUuid = ServerUuid("")
    """Where the first of them failed, if it did."""


@dataclass(frozen=True, slots=True)
class MakeSuccessors:
    """Successors of an indexlet, for these ranges, at these servers: one catalog entry."""

    indexlet: IndexletRecord
    ranges: tuple[tuple[bytes, bytes], ...]
    owners: tuple[ServerInfo, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OpenIndexletAt:
    """Tell an indexlet's owner to open it."""

    indexlet: IndexletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class CloseIndexletAt:
    """Tell a server to forget an indexlet of this or a lower term."""

    server: ServerInfo
    indexlet_id: IndexletId
    term: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Tell an indexlet's owner for whom to make way, or for whom no more."""

    server: ServerInfo
    order: HandOverIndexlet


IndexAction: TypeAlias = (
    ChangeIndexlets | MakeSuccessors | OpenIndexletAt | CloseIndexletAt | HandOver
)


# ---- placement ------------------------------------------------------------------------------


class Placement:
    """Where further indexlets go: not where tablets of their table are, if there is another server;
    then where there are fewer of the table's tablets, of all indexlets, and less in memory."""

    def __init__(self, catalog: Catalog, loads: Callable[[], Sequence[Load]]) -> None:
        self._catalog = catalog
        self._all_loads = loads
        self._given: dict[ServerUuid, int] = {}

    def choose(self, table_id: TableId, avoid: ServerUuid = ServerUuid("")) -> ServerInfo | None:
        """The best server for one more, counted as given; None: there is none. One to ``avoid``
        gets it only if it is alone."""
        loads = list(self._all_loads())
        if not loads:
            return None
        beside = tablets_beside(self._catalog, table_id)
        indexes = self._catalog.indexes

        def cost(load: Load) -> tuple[object, ...]:
            server = load.server
            has = indexes.count_owned(server.uuid, server.incarnation)
            return (
                server.uuid == avoid,
                load.is_full,
                beside.get(server.uuid, 0),
                has + self._given.get(server.uuid, 0),
                load.memory_bytes,
                server.uuid,
            )

        chosen = min(loads, key=cost).server
        self._given[chosen.uuid] = self._given.get(chosen.uuid, 0) + 1
        return chosen


def tablets_beside(catalog: Catalog, table_id: TableId) -> dict[ServerUuid, int]:
    """How many tablets of a table, or replicas of such, each server has."""
    beside: dict[ServerUuid, int] = {}
    for tablet in catalog.tablets_of(table_id):
        peers = tablet.configuration.peers if tablet.configuration is not None else ()
        for uuid in [peer.uuid for peer in peers] or [tablet.owner]:
            beside[uuid] = beside.get(uuid, 0) + 1
    return beside


# ---- deciding -------------------------------------------------------------------------------


class IndexRound:
    """One look at all indexlets."""

    def __init__(
        self,
        catalog: Catalog,
        liveness: Liveness,
        live: Mapping[Run, Seen],
        now: float,
        *,
        missing_after_s: float,
        entries_max: int,
        loads: Callable[[], Sequence[Load]],
        failed_at: Mapping[IndexletId, ServerUuid],
    ) -> None:
        """``entries_max``: one with more entries is split. ``failed_at``: where one failed last."""
        self._catalog = catalog
        self._liveness = liveness
        self._live = live
        self._now = now
        self._missing_after_s = missing_after_s
        self._entries_max = entries_max
        self._placement = Placement(catalog, loads)
        self._failed_at = failed_at
        self.given_up: dict[Run, None] = {}
        """Runs that were never heard, and whose indexlets go to others."""

    def actions(self) -> Iterator[IndexAction]:
        """What is to be done now, in the order of creation."""
        indexes = self._catalog.indexes
        making_way = {record.succeeds for record in indexes.indexlets.values() if record.succeeds}
        room = INDEXLETS_LEAVING_MAX - len(making_way)
        for indexlet in list(indexes.found()):
            for action in self._look_at(indexlet, room > 0):
                room -= isinstance(action, MakeSuccessors)
                yield action
        for seen in self._live.values():
            if seen.picture.indexlets:
                for indexlet_id, term in standing_of(self._catalog, seen).closed_indexlets:
                    yield CloseIndexletAt(seen.server, indexlet_id, term)

    def _look_at(self, indexlet: IndexletRecord, has_room: bool) -> Iterator[IndexAction]:
        run = Run(indexlet.owner, indexlet.owner_incarnation)
        seen = self._live.get(run)
        successors = self._catalog.indexes.successors_of(indexlet.indexlet_id)
        if seen is None:
            yield from self._owner_not_heard(indexlet, successors, run)
            return
        if not seen.picture.is_exact:
            return
        report = _report_of(indexlet, seen)
        if report is None:
            if indexlet.state is IndexletState.FILLING:
                yield OpenIndexletAt(indexlet, seen.server)
            elif self._now >= seen.picture.exact_since + self._missing_after_s:
                yield from self._move(indexlet, successors, f"{seen.server.name} lost it")
        elif report.progress is IndexletProgress.FAILED:
            reason = f"{seen.server.name} gave it up: {report.problem}"
            yield from self._move(indexlet, successors, reason, failed_at=indexlet.owner)
        elif report.progress is IndexletProgress.FILLED:
            yield from self._filled(indexlet, seen, report, successors, has_room)
        elif report.progress is IndexletProgress.CLOSED:
            yield from self._closed(indexlet, seen, report, successors)

    def _owner_not_heard(
        self, indexlet: IndexletRecord, successors: Sequence[IndexletRecord], run: Run
    ) -> Iterator[IndexAction]:
        """Also of one that fills the lease has to have ended: it takes entries already."""
        if self._liveness.is_live(run, self._now) or self._now < self._liveness.free_at(run):
            return
        known = self._liveness.find(run)
        if known is None:  # it might speak for the first time before the entry is committed
            self.given_up[run] = None
        name = known.server.name if known is not None else run.uuid
        yield from self._move(indexlet, successors, f"{name} is dead")

    def _move(
        self,
        indexlet: IndexletRecord,
        successors: Sequence[IndexletRecord],
        reason: str,
        failed_at: ServerUuid = ServerUuid(""),
    ) -> Iterator[IndexAction]:
        """To another owner, who fills it anew; nobody has its entries but the tablets."""
        avoid = failed_at or self._failed_at.get(indexlet.indexlet_id, ServerUuid(""))
        owner = self._placement.choose(indexlet.table_id, avoid)
        if owner is None:
            return
        new = msgspec.structs.replace(
            indexlet,
            state=IndexletState.FILLING,
            term=indexlet.term + 1,
            owner=owner.uuid,
            owner_incarnation=owner.incarnation,
            generation=indexlet.generation + 1,
        )
        yield ChangeIndexlets((new, *map(gone, successors)), reason, failed_at)

    def _filled(
        self,
        indexlet: IndexletRecord,
        seen: Seen,
        report: IndexletReport,
        successors: Sequence[IndexletRecord],
        has_room: bool,
    ) -> Iterator[IndexAction]:
        if indexlet.state is IndexletState.FILLING:
            serving = _with(indexlet, state=IndexletState.SERVING)
            yield ChangeIndexlets((serving,), f"{seen.server.name} has all of it")
        elif successors:
            yield from self._bring_up(indexlet, seen, successors)
        elif report.successors:
            yield HandOver(seen.server, _order(indexlet, ()))
        elif has_room:
            yield from self._successors(indexlet, seen, report)

    def _successors(
        self, indexlet: IndexletRecord, seen: Seen, report: IndexletReport
    ) -> Iterator[IndexAction]:
        """It is split, or leaves, if it has to."""
        ranges: tuple[tuple[bytes, bytes], ...] = ()
        low, middle, high = indexlet.low, report.middle, indexlet.high
        if report.entry_count > self._entries_max and low < middle and (
            high == END or middle < high
        ):
            ranges, reason = ((low, middle), (middle, high)), f"{report.entry_count} entries"
        elif self._catalog.mark(seen.server.uuid).retiring:
            ranges, reason = ((low, high),), f"{seen.server.name} is retired"
        if not ranges:
            return
        owners = [self._placement.choose(indexlet.table_id) for _ in ranges]
        chosen = tuple(owner for owner in owners if owner is not None)
        if len(chosen) == len(ranges):
            yield MakeSuccessors(indexlet, ranges, chosen, reason)

    def _bring_up(
        self, indexlet: IndexletRecord, seen: Seen, successors: Sequence[IndexletRecord]
    ) -> Iterator[IndexAction]:
        """Have them opened, then have everything brought to them; give them up if one is lost."""
        found = [(each, *self._seen_of(each)) for each in successors]
        ready: list[Successor] = []
        for each, at, report in found:
            lost = self._why_lost(each, at, report)
            if lost:
                yield ChangeIndexlets(tuple(map(gone, successors)), lost)
                return
            if at is not None and report is None and at.picture.is_exact:
                yield OpenIndexletAt(each, at.server)
            elif at is not None and report is not None:
                ready.append(Successor(each, at.server.address))
        if len(ready) == len(successors):
            yield HandOver(seen.server, _order(indexlet, ready))

    def _closed(
        self,
        indexlet: IndexletRecord,
        seen: Seen,
        report: IndexletReport,
        successors: Sequence[IndexletRecord],
    ) -> Iterator[IndexAction]:
        """It answers nobody: its successors take its place, or it is told to go on."""
        if not successors:
            yield HandOver(seen.server, _order(indexlet, ()))
            return
        whole = all(
            at is not None and said is not None and said.progress is IndexletProgress.FILLED
            for at, said in map(self._seen_of, successors)
        )
        lost = next((why for each in successors if (why := self._why_lost(each))), "")
        if tuple(each.indexlet_id for each in successors) != report.successors:
            lost = "it was closed for others"
        if lost:
            yield ChangeIndexlets(tuple(map(gone, successors)), lost)
        elif whole:
            serving = [
                _with(each, state=IndexletState.SERVING, succeeds=IndexletId(""))
                for each in successors
            ]
            yield ChangeIndexlets((gone(indexlet), *serving), "its successors have all of it")

    def _seen_of(self, indexlet: IndexletRecord) -> tuple[Seen | None, IndexletReport | None]:
        seen = self._live.get(Run(indexlet.owner, indexlet.owner_incarnation))
        return seen, None if seen is None else _report_of(indexlet, seen)

    def _why_lost(
        self,
        successor: IndexletRecord,
        seen: Seen | None = None,
        report: IndexletReport | None = None,
    ) -> str:
        """Why a successor will never have everything; empty: it may."""
        if seen is None and report is None:
            seen, report = self._seen_of(successor)
        if seen is None:
            run = Run(successor.owner, successor.owner_incarnation)
            return "" if self._liveness.is_live(run, self._now) else "the server of one is dead"
        if report is not None and report.progress is IndexletProgress.FAILED:
            return f"{seen.server.name} gave one up: {report.problem}"
        return ""


def _report_of(indexlet: IndexletRecord, seen: Seen) -> IndexletReport | None:
    """What its live owner says of it in its present term."""
    report = seen.picture.indexlets.get(indexlet.indexlet_id)
    return report if report is not None and report.term == indexlet.term else None


def _with(indexlet: IndexletRecord, **changes: object) -> IndexletRecord:
    return msgspec.structs.replace(indexlet, generation=indexlet.generation + 1, **changes)


def gone(indexlet: IndexletRecord) -> IndexletRecord:
    """The record that takes an indexlet away."""
    return _with(indexlet, state=IndexletState.GONE)


def _order(indexlet: IndexletRecord, successors: Sequence[Successor]) -> HandOverIndexlet:
    return HandOverIndexlet(indexlet.indexlet_id, indexlet.term, tuple(successors))


# ---- drafts ---------------------------------------------------------------------------------


def draft_change(catalog: Catalog, action: ChangeIndexlets) -> CatalogBatch | None:
    """None if any of them has changed since, or is gone: then another look decides anew."""
    current = catalog.indexes.indexlets
    for record in action.records:
        known = current.get(record.indexlet_id)
        if known is None or known.generation + 1 != record.generation:
            return None
    return CatalogBatch(indexlets=action.records)


def draft_successors(
    catalog: Catalog, action: MakeSuccessors, rng: random.Random
) -> CatalogBatch | None:
    """The successors, hidden, and the indexlet under another generation: who moves it meets one or
    the other. None: it has changed since."""
    indexlet = action.indexlet
    if catalog.indexes.indexlets.get(indexlet.indexlet_id) != indexlet:
        return None
    if catalog.indexes.successors_of(indexlet.indexlet_id):
        return None
    made = [
        new_indexlet(indexlet, low, high, owner, rng, succeeds=indexlet.indexlet_id)
        for (low, high), owner in zip(action.ranges, action.owners, strict=True)
    ]
    return CatalogBatch(indexlets=(_with(indexlet), *made))


def new_indexlet(
    like: IndexletRecord,
    low: bytes,
    high: bytes,
    owner: ServerInfo,
    rng: random.Random,
    *,
    succeeds: IndexletId,
) -> IndexletRecord:
    """One of the same index."""
    return IndexletRecord(
        IndexletId(make_uuid(rng)),
        like.index_id,
        like.table_id,
        low,
        high,
        IndexletState.FILLING,
        term=1,
        owner=owner.uuid,
        owner_incarnation=owner.incarnation,
        succeeds=succeeds,
    )


def first_indexlet(
    table: TableRecord, index_id: str, owner: ServerInfo, rng: random.Random
) -> IndexletRecord:
    """The one that an index begins with: all keys."""
    return IndexletRecord(
        IndexletId(make_uuid(rng)),
        index_id,  # type: ignore[arg-type]
        table.table_id,
        END,
        END,
        IndexletState.FILLING,
        term=1,
        owner=owner.uuid,
        owner_incarnation=owner.incarnation,
    )
