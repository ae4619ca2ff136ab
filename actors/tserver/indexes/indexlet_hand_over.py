"""How an indexlet is brought over to those that are to succeed it, while it serves.

From the turn in which its entries are noted, every insertion and removal is also told to the
successors of its range before it is acknowledged: so tablets need not know. What is noted is copied
piece by piece. Stamps make the order of it all irrelevant.

Until the successors are COMPLETE a forwarding that fails makes the hand-over FAILED, for good, and
nothing waits for them any more. Once they are, the masters may put them in the indexlet's place at
any time: then nothing is acknowledged that they do not have, until the masters have decided.

The masters number hand-overs, and orders name the one that they are about: each is begun once, and
only what was not overtaken (`heed`, `make_way`). So nobody is filled twice: what was taken out
between would stay, and what was put in between would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.actors.tserver.indexes.entry_streams import COPIED, batch_in, stream_of
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.core.config.settings import Settings
from stelae.core.errors import IndexletNotReady, InvalidArgument, StaleTerm, StelaeError
from stelae.core.messages.indexes import (
    COPY_ENTRIES,
    INSERT_ENTRIES,
    PIECE_BYTES,
    REMOVE_ENTRIES,
    STAMP_PART_END,
    CloseIndexlet,
    CopyEntries,
    HandOverIndexlet,
    HandOverStage,
    IndexletLocation,
    IndexletProgress,
    InsertEntries,
    KnownTablet,
    RemoveEntries,
)
from stelae.core.rpc import Blob, Call
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import END, IndexletId, in_range
from stelae.storage.indexes.runs import REMOVED, Run
from stelae.storage.kernels.default import default_index_kernels

ATTEMPT_S = 1.0
"""Of one forwarding."""
PAUSE_S = 0.05


class HandOver:
    """One hand-over; other successors are another one."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        indexlet: Indexlet,
        order: HandOverIndexlet,
        on_news: Callable[[], None],
    ) -> None:
        self.generation = order.generation
        self.stage = HandOverStage.COPYING
        self.copied_entries = 0
        self._runtime = runtime
        self._settings = settings
        self._indexlet = indexlet
        self._on_news = on_news
        self._locations = order.successors
        self._known = indexlet.known_tablets()
        self._runs = indexlet.entries.snapshot()
        indexlet.hand_over = self  # in the same turn: what comes from now on is forwarded

    @property
    def successors(self) -> tuple[IndexletId, ...]:
        return _ids(self._locations)

    def let_go(self) -> None:
        """The masters have given the successors up."""
        self.stage = HandOverStage.FAILED
        self._runs = ()

    def _fail(self) -> None:
        if self.stage is HandOverStage.COPYING:
            self.stage = HandOverStage.FAILED
            self._runs = ()
            self._on_news()

    # ---- what comes meanwhile -----------------------------------------------------------------

    async def forward(
        self, body: InsertEntries | RemoveEntries, blobs: Sequence[Blob], timeout_s: float
    ) -> None:
        """Have the successors take it too. Raises IndexletNotReady: it may not be acknowledged."""
        if self.stage is HandOverStage.FAILED:
            return
        deadline = self._runtime.clock.monotonic() + timeout_s
        parts = [part for each in self._locations if (part := self._part(each, body, blobs))]
        await asyncio.gather(*[self._send(*part, deadline) for part in parts])

    def _part(
        self,
        location: IndexletLocation,
        body: InsertEntries | RemoveEntries,
        blobs: Sequence[Blob],
    ) -> tuple[IndexletLocation, InsertEntries | RemoveEntries, Sequence[Blob]] | None:
        """What of a message is for one successor; None: nothing is."""
        indexlet = location.indexlet
        where = (indexlet.indexlet_id, indexlet.term, body.tablet)
        if blobs:
            with pa.ipc.open_stream(pa.py_buffer(blobs[0])) as reader:
                entries = reader.read_all().column(0).combine_chunks()
            found = entries.filter(_mask(entries, indexlet.low, indexlet.high))
            kind = type(body)
            many = kind(*where, body.sequences, (), is_forwarded=True)
            return (location, many, [stream_of(found)]) if len(found) else None
        pairs = zip(body.sequences, body.entries, strict=True)
        mine = [(s, e) for s, e in pairs if in_range(e, indexlet.low, indexlet.high)]
        if body.entries and not mine:
            return None
        sequences, chosen = tuple([s for s, _ in mine]), tuple([e for _, e in mine])
        if isinstance(body, InsertEntries):
            return location, InsertEntries(*where, sequences, chosen, is_forwarded=True), ()
        news = (body.is_lossy, True, body.may_lack)
        return location, RemoveEntries(*where, sequences, chosen, *news), ()

    async def _send(
        self,
        location: IndexletLocation,
        body: InsertEntries | RemoveEntries,
        blobs: Sequence[Blob],
        deadline: float,
    ) -> None:
        clock, last = self._runtime.clock, ""
        while self.stage is not HandOverStage.FAILED:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                state = f"not sure that {location.indexlet.indexlet_id} has it too: {last}"
                raise IndexletNotReady(self._indexlet.indexlet_id, state)
            try:
                call = self._runtime.peers.call
                at, owner = location.address, location.indexlet.owner
                limit_s = min(left_s, ATTEMPT_S)
                if isinstance(body, InsertEntries):
                    await call(
                        at, INSERT_ENTRIES, body, timeout_s=limit_s, blobs=blobs, destination=owner
                    )
                else:
                    await call(
                        at, REMOVE_ENTRIES, body, timeout_s=limit_s, blobs=blobs, destination=owner
                    )
                return
            except StelaeError as error:
                self._runtime.metrics.count("index_forwardings_failed")
                last = str(error)
                self._fail()
            await clock.sleep(PAUSE_S)

    # ---- what there was before ----------------------------------------------------------------

    async def copy(self) -> None:
        """Bring over everything that is there now; the successors are then COMPLETE, or FAILED."""
        try:
            await asyncio.gather(*[self._copy_to(location) for location in self._locations])
        except StelaeError as error:
            self._runtime.metrics.count("index_copies_failed")
            self._indexlet.problem = f"its successors were not complete: {error}"
            self._fail()
        self._runs = ()
        if self.stage is HandOverStage.COPYING:
            self.stage = HandOverStage.COMPLETE
            self._on_news()

    async def _copy_to(self, location: IndexletLocation) -> None:
        record = location.indexlet
        for run in self._runs:
            begin, end = 0, run.length
            kernels = default_index_kernels()
            if record.low and run.length:
                begin = run.find(record.low, kernels)
            if record.high != END and run.length:
                end = run.find(record.high, kernels)
            while begin < end:
                piece_bytes = run.offsets[begin : end + 1] - run.offsets[begin]
                count = int(np.searchsorted(piece_bytes[1:], PIECE_BYTES)) + 1
                piece = run.part(begin, min(begin + count, end))
                numbers, epochs = self._indexlet.entries.stamps_of(piece)
                blob = await self._runtime.offload(_encode, piece, numbers, epochs)
                await self._call(location, (), [blob], is_last=False)
                self.copied_entries += piece.length
                begin += piece.length
        await self._call(location, self._known, [], is_last=True)

    async def _call(
        self,
        location: IndexletLocation,
        tablets: tuple[KnownTablet, ...],
        blobs: Sequence[Blob],
        *,
        is_last: bool,
    ) -> None:
        """One piece. Raises StelaeError: it did not come to its successor, which must be sure."""
        record = location.indexlet
        if self.stage is not HandOverStage.COPYING:
            raise IndexletNotReady(record.indexlet_id, "given up by the one it was to succeed")
        await self._runtime.peers.call(
            location.address,
            COPY_ENTRIES,
            CopyEntries(record.indexlet_id, record.term, tablets, is_last),
            timeout_s=self._settings.call_timeout_s,
            blobs=blobs,
            destination=record.owner,
        )


def _ids(locations: Sequence[IndexletLocation]) -> tuple[IndexletId, ...]:
    return tuple([each.indexlet.indexlet_id for each in locations])


def _mask(entries: pa.BinaryArray, low: bytes, high: bytes) -> pa.BooleanArray:
    mask = pc.greater_equal(entries, pa.scalar(low, pa.binary()))
    if high == END:
        return mask
    return pc.and_(mask, pc.less(entries, pa.scalar(high, pa.binary())))


def _encode(piece: Run, numbers: np.ndarray, epochs: np.ndarray) -> pa.Buffer:
    is_removed = (piece.sequences & np.uint64(REMOVED)) != 0
    return stream_of(piece.entries(), numbers, epochs, piece.sequences >> np.uint64(1), is_removed)


# ---- the masters' orders ----------------------------------------------------------------------


def heed(indexlet: Indexlet, order: HandOverIndexlet) -> bool:
    """Let go of the hand-over that an order ends; whether it begins one.

    Raises StaleTerm: it is late. A later one was heard of, or this one was let go.
    """
    current, newest = indexlet.hand_over, indexlet.newest_hand_over
    if current is not None and current.successors == _ids(order.successors):
        # A master of before may have begun it, or a leader of before may ask for it.
        current.generation = indexlet.newest_hand_over = max(newest, order.generation)
        return False
    is_over = order.generation == newest > 0 and bool(order.successors)
    if order.generation < newest or is_over:
        raise _late(indexlet, order.generation)
    if current is not None:
        current.let_go()
    indexlet.hand_over, indexlet.newest_hand_over = None, order.generation
    return bool(order.successors)


def make_way(indexlet: Indexlet, order: CloseIndexlet) -> None:
    """Close an indexlet for its successors, unless it is.

    Raises StaleTerm: another hand-over was heard of, or this one was let go; IndexletNotReady: the
    successors do not have everything.
    """
    if indexlet.progress is IndexletProgress.CLOSED:
        return
    current = indexlet.hand_over
    if current is None or current.generation != order.hand_over:
        raise _late(indexlet, order.hand_over)
    if current.stage is not HandOverStage.COMPLETE:
        raise IndexletNotReady(indexlet.indexlet_id, "its successors do not have all of it")
    indexlet.close()


def _late(indexlet: Indexlet, generation: int) -> StaleTerm:
    current = max(indexlet.newest_hand_over, generation + 1)
    return StaleTerm(f"hand-over of indexlet {indexlet.indexlet_id}", generation, current)


# ---- a successor ------------------------------------------------------------------------------


async def take_copy(runtime: Runtime, indexlet: Indexlet, call: Call[CopyEntries]) -> None:
    """A successor's part: put in a piece of what it is to have.

    Raises IndexletNotReady: it has everything already. This is a late piece, or one of another
    hand-over to it, begun after what the former one forwarded had come to an end: to that nothing
    may seem to be taken.
    """
    body = call.body
    indexlet.check(body.term)
    _require_filling(indexlet)
    if not indexlet.record.succeeds:
        raise InvalidArgument(f"indexlet {indexlet.indexlet_id} succeeds no other")
    for tablet in body.tablets:
        indexlet.lineage.check_number(tablet.number)
    if call.blobs:
        entries, numbers, epochs, sequences, is_removed = batch_in(call.blobs[0], COPIED).columns
        if len(entries):
            indexlet.lineage.check_number(pc.max(numbers).as_py())
            if max(pc.max(epochs).as_py(), pc.max(sequences).as_py()) >= STAMP_PART_END:
                raise InvalidArgument("stamps of index entries are below 2^62")
        stamps = sequences.to_numpy() << np.uint64(1)
        stamps |= is_removed.to_numpy(zero_copy_only=False).astype(np.uint64)
        run = await runtime.offload(
            indexlet.entries.sorting_copy(entries, numbers.to_numpy(), epochs.to_numpy(), stamps)
        )
        _require_filling(indexlet)
        indexlet.entries.add(run)
        indexlet.to_merge.set()
    indexlet.learn_tablets(body.tablets)
    if body.is_last:
        indexlet.entries.keeps_removals = False
        indexlet.progress = IndexletProgress.COMPLETE


def _require_filling(indexlet: Indexlet) -> None:
    if indexlet.progress is not IndexletProgress.FILLING:
        raise IndexletNotReady(indexlet.indexlet_id, "it has everything already")
