"""One table as a client sees it: reads and writes, cut by tablet, sent straight to the tservers.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.convert import Key, RowCodec, Rows, decode_batch
from stelae.client.filters import Where, normalize_filters
from stelae.client.given import chosen_columns, key_rows
from stelae.client.locations import TableCache
from stelae.client.retries import all_or_first_error, on_tablet
from stelae.client.scan import scan_tablet
from stelae.client.session import Session
from stelae.client.writer import TableWriter, Versions
from stelae.core.catalog_messages import TabletLocation
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.messages import GET, GET_MANY, Get, GetMany, GetReply, WriteOp
from stelae.core.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema import VERSION_COLUMN
from stelae.core.settings import Settings
from stelae.core.values import WireRow
from stelae.storage.partitioner import Partitioner

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0
CONCURRENT_TABLETS = 16


@dataclass(slots=True)
class OneKey:
    """A `get` of one key, cut out for its tablet."""

    number: int
    key: WireRow
    columns: tuple[str, ...]

    def request(self, where: TabletLocation) -> Get:
        return Get(where.tablet.tablet_id, (self.key,), self.columns)


@dataclass(slots=True)
class ManyKeys:
    """A `get_many`, cut by tablet: see `TableWriter.split`."""

    columns: tuple[str, ...]
    names: list[str]
    """Of the columns of the answer."""
    parts: dict[int, tuple[int, NDArray[np.int64], pa.Buffer]]


Found = tuple[pa.RecordBatch, NDArray[np.int64]]
"""Rows of one tablet, and the places of their keys among those asked for."""


class AsyncTable:
    """A handle on one table; cheap, shares its database's connections. Made by the database."""

    def __init__(
        self, runtime: Runtime, settings: Settings, session: Session, cache: TableCache
    ) -> None:
        self.runtime = runtime
        self._settings = settings
        self.session = session
        self.cache = cache
        self._schema = cache.table.schema
        self._codec = RowCodec(self._schema, cache.table.name)
        self.partitioner = Partitioner(cache.table.partitioning, self._schema)
        self.writer = TableWriter(runtime, settings, session, cache, self._codec, self.partitioner)

    # ---- what it is -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.cache.table.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its columns."""
        return self._schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self._schema.key

    @property
    def record(self) -> TableRecord:
        return self.cache.table

    def with_session(self, session: Session) -> AsyncTable:
        """The same table, its writes numbered by ``session``."""
        other = copy.copy(self)
        other.session = session
        other.writer = TableWriter(
            self.runtime, self._settings, session, self.cache, self._codec, self.partitioner
        )
        return other

    # ---- writes -----------------------------------------------------------------------------

    async def insert(self, rows: Rows, *, timeout: float = DEFAULT_TIMEOUT_S) -> Versions:
        """Add rows that are not there yet; `RowExists` if one is, and that tablet is unchanged."""
        return await self.writer.write(WriteOp.INSERT, rows, None, timeout)

    async def upsert(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Add or replace rows, in order. Returns the version of each row, shape (rows,).

        ``if_version``: the version that a row must have (0: must be absent); one number for one
        row, or one for each.
        """
        return await self.writer.write(WriteOp.UPSERT, rows, if_version, timeout)

    async def update(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Change columns of rows that are there; `RowNotFound` otherwise. Rows hold the key and
        the columns to change, the same for all rows of a call."""
        return await self.writer.write(WriteOp.UPDATE, rows, if_version, timeout)

    async def delete(
        self, keys: Any, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """Delete rows by key: one key, a list, or a table of key columns. Absent is fine."""
        return await self.writer.delete(keys, if_version, timeout)

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
        one = self.one_key(key, columns)
        if one is None:
            found = await self.get_many(
                [key], columns=columns, with_versions=with_version, timeout=timeout
            )
            return found.to_pylist()[0] if found.num_rows else None
        return await self.get_one(one, with_version, timeout)

    def one_key(self, key: Key, columns: Sequence[str] | None) -> OneKey | None:
        """A `get` of a plain table, checked and ready to be sent; None for other tables."""
        wire = self._codec.key(key)
        if not self._schema.is_plain:
            return None
        return OneKey(self.partitioner.tablet_number(wire), wire, self._chosen(columns))

    async def get_one(
        self, one: OneKey, with_version: bool, timeout_s: float, tried: StelaeError | None = None
    ) -> dict[str, Any] | None:
        """Send a `get` until it is answered; see `on_tablet`."""

        async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> GetReply:
            reply = await self.runtime.peers.call(
                where.address, GET, one.request(where), timeout_s=limit_s, destination=owner
            )
            return reply.body

        reply = await on_tablet(
            self.runtime, self.cache, one.number, "get", attempt, timeout_s=timeout_s, tried=tried
        )
        return self.row_of(one, reply, with_version)

    def row_of(self, one: OneKey, reply: GetReply, with_version: bool) -> dict[str, Any] | None:
        """The row that a `get` found, as people read it."""
        found = reply.rows[0]
        if found is None:
            return None
        values, version = found
        row = self._codec.dict(values, one.columns or None)
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
        wanted = await self.runtime.offload(self.many_keys, keys, columns, with_versions)
        found = await self.find_many(wanted, timeout)
        return await self.runtime.offload(self.table_of, wanted, found)

    def many_keys(self, keys: Any, columns: Sequence[str] | None, with_versions: bool) -> ManyKeys:
        """A `get_many`, checked and cut by tablet. May run in any thread."""
        chosen = self._chosen(columns)
        parts = self.writer.split(key_rows(keys, self._schema, self._codec, self.name))
        names = list(chosen or self._schema.arrow.names)
        return ManyKeys(chosen, [*names, VERSION_COLUMN] if with_versions else names, parts)

    async def find_many(self, wanted: ManyKeys, timeout_s: float) -> list[Found]:
        """Ask the tablets, several at a time."""
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> Found:
            _, places, blob = wanted.parts[number]

            async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> Any:
                return await self.runtime.peers.call(
                    where.address,
                    GET_MANY,
                    GetMany(where.tablet.tablet_id, wanted.columns),
                    timeout_s=limit_s,
                    blobs=[blob],
                    destination=owner,
                )

            async with turns:
                reply = await on_tablet(
                    self.runtime, self.cache, number, "get_many", attempt, timeout_s=timeout_s
                )
            at = np.frombuffer(reply.blobs[1], np.int32)
            return decode_batch(reply.blobs[0]), places[at]

        return await all_or_first_error([part(number) for number in sorted(wanted.parts)])

    def table_of(self, wanted: ManyKeys, found: list[Found]) -> pa.Table:
        """The rows that tablets found, in the order of the keys. May run in any thread."""
        return _merge_found(found, wanted.names, self.schema)

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
        for number in range(self.cache.tablet_count):
            if left is not None and left <= 0:
                return
            batches = await scan_tablet(
                self.runtime, self.cache, number, chosen, filters, left, with_versions, timeout
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
                    self.runtime,
                    self.cache,
                    number,
                    chosen,
                    filters,
                    limit,
                    with_versions,
                    timeout,
                )

        parts = await all_or_first_error([part(n) for n in range(self.cache.tablet_count)])
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
        return chosen_columns(columns, self._schema, self.name)


def _merge_found(found: list[Found], columns: list[str], schema: pa.Schema) -> pa.Table:
    """Rows found in several tablets, put back into the order of the keys asked for."""
    fields = [
        pa.field(VERSION_COLUMN, pa.uint64(), False)
        if name == VERSION_COLUMN
        else schema.field(name)
        for name in columns
    ]
    wanted = pa.schema(fields)
    parts = [(rows.select(columns).cast(wanted), places) for rows, places in found if rows.num_rows]
    if not parts:
        return wanted.empty_table()
    table = pa.Table.from_batches([rows for rows, _ in parts]).combine_chunks()
    order = np.argsort(np.concatenate([places for _, places in parts]), kind="stable")
    return table.take(pa.array(order))
