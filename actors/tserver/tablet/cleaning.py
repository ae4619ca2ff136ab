"""Cleaning of one tablet with an owner: passes over its memory, and over its log on backups.

A pass takes one segment, or some neighbours, and ends in the same turn of the event loop for memory
and log. What is copied is copied off the loop; the index follows in small steps, between which the
tablet is read and written. A pass that is given up has changed nothing but memory.

Invariants: of a tablet one pass over the log at a time, so that tombstones are judged by the very
segments that are in the log when the survivor gets there (`stelae.storage.rows.survivors`); a
segment is in one pass at a time; nothing is cleaned that is not sealed on all its replicas, nor
while the tablet's rows are still being fetched (`may_clean`). As far as rows are here, in segments
of the tablet's own (`elsewhere`), memory may be compacted before that (`may_compact`), and what is
lost or dead as a whole leaves the log (`clean_meanwhile`): which rows are dead is known from the
summaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from stelae.actors.tserver.tablet.survivor_images import carry, image_of
from stelae.actors.tserver.tablet_log.interface import TabletLog
from stelae.core.config.settings import Settings
from stelae.core.ids import TabletId
from stelae.core.messages.servers import CleaningReport
from stelae.core.records.records import TableRecord
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.schema.durability import media_of
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.rows.cleaning import (
    DEAD_SHARE_MIN,
    Candidate,
    Needs,
    best_to_clean,
    best_to_compact,
    first_to_go,
)
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.survivors import Parent, Survivor, filter_of, survive

PATIENCE_CALLS = 4
"""A survivor gets so many times a call's time to reach its backups."""
LEAVING_ROLL_S = 2.0
"""Between heads that are begun as the last one is on a backup that is to be retired."""
HURRY_S = 0.5
"""Before a head is opened so that disks get back what was replaced, while there is no more."""
FRUITLESS_S = 5.0
"""Before a log is looked at again of which a pass would have freed nothing, or failed."""


class Cleaned(Protocol):
    """What a pass asks of its tablet."""

    tablet_id: TabletId
    term: int

    def may_clean(self) -> bool:
        """Served here, and all of its rows are in memory."""

    def may_compact(self) -> bool:
        """Whether dead rows may be dropped from memory: also while others are fetched."""

    def elsewhere(self) -> frozenset[int]:
        """Segments whose rows are not here yet, or not in the tablet's own log."""

    @property
    def memory(self) -> TabletMemory: ...
    @property
    def log(self) -> TabletLog: ...
    @property
    def table(self) -> TableRecord: ...
    @property
    def keeps_tombstones(self) -> bool:
        """For now none may be forgotten."""

    def keep_object(self, segment_id: int, handle: ObjectHandle | None) -> None:
        """Of a segment's rows in shared memory; None: it has none any more."""

    def roll(self) -> bool:
        """Begin another head now, if that is well; whether it was."""


class TabletCleaning:
    """See the module. Belongs to one event loop."""

    def __init__(self, runtime: Runtime, settings: Settings, tablet: Cleaned) -> None:
        self.is_urgent = False
        """Writers wait for memory."""
        self.rests_until_s = 0.0
        """Before, passes over the log would be in vain."""
        self.on_sealed: Callable[[], None] | None = None
        """Called when a segment was sealed: there may be something to clean."""
        self._runtime = runtime
        self._settings = settings
        self._tablet = tablet
        self._rolls_again_s = 0.0
        self._busy: dict[int, None] = {}
        self._compacted = self._cleaned = self._survivors = 0
        self._copied_bytes = self._survivor_bytes = 0

    # ---- what there is ----------------------------------------------------------------------

    def report(self) -> CleaningReport:
        """For status and metrics."""
        memory = self._tablet.memory
        has_replicas = bool(media_of(self._tablet.table.durability))
        return CleaningReport(
            live_bytes=memory.live_bytes,
            log_bytes=memory.log_bytes if has_replicas else 0,
            written_bytes=memory.written_bytes,
            copied_bytes=self._copied_bytes,
            survivor_bytes=self._survivor_bytes,
            segments_compacted=self._compacted,
            segments_cleaned=self._cleaned,
            survivors=self._survivors,
        )

    @property
    def awaits_seals(self) -> bool:
        """Whether there are closed segments that take more memory now than they soon will."""
        return any(each.closed and not each.sealed for each in self._tablet.memory.statistics())

    def sealed(self) -> None:
        """A segment was."""
        if self.on_sealed is not None:
            self.on_sealed()

    def candidates(self) -> list[Candidate]:
        """All closed segments, in the order of the log."""
        memory, log = self._tablet.memory, self._tablet.log
        found, elsewhere = [], self._tablet.elsewhere()
        for each in memory.statistics():
            if not each.closed:
                continue
            segment = each.segment_id
            is_lost = log.side.is_lost(segment)
            is_idle = segment not in self._busy and segment not in elsewhere
            found.append(
                Candidate(
                    each.slot,
                    segment,
                    each.schema_version,
                    each.row_count,
                    each.live_rows,
                    each.tombstones,
                    each.memory_bytes,
                    each.bytes,
                    max(0, memory.next_version - each.next_version),
                    each.was_written,
                    is_free=is_idle and each.sealed and (is_lost or log.may_clean(segment)),
                    is_lost=is_lost,
                )
            )
        return found

    # ---- memory -----------------------------------------------------------------------------

    async def compact(self) -> bool:
        """Drop one segment's dead rows from memory; false: there is nothing to gain.

        Raises StelaeError: there is no room for work off the loop.
        """
        tablet, runtime = self._tablet, self._runtime
        if not tablet.may_compact():
            return False
        chosen = best_to_compact([each for each in self.candidates() if not each.is_lost])
        if chosen is None:
            return False
        memory, segment = tablet.memory, chosen.segment_id
        self._busy[segment] = None
        try:
            (parent,) = memory.parents([chosen.slot])
            work = runtime.offload(_compacted, parent, memory.codec, parent.segment.held)
            survivor, keys = await work
            if not (tablet.may_compact() and tablet.log.may_clean(segment)):
                return False  # it was closed, or has lost a replica, which needs the image
            memory.hold(parent, keys)
            size_bytes = survivor.batch.get_total_buffer_size()
            move = memory.begin_move(
                [chosen.slot], survivor, segment, survivor.batch, size_bytes, chosen.log_bytes
            )
            tablet.log.side.let_image_go(segment)
            tablet.keep_object(segment, None)
            await carry(runtime, memory, move, is_urgent=lambda: self.is_urgent)
        finally:
            self._busy.pop(segment, None)
        self._compacted += 1
        self._copied_bytes += size_bytes
        runtime.metrics.count("segments_compacted")
        return True

    # ---- the log ----------------------------------------------------------------------------

    async def clean(self, *, memory_is_low: bool) -> bool:
        """Put a survivor in the place of some neighbours, or nothing; false: there is no need.

        Raises what ended the log.
        """
        tablet = self._tablet
        if not tablet.may_clean():
            return False
        self._roll_off_leaving()
        if self._runtime.clock.monotonic() < self.rests_until_s:
            return False
        disks_are_low = bool(tablet.log.short_medium)
        self.roll_if_due(in_hurry=disks_are_low)
        if disks_are_low and tablet.log.side.is_waiting:
            return False  # of the reserve one survivor at a time, and the head that frees for it
        needs = Needs(
            self._settings.segment_bytes,
            self._settings.clean_log_factor,
            bool(media_of(tablet.table.durability)),
            tablet.keeps_tombstones,
            memory_is_low,
            disks_are_low,
        )
        chosen = best_to_clean(self.candidates(), needs)
        if not chosen:
            return False
        is_done = await self._clean(chosen, needs)
        if not is_done:
            self.rests_until_s = self._runtime.clock.monotonic() + FRUITLESS_S
        return is_done

    async def clean_meanwhile(self) -> bool:
        """While rows are elsewhere: put a survivor in the place of a segment that was compacted and
        lacks a replica, or nothing in that of neighbours of which nothing stays; false: there are
        none. Whoever calls sees to one pass at a time.

        All tombstones stay, as earlier segments are elsewhere. Raises what ended the log.
        """
        settings = self._settings
        needs = Needs(settings.segment_bytes, settings.clean_log_factor, keeps_tombstones=True)
        chosen = first_to_go(self.candidates(), needs)
        return bool(chosen) and await self._clean(chosen, needs, self._tablet.may_compact)

    def _roll_off_leaving(self) -> None:
        """A backup that is to be retired gets rid of a head when that is sealed, which may be long
        in coming."""
        now_s = self._runtime.clock.monotonic()
        if now_s >= self._rolls_again_s and self._tablet.log.head_is_leaving:
            self._rolls_again_s = now_s + LEAVING_ROLL_S
            self._tablet.roll()

    def roll_if_due(self, *, in_hurry: bool = False) -> None:
        """What was replaced is freed once a later head is open, which may be long in coming, and
        does not come by itself while nothing is written for want of disks; and until then it is
        needed, also if it lacks a replica."""
        since_s = self._tablet.log.side.waits_since_s
        patience_s = min(self._settings.clean_roll_after_s, HURRY_S if in_hurry else math.inf)
        if since_s is not None and self._runtime.clock.monotonic() - since_s >= patience_s:
            self._tablet.roll()

    async def _clean(
        self,
        chosen: Sequence[Candidate],
        needs: Needs,
        may_go_on: Callable[[], bool] | None = None,
    ) -> bool:
        self._busy.update(dict.fromkeys([each.segment_id for each in chosen]))
        try:
            may = may_go_on or self._tablet.may_clean
            return await self._put_survivor(chosen, needs, may)
        finally:
            for each in chosen:
                self._busy.pop(each.segment_id, None)

    async def _put_survivor(
        self, chosen: Sequence[Candidate], needs: Needs, may_go_on: Callable[[], bool]
    ) -> bool:
        tablet, memory, runtime = self._tablet, self._tablet.memory, self._runtime
        slots = [each.slot for each in chosen]
        parents = memory.parents(slots)
        earlier: list[Parent] | None = None
        if any(each.tombstones for each in chosen) and not needs.keeps_tombstones:
            earlier = memory.earlier(slots[0])
        survivor, filters = await runtime.offload(_survived, parents, earlier, memory.codec)
        for parent, keys in zip(earlier or (), filters, strict=True):
            memory.hold(parent, keys)
        if not self._is_worth_it(chosen, survivor, needs):
            return False
        if not survivor.batch.num_rows:
            if not may_go_on():
                return False
            move = memory.begin_move(slots, survivor, 0, survivor.batch, 0)
            memory.step(move, 1)
            self._admit(chosen, 0)
            return True
        image = await image_of(runtime, tablet, [each.segment for each in parents], survivor)
        segment, size_bytes = image.segment_id, image.buffer.size
        if not may_go_on():
            return False
        side = tablet.log.side
        side.begin(segment, image.buffer)
        is_admitted = False
        try:
            patience_s = PATIENCE_CALLS * self._settings.call_timeout_s
            if not await side.wait_sealed(segment, patience_s) or not may_go_on():
                return False
            move = memory.begin_move(slots, survivor, segment, image.batch, size_bytes)
            tablet.keep_object(segment, image.handle)
            await carry(runtime, memory, move, is_urgent=lambda: self.is_urgent)
            if not may_go_on():
                return False
            self._admit(chosen, segment)
            is_admitted = True
        finally:
            if not is_admitted:
                side.give_up(segment)
        self._survivors += 1
        self._survivor_bytes += size_bytes
        runtime.metrics.count("survivors")
        return True

    def _is_worth_it(self, chosen: Sequence[Candidate], survivor: Survivor, needs: Needs) -> bool:
        """Tombstones that were hoped to go may have to stay."""
        first, kept = chosen[0], survivor.batch.num_rows
        if len(chosen) > 1 or first.is_lost or not kept:
            return True
        had_bytes = first.log_bytes if needs.has_replicas else first.memory_bytes
        share = 1.0 - DEAD_SHARE_MIN
        kept_bytes: int = survivor.batch.nbytes
        return kept < share * first.rows or kept_bytes < share * had_bytes

    def _admit(self, chosen: Sequence[Candidate], segment: int) -> None:
        tablet = self._tablet
        parents = [each.segment_id for each in chosen]
        tablet.log.side.admit(parents, segment, any(each.was_written for each in chosen))
        for parent in parents:
            tablet.keep_object(parent, None)
        self._cleaned += len(parents)
        self._runtime.metrics.count("segments_cleaned", len(parents))


def _compacted(
    parent: Parent, codec: KeyCodec, held: KeyFilter | None
) -> tuple[Survivor, KeyFilter]:
    """What memory keeps of a segment, and which keys the log has in it. Off the loop."""
    keys = held or filter_of(parent, codec)
    return survive([parent], codec, None), keys


def _survived(
    parents: Sequence[Parent], earlier: Sequence[Parent] | None, codec: KeyCodec
) -> tuple[Survivor, list[KeyFilter]]:
    """What is kept of neighbours, and the filters of all ``earlier`` ones. Off the loop."""
    if earlier is None:
        return survive(parents, codec, None), []
    filters = [each.segment.held or filter_of(each, codec) for each in earlier]
    return survive(parents, codec, filters), filters
