"""One table as a client sees it: reads and writes, cut by tablet, sent straight to the tservers.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from stelae.client.attempts import CONCURRENT_TABLETS, DEFAULT_TIMEOUT_S
from stelae.client.convert import Key, Rows, decode_batch
from stelae.client.filters import Where, normalize_filters
from stelae.client.given import chosen_columns, key_rows, staleness
from stelae.client.known import KnownTable
from stelae.client.locations import TableCache
from stelae.client.reads import Found, ManyKeys, OneKey, WantedRows, merge_found
from stelae.client.retries import all_or_first_error, on_tablet
from stelae.client.scan import scan_all, scan_wanted
from stelae.client.session import Session
from stelae.client.table_alterations import TableAlterations
from stelae.client.table_finds import TableFinds
from stelae.client.writer import TableWriter, Versions
from stelae.core.errors import (
    SchemaChanged,
    StelaeError,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages import GET, GET_MANY, GetReply, TabletLocation, WriteOp
from stelae.core.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema import VERSION_COLUMN
from stelae.core.settings import Settings

T = TypeVar("T")


class AsyncTable(TableAlterations, TableFinds):
    """A handle on one table; cheap, shares its database's connections. Made by the database."""

    def __init__(
        self, runtime: Runtime, settings: Settings, session: Session, cache: TableCache
    ) -> None:
        self.runtime = runtime
        self._settings = settings
        self.session = session
        self.cache = cache
        self._pinned = False
        self._writer = TableWriter(runtime, settings, session, cache, KnownTable(cache.table))

    # ---- what it is -------------------------------------------------------------------------

    @property
    def writer(self) -> TableWriter:
        """The writing half, of the newest schema that this client has heard of."""
        writer = self._writer
        if self.cache.table is writer.known.record or self._pinned:
            return writer
        return self._use(self.cache.table)

    @property
    def known(self) -> KnownTable:
        """The table in the version that calls begun now are made with."""
        return self.writer.known

    def _use(self, record: TableRecord) -> TableWriter:
        known = KnownTable(record)
        self._writer = TableWriter(self.runtime, self._settings, self.session, self.cache, known)
        return self._writer

    def at_version(self, version: int) -> AsyncTable:
        """The same table for a caller that knows this version of its schema, for ever.

        Raises:
            SchemaChanged: that version is too old, or is not known here yet.
        """
        record = self.known.record
        if version == record.schema.version:
            return self
        schema = next((s for s in record.history if s.version == version), None)
        if schema is None:
            raise SchemaChanged(record.name, version, record.schema.version)
        other = copy.copy(self)
        other._pinned = True
        other._use(msgspec.structs.replace(record, schema=schema))
        return other

    async def _newer_than(self, known: KnownTable, error: SchemaChanged) -> KnownTable:
        """The table after an alter that a call came too late for; ``error`` if there is none."""
        await self.cache.refresh()
        if self._pinned or self.known.schema.version <= known.schema.version:
            raise error
        return self.known

    @property
    def name(self) -> str:
        return self.cache.table.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its columns."""
        return self.known.schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self.known.schema.key

    @property
    def record(self) -> TableRecord:
        return self.known.record

    def with_session(self, session: Session) -> AsyncTable:
        """The same table, its writes numbered by ``session``."""
        other = copy.copy(self)
        other.session = session
        other._use(self.known.record)
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
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """Read one row, linearizably; None if there is none.

        ``with_version`` adds the row's version as ``_version``. With ``max_staleness`` (seconds)
        any replica of a table with ``replicas(n)`` may answer whose state is provably no older,
        so that reads go on without a leader, and are shared. Other tables answer as ever.

        Raises:
            TooStale: no replica had so new a state, in time.
        """
        one = self.one_key(key, columns, max_staleness)
        if one is None:
            found = await self.get_many(
                [key],
                columns=columns,
                with_versions=with_version,
                max_staleness=max_staleness,
                timeout=timeout,
            )
            return found.to_pylist()[0] if found.num_rows else None
        return await self.get_one(one, with_version, timeout)

    def one_key(
        self, key: Key, columns: Sequence[str] | None, max_staleness: float | None = None
    ) -> OneKey | None:
        """A `get` of a plain table, checked and ready to be sent; None for other tables."""
        known = self.known
        wire = known.codec.key(key)
        if not known.schema.is_plain:
            return None
        chosen = chosen_columns(columns, known.schema, known.name)
        number = known.partitioner.tablet_number(wire)
        return OneKey(number, wire, chosen, known, staleness(max_staleness))

    async def get_one(
        self, one: OneKey, with_version: bool, timeout_s: float, tried: StelaeError | None = None
    ) -> dict[str, Any] | None:
        """Send a `get` until it is answered; see `on_tablet`. ``one`` may learn of an alter."""
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout_s
        try:
            reply = await self._send_one(one, timeout_s, tried)
        except SchemaChanged as error:
            one.known = known = await self._newer_than(one.known, error)
            one.columns = chosen_columns(one.columns or None, known.schema, known.name)
            if not known.schema.is_plain:
                key = dict(zip(known.schema.key, one.key, strict=True))
                found = await self.get_many(
                    [key],
                    columns=one.columns or None,
                    with_versions=with_version,
                    max_staleness=one.max_staleness,
                )
                return found.to_pylist()[0] if found.num_rows else None
            reply = await self._send_one(one, deadline - clock.monotonic(), None)
        return self.row_of(one, reply, with_version)

    async def _send_one(self, one: OneKey, timeout_s: float, tried: StelaeError | None) -> GetReply:
        async def attempt(
            where: TabletLocation, owner: ServerUuid | None, limit_s: float
        ) -> GetReply:
            reply = await self.runtime.peers.call(
                where.address, GET, one.request(where), timeout_s=limit_s, destination=owner
            )
            return reply.body

        return await on_tablet(
            self.runtime,
            self.cache,
            one.number,
            "get",
            attempt,
            timeout_s=timeout_s,
            tried=tried,
            max_staleness_s=one.max_staleness_s,
        )

    def row_of(self, one: OneKey, reply: GetReply, with_version: bool) -> dict[str, Any] | None:
        """The row that a `get` found, as people read it."""
        found = reply.rows[0]
        if found is None:
            return None
        values, version = found
        row = one.known.codec.dict(values, one.columns or None)
        if with_version:
            row[VERSION_COLUMN] = version
        return row

    async def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """Read many rows by key; those found, in the order of their keys.

        ``keys``: a list of keys, an Arrow array (one key column), or a table of key columns.
        ``max_staleness``: see `get`.
        """
        wanted = await self.runtime.offload(
            self.many_keys, keys, columns, with_versions, max_staleness
        )
        found = await self.find_many(wanted, timeout)
        return await self.runtime.offload(self.table_of, wanted, found)

    def many_keys(
        self,
        keys: Any,
        columns: Sequence[str] | None,
        with_versions: bool,
        max_staleness: float | None = None,
    ) -> ManyKeys:
        """A `get_many`, checked and cut by tablet. May run in any thread."""
        writer = self.writer
        known = writer.known
        chosen = chosen_columns(columns, known.schema, known.name)
        parts = writer.split(key_rows(keys, known.schema, known.codec, known.name))
        return ManyKeys(chosen, with_versions, known, parts, staleness(max_staleness))

    async def find_many(self, wanted: ManyKeys, timeout_s: float) -> list[Found]:
        """Ask the tablets, several at a time. ``wanted`` may learn of an alter."""
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout_s
        try:
            return await self._find_many(wanted, timeout_s)
        except SchemaChanged as error:
            wanted.known = known = await self._newer_than(wanted.known, error)
            wanted.columns = chosen_columns(wanted.columns or None, known.schema, known.name)
            return await self._find_many(wanted, deadline - clock.monotonic())

    async def _find_many(self, wanted: ManyKeys, timeout_s: float) -> list[Found]:
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> Found:
            _, places, blob = wanted.parts[number]

            async def attempt(
                where: TabletLocation, owner: ServerUuid | None, limit_s: float
            ) -> Any:
                return await self.runtime.peers.call(
                    where.address,
                    GET_MANY,
                    wanted.request(where),
                    timeout_s=limit_s,
                    blobs=[blob],
                    destination=owner,
                )

            async with turns:
                reply = await on_tablet(
                    self.runtime,
                    self.cache,
                    number,
                    "get_many",
                    attempt,
                    timeout_s=timeout_s,
                    max_staleness_s=wanted.max_staleness_s,
                )
            at = np.frombuffer(reply.blobs[1], np.int32)
            return decode_batch(reply.blobs[0]), places[at]

        return await all_or_first_error([part(number) for number in sorted(wanted.parts)])

    def table_of(self, wanted: ManyKeys, found: list[Found]) -> pa.Table:
        """The rows that tablets found, in the order of the keys. May run in any thread."""
        return merge_found(found, wanted.names, wanted.known.schema.arrow)

    async def scan_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = 600.0,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read rows as batches, tablet by tablet; each tablet at one point of its log.

        ``where`` takes the filter lists of ``pyarrow.parquet.read_table(filters=)``. A tablet
        whose server dies meanwhile is read anew before any of its rows are handed out.
        ``max_staleness``: see `get`.

        Raises:
            SchemaChanged: a column that is read was dropped after the first rows were handed out.
        """
        left = limit
        wanted = self._scan_of(columns, where, with_versions, max_staleness)
        for number in range(self.cache.tablet_count):
            if left is not None and left <= 0:
                return
            read = (self.runtime, self.cache, number, left, timeout)
            try:
                batches = await scan_wanted(wanted, *read)
            except SchemaChanged as error:
                if number:
                    raise  # rows were handed out in the columns of before
                await self._newer_than(wanted.known, error)
                wanted = self._scan_of(columns, where, with_versions, max_staleness)
                batches = await scan_wanted(wanted, *read)
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
        max_staleness: float | None = None,
        timeout: float = 600.0,
    ) -> pa.Table:
        """Read all rows that match, as one Arrow table; tablets are read side by side.

        ``max_staleness``: see `get`.
        """
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout
        wanted = self._scan_of(columns, where, with_versions, max_staleness)
        try:
            return await scan_all(self.runtime, self.cache, wanted, limit, timeout)
        except SchemaChanged as error:
            await self._newer_than(wanted.known, error)
            wanted = self._scan_of(columns, where, with_versions, max_staleness)
            left_s = deadline - clock.monotonic()
            return await scan_all(self.runtime, self.cache, wanted, limit, left_s)

    async def count(
        self, *, where: Where = None, max_staleness: float | None = None, timeout: float = 600.0
    ) -> int:
        """How many rows there are (that match). ``max_staleness``: see `get`."""
        table = await self.scan(
            columns=[self.key[0]], where=where, max_staleness=max_staleness, timeout=timeout
        )
        return int(table.num_rows)

    # ---- helpers ----------------------------------------------------------------------------

    def _scan_of(
        self,
        columns: Sequence[str] | None,
        where: Where,
        with_versions: bool,
        max_staleness: float | None,
    ) -> WantedRows:
        known = self.known
        return WantedRows(
            known,
            chosen_columns(columns, known.schema, known.name),
            normalize_filters(where, known.schema, known.name),
            with_versions,
            staleness(max_staleness),
        )
