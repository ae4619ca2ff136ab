"""One table as a client sees it: reads and writes, cut by tablet, sent straight to the tservers.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.convert import Key, Row, RowCodec, Rows, to_arrow
from stelae.client.filters import Where, normalize_filters
from stelae.client.locations import TableCache
from stelae.client.retries import on_tablet
from stelae.client.scan import scan_tablet
from stelae.client.session import Session
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.messages import (
    GET,
    GET_MANY,
    WRITE,
    Get,
    GetMany,
    TabletLocation,
    Write,
    WriteOp,
    WriteReply,
)
from stelae.core.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema import VERSION_COLUMN
from stelae.core.settings import Settings
from stelae.core.values import WireValue, check_batch
from stelae.storage.partitioner import Partitioner

T = TypeVar("T")
Versions = NDArray[np.uint64]

DEFAULT_TIMEOUT_S = 30.0
CONCURRENT_TABLETS = 16


class AsyncTable:
    """A handle on one table; cheap, shares its database's connections. Made by the database."""

    def __init__(
        self, runtime: Runtime, settings: Settings, session: Session, cache: TableCache
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._session = session
        self._cache = cache
        self._schema = cache.table.schema
        self._codec = RowCodec(self._schema, cache.table.name)
        self._partitioner = Partitioner(cache.table.partitioning, self._schema)

    # ---- what it is -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._cache.table.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its columns."""
        return self._schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self._schema.key

    @property
    def record(self) -> TableRecord:
        return self._cache.table

    # ---- writes -----------------------------------------------------------------------------

    async def insert(self, rows: Rows, *, timeout: float = DEFAULT_TIMEOUT_S) -> Versions:
        """Add rows that are not there yet; `RowExists` if one is, and that tablet is unchanged."""
        return await self._write(WriteOp.INSERT, rows, None, timeout)

    async def upsert(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Add or replace rows, in order. Returns the version of each row, shape (rows,).

        ``if_version``: the version that a row must have (0: must be absent); one number for one
        row, or one for each.
        """
        return await self._write(WriteOp.UPSERT, rows, if_version, timeout)

    async def update(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Change columns of rows that are there; `RowNotFound` otherwise. Rows hold the key and
        the columns to change, the same for all rows of a call."""
        return await self._write(WriteOp.UPDATE, rows, if_version, timeout)

    async def delete(
        self, keys: Any, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Delete rows by key: one key, a list of keys, or a table of key columns. Absent is fine."""
        if isinstance(keys, list):
            rows = [self._codec.key(key) for key in keys]
            if not self._schema.is_plain or len(rows) >= self._settings.arrow_rows:
                return await self._write_batch(
                    WriteOp.DELETE, _key_batch(rows, self._schema.key_schema), if_version, timeout
                )
            return await self._write_rows(WriteOp.DELETE, rows, (), if_version, timeout)
        if _is_table(keys):
            return await self._write(WriteOp.DELETE, keys, if_version, timeout)
        row = self._codec.key(keys)
        return await self._write_rows(WriteOp.DELETE, [row], (), if_version, timeout)

    async def _write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        if isinstance(rows, dict):
            rows = [rows]
        small = isinstance(rows, list) and len(rows) < self._settings.arrow_rows
        if small and self._schema.is_plain:
            columns = self._update_columns(rows) if op is WriteOp.UPDATE else ()
            wire = [self._codec.row(row, columns or None) for row in rows]
            return await self._write_rows(op, wire, columns, if_version, timeout_s)
        table = to_arrow(rows, self._schema.arrow)
        batch = await self._check(op, table)
        return await self._write_batch(op, batch, if_version, timeout_s)

    async def _check(self, op: WriteOp, table: pa.Table) -> pa.RecordBatch:
        columns = None
        if op is WriteOp.DELETE:
            columns = self._schema.key
            table = table.select([c for c in columns if c in table.column_names])
        elif op is WriteOp.UPDATE:
            columns = tuple(n for n in self._schema.arrow.names if n in table.column_names)
        return await self._runtime.offload(
            check_batch, table, self._schema, self.name, columns=columns
        )

    def _update_columns(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The columns of an update, in schema order: the same in all rows, the key among them."""
        given = set(rows[0])
        if any(set(row) != given for row in rows):
            raise InvalidArgument("the rows of one update must name the same columns")
        missing = [name for name in self.key if name not in given]
        if missing:
            raise InvalidArgument(f"an update needs the key column {missing[0]!r}")
        self._schema.check_columns(sorted(given), self.name)
        return tuple(name for name in self._schema.arrow.names if name in given)

    async def _write_rows(
        self,
        op: WriteOp,
        rows: list[tuple[WireValue, ...]],
        columns: tuple[str, ...],
        if_version: Any,
        timeout_s: float,
    ) -> Versions:
        expected = _versions(if_version, len(rows))
        if not rows:
            return np.empty(0, np.uint64)
        numbers = [self._partitioner.tablet_number(self._key_of(op, row, columns)) for row in rows]
        if len(set(numbers)) == 1:
            reply = await self._write_part(
                numbers[0], op, tuple(rows), columns, expected, (), timeout_s
            )
            return _version_range(reply)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        versions = np.empty(len(rows), np.uint64)

        async def part(number: int) -> None:
            mine = places[number]
            reply = await self._write_part(
                number,
                op,
                tuple(rows[i] for i in mine),
                columns,
                tuple(expected[i] for i in mine) if expected else (),
                (),
                timeout_s,
            )
            versions[mine] = _version_range(reply)

        await _all_parts([part(number) for number in sorted(places)])
        return versions

    def _key_of(
        self, op: WriteOp, row: tuple[WireValue, ...], columns: tuple[str, ...]
    ) -> tuple[WireValue, ...]:
        if op is WriteOp.DELETE:
            return row
        if columns:
            return tuple(row[columns.index(name)] for name in self.key)
        return tuple(row[place] for place in self._schema.key_positions)

    async def _write_batch(
        self, op: WriteOp, batch: pa.RecordBatch, if_version: Any, timeout_s: float
    ) -> Versions:
        expected = np.array(_versions(if_version, batch.num_rows), np.uint64)
        if not batch.num_rows:
            return np.empty(0, np.uint64)
        parts = await self._runtime.offload(self._split, batch)
        versions = np.empty(batch.num_rows, np.uint64)
        columns = tuple(batch.schema.names) if op is WriteOp.UPDATE else ()

        async def part(number: int) -> None:
            rows, places, blob = parts[number]
            chosen = tuple(expected[places].tolist()) if len(expected) else ()
            reply = await self._write_part(number, op, (), columns, chosen, (blob,), timeout_s)
            versions[places] = _version_range(reply)
            assert reply.row_count == rows

        await _all_parts([part(number) for number in sorted(parts)])
        return versions

    def _split(self, batch: pa.RecordBatch) -> dict[int, tuple[int, NDArray[np.int64], pa.Buffer]]:
        """Cut a batch by tablet: number → (rows, their places, Arrow IPC stream). Runs off-loop."""
        numbers = self._partitioner.tablet_numbers(batch)
        parts = {}
        for number, (rows, places) in self._partitioner.split(batch, numbers).items():
            parts[number] = (rows.num_rows, places, _encode(rows))
        return parts

    async def _write_part(
        self,
        number: int,
        op: WriteOp,
        rows: tuple[tuple[WireValue, ...], ...],
        columns: tuple[str, ...],
        expected: tuple[int, ...],
        blobs: Sequence[pa.Buffer],
        timeout_s: float,
    ) -> WriteReply:
        version = self._cache.table.schema.version
        with self._session.request() as request:

            async def attempt(
                where: TabletLocation, owner: ServerUuid, limit_s: float
            ) -> WriteReply:
                body = Write(where.tablet.tablet_id, version, op, request, rows, columns, expected)
                reply = await self._runtime.peers.call(
                    where.address, WRITE, body, timeout_s=limit_s, blobs=blobs, destination=owner
                )
                return reply.body

            return await on_tablet(
                self._runtime, self._cache, number, "write", attempt, timeout_s=timeout_s
            )

    # ---- reads ------------------------------------------------------------------------------

    async def get(
        self,
        key: Key,
        *,
        columns: Sequence[str] | None = None,
        with_version: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """Read one row, linearizably; None if there is none.

        ``with_version`` adds the row's version as ``_version``.
        """
        wire = self._codec.key(key)
        if not self._schema.is_plain:
            found = await self.get_many(
                [key], columns=columns, with_versions=with_version, timeout=timeout
            )
            return found.to_pylist()[0] if found.num_rows else None
        chosen = self._chosen(columns)

        async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> Any:
            reply = await self._runtime.peers.call(
                where.address,
                GET,
                Get(where.tablet.tablet_id, (wire,), chosen),
                timeout_s=limit_s,
                destination=owner,
            )
            return reply.body.rows[0]

        number = self._partitioner.tablet_number(wire)
        found = await on_tablet(
            self._runtime, self._cache, number, "get", attempt, timeout_s=timeout
        )
        if found is None:
            return None
        values, version = found
        row = self._codec.dict(values, chosen or None)
        if with_version:
            row[VERSION_COLUMN] = version
        return row

    async def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """Read many rows by key; those found, in the order of their keys.

        ``keys``: a list of keys, an Arrow array (one key column), or a table of key columns.
        """
        chosen = self._chosen(columns)
        batch = self._key_rows(keys)
        parts = await self._runtime.offload(self._split, batch)
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
            _, places, blob = parts[number]

            async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> Any:
                return await self._runtime.peers.call(
                    where.address,
                    GET_MANY,
                    GetMany(where.tablet.tablet_id, chosen),
                    timeout_s=limit_s,
                    blobs=[blob],
                    destination=owner,
                )

            async with turns:
                reply = await on_tablet(
                    self._runtime, self._cache, number, "get_many", attempt, timeout_s=timeout
                )
            at = np.frombuffer(reply.blobs[1], np.int32)
            return _decode(reply.blobs[0]), places[at]

        found = await asyncio.gather(*(part(number) for number in sorted(parts)))
        wanted = list(chosen or self._schema.arrow.names)
        return await self._runtime.offload(
            _merge_found, found, [*wanted, VERSION_COLUMN] if with_versions else wanted, self.schema
        )

    async def scan_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        timeout: float = 600.0,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read rows as batches, tablet by tablet; each tablet at one point of its log.

        ``where`` takes the filter lists of ``pyarrow.parquet.read_table(filters=)``. A tablet
        whose server dies meanwhile is read anew before any of its rows are handed out.
        """
        chosen = self._chosen(columns)
        filters = normalize_filters(where, self._schema, self.name)
        left = limit
        for number in range(self._cache.tablet_count):
            if left is not None and left <= 0:
                return
            batches = await scan_tablet(
                self._runtime, self._cache, number, chosen, filters, left, with_versions, timeout
            )
            for batch in batches:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                if batch.num_rows:
                    yield batch

    async def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        timeout: float = 600.0,
    ) -> pa.Table:
        """Read all rows that match, as one Arrow table; tablets are read side by side."""
        chosen = self._chosen(columns)
        filters = normalize_filters(where, self._schema, self.name)
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> list[pa.RecordBatch]:
            async with turns:
                return await scan_tablet(
                    self._runtime,
                    self._cache,
                    number,
                    chosen,
                    filters,
                    limit,
                    with_versions,
                    timeout,
                )

        parts = await asyncio.gather(*(part(n) for n in range(self._cache.tablet_count)))
        fields = [self.schema.field(name) for name in (chosen or self.schema.names)]
        if with_versions:
            fields.append(pa.field(VERSION_COLUMN, pa.uint64(), False))
        schema = pa.schema(fields)
        batches = [batch.cast(schema) for batches in parts for batch in batches]
        table = pa.Table.from_batches(batches, schema=schema)
        return table if limit is None else table.slice(0, limit)

    async def count(self, *, where: Where = None, timeout: float = 600.0) -> int:
        """How many rows there are (that match)."""
        table = await self.scan(columns=[self.key[0]], where=where, timeout=timeout)
        return int(table.num_rows)

    # ---- helpers ----------------------------------------------------------------------------

    def _chosen(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return ()
        if isinstance(columns, str) or not columns:
            raise InvalidArgument("columns is a list of one or more column names")
        self._schema.check_columns(columns, self.name)
        return tuple(columns)

    def _key_rows(self, keys: Any) -> pa.RecordBatch:
        """Keys in any accepted form as a batch of key columns."""
        schema = self._schema.key_schema
        if isinstance(keys, pa.Array | pa.ChunkedArray):
            keys = pa.table([keys], names=[self.key[0]])
        if _is_table(keys):
            table = to_arrow(keys, schema)
            self._schema.check_columns([c for c in table.column_names if c in self.key], self.name)
            return check_batch(table.select(list(self.key)), self._schema, self.name,
                               columns=self.key)
        return _key_batch([self._codec.key(key) for key in keys], schema)


async def _all_parts(parts: Sequence[Awaitable[None]]) -> None:
    """Run all tablets' parts to their ends; raise the first refusal, saying how many were done."""
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not errors:
        return
    done = len(outcomes) - len(errors)
    if isinstance(errors[0], StelaeError):
        errors[0].add_note(f"{done} of the call's {len(outcomes)} tablets did their part")
    raise errors[0]


def _is_table(data: Any) -> bool:
    return not isinstance(data, list | tuple | dict | str | bytes) and (
        isinstance(data, pa.Table | pa.RecordBatch)
        or hasattr(data, "to_arrow")
        or hasattr(data, "__arrow_c_stream__")
        or type(data).__module__.partition(".")[0] == "pandas"
    )


def _key_batch(keys: list[tuple[WireValue, ...]], schema: pa.Schema) -> pa.RecordBatch:
    from stelae.core.values import rows_to_batch

    return rows_to_batch(keys, schema)


def _versions(if_version: Any, count: int) -> tuple[int, ...]:
    """``if_version`` of a call as one number for each row, or none."""
    if if_version is None:
        return ()
    if isinstance(if_version, int | np.integer):
        if_version = [if_version]
    versions = tuple(int(version) for version in if_version)
    if len(versions) != count:
        raise InvalidArgument(f"if_version has {len(versions)} numbers for {count} rows")
    return versions


def _version_range(reply: WriteReply) -> Versions:
    first = np.uint64(reply.first_version)
    return first + np.arange(reply.row_count, dtype=np.uint64)


def _encode(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _decode(blob: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_next_batch()


def _merge_found(
    found: list[tuple[pa.RecordBatch, NDArray[np.int64]]], columns: list[str], schema: pa.Schema
) -> pa.Table:
    """Rows found in several tablets, put back into the order of the keys asked for."""
    fields = [
        pa.field(VERSION_COLUMN, pa.uint64(), False) if name == VERSION_COLUMN else schema.field(name)
        for name in columns
    ]
    wanted = pa.schema(fields)
    parts = [(rows.select(columns).cast(wanted), places) for rows, places in found if rows.num_rows]
    if not parts:
        return wanted.empty_table()
    table = pa.Table.from_batches([rows for rows, _ in parts]).combine_chunks()
    order = np.argsort(np.concatenate([places for _, places in parts]), kind="stable")
    return table.take(pa.array(order))
