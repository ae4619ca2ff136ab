"""The reading half of a tablet: rows by key and scans, in the columns that the caller knows.

Reads see applied rows, and wait until what they saw is committed: a reader never learns what a
crash could take back (RAMCloud RAM-840).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from stelae.actors.tablet_input import SMALL_BATCH_BYTES, decode_rows, encode_found
from stelae.core.errors import InvalidArgument, TabletNotHere
from stelae.core.ids import TabletId
from stelae.core.messages import Get, GetMany, GetManyReply, GetReply, Scan
from stelae.core.rpc import Call, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema import VERSION_COLUMN
from stelae.core.succession import Succession, SuccessionStage
from stelae.core.values import rows_to_batch
from stelae.storage.gather import read_schema
from stelae.storage.tablet import TabletMemory
from stelae.storage.tablet_schemas import TabletSchemas
from stelae.storage.versions import SchemaView

_PLACE_BYTES = 4


class TabletReads(ABC):
    """What a tablet reads from, whatever its durability; it sets these."""

    tablet_id: TabletId
    _runtime: Runtime
    _schemas: TabletSchemas
    _memory: TabletMemory
    calls: int = 0
    """Answered so far, by their weight (`stelae.actors.load_rate`)."""

    @property
    @abstractmethod
    def succession(self) -> Succession:
        """For whom it makes way, and how far it has."""

    @abstractmethod
    async def _committed(self, index: int, timeout_s: float) -> None:
        """Wait until log entry ``index`` counts. Raises OutcomeUnknown: nobody knows here."""

    async def get(self, call: Call[Get]) -> Reply[GetReply]:
        """Read rows by key; for tables that are not plain, as `get_many` does."""
        request, memory = call.body, self._memory
        view, columns = self._columns(request.schema_version, request.columns)
        if not (self._memory.schema if view is None else view.asked).is_plain:
            batch = rows_to_batch(request.keys, self._memory.schema.key_schema)
            return Reply(GetReply(()), await self._find(batch, columns, view, call.timeout_s))
        places = [self._memory.schema.arrow.get_field_index(name) for name in columns]
        rows: list[tuple[tuple[Any, ...], int] | None] = []
        newest = 0
        for key in memory.check_keys(request.keys):
            found = memory.get(key)
            if found is None:
                newest = max(newest, memory.last_delete_index)
                rows.append(None)
                continue
            newest = max(newest, found.index)
            row = tuple([found.row[place] for place in places]) if places else found.row
            rows.append((row, found.version))
        await self._committed(newest, call.timeout_s)
        return Reply(GetReply(tuple(rows)))

    async def get_many(self, call: Call[GetMany]) -> Reply[GetManyReply]:
        """Read many rows by key: rows found with versions, and which keys they belong to."""
        view, columns = self._columns(call.body.schema_version, call.body.columns)
        if not call.blobs:
            raise InvalidArgument("get_many needs its keys as an Arrow stream")
        schema, name = self._memory.schema, self._schemas.table.name
        keys = decode_rows(call.blobs[0], schema, name, schema.key)
        encoded, places = await self._find(keys, columns, view, call.timeout_s)
        return Reply(GetManyReply(places.nbytes // _PLACE_BYTES), [encoded, places])

    def _check_readable(self) -> None:
        succession = self.succession
        if succession.stage is SuccessionStage.CLOSED:
            raise TabletNotHere(self.tablet_id, f"any server: {succession.successor} follows it")

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
        columns: Sequence[str],
        view: SchemaView | None,
        timeout_s: float,
    ) -> tuple[pa.Buffer, memoryview]:
        """The rows found, as an Arrow IPC stream, and which keys they are of, as int32."""
        located = self._memory.locate(keys)
        columns = columns or tuple(self._memory.schema.arrow.names)
        row_bytes = self._memory.memory_bytes // max(1, self._memory.row_count)
        if keys.num_rows * row_bytes <= 4 * SMALL_BATCH_BYTES:
            encoded = encode_found(located, columns, view)
        else:
            encoded = await self._runtime.offload(encode_found, located, columns, view)
        await self._committed(located.index, timeout_s)
        return encoded, memoryview(located.found.data)

    async def scan(
        self, request: Scan, timeout_s: float
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows at this point of the log that match, as batches to be read off the loop."""
        view, columns = self._columns(request.schema_version, request.columns)
        where = request.where if view is None else view.where(request.where)
        snapshot = self._memory.scan_snapshot()
        batches = snapshot.batches(
            columns, where, request.limit, with_versions=request.with_versions
        )
        names = list(columns or self._memory.schema.arrow.names)
        if request.with_versions:
            names.append(VERSION_COLUMN)
        schema = read_schema(self._memory.schema, names)
        await self._committed(snapshot.index, timeout_s)
        if view is None:
            return schema, batches
        shown = view.shown(names)
        fields = [field.with_name(name) for field, name in zip(schema, shown, strict=True)]
        return pa.schema(fields), (batch.rename_columns(shown) for batch in batches)
