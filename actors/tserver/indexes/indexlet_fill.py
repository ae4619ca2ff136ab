"""How an indexlet gets what there was before: from the tablets, each of which tells what it has.

While it is filled it takes insertions and removals as ever; stamps tell which is newer. Each tablet
answers as of one moment, whose stamp becomes the **floor** of that tablet: what is below it, and
not in the answer, is gone. In the same way a tablet with a new epoch is compared later, when what
its former owner or leader left behind is taken out. A tablet that does not answer is waited for,
for ever if need be: it is being recovered, and the report says which it is.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from stelae.actors.tserver.indexes.entry_streams import entries_in
from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.indexlet_offers import IndexletOffers
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import IMPATIENCE
from stelae.client.routing.locations import TableCache, look_up
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.retries import on_tablet, parts_of
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
    TableNotFound,
    TabletNotReady,
)
from stelae.core.ids import ServerUuid, make_uuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.indexes import FILL_ENTRIES, FillEntries, FillReply, IndexletProgress
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.storage.indexes.indexlet import Floor
from stelae.storage.indexes.runs import Run

CALLS_AT_ONCE = 8
"""Of one indexlet that is filled; tablets that cannot answer yet refuse at once."""
FAILURES_MAX = 3
"""In a row, of calls for a piece, each repeated for a while, before all of it is asked for anew."""
COMPARE_PAUSE_S = 1.0
"""Before tablets with a new epoch are compared: others may follow."""
RETRY_S = 0.5


class IndexletFill:
    """The filling of one indexlet, and comparing it with tablets afterwards."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        masters: MastersClient,
        indexlet: Indexlet,
        offers: IndexletOffers,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._masters = masters
        self._indexlet = indexlet
        self._offers = offers
        self._cache: TableCache | None = None
        self._turns = asyncio.Semaphore(CALLS_AT_ONCE)
        self._waiting: dict[int, str] = {}

    # ---- filling ------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Get everything from all tablets; the indexlet is then COMPLETE."""
        indexlet = self._indexlet
        cache = await self._tablets()
        indexlet.tablets = cache.tablet_count

        async def one(number: int) -> None:
            await self._offers.or_ask(number, lambda: self._until_taken(cache, number))
            self._waits(number, "")
            if number in indexlet.filled:
                return
            parts = await self._parts_of(cache, number)
            indexlet.tablets += len(parts) - 1
            for part in parts:
                group.create_task(one(part))

        async with asyncio.TaskGroup() as group:
            for number in cache.numbers:
                group.create_task(one(number))
        indexlet.entries.keeps_removals = False
        indexlet.to_merge.set()
        if indexlet.progress is IndexletProgress.FILLING:
            indexlet.progress = IndexletProgress.COMPLETE
            indexlet.problem = "to be put into service"

    async def _until_taken(self, cache: TableCache, number: int) -> None:
        """Until it has told what it has, or has been split."""
        while True:
            try:
                await self._take(cache, number)
                break
            except WasSplit:
                return
            except StelaeError as error:
                self._runtime.metrics.count("index_fills_repeated")
                self._waits(number, f"tablet {_id_of(cache, number)}: {error}")
            await self._runtime.clock.sleep(RETRY_S)
        self._indexlet.filled.add(number)

    async def _parts_of(self, cache: TableCache, number: int) -> list[int]:
        """The tablets that one was split into, however long the masters take to tell."""
        while True:
            try:
                return list(await parts_of(self._runtime, cache, number, self._patience()))
            except StelaeError as error:
                self._waits(number, f"the parts of tablet {number}: {error}")
            await self._runtime.clock.sleep(RETRY_S)

    def _patience(self) -> float:
        return self._runtime.clock.monotonic() + self._settings.call_timeout_s

    def _waits(self, number: int, problem: str) -> None:
        """What the report says the indexlet waits for."""
        if problem:
            self._waiting[number] = problem
        else:
            self._waiting.pop(number, None)
        self._indexlet.problem = next(iter(self._waiting.values()), "")

    async def _tablets(self) -> TableCache:
        """The tablets of the table. Waits for the masters; a table that is gone has the masters
        close this indexlet soon."""
        table, settings = self._indexlet.table, self._settings
        while self._cache is None:
            try:
                found = await look_up(self._masters, table.name, table.table_id)
                self._cache = TableCache(self._masters, found)
            except StelaeError as error:
                self._indexlet.problem = f"the masters: {error}"
                await self._runtime.clock.sleep(settings.heartbeat_s)
        return self._cache

    async def _take(self, cache: TableCache, number: int) -> None:
        """Put in what one tablet has. Raises StelaeError: it is to be tried again; WasSplit."""
        indexlet = self._indexlet
        known = indexlet.lineage.of(number)
        doubts = known.doubts
        reply, pieces = await self._all_pieces(cache, number)
        stamp = reply.tablet
        if stamp.number != number:
            raise InvalidArgument(f"tablet {number} says that it is {stamp.number}")
        if not self._may_take():
            return
        writer = indexlet.entries.writer(number, stamp.epoch)

        def make() -> Run:
            entries = pa.chunked_array(pieces, pa.binary()).combine_chunks()
            return indexlet.entries.sorting(writer, reply.sequence, entries, is_sorted=True)()

        run = await self._runtime.offload(make)
        if not self._may_take():
            return
        indexlet.entries.add(run)
        indexlet.entries.set_floor(number, Floor(stamp.epoch, reply.sequence))
        is_over = indexlet.lineage.is_over(number)
        if known.doubts == doubts and stamp.epoch >= known.epoch and not is_over:
            indexlet.hear(stamp)
            indexlet.compared(known)
        indexlet.to_merge.set()

    def _may_take(self) -> bool:
        """Successors would not have what is taken now, and compare by themselves."""
        return not self._indexlet.is_handing_over

    async def _all_pieces(
        self, cache: TableCache, number: int
    ) -> tuple[FillReply, list[pa.BinaryArray]]:
        """One answer of a tablet from its first piece to its last, at one server. However long it
        takes: each call has a time, and a lost one is made again."""
        pieces: list[pa.BinaryArray] = []
        first: FillReply | None = None
        session, failures, is_begun = make_uuid(self._runtime.rng), 0, False
        while True:
            try:
                reply = await self._piece(cache, number, session, len(pieces))
            except InvalidArgument as error:
                if not is_begun:
                    raise
                tablet_id = cache.tablet(number).tablet.tablet_id
                raise TabletNotReady(tablet_id, f"to be asked anew: {error}") from error
            except (RetryLater, RetryElsewhere, OutcomeUnknown) as error:
                failures += 1
                if not is_begun or failures > FAILURES_MAX:
                    raise
                self._runtime.metrics.count("index_fills_resumed")
                self._waits(number, f"tablet {cache.tablet(number).tablet.tablet_id}: {error}")
                continue
            failures, is_begun = 0, True
            if reply.body.is_made:
                first = first or reply.body
                if _answer_of(first) != _answer_of(reply.body):
                    # Leaders changed there and back: each has an answer of its own.
                    tablet_id = cache.tablet(number).tablet.tablet_id
                    raise TabletNotReady(tablet_id, "to be asked anew: it gave another answer")
                pieces.append(entries_in(reply.blobs[0]))
                if reply.body.is_last:
                    return reply.body, pieces

    async def _piece(
        self, cache: TableCache, number: int, session: str, piece: int
    ) -> Reply[FillReply]:
        """One piece of an answer, or the word that it is being made."""
        record, version = self._indexlet.record, self._indexlet.table.schema.version

        async def attempt(
            where: TabletLocation, server: ServerUuid | None, timeout_s: float
        ) -> Reply[FillReply]:
            tablet_id, bounds = where.tablet.tablet_id, (record.low, record.high)
            request = FillEntries(tablet_id, record.index_id, *bounds, version, session, piece)
            async with self._turns:
                return await self._runtime.peers.call(
                    where.address,
                    FILL_ENTRIES,
                    request,
                    timeout_s=timeout_s,
                    destination=server,
                )

        return await on_tablet(
            self._runtime,
            cache,
            number,
            "fill an index",
            attempt,
            timeout_s=self._settings.call_timeout_s * 4,
            patience=IMPATIENCE,
        )

    # ---- comparing ----------------------------------------------------------------------------

    async def compare(self) -> None:
        """Compare the indexlet with tablets of a new epoch; runs until it is closed."""
        indexlet = self._indexlet
        while True:
            await indexlet.to_compare.wait()
            indexlet.to_compare.clear()
            await self._runtime.clock.sleep(COMPARE_PAUSE_S)
            if indexlet.progress is not IndexletProgress.SERVING:
                continue  # `Indexlet.serve` asks for it again
            cache = await self._tablets()
            for number, known in list(indexlet.lineage.to_compare()):
                if not known.is_compared and not indexlet.is_handing_over:
                    await self._compare(cache, number)
            if indexlet.settle():
                self._runtime.metrics.count("index_splits_settled")
                indexlet.to_merge.set()
            if not indexlet.lineage.is_compared:
                indexlet.to_compare.set()

    async def _compare(self, cache: TableCache, number: int) -> None:
        indexlet = self._indexlet
        indexlet.entries.keeps_removals = True
        try:
            await self._take_or_parts(cache, number)
            self._runtime.metrics.count("index_comparisons")
        except TableNotFound:
            indexlet.known[number].is_compared = True  # the masters close this one soon
        except StelaeError:
            self._runtime.metrics.count("index_comparisons_failed")  # another one follows
        finally:
            indexlet.entries.keeps_removals = False
            indexlet.to_merge.set()

    async def _take_or_parts(self, cache: TableCache, number: int) -> None:
        """Put in what a tablet has, or each of its parts: it may have been split, and it may be a
        part that came after the last look at the table."""
        if number not in cache.numbers:
            await cache.refresh()
        try:
            await self._take(cache, number)
        except WasSplit:
            for part in await parts_of(self._runtime, cache, number, self._patience()):
                await self._take_or_parts(cache, part)


def _id_of(cache: TableCache, number: int) -> str:
    """For messages."""
    try:
        return cache.tablet(number).tablet.tablet_id
    except WasSplit:
        return f"{number}, which was split"


def _answer_of(piece: FillReply) -> tuple[object, ...]:
    """What is the same in all pieces of one answer."""
    return piece.tablet, piece.sequence, piece.entry_count
