"""A scan as a stream of batches: bounded memory, one snapshot of each tablet, typed ends.

1. A tablet is pinned (`stelae.client.table.snapshots`) when the stream reaches it, and its rows are
   read from the pin. Across tablets the points differ, as in every scan.
2. Up to three pieces are in memory, however slow the reader is: the one in use, one in the queue,
   and one that is being fetched.
3. A tablet whose pin is lost before any of its rows went into the queue is pinned again. After
   that no other server has these rows, and the stream ends with `SnapshotLost`.
4. A stream that failed or was closed raises its error at each further call. It never ends as if
   all rows had been read.
5. Pins are renewed while the stream is open, and released when it is closed or dropped. The tasks
   of a stream therefore hold no reference to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import pyarrow as pa

from stelae.client.routing.locations import TableCache
from stelae.client.table.reads import WantedRows
from stelae.client.table.snapshots import (
    PATIENCE_S,
    PinnedTablet,
    TableSnapshot,
    keep,
    let_go,
    pin_tablet,
    read_pieces,
)
from stelae.core.errors import ClosedMeanwhile, DeadlineExpired, SnapshotLost
from stelae.core.messages.rows import Scan
from stelae.core.runtime import Runtime

KEEP_S = 60.0
"""Seconds that a server keeps a pin after its reader has vanished."""
PIN_ATTEMPTS = 3
"""Maximum number of times that one tablet is pinned."""

Piece: TypeAlias = list[pa.RecordBatch]


class BatchStream:
    """Rows of a scan: an asynchronous iterator of `pyarrow.RecordBatch` with a known ``schema``.

    Close it with `aclose`, or by ``async with``, if it is not read to its end; a stream that is
    dropped is closed as well.
    """

    def __init__(
        self, schema: pa.Schema, pieces: AsyncGenerator[Piece, None], batch_rows: int | None
    ) -> None:
        """``batch_rows``: maximum rows of a batch; None: as the servers send them."""
        self.schema = schema
        self._pieces = pieces
        self._batch_rows = batch_rows
        self._ready: deque[pa.RecordBatch] = deque()
        self._error: Exception | None = None
        self._has_ended = False
        # A generator refuses to be closed while one of its steps runs, and a cancelled step runs
        # until the pins are released.
        self._turns = asyncio.Lock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while not self._ready:
            piece = await self.next_piece()
            if piece is None:
                raise StopAsyncIteration
            self._ready.extend(piece)
        return self._ready.popleft()

    async def next_piece(self) -> Piece | None:
        """Return the next batches, None after the last ones. Raises as the scan does (rule 4).

        Raises:
            ClosedMeanwhile: the stream was closed, or an earlier call cancelled, before its end.
        """
        async with self._turns:
            return await self._next_piece()

    async def _next_piece(self) -> Piece | None:
        if self._error is not None:
            raise self._error
        try:
            piece = await anext(self._pieces, None)
        except asyncio.CancelledError:
            self._error = ClosedMeanwhile("the stream")
            raise
        except Exception as error:
            self._error = error
            raise
        self._has_ended = piece is None
        if piece is None or self._batch_rows is None:
            return piece
        most = self._batch_rows
        return [
            batch.slice(start, most) for batch in piece for start in range(0, batch.num_rows, most)
        ]

    async def aclose(self) -> None:
        """Release the pins, after a `next_piece` that is under way; again is fine."""
        async with self._turns:
            self._ready.clear()
            # Rule 4: a closed generator says that it is over, as one does after its last piece.
            if self._error is None and not self._has_ended:
                self._error = ClosedMeanwhile("the stream")
            await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


async def open_stream(
    pieces: AsyncGenerator[Piece, None], batch_rows: int | None = None
) -> BatchStream:
    """Begin to read ``pieces``, whose first one is an empty batch of the schema.

    A generator that has begun is closed by its event loop if it is dropped (rule 5).
    """
    (first,) = await anext(pieces)
    return BatchStream(first.schema, pieces, batch_rows)


async def pinned_pieces(
    runtime: Runtime, cache: TableCache, wanted: WantedRows, limit: int | None, timeout_s: float
) -> AsyncGenerator[Piece, None]:
    """Yield an empty batch of the schema, then up to ``limit`` matching rows in pieces.

    Raises:
        SnapshotLost: a tablet's server ended after some of its rows had been read.
        SchemaChanged: a column that is read was dropped before its tablet was pinned.
        StelaeError: as `pin_tablet` and `read_pieces` do; each has up to ``timeout_s``.
    """
    source = _Source(runtime, cache, wanted, timeout_s)
    tasks = [asyncio.create_task(source.read(limit)), asyncio.create_task(source.keep())]
    try:
        while (piece := await source.next()) is not None:
            yield piece
            del piece  # not held while the next one is waited for (rule 2)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await source.let_go()


class _Source:
    """Reads the tablets of a stream one after the other, ahead of its reader."""

    def __init__(
        self, runtime: Runtime, cache: TableCache, wanted: WantedRows, timeout_s: float
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(1)
        self._pinned: dict[str, PinnedTablet] = {}
        self._left: int | None = None
        self._rows = 0
        """Number of rows that were put into the queue."""
        self._has_begun = False

    async def next(self) -> Piece | None:
        """Return the next piece, None after the last one. Raises what ended `read`."""
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def read(self, limit: int | None) -> None:
        """Put all pieces into the queue, then None, or the error that ended the reading."""
        self._left = limit
        end: Exception | None = None
        try:
            for number in tuple(self._cache.numbers):
                if self._left is not None and self._left <= 0:
                    break
                await self._read_tablet(number)
            await self._begin()
        except Exception as error:
            end = error  # the reader raises it, after the rows before it
        await self._queue.put(end)

    async def keep(self) -> None:
        """Renew the pins until cancelled."""
        while True:
            await self._runtime.clock.sleep(KEEP_S / 3)
            if self._pinned:
                await keep(self._runtime, self._snapshot(tuple(self._pinned.values())))

    async def let_go(self) -> None:
        """Release the pins that are held."""
        pinned, self._pinned = tuple(self._pinned.values()), {}
        if pinned:
            await let_go(self._runtime, self._snapshot(pinned))

    def _snapshot(self, pinned: tuple[PinnedTablet, ...]) -> TableSnapshot:
        return TableSnapshot(self._wanted.known.record, pinned, KEEP_S)

    async def _begin(self) -> None:
        """Put the empty batch that tells the schema, once."""
        if not self._has_begun:
            self._has_begun = True
            await self._queue.put([pa.RecordBatch.from_pylist([], schema=self._wanted.schema)])

    async def _read_tablet(self, number: int) -> None:
        for attempt in range(1, PIN_ATTEMPTS + 1):
            before = self._rows
            deadline = self._runtime.clock.monotonic() + self._timeout_s
            ours = self._runtime, self._cache
            record = self._wanted.known.record
            pinned = await pin_tablet(*ours, number, record, KEEP_S, deadline)
            self._pinned.update({tablet.pin: tablet for tablet in pinned})
            await self._begin()
            try:
                await self._read_pinned(pinned)
            except SnapshotLost:
                # Rule 3: other rows of a tablet must not follow rows that went out.
                if self._rows != before or attempt == PIN_ATTEMPTS:
                    raise
            else:
                return
            finally:
                await self.let_go()

    async def _read_pinned(self, pinned: Sequence[PinnedTablet]) -> None:
        wanted = self._wanted
        for tablet in pinned:
            if self._left is not None and self._left <= 0:
                return
            request = Scan(
                tablet.tablet_id,
                columns=wanted.columns,
                where=wanted.where,
                limit=self._left or 0,
                with_versions=wanted.with_versions,
                schema_version=wanted.known.schema.version,
                pin=tablet.pin,
            )
            patience_s = min(PATIENCE_S, self._timeout_s)
            found = read_pieces(self._runtime, tablet, request, patience_s, ahead=False)
            async with contextlib.aclosing(found) as pieces:
                while await self._pass_on(pieces, tablet):
                    pass

    async def _pass_on(self, pieces: AsyncGenerator[Piece, None], tablet: PinnedTablet) -> bool:
        """Put the next piece into the queue; False: there is none."""
        try:
            async with asyncio.timeout(self._timeout_s):
                piece = await anext(pieces, None)
        except TimeoutError:
            waited_for = f"the next piece of tablet {tablet.number} at {tablet.address}"
            raise DeadlineExpired(self._cache.named("scan_batches"), waited_for) from None
        if piece is None:
            return False
        count = sum([batch.num_rows for batch in piece])
        self._rows += count
        if self._left is not None:
            self._left -= count
        await self._queue.put([batch.cast(self._wanted.schema) for batch in piece])
        return True
