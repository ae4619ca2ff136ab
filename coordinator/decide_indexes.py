"""What the leader should do now for indexlets: a part of `stelae.coordinator.decide`.
Pure.

Level-triggered, as all of it is. An indexlet's life, each arrow one catalog entry that compares the
record's generation:

- FILLING, owner live: the owner is told to open it; once it has everything in this term -> SERVING,
  and the owner is told so;
- owner dead, and surely neither answering nor taking entries any more: -> another owner in the next
  term, FILLING. Its successors, if there are any, are given up in the same entry;
- owner live, but what is SERVING is no longer there: the same;
- SERVING, and too large, or on a server that is to be retired: **successors** are made, two or one,
  which nobody finds; once they are open, the owner is told to bring them everything. When it says
  that they have it, it is told to close; when it says that it is closed, they take its place;
- a successor is lost, is not open in time, or the hand-over fails: all of them are given up, and
  the owner, told so, is as before; but one that is closed has no way back, and is filled anew in
  the next term. Orders name the hand-over, by the generation of the record that came with its
  successors: a late one is
  refused;
- its table is gone: so is the record, and whoever holds it is told to forget it;
- its index is gone -> CLOSING: whoever holds it is told to forget it, and once that is so of all
  indexlets of the index, surely, the records go, in one entry. Tablets hear of it only then
  (`stelae.coordinator.ddl.alter.told`): what somebody may look into has what they write.

A live server on which an indexlet, or a successor of it, failed comes last for the next one.
Successors, which nobody waits for, are not made there again before a pause is over, which doubles
each time
(`stelae.coordinator.backoff.owners`). An indexlet that is being filled is never taken from a live
owner: the owner takes entries until its lease ends, and tablets would think that they are there.

Between being put in place and being given up, the one entry that comes first decides. Source:
design §11; SLIK (ATC 2016), whose tables of indexlets were lost with their coordinator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.index_records import NO_INDEXLET, Placement, new_indexlet
from stelae.coordinator.liveness.liveness import Liveness, Run, Seen
from stelae.coordinator.liveness.standing import standing_of
from stelae.coordinator.placement.assignment import Load
from stelae.core.ids import ServerUuid
from stelae.core.messages.indexes import (
    CloseIndexlet,
    HandOverIndexlet,
    HandOverStage,
    IndexletLocation,
    IndexletProgress,
    IndexletReport,
)
from stelae.core.records.records import ServerInfo
from stelae.core.schema.indexes import END, IndexletId, IndexletRecord, IndexletState

INDEXLETS_LEAVING_MAX = 2
"""Indexlets of the cluster that make way for successors at a time."""


@dataclass(frozen=True, slots=True)
class ChangeIndexlets:
    """New records of indexlets of one index: one catalog entry."""

    records: tuple[IndexletRecord, ...]
    reason: str
    indexlet_id: IndexletId = NO_INDEXLET
    failed_at: tuple[ServerUuid, ...] = ()
    """Live servers on which that indexlet, or successors of it, failed."""


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
class ServeIndexletAt:
    """Tell an indexlet's owner that it may answer."""

    indexlet: IndexletRecord
    owner: ServerInfo


@dataclass(frozen=True, slots=True)
class CloseIndexletAt:
    """Tell a server to close an indexlet, or to forget it."""

    server: ServerInfo
    order: CloseIndexlet


@dataclass(frozen=True, slots=True)
class HandOverAt:
    """Tell an indexlet's owner for whom to make way, or for whom no more."""

    server: ServerInfo
    order: HandOverIndexlet


IndexAction: TypeAlias = (
    ChangeIndexlets
    | MakeSuccessors
    | OpenIndexletAt
    | ServeIndexletAt
    | CloseIndexletAt
    | HandOverAt
)


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
        failed: FailedOwners[IndexletId],
    ) -> None:
        """``entries_max``: one with more entries is split. ``failed``: where indexlets failed, by
        the indexlet that others are to succeed."""
        self._catalog = catalog
        self._liveness = liveness
        self._live = live
        self._now = now
        self._missing_after_s = missing_after_s
        self._entries_max = entries_max
        self._placement = Placement(catalog, loads)
        self._failed = failed
        self.given_up: dict[Run, None] = {}
        """Runs that were never heard, and whose indexlets go to others."""

    def actions(self) -> Iterator[IndexAction]:
        """What is to be done now, in the order of creation."""
        indexes = self._catalog.indexes
        making_way = {record.succeeds for record in indexes.indexlets.values() if record.succeeds}
        room = INDEXLETS_LEAVING_MAX - len(making_way)
        for table_id in indexes.closing_tables():
            yield from self._dropped(indexes.closing_of(table_id).values())
        for indexlet in list(indexes.found()):
            if indexlet.state is IndexletState.CLOSING:
                continue
            for action in self._look_at(indexlet, room > 0):
                room -= isinstance(action, MakeSuccessors)
                yield action
        for seen in self._live.values():
            if seen.picture.indexlets:
                for indexlet_id, term in standing_of(self._catalog, seen).closed_indexlets:
                    yield CloseIndexletAt(seen.server, CloseIndexlet(indexlet_id, term, drop=True))

    def _dropped(self, closing: Iterable[list[IndexletRecord]]) -> Iterator[IndexAction]:
        for indexlets in closing:
            if all([self._is_nowhere(indexlet) for indexlet in indexlets]):
                yield ChangeIndexlets(tuple(map(gone, indexlets)), "its index was dropped")

    def _is_nowhere(self, indexlet: IndexletRecord) -> bool:
        """Whether nobody answers for it any more.

        The rule that is kept: tablets put entries in until no owner can answer a look-up. So it
        does not matter whether an owner, or a client, has heard of the drop.

        1. An owner that reports the indexlet gets no lease until it has closed it (`standing_of`).
           If no order reaches the owner, its last lease ends.
        2. An owner that does not report it has closed it, and does not open it again in that term.
           A report that was sent before it was opened would prove nothing. If this leader made it
           SERVING, a hint or a report has told so, and an older report does not replace that
           (`Picture`). If a former leader did, the leases that this one granted have to end.
        """
        run = Run(indexlet.owner, indexlet.owner_incarnation)
        seen = self._live.get(run)
        if seen is None:
            return self._is_over(run)
        if not seen.picture.is_exact or self._now < self._liveness.former_leases_end:
            return False
        is_held = indexlet.indexlet_id in seen.picture.indexlets
        return not is_held or self._now >= self._liveness.free_at(run)

    def _is_over(self, run: Run) -> bool:
        """Whether a run that is not heard surely answers nobody."""
        if self._liveness.is_live(run, self._now) or self._now < self._liveness.free_at(run):
            return False
        if self._liveness.find(run) is None:
            # It might speak for the first time before the entry is committed.
            self.given_up[run] = None
        return True

    def _look_at(self, indexlet: IndexletRecord, has_room: bool) -> Iterator[IndexAction]:
        run = Run(indexlet.owner, indexlet.owner_incarnation)
        seen = self._live.get(run)
        successors = self._catalog.indexes.successors_of(indexlet.indexlet_id)
        if successors or indexlet.state is IndexletState.FILLING:
            self._failed.unsettled(indexlet.indexlet_id, self._now)
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
                reason = f"{seen.server.name} lost it"
                yield from self._move(indexlet, successors, reason, [seen.server.uuid])
        elif report.progress is IndexletProgress.CLOSED:
            yield from self._closed(indexlet, report, successors)
        elif report.progress is not IndexletProgress.FILLING:
            yield from self._complete(indexlet, seen, report, successors, has_room)

    def _owner_not_heard(
        self, indexlet: IndexletRecord, successors: Sequence[IndexletRecord], run: Run
    ) -> Iterator[IndexAction]:
        """Also of one that fills the lease has to have ended: it takes entries already."""
        if not self._is_over(run):
            return
        known = self._liveness.find(run)
        name = known.server.name if known is not None else run.uuid
        yield from self._move(indexlet, successors, f"{name} is dead")

    def _move(
        self,
        indexlet: IndexletRecord,
        successors: Sequence[IndexletRecord],
        reason: str,
        failed: Sequence[ServerUuid] = (),
    ) -> Iterator[IndexAction]:
        """To another owner, who fills it anew; nobody has its entries but the tablets. ``failed``:
        where it, or a successor, failed just now."""
        avoid = {**self._failed.avoid(indexlet.indexlet_id), **dict.fromkeys(failed, math.inf)}
        owner = self._placement.choose(indexlet.table_id, avoid)
        if owner is None:
            return
        new = _with(
            indexlet,
            state=IndexletState.FILLING,
            term=indexlet.term + 1,
            owner=owner.uuid,
            owner_incarnation=owner.incarnation,
        )
        records = (new, *map(gone, successors))
        yield ChangeIndexlets(records, reason, indexlet.indexlet_id, tuple(failed))

    def _complete(
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
        elif report.progress is IndexletProgress.COMPLETE:
            yield ServeIndexletAt(indexlet, seen.server)
        elif successors:
            yield from self._bring_up(indexlet, seen, report, successors)
        elif report.successors:
            yield HandOverAt(seen.server, _order(indexlet, ()))
        elif has_room:
            yield from self._successors(indexlet, seen, report)

    def _successors(
        self, indexlet: IndexletRecord, seen: Seen, report: IndexletReport
    ) -> Iterator[IndexAction]:
        """It is split, or leaves, if it has to."""
        ranges: tuple[tuple[bytes, bytes], ...] = ()
        low, at, high = indexlet.low, report.split_at, indexlet.high
        may_split = low < at and (high == END or at < high)
        if report.entry_count > self._entries_max and may_split:
            ranges, reason = ((low, at), (at, high)), f"{report.entry_count} entries"
        elif self._catalog.mark(seen.server.uuid).retiring:
            ranges, reason = ((low, high),), f"{seen.server.name} is retired"
        name, now = indexlet.indexlet_id, self._now
        if not ranges or not self._failed.may_move(name, now):
            return
        avoid = self._failed.avoid(name)
        owners = [self._placement.choose(indexlet.table_id, avoid) for _ in ranges]
        # Nobody waits for them: where only paused servers are left, a pause has to end first.
        chosen = tuple(o for o in owners if o is not None and now >= avoid.get(o.uuid, now))
        if len(chosen) == len(ranges):
            yield MakeSuccessors(indexlet, ranges, chosen, reason)

    def _bring_up(
        self,
        indexlet: IndexletRecord,
        seen: Seen,
        report: IndexletReport,
        successors: Sequence[IndexletRecord],
    ) -> Iterator[IndexAction]:
        """Have everything brought to them, then have it closed; give them up if one is lost."""
        is_theirs = report.successors == _ids(successors)
        lost = self._why_lost(successors)
        failed: list[ServerUuid] = []
        if is_theirs and report.hand_over is HandOverStage.FAILED:
            failed = [] if lost else [each.owner for each in successors]
            lost = report.problem or f"{seen.server.name} could not bring them everything"
        if lost:
            yield self._given_up(indexlet, successors, lost, failed)
            return
        if is_theirs and report.hand_over is HandOverStage.COMPLETE:
            of = indexlet.generation
            close = CloseIndexlet(indexlet.indexlet_id, indexlet.term, hand_over=of)
            yield CloseIndexletAt(seen.server, close)
            return
        yield from self._open(indexlet, seen, successors, is_theirs=is_theirs)

    def _open(
        self,
        indexlet: IndexletRecord,
        seen: Seen,
        successors: Sequence[IndexletRecord],
        *,
        is_theirs: bool,
    ) -> Iterator[IndexAction]:
        """Have successors opened, then have everything brought to them. Whoever cannot be told
        would hold one of the few turns for ever, so patience ends."""
        ready: list[IndexletLocation] = []
        closed: list[Seen] = []
        for each in successors:
            at = self._seen_of(each)
            if at is None or not at.picture.is_exact:
                continue
            if _report_of(each, at) is None:
                closed.append(at)
                yield OpenIndexletAt(each, at.server)
            else:
                ready.append(IndexletLocation(each, at.server.address))
        reason = "".join([f"{each.server.name} does not open a successor" for each in closed[:1]])
        if len(ready) == len(successors):
            yield HandOverAt(seen.server, _order(indexlet, ready))
            if not is_theirs:
                reason = f"{seen.server.name} does not bring its successors anything"
                closed = [seen]
        named = (indexlet.indexlet_id, indexlet.generation)
        if closed and self._failed.waits_in_vain(*named, self._now):
            failed = [each.server.uuid for each in closed]
            yield self._given_up(indexlet, successors, reason, failed)

    def _given_up(
        self,
        indexlet: IndexletRecord,
        successors: Sequence[IndexletRecord],
        reason: str,
        failed: Sequence[ServerUuid],
    ) -> ChangeIndexlets:
        records, failed_at = tuple(map(gone, successors)), tuple(dict.fromkeys(failed))
        return ChangeIndexlets(records, reason, indexlet.indexlet_id, failed_at)

    def _closed(
        self, indexlet: IndexletRecord, report: IndexletReport, successors: Sequence[IndexletRecord]
    ) -> Iterator[IndexAction]:
        """It answers nobody: its successors take its place, or it is filled anew."""
        has_all = report.hand_over is HandOverStage.COMPLETE
        if not successors or not has_all or report.successors != _ids(successors):
            yield from self._move(indexlet, successors, "it was closed for others")
            return
        at = [self._seen_of(each) for each in successors]
        lost, failed = self._why_lost(successors), []
        for each, seen in zip(successors, at, strict=True):
            if seen is not None and seen.picture.is_exact and _report_of(each, seen) is None:
                lost = f"{seen.server.name} lost one of its successors"
                failed.append(seen.server.uuid)
        if lost:
            yield from self._move(indexlet, successors, lost, failed)
        elif all(seen is not None and seen.picture.is_exact for seen in at):
            serving = [
                _with(each, state=IndexletState.SERVING, succeeds=IndexletId(""))
                for each in successors
            ]
            self._failed.inherit(indexlet.indexlet_id, _ids(successors), self._now)
            yield ChangeIndexlets((gone(indexlet), *serving), "its successors have all of it")

    def _seen_of(self, indexlet: IndexletRecord) -> Seen | None:
        return self._live.get(Run(indexlet.owner, indexlet.owner_incarnation))

    def _why_lost(self, successors: Sequence[IndexletRecord]) -> str:
        """Why one of them will never have everything; empty: they may."""
        for each in successors:
            run = Run(each.owner, each.owner_incarnation)
            if run not in self._live and not self._liveness.is_live(run, self._now):
                return "the server of one of its successors is dead"
        return ""


def _report_of(indexlet: IndexletRecord, seen: Seen) -> IndexletReport | None:
    """What its live owner says of it in its present term."""
    report = seen.picture.indexlets.get(indexlet.indexlet_id)
    return report if report is not None and report.term == indexlet.term else None


def _ids(indexlets: Sequence[IndexletRecord]) -> tuple[IndexletId, ...]:
    return tuple(indexlet.indexlet_id for indexlet in indexlets)


def _with(indexlet: IndexletRecord, **changes: object) -> IndexletRecord:
    return msgspec.structs.replace(indexlet, generation=indexlet.generation + 1, **changes)


def gone(indexlet: IndexletRecord) -> IndexletRecord:
    """The record that takes an indexlet away."""
    return _with(indexlet, state=IndexletState.GONE)


def closed_for_good(catalog: Catalog, indexlet: IndexletRecord) -> ChangeIndexlets:
    """What becomes of one whose owner will not open it in this term any more, as a former leader,
    which did not know of it, has told it so. Successors of a hand-over are given up together."""
    reason = "a former leader had it closed"
    if indexlet.succeeds:
        together = catalog.indexes.successors_of(indexlet.succeeds)
        return ChangeIndexlets(tuple(map(gone, together)), reason)
    return ChangeIndexlets((_with(indexlet, term=indexlet.term + 1),), reason)


def _order(indexlet: IndexletRecord, successors: Sequence[IndexletLocation]) -> HandOverIndexlet:
    """Named by the generation that the entry has given it that made the last successors."""
    named = (indexlet.indexlet_id, indexlet.term)
    return HandOverIndexlet(*named, tuple(successors), indexlet.generation)


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
    the other, and the hand-over has its name. None: it has changed since."""
    indexlet = action.indexlet
    if catalog.indexes.indexlets.get(indexlet.indexlet_id) != indexlet:
        return None
    if catalog.indexes.successors_of(indexlet.indexlet_id):
        return None
    made = [
        new_indexlet(indexlet.table_id, indexlet.index_id, span, owner, rng, indexlet.indexlet_id)
        for span, owner in zip(action.ranges, action.owners, strict=True)
    ]
    return CatalogBatch(indexlets=(_with(indexlet), *made))
