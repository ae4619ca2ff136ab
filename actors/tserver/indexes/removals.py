"""Old entries on their way out of the indexes: in the background, in bounded memory, late.

A removal is sent once what has made the entry superfluous is durable, and once no insertion is
under way any more that was begun before it: then the indexlet takes none of those any more, however
late a copy may come. What cannot be kept (the queue is full) is not lost for good: the indexlets
are told to compare themselves with the tablet (`RemoveEntries.is_lossy`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from stelae.actors.tserver.indexes.entry_streams import stream_of
from stelae.actors.tserver.indexes.routes import IndexRoutes, Outbox
from stelae.core.backoff import Backoff
from stelae.core.errors import StelaeError
from stelae.core.messages.indexes import ENTRIES_MAX, REMOVE_ENTRIES, RemoveEntries, TabletStamp
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexId
from stelae.storage.indexes.runs import Run
from stelae.storage.rows.row_entries import sorted_entries

QUEUE_BYTES = 32 << 20
"""Of entries that wait to be taken out, of one tablet."""
ENTRY_BYTES = 100
"""Of an entry in the queue, beside its bytes, about."""
ATTEMPT_S = 1.0
GATHER_S = 0.01
"""Removals are in no hurry: those of so long go together."""
PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Removal:
    """Entries of one index that nobody needs any more; few, or many in order."""

    index_id: IndexId
    sequence: int
    log_index: int
    """Once this entry of the log is committed."""
    few: tuple[bytes, ...] = ()
    many: Run | None = None

    @property
    def size_bytes(self) -> int:
        if self.many is not None:
            return self.many.nbytes
        return sum([len(entry) + ENTRY_BYTES for entry in self.few])


class IndexRemovals:
    """The removals of one tablet, in one of its epochs."""

    def __init__(
        self,
        runtime: Runtime,
        routes: IndexRoutes,
        stamp: Callable[[], TabletStamp],
        may_send: Callable[[Removal], bool],
        is_indexed: Callable[[IndexId], bool],
    ) -> None:
        """``stamp``: of this very epoch, whichever the tablet is in by then: what was put in since
        has a higher one. ``may_send``: its entry of the log is committed, and older insertions are
        over. ``is_indexed``: whether the tablet still has that index."""
        self.is_lossy = False
        """Some were lost: indexlets have to compare."""
        self._runtime = runtime
        self._routes = routes
        self._stamp = stamp
        self._may_send = may_send
        self._is_indexed = is_indexed
        self._queue: deque[Removal] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()

    def put(self, removal: Removal) -> None:
        """Have entries taken out when it may be done."""
        size_bytes = removal.size_bytes
        if self._bytes + size_bytes > QUEUE_BYTES:
            self._runtime.metrics.count("index_removals_lost")
            self.is_lossy = True
            self._wake.set()
            return
        self._queue.append(removal)
        self._bytes += size_bytes
        self._wake.set()

    def wake(self) -> None:
        """Something is committed, or an insertion is over: look again."""
        if self._queue:
            self._wake.set()

    def waiting(self) -> str:
        """What waits to be taken out; empty: nothing."""
        if not self._queue and not self.is_lossy:
            return ""
        first = self._queue[0] if self._queue else None
        return f"{len(self._queue)} of {self._bytes} bytes, first {first}, lossy {self.is_lossy}"

    async def run(self) -> None:
        """Make the tablet known, and send what may be sent, until cancelled."""
        await self.announce()
        backoff = Backoff(self._runtime.rng, PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._woken()
            await self._runtime.clock.sleep(GATHER_S)
            while self._queue and self._may_send(self._queue[0]):
                if await self._send_some():
                    backoff.reset()
                    continue
                await backoff.pause(self._runtime.clock)
                await self._refresh()
            if self.is_lossy and not self._queue:
                self.is_lossy = False
                await self.announce(is_lossy=True)

    async def _woken(self) -> None:
        """Wait for something to do; what waits in the queue is looked at again after a while, as
        nobody tells when an entry of the log is committed."""
        try:
            async with asyncio.timeout(LONGEST_PAUSE_S if self._queue else None):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _refresh(self) -> None:
        try:
            await self._routes.refresh(ATTEMPT_S)
        except (StelaeError, TimeoutError):
            self._runtime.metrics.count("index_locations_missing")

    async def announce(self, *, is_lossy: bool = False, may_lack: bool = False) -> None:
        """Tell every indexlet of this epoch, or that removals were lost, or that rows may be back
        whose entries were taken out; returns when all know."""
        told: dict[str, None] = {}
        await self._refresh()
        while True:
            left = [o for o in self._routes.all() if o.location.indexlet.indexlet_id not in told]
            if self._routes.is_known and not left:
                return
            for outbox in left:
                if await self._call(outbox, (), (), (), is_lossy=is_lossy, may_lack=may_lack):
                    told[outbox.location.indexlet.indexlet_id] = None
            await self._runtime.clock.sleep(PAUSE_S if self._routes.is_known else LONGEST_PAUSE_S)
            await self._refresh()

    # ---- messages -----------------------------------------------------------------------------

    async def _send_some(self) -> bool:
        """Send the first, or several small ones; what did not get out goes to the end of the queue.
        False: nothing got out."""
        first = self._queue[0]
        if first.many is not None:
            self._queue.popleft()
            self._bytes -= first.size_bytes
            left = await self._send_many(first, first.many)
            return not left
        group: list[Removal] = []
        count = 0
        for removal in islice(self._queue, ENTRIES_MAX):
            if removal.many is not None or (count + len(removal.few) > ENTRIES_MAX and group):
                break
            if not self._may_send(removal):
                break
            group.append(removal)
            count += len(removal.few)
        for removal in group:
            self._queue.popleft()
            self._bytes -= removal.size_bytes
        return await self._send_few(group)

    async def _send_few(self, group: Sequence[Removal]) -> bool:
        by_outbox: dict[int, tuple[Outbox, list[tuple[Removal, bytes]]]] = {}
        for removal in group:
            for entry in removal.few:
                outbox = self._routes.outbox_of(removal.index_id, entry)
                if outbox is not None:
                    by_outbox.setdefault(id(outbox), (outbox, []))[1].append((removal, entry))
                elif self._is_indexed(removal.index_id):
                    self.put(_again(removal, (entry,)))
        sent = await asyncio.gather(*[self._send_to(*each) for each in by_outbox.values()])
        return any(sent)

    async def _send_to(self, outbox: Outbox, pairs: Sequence[tuple[Removal, bytes]]) -> bool:
        for begin in range(0, len(pairs), ENTRIES_MAX):
            part = pairs[begin : begin + ENTRIES_MAX]
            sequences = tuple([removal.sequence for removal, _ in part])
            entries = tuple([entry for _, entry in part])
            if not await self._call(outbox, sequences, entries, ()):
                for removal, entry in pairs[begin:]:
                    self.put(_again(removal, (entry,)))
                return False
        return True

    async def _send_many(self, removal: Removal, run: Run) -> bool:
        """True: some of them did not get out."""
        pieces, missing = self._routes.cut(removal.index_id, run, [(0, run.length)])
        for outbox, (begin, end) in pieces:
            blob = stream_of(run.part(begin, end).entries())
            if not await self._call(outbox, (removal.sequence,), (), [blob]):
                missing.append((begin, end))
        if not missing or not self._is_indexed(removal.index_id):
            return False
        for begin, end in missing:
            left = sorted_entries(run.part(begin, end).entries())
            self.put(Removal(removal.index_id, removal.sequence, removal.log_index, (), left))
        return True

    async def _call(
        self,
        outbox: Outbox,
        sequences: tuple[int, ...],
        entries: tuple[bytes, ...],
        blobs: Sequence[Blob],
        *,
        is_lossy: bool = False,
        may_lack: bool = False,
    ) -> bool:
        location = outbox.location
        if not location.address or not self._routes.is_known:
            return False
        record = location.indexlet
        body = RemoveEntries(
            record.indexlet_id,
            record.term,
            self._stamp(),
            sequences,
            entries,
            is_lossy,
            may_lack=may_lack,
        )
        try:
            await self._runtime.peers.call(
                location.address,
                REMOVE_ENTRIES,
                body,
                timeout_s=ATTEMPT_S,
                blobs=blobs,
                destination=record.owner,
            )
        except StelaeError:
            self._runtime.metrics.count("index_removals_repeated")
            return False
        return True


def _again(removal: Removal, entries: tuple[bytes, ...]) -> Removal:
    return Removal(removal.index_id, removal.sequence, removal.log_index, entries)
