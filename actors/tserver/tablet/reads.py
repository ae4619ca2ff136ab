"""The reading half of a tablet: rows by key and scans, in the columns that the caller knows.

Reads see applied rows, and wait until what they saw is committed: a reader never learns what a
crash could take back (RAMCloud RAM-840).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from stelae.actors.tserver.tablet.input import SMALL_BATCH_BYTES, decode_rows, encode_found
from stelae.actors.tserver.tablet.rows_then import RowsThen
from stelae.core.errors import InvalidArgument, TabletNotHere
from stelae.core.ids import TabletId
from stelae.core.messages.catalog import LINEARIZABLE
from stelae.core.messages.rows import Get, GetMany, GetManyReply, GetReply, Scan, WriteOp
from stelae.core.records.succession import Succession, SuccessionStage
from stelae.core.rpc import Call, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.shares import Share
from stelae.core.schema.values import rows_to_batch
from stelae.storage.rows.gather import Located
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.rows.versions import SchemaView
from stelae.storage.segments.remote import Piece, RowsAbsent, Wanted
from stelae.storage.segments.shares import share_has

_PLACE_BYTES = 4
T = TypeVar("T")


class TabletReads(ABC):
    """What a tablet reads from, whatever its durability; it sets these."""

    tablet_id: TabletId
    _runtime: Runtime
    _schemas: TabletSchemas
    _memory: TabletMemory
    share: Share = Share()
    """Of the rows of its place in the table, those that it has."""
    calls: int = 0
    """Answered so far, by their weight (`stelae.actors.tserver.tablet.load_rate`)."""

    @property
    @abstractmethod
    def succession(self) -> Succession:
        """For whom it makes way, and how far it has."""

    @abstractmethod
    async def _committed(self, index: int, timeout_s: float) -> None:
        """Wait until log entry ``index`` counts. Raises OutcomeUnknown: nobody knows here."""

    def _is_committed(self, index: int) -> bool:
        """Whether log entry ``index`` surely counts, and rows may be read here at this moment."""
        return False

    async def _may_read(self, max_staleness_s: float, timeout_s: float) -> None:
        """Wait until rows may be read here. Raises StelaeError: they may not."""
        return  # an owner has been asked already, whether its lease is valid

    async def bring(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]:
        """Fetch rows that are not here; they are for as long as what is returned is held."""
        raise AssertionError("all rows of this tablet are here") from absent

    async def _fetched(
        self, absent: RowsAbsent, read: Callable[[], T], timeout_s: float
    ) -> tuple[T, float]:
        """What ``read`` returns once nothing is absent any more, and the time left. It is all done
        again after a wait, so that what it returns is of one state."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            held = await self.bring(absent, deadline - clock.monotonic())
            try:
                return read(), deadline - clock.monotonic()
            except RowsAbsent as error:
                absent = error
            finally:
                held.clear()

    async def get(self, call: Call[Get]) -> Reply[GetReply]:
        """Read rows by key; for tables that are not plain, as `get_many` does."""
        request, left_s = call.body, call.timeout_s
        view, _ = self._columns(request.schema_version, request.columns)
        if not (self._memory.schema if view is None else view.asked).is_plain:
            batch = rows_to_batch(request.keys, self._memory.schema.key_schema)
            asked = request.schema_version, request.columns
            encoded, places, _ = await self._find(batch, *asked, left_s)
            return Reply(GetReply(()), [encoded, places])
        try:
            rows, newest = self._get(request)
        except RowsAbsent as absent:
            found, left_s = await self._fetched(absent, partial(self._get, request), left_s)
            rows, newest = found
        await self._committed(newest, left_s)
        return Reply(GetReply(tuple(rows)))

    def get_now(self, request: Get) -> GetReply | None:
        """As `get`, if it need not wait for anything; None: it has to. Raises as `get` does."""
        view, _ = self._columns(request.schema_version, request.columns)
        if not (self._memory.schema if view is None else view.asked).is_plain:
            return None
        try:
            rows, newest = self._get(request)
        except RowsAbsent:
            return None
        return GetReply(tuple(rows)) if self._is_committed(newest) else None

    def _get(self, request: Get) -> tuple[list[tuple[tuple[Any, ...], int] | None], int]:
        """The rows, and the entry that has to count before they are told. Raises RowsAbsent."""
        memory = self._memory
        _, columns = self._columns(request.schema_version, request.columns)
        places = [memory.schema.arrow.get_field_index(name) for name in columns]
        rows: list[tuple[tuple[Any, ...], int] | None] = []
        wanted: list[Wanted] = []
        newest = 0
        keys = memory.check_keys(request.keys)
        self._check_has(share_has(self.share, memory.codec, keys))
        for key in keys:
            try:
                found = memory.get(key)
            except RowsAbsent as absent:
                wanted += absent.wanted
                continue
            if found is None:
                newest = max(newest, memory.last_delete_index)
                rows.append(None)
                continue
            newest = max(newest, found.index)
            row = tuple([found.row[place] for place in places]) if places else found.row
            rows.append((row, found.version))
        if wanted:
            raise RowsAbsent(wanted)
        return rows, newest

    async def get_many(self, call: Call[GetMany]) -> Reply[GetManyReply]:
        """Read many rows by key: rows found with versions, and which keys they belong to."""
        self._check_readable()
        if not call.blobs:
            raise InvalidArgument("get_many needs its keys as an Arrow stream")
        schema, name = self._memory.schema, self._schemas.table.name
        keys = decode_rows(call.blobs[0], schema, name, schema.key)
        asked = call.body.schema_version, call.body.columns
        bytes_max = max(call.body.bytes_max, 0)
        encoded, places, keys_read = await self._find(keys, *asked, call.timeout_s, bytes_max)
        reply = GetManyReply(places.nbytes // _PLACE_BYTES, keys_read)
        return Reply(reply, [encoded, places])

    def _check_readable(self) -> None:
        succession = self.succession
        if succession.stage is SuccessionStage.CLOSED:
            raise TabletNotHere(self.tablet_id, f"any server: {succession.successor} follows it")

    def _check_has(self, has_all: bool) -> None:
        """Raises TabletNotHere: the caller does not know that the tablet was split."""
        if not has_all:
            raise TabletNotHere(self.tablet_id, "the tablet of these rows: it was split")

    def check_share(self, op: WriteOp, rows: Any, columns: Sequence[str]) -> None:
        """As `_check_has`, of rows to be written; raises what is wrong with them, too."""
        if not self.share.bits or not len(rows):
            return
        keys: Any = rows
        if not isinstance(rows, pa.RecordBatch):
            self._memory.check_rows(op, rows, columns)
            shape = self._memory.shape(op, columns)
            keys = [shape.key(row) for row in rows]
        self._check_has(share_has(self.share, self._memory.codec, keys))

    def _columns(
        self, version: int, columns: tuple[str, ...]
    ) -> tuple[SchemaView | None, tuple[str, ...]]:
        """How a caller with this version of the schema sees the table, and what its columns are
        called by now; empty: all. Raises TabletNotHere: its successor is to be read."""
        self._check_readable()
        if version != self._memory.schema.version:
            view = self._schemas.view(version)
            if view is not None:
                return view, view.read_columns(columns)
        if columns:
            self._memory.schema.check_columns(columns, self._schemas.table.name)
        return None, columns

    async def _find(
        self,
        keys: pa.RecordBatch,
        version: int,
        asked: tuple[str, ...],
        timeout_s: float,
        bytes_max: int = 0,
    ) -> tuple[pa.Buffer, memoryview, int]:
        """The rows found, as an Arrow IPC stream, which keys they are of, as int32, and how many
        keys were looked for before ``bytes_max`` (see `GetMany`); 0: all of them.
        ``asked``: columns, as a caller with that version of the schema calls them."""
        locate = partial(self._locate, keys, version, asked)
        try:
            located, columns, view = locate()
        except RowsAbsent as absent:
            found, timeout_s = await self._fetched(absent, locate, timeout_s)
            located, columns, view = found
        row_bytes = self._memory.memory_bytes // max(1, self._memory.row_count)
        encode = partial(encode_found, located, columns, view, bytes_max)
        guess = max(1, bytes_max // max(1, row_bytes))
        if keys.num_rows * row_bytes <= 4 * SMALL_BATCH_BYTES:
            encoded, places = encode(guess)
        else:
            encoded, places = await self._runtime.offload(encode, guess)
        await self._committed(located.index, timeout_s)
        left = located.found[len(places) :]
        return encoded, memoryview(places.data), int(left[0]) if len(left) else 0

    def _locate(
        self, keys: pa.RecordBatch, version: int, asked: tuple[str, ...]
    ) -> tuple[Located, tuple[str, ...], SchemaView | None]:
        """Where the rows are, all of them here. Raises RowsAbsent."""
        view, columns = self._columns(version, asked)
        self._check_has(share_has(self.share, self._memory.codec, keys))
        located = self._memory.locate(keys)
        located.check_here()
        return located, columns or tuple(self._memory.schema.arrow.names), view

    async def scan(
        self, request: Scan, timeout_s: float
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows at this point of the log that match, as batches to be read off the loop; where
        rows are not here, that raises RowsAbsent, and goes on once they were brought."""
        await self._may_read(request.max_staleness_s, timeout_s)
        rows = self._rows_now(request.schema_version)
        found = await rows.open(request, self._runtime)
        await self._committed(rows.snapshot.index, timeout_s)
        return found

    async def pin(self, schema_version: int, timeout_s: float) -> RowsThen:
        """The rows at this point of the log, to be scanned any number of times by a caller that
        knows this version of the schema."""
        await self._may_read(LINEARIZABLE, timeout_s)
        rows = self._rows_now(schema_version)
        await self._committed(rows.snapshot.index, timeout_s)
        return rows

    def _rows_now(self, schema_version: int) -> RowsThen:
        view, _ = self._columns(schema_version, ())
        memory = self._memory
        row_bytes = memory.memory_bytes // max(1, memory.row_count)
        return RowsThen(
            memory.scan_snapshot(),
            memory.schema,
            view,
            self._schemas.table.name,
            memory.next_version,
            row_bytes,
        )
