"""Open scans of a tserver: each sees its tablet at one point of the log, and is read in pieces.

Bounded: a scan left alone for ``scan_idle_s`` is dropped, and so are all of a tablet that closes.
A dropped scan answers `InvalidArgument`; the client begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from stelae.actors.tablet_reads import TabletReads
from stelae.core.errors import InvalidArgument, Overloaded, TabletNotReady
from stelae.core.ids import TabletId, make_uuid
from stelae.core.messages import Scan, ScanReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.storage.remote import Piece, RowsAbsent

MAX_OPEN_SCANS = 256


@dataclass(slots=True)
class _OpenScan:
    tablet_id: TabletId
    batches: Iterator[pa.RecordBatch]
    used: float
    schema: pa.Schema
    next_piece: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: list[Piece] = field(default_factory=list)
    """Rows that were fetched for it, and are read next."""


class ScanSessions:
    """Cursors by name. A cursor's pieces are made one after the other, off the event loop."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._scans: dict[str, _OpenScan] = {}

    async def next(self, tablet: TabletReads, request: Scan, timeout_s: float) -> Reply[ScanReply]:
        """Open a scan, or go on with one: the next ``scan_batch_bytes`` or so of its rows.

        Raises:
            InvalidArgument: the cursor is unknown (it expired, or its tablet moved), or a piece of
                it was lost on the way.
            Overloaded: too many scans are open.
        """
        cursor = request.cursor
        if cursor:
            scan = self._scans.get(cursor)
            if scan is None or scan.tablet_id != request.tablet_id:
                raise InvalidArgument("the scan has expired; begin it anew")
        else:
            if len(self._scans) >= MAX_OPEN_SCANS:
                raise Overloaded("open scans", MAX_OPEN_SCANS)
            schema, batches = await tablet.scan(request, timeout_s)
            scan = _OpenScan(tablet.tablet_id, batches, self._runtime.clock.monotonic(), schema)
            cursor = make_uuid(self._runtime.rng)
            self._scans[cursor] = scan
        async with scan.lock:
            if request.piece != scan.next_piece:
                raise InvalidArgument("a piece of the scan was lost; begin it anew")
            scan.next_piece += 1
            try:
                piece, rows, is_last = await self._read(tablet, scan, timeout_s)
            except TabletNotReady:
                scan.next_piece -= 1  # nothing was read
                raise
        scan.used = self._runtime.clock.monotonic()
        if is_last:
            self._scans.pop(cursor, None)
            cursor = ""
        return Reply(ScanReply(cursor, rows), [piece])

    async def _read(
        self, tablet: TabletReads, scan: _OpenScan, timeout_s: float
    ) -> tuple[pa.Buffer, int, bool]:
        """The next piece; rows that are not here are fetched, a segment at a time."""
        clock, limit_bytes = self._runtime.clock, self._settings.scan_batch_bytes
        deadline = clock.monotonic() + timeout_s
        held: list[Piece] = []
        while True:
            try:
                return await self._runtime.offload(
                    _next_piece, scan.batches, scan.schema, limit_bytes
                )
            except RowsAbsent as absent:
                held = await tablet.bring(absent, deadline - clock.monotonic())
            finally:
                scan.held = held

    def drop(self, tablet_id: TabletId) -> None:
        """End all scans of a tablet."""
        for cursor in [c for c, scan in self._scans.items() if scan.tablet_id == tablet_id]:
            del self._scans[cursor]

    async def expire(self) -> None:
        """Drop scans left alone; runs for ever."""
        while True:
            await self._runtime.clock.sleep(self._settings.scan_idle_s / 4)
            limit = self._runtime.clock.monotonic() - self._settings.scan_idle_s
            for cursor in [c for c, scan in self._scans.items() if scan.used < limit]:
                del self._scans[cursor]


def _next_piece(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, limit_bytes: int
) -> tuple[pa.Buffer, int, bool]:
    """Encode the next batches as one Arrow IPC stream: (stream, rows, whether that was all).

    Raises RowsAbsent: there is nothing to be read before these are here.
    """
    sink = pa.BufferOutputStream()
    rows = size = 0
    is_last = False
    with pa.ipc.new_stream(sink, schema) as writer:
        while size < limit_bytes:
            try:
                batch = next(batches, None)
            except RowsAbsent:
                if rows:
                    break  # the next piece begins with them
                raise
            if batch is None:
                is_last = True
                break
            writer.write_batch(batch)
            rows += batch.num_rows
            size += batch.nbytes
    return sink.getvalue(), rows, is_last
