"""What a recovery job offers to one indexlet: a tablet's entries, before the tablet can tell them.

While it is filled an indexlet takes a tablet's entries from whoever brings all of them first: the
job that has merged the tablet's log, or the tablet itself. It does not ask a tablet for as long as
a job has promised its entries. `stelae.core.messages.index_offers` says why an offer is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.indexes.entry_streams import entries_in
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.messages.index_offers import EPOCH_BEGINS, OfferEntries
from stelae.core.messages.indexes import IndexletProgress, TabletStamp
from stelae.core.rpc import Call
from stelae.core.runtime import Runtime
from stelae.storage.indexes.indexlet import Floor
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.indexes.runs import Run

PROMISE_S = 10.0
"""A job that has promised a tablet's entries has so long to bring the first piece, and each other
one; then the tablet is asked."""
PIECES_MAX = 1 << 20


class IndexletOffers:
    """Of one indexlet in one term."""

    def __init__(self, runtime: Runtime, indexlet: Indexlet) -> None:
        self._runtime = runtime
        self._indexlet = indexlet
        self._promised: dict[int, float] = {}
        self._pieces: dict[tuple[int, int, int], dict[int, None]] = {}
        """Of a tablet's number, an epoch and a number of pieces: those that are here. Another job
        may have cut them otherwise."""
        self._doubts: dict[tuple[int, int], int] = {}
        """Of a tablet's number and epoch: how many there were when an offer made it known."""
        self._news = asyncio.Event()

    # ---- jobs ---------------------------------------------------------------------------------

    async def take(self, call: Call[OfferEntries]) -> None:
        """Take in a piece, or the promise of all of them. Raises as the message says."""
        body, indexlet = call.body, self._indexlet
        indexlet.check(body.term)
        number, epoch = body.tablet.number, body.tablet.epoch
        if indexlet.record.succeeds:
            raise InvalidArgument(f"indexlet {indexlet.indexlet_id} is filled by another one")
        indexlet.lineage.check_number(number)
        if not self._has_use_for(number):
            return
        if body.piece_count and not (0 <= body.piece < body.piece_count <= PIECES_MAX):
            raise InvalidArgument(f"piece {body.piece} of {body.piece_count}")
        if body.piece_count and len(call.blobs) != 1:
            raise InvalidArgument(f"a piece of entries is one blob, not {len(call.blobs)}")
        entries = entries_in(call.blobs[0]) if body.piece_count else None
        self._hear(body.tablet)
        self._promised[number] = self._runtime.clock.monotonic() + PROMISE_S
        if entries is None:
            return
        await self._put(body, entries)
        pieces = self._pieces.setdefault((number, epoch, body.piece_count), {})
        pieces[body.piece] = None
        if len(pieces) == body.piece_count and self._has_use_for(number):
            known = indexlet.hear(body.tablet)
            indexlet.entries.set_floor(number, Floor(epoch, EPOCH_BEGINS))
            if self._doubts.get((number, epoch)) == known.doubts:
                known.compared()
            indexlet.filled.add(number)
            self._runtime.metrics.count("index_fills_offered")
            self._news.set()

    def _hear(self, stamp: TabletStamp) -> None:
        """An offer tells what there was when the epoch began: it settles that there is a new one,
        and no other doubt. So those are counted from the epoch's first message on, if that is an
        offer's. Raises StaleTerm."""
        before = self._indexlet.known.get(stamp.number)
        is_new = before is None or before.epoch < stamp.epoch
        known = self._indexlet.hear(stamp)
        if is_new:
            self._doubts[stamp.number, stamp.epoch] = known.doubts

    async def _put(self, body: OfferEntries, entries: pa.BinaryArray) -> None:
        """Put a piece in: late or twice, it is older than all that was heard of this epoch."""
        indexlet, stamp = self._indexlet, body.tablet
        if not len(entries):
            return
        writer = indexlet.entries.writer(stamp.number, stamp.epoch)
        sort = indexlet.entries.sorting(writer, EPOCH_BEGINS, entries)
        run = await self._runtime.offload(self._checked, entries, sort)
        indexlet.check(body.term)
        indexlet.check_range(run.entry(0), run.entry(run.length - 1))
        if self._has_use_for(stamp.number):
            indexlet.entries.add(run)
            indexlet.to_merge.set()

    def _checked(self, entries: pa.BinaryArray, sort: Callable[[], Run]) -> Run:
        """Off the loop. Raises InvalidArgument: they are no entries of this index."""
        schema, index_id = self._indexlet.table.schema, self._indexlet.record.index_id
        index = next(index for index in schema.indexes if index.index_id == index_id)
        try:
            EntryCodec(schema, index).keys_of(entries)
        except (CorruptData, pa.ArrowException) as error:
            raise InvalidArgument(f"not entries of index {index_id}: {error}") from error
        return sort()

    def _has_use_for(self, number: int) -> bool:
        is_filling = self._indexlet.progress is IndexletProgress.FILLING
        return is_filling and number not in self._indexlet.filled

    # ---- the fill -----------------------------------------------------------------------------

    async def or_ask(self, number: int, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Return once a tablet's entries are here: offered, or by ``ask``, if nobody promises."""
        await self._wait_promised(number)
        if number in self._indexlet.filled:
            return
        asking, offered = asyncio.create_task(ask()), asyncio.create_task(self._offered(number))
        try:
            await asyncio.wait((asking, offered), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            asking.cancel()
            offered.cancel()

    async def _offered(self, number: int) -> None:
        while number not in self._indexlet.filled:
            self._news.clear()
            await self._news.wait()

    async def _wait_promised(self, number: int) -> None:
        clock = self._runtime.clock
        while number not in self._indexlet.filled:
            left_s = self._promised.get(number, 0.0) - clock.monotonic()
            if left_s <= 0.0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._offered(number)
            except TimeoutError:
                self._runtime.metrics.count("index_promises_broken")
