"""Open scans of a tserver: each sees its tablet at one point of the log, and is read in pieces.

Bounded: a scan left alone for ``scan_idle_s`` is dropped, and so are all of a tablet that closes.
A dropped scan answers `InvalidArgument`; the client begins anew. A scan of a pin (`Pins`) sees what
was pinned, and begun anew it sees the same. It ends with its pin: the next piece is refused, and
the rows are let go of at the next look, so that memory which lacks is not held by who is slow.
A scan whose tablet closes while it is opened is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from stelae.actors.tserver.pins import Pins
from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, Overloaded, TabletNotHere, TabletNotReady
from stelae.core.ids import TabletId, make_uuid
from stelae.core.messages.rows import Scan, ScanReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.storage.segments.remote import Piece, RowsAbsent

MAX_OPEN_SCANS = 256
LOOK_S = 1.0
"""Pins that are not used any more, or that memory cannot afford, go so soon."""


@dataclass(slots=True)
class _OpenScan:
    tablet_id: TabletId
    batches: Iterator[pa.RecordBatch]
    used: float
    schema: pa.Schema
    next_piece: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pin: str = ""
    """Of which it reads."""
    held: list[Piece] = field(default_factory=list)
    """Rows that were fetched for it, and are read next."""


class ScanSessions:
    """Cursors by name. A cursor's pieces are made one after the other, off the event loop."""

    def __init__(self, runtime: Runtime, settings: Settings, pins: Pins) -> None:
        self._runtime = runtime
        self._settings = settings
        self._pins = pins
        self._scans: dict[str, _OpenScan] = {}
        self._opening: dict[object, TabletId] = {}
        """Of each call that opens a scan, the tablet; until that closes."""

    async def next(self, tablet: TabletReads, request: Scan, timeout_s: float) -> Reply[ScanReply]:
        """Open a scan, or go on with one: the next ``scan_batch_bytes`` or so of its rows.

        Raises:
            InvalidArgument: the cursor is unknown (it expired, or its tablet moved), or a piece of
                it was lost on the way.
            Overloaded: too many scans are open.
        """
        cursor = request.cursor
        if cursor:
            found = self._scans.get(cursor)
            if found is None or (found.tablet_id, found.pin) != (request.tablet_id, request.pin):
                raise InvalidArgument("the scan has expired; begin it anew")
            scan = found
        else:
            cursor, scan = await self._open(tablet, request, timeout_s)
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

    async def _open(
        self, tablet: TabletReads, request: Scan, timeout_s: float
    ) -> tuple[str, _OpenScan]:
        """A scan, and its cursor."""
        if len(self._scans) + len(self._opening) >= MAX_OPEN_SCANS:
            raise Overloaded("open scans", MAX_OPEN_SCANS)
        if (request.share, request.shares) != (0, 1) and not request.pin:
            raise InvalidArgument("only what is pinned is scanned in shares")
        if request.pin:
            pinned = self._pins.find(request.pin, request.tablet_id, request.schema_version)
            schema, batches = await pinned.rows.open(request, self._runtime)
        else:
            schema, batches = await self._scan(tablet, request, timeout_s)
        now = self._runtime.clock.monotonic()
        scan = _OpenScan(tablet.tablet_id, batches, now, schema, pin=request.pin)
        cursor = make_uuid(self._runtime.rng)
        self._scans[cursor] = scan
        return cursor, scan

    async def _scan(
        self, tablet: TabletReads, request: Scan, timeout_s: float
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """A tablet's rows as of now, if it has not closed once they count."""
        call = object()
        self._opening[call] = tablet.tablet_id
        try:
            found = await tablet.scan(request, timeout_s)
            if call not in self._opening:
                raise TabletNotHere(tablet.tablet_id, "this server any more")
        finally:
            self._opening.pop(call, None)
        return found

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

    async def next_pinned(self, request: Scan, timeout_s: float) -> Reply[ScanReply]:
        """`next`, of rows that were pinned: whoever serves the tablet by now.

        Raises:
            SnapshotLost: they are not kept any more.
        """
        pinned = self._pins.find(request.pin, request.tablet_id, request.schema_version)
        return await self.next(pinned.tablet, request, timeout_s)

    def drop(self, tablet_id: TabletId) -> None:
        """End all scans of a tablet, and let go what was pinned of it."""
        self._pins.drop(tablet_id)
        self._opening = {call: of for call, of in self._opening.items() if of != tablet_id}
        for cursor in [c for c, scan in self._scans.items() if scan.tablet_id == tablet_id]:
            del self._scans[cursor]

    async def expire(self) -> None:
        """Drop scans and pins left alone; runs for ever."""
        while True:
            await self._runtime.clock.sleep(min(self._settings.scan_idle_s / 4, LOOK_S))
            self.look()

    def look(self) -> None:
        """Drop what was left alone, and scans of pins that are gone."""
        self._pins.expire()
        limit = self._runtime.clock.monotonic() - self._settings.scan_idle_s
        gone = [
            cursor
            for cursor, scan in self._scans.items()
            if scan.used < limit or (scan.pin and scan.pin not in self._pins)
        ]
        for cursor in gone:
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
