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
from msgspec.structs import replace

from stelae.actors.entry_streams import entries_in
from stelae.actors.indexlet import Indexlet, Known
from stelae.actors.indexlet_offers import IndexletOffers
from stelae.client.locations import TableCache, look_up
from stelae.client.masters import MastersClient
from stelae.client.retries import on_tablet
from stelae.core.errors import InvalidArgument, StelaeError, TableNotFound, TabletNotReady
from stelae.core.ids import ServerUuid
from stelae.core.index_messages import FILL_ENTRIES, FillEntries, FillReply, IndexletProgress
from stelae.core.messages import TabletLocation
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.storage.indexlet import Floor

TABLETS_AT_ONCE = 4
"""Of one indexlet that is filled."""
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
        self._waiting: dict[int, str] = {}

    # ---- filling ------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Get everything from all tablets; the indexlet is then COMPLETE."""
        indexlet = self._indexlet
        cache = await self._tablets()
        indexlet.tablets = cache.tablet_count
        turns = asyncio.Semaphore(TABLETS_AT_ONCE)

        async def one(number: int) -> None:
            async with turns:
                await self._offers.or_ask(number, lambda: self._until_taken(cache, number))
                self._waits(number, "")

        async with asyncio.TaskGroup() as group:
            for number in range(cache.tablet_count):
                group.create_task(one(number))
        indexlet.entries.keeps_removals = False
        indexlet.to_merge.set()
        if indexlet.progress is IndexletProgress.FILLING:
            indexlet.progress = IndexletProgress.COMPLETE
            indexlet.problem = "to be put into service"

    async def _until_taken(self, cache: TableCache, number: int) -> None:
        while True:
            try:
                await self._take(cache, number)
                break
            except StelaeError as error:
                self._runtime.metrics.count("index_fills_repeated")
                self._waits(number, f"tablet {cache.tablet(number).tablet.tablet_id}: {error}")
            await self._runtime.clock.sleep(RETRY_S)
        self._indexlet.filled.add(number)

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
        """Put in what one tablet has. Raises StelaeError: it is to be tried again."""
        indexlet = self._indexlet
        known = indexlet.known.setdefault(number, Known(is_compared=False))
        doubts = known.doubts
        reply, pieces = await on_tablet(
            self._runtime,
            cache,
            number,
            "fill an index",
            self._all_pieces,
            timeout_s=self._settings.call_timeout_s * 4,
        )
        entries = pa.chunked_array(pieces, pa.binary()).combine_chunks()
        stamp = reply.tablet
        if stamp.number != number:
            raise InvalidArgument(f"tablet {number} says that it is {stamp.number}")
        if indexlet.is_handing_over:
            return  # its successors would not have this, and compare by themselves
        writer = indexlet.entries.writer(number, stamp.epoch)
        make = indexlet.entries.sorting(writer, reply.sequence, entries, is_sorted=True)
        indexlet.entries.add(make())
        indexlet.entries.set_floor(number, Floor(stamp.epoch, reply.sequence))
        if known.doubts == doubts and stamp.epoch >= known.epoch:
            indexlet.hear(stamp)
            known.is_compared = True
        indexlet.to_merge.set()

    async def _all_pieces(
        self, where: TabletLocation, server: ServerUuid | None, timeout_s: float
    ) -> tuple[FillReply, list[pa.BinaryArray]]:
        """One answer of a tablet from its first piece to its last, at one server."""
        record, pieces = self._indexlet.record, []
        request = FillEntries(
            where.tablet.tablet_id,
            record.index_id,
            record.low,
            record.high,
            self._indexlet.table.schema.version,
        )
        while True:
            try:
                reply = await self._runtime.peers.call(
                    where.address,
                    FILL_ENTRIES,
                    request,
                    timeout_s=timeout_s,
                    destination=server,
                )
            except InvalidArgument as error:
                if not request.session:
                    raise
                raise TabletNotReady(request.tablet_id, f"to be asked anew: {error}") from error
            pieces.append(entries_in(reply.blobs[0]))
            if reply.body.is_last:
                return reply.body, pieces
            session, piece = reply.body.session, request.piece + 1
            request = replace(request, session=session, piece=piece)

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
            for number, known in sorted(indexlet.known.items()):
                if not known.is_compared and not indexlet.is_handing_over:
                    await self._compare(cache, number)
            if any([not known.is_compared for known in indexlet.known.values()]):
                indexlet.to_compare.set()

    async def _compare(self, cache: TableCache, number: int) -> None:
        indexlet = self._indexlet
        indexlet.entries.keeps_removals = True
        try:
            await self._take(cache, number)
            self._runtime.metrics.count("index_comparisons")
        except TableNotFound:
            indexlet.known[number].is_compared = True  # the masters close this one soon
        except StelaeError:
            self._runtime.metrics.count("index_comparisons_failed")  # another one follows
        finally:
            indexlet.entries.keeps_removals = False
            indexlet.to_merge.set()
