"""How a part of a split tablet makes the rows that it inherits its own: each is written once.

From its recovery on the part is served, with its rows in segments of the log that it inherits; they
have no replicas in its own log. In the background, group by group and in the order of the log, its
live rows, and the tombstones that guard something, are fetched from backups, which pick them out,
and put into a survivor. Once backups have that, rows move there, and the inherited segments leave
the log. When none is left, and a later head says so, the part is whole.

Invariants: an inherited segment leaves the log only after its survivor is on all its backups; the
part is whole only once no recovery can go by a digest that names an inherited segment, as for what
cleaning replaces (`stelae.actors.tserver.segments.side_segments`). One pass over the log at a time,
so a tombstone is judged by the segments that the log has when its survivor gets there. Memory is
compacted as ever, as in any tablet whose rows are loaded; of its own segments, one that was
compacted and loses a replica gets a survivor in between, which keeps its tombstones, and those of
which nothing stays leave the log. All else that cleaning does waits for the end of this.

Heads are begun meanwhile as for what cleaning replaces, after `clean_roll_after_s`: from then on an
owner that follows goes by a digest without what was done before.

Source: `docs/decisions.md`, §41; `stelae.storage.rows.inheriting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stelae.actors.tserver.row_loading.loader import RemoteRows
from stelae.actors.tserver.tablet.cleaning import TabletCleaning
from stelae.actors.tserver.tablet.survivor_images import (
    Survived,
    SurvivorImage,
    carry,
    image_of,
)
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.schema.schema import OP_COLUMN
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.rows.inheriting import kept_bytes, next_group, parent_of
from stelae.storage.rows.survivors import Parent, Survivor, filter_of, survive
from stelae.storage.segments.picked import Picks
from stelae.storage.segments.remote import Piece, RemoteRun, RemoteSegment
from stelae.storage.segments.segment import Segment

LOOK_S = 0.05
"""Between looks at whether a head may be opened that says that nothing is inherited."""


class Inherits(Survived, Protocol):
    """The part, as this sees it."""

    cleaning: TabletCleaning

    @property
    def keeps_tombstones(self) -> bool: ...
    def keep_object(self, segment_id: int, handle: ObjectHandle | None) -> None: ...


class Inheriting:
    """Of one tablet. Belongs to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tablet: Inherits,
        remote: RemoteRows,
        roll: Callable[[], bool],
    ) -> None:
        """``roll`` begins another head, if that can be just now."""
        self._runtime = runtime
        self._settings = settings
        self._tablet = tablet
        self._remote = remote
        self._roll = roll
        self._picks: dict[int, Picks] = {}
        self._pass = asyncio.Lock()
        """Over the log: one at a time."""

    @property
    def is_busy(self) -> bool:
        """Whether there are inherited segments in memory yet, or a pass over the log is on."""
        return bool(self._picks) or self._pass.locked()

    @property
    def segments(self) -> frozenset[int]:
        """Those that are inherited, and in memory yet."""
        return frozenset(self._picks)

    def add(self, segment_id: int, picks: Picks) -> None:
        """A segment that the part inherits, and what it wants of it."""
        self._picks[segment_id] = picks

    async def run(self) -> None:
        """Put survivors in the place of all of them; then have a head say so."""
        order, size_bytes = self._tablet.memory.segments_in_order, self._settings.segment_bytes
        while group := next_group(order(), self._picks, size_bytes):
            try:
                await self._inherit(group)
            except StelaeError:
                if self._remote.is_closed:
                    return  # the log has ended
                self._runtime.metrics.count("inheriting_failed")
                await self._runtime.clock.sleep(self._settings.inherit_pause_s)
        while self._tablet.log.side.waits_since_s is not None and not self._roll():
            await self._runtime.clock.sleep(LOOK_S)

    async def keep_log(self) -> None:
        """While rows are elsewhere: do what the log needs, and cleaning does otherwise."""
        clock, pause_s = self._runtime.clock, self._settings.inherit_pause_s
        looks_at_s = clock.monotonic()
        while (self._picks or self._remote.is_loading) and not self._remote.is_closed:
            self._tablet.cleaning.roll_if_due()
            if clock.monotonic() < looks_at_s and not self._tablet.log.side.has_lost:
                await clock.sleep(pause_s)
                continue
            try:
                async with asyncio.timeout(pause_s):  # heads are due whatever a pass waits for
                    await self._pass.acquire()
            except TimeoutError:
                continue
            try:
                is_done = await self._tablet.cleaning.clean_meanwhile()
            except StelaeError:
                is_done = False
                self._runtime.metrics.count("cleaning_failed")
            finally:
                self._pass.release()
            if not is_done:
                looks_at_s = clock.monotonic() + self._settings.clean_period_s
                await clock.sleep(pause_s)

    async def _inherit(self, group: Sequence[Segment]) -> None:
        held = await self._fetch(group)
        async with self._pass:
            await self._replace(group, held)

    async def _replace(self, group: Sequence[Segment], held: Mapping[RemoteRun, Piece]) -> None:
        parents = [parent_of(each, self._picks[each.segment_id]) for each in group]
        survivor = await self._survivor(parents)
        if not survivor.batch.num_rows:
            memory, slots = self._tablet.memory, [each.slot for each in group]
            memory.step(memory.begin_move(slots, survivor, 0, survivor.batch, 0), 1)
            self._let_go(group, 0, held)
            return
        side, is_admitted = self._tablet.log.side, False
        image = await image_of(self._runtime, self._tablet, group, survivor)
        side.begin(image.segment_id, image.buffer)
        self._fetch_ahead(group)
        try:
            await self._wait_sealed(image.segment_id)
            await self._move(group, survivor, image)
            self._let_go(group, image.segment_id, held)
            is_admitted = True
        finally:
            if not is_admitted:
                side.give_up(image.segment_id)
        self._runtime.metrics.count("inherited_bytes", image.buffer.size)

    async def _fetch(self, group: Sequence[Segment]) -> dict[RemoteRun, Piece]:
        """The rows that are wanted of these, held; those in memory are here as they are."""
        remote = [each for each in group if isinstance(each, RemoteSegment)]
        has_bytes = sum([each.memory_bytes for each in group])
        await self._remote.wait_room(kept_bytes(group, self._picks) - has_bytes)
        return await self._remote.hold_picked(remote)

    def _fetch_ahead(self, group: Sequence[Segment]) -> None:
        """What comes after this group, while that is sent and moved."""
        now = {segment.segment_id for segment in group}
        left = {segment: picks for segment, picks in self._picks.items() if segment not in now}
        order = self._tablet.memory.segments_in_order()
        ahead = next_group(order, left, self._settings.segment_bytes)
        self._remote.fetch_soon([each for each in ahead if isinstance(each, RemoteSegment)])

    async def _survivor(self, parents: Sequence[Parent]) -> Survivor:
        memory, codec = self._tablet.memory, self._tablet.memory.codec
        earlier: list[Parent] | None = None
        has_tombstones = any(parent.batch.column(OP_COLUMN).to_numpy().any() for parent in parents)
        if has_tombstones and not self._tablet.keeps_tombstones:
            earlier = memory.earlier(parents[0].segment.slot)
        survivor, filters = await self._runtime.offload(_survived, parents, earlier, codec)
        for parent, keys in zip(earlier or (), filters, strict=True):
            memory.hold(parent, keys)
        return survivor

    async def _wait_sealed(self, segment_id: int) -> None:
        """Until it is on all its backups, however long that takes."""
        side = self._tablet.log.side
        while not await side.wait_sealed(segment_id, self._settings.call_timeout_s):
            self._runtime.metrics.count("inherited_waits")

    async def _move(
        self, group: Sequence[Segment], survivor: Survivor, image: SurvivorImage
    ) -> None:
        memory, slots = self._tablet.memory, [each.slot for each in group]
        size_bytes = image.buffer.size
        move = memory.begin_move(slots, survivor, image.segment_id, image.batch, size_bytes)
        self._tablet.keep_object(image.segment_id, image.handle)
        await carry(self._runtime, memory, move)

    def _let_go(
        self, group: Sequence[Segment], survivor: int, held: Mapping[RemoteRun, Piece]
    ) -> None:
        """The survivor (0: nothing was kept) is in the log in their place, in the turn in which the
        last row has moved."""
        tablet, parents = self._tablet, [each.segment_id for each in group]
        tablet.log.side.admit(parents, survivor)
        for parent in parents:
            del self._picks[parent]
            tablet.keep_object(parent, None)
        self._remote.moved(held)
        self._runtime.metrics.count("segments_inherited", len(group))


def _survived(
    parents: Sequence[Parent], earlier: Sequence[Parent] | None, codec: KeyCodec
) -> tuple[Survivor, list[KeyFilter]]:
    """What is kept, and the filters of all ``earlier`` ones. Off the loop."""
    if earlier is None:
        return survive(parents, codec, None), []
    filters = [each.segment.held or filter_of(each, codec) for each in earlier]
    return survive(parents, codec, filters), filters
