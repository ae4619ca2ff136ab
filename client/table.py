"""One table as a client sees it: reads and writes, cut by tablet, sent straight to the tservers.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from stelae.client.alter import Alterations, NewColumns, requested_change
from stelae.client.convert import Key, Rows, decode_batch
from stelae.client.filters import Where, normalize_filters
from stelae.client.given import check_name, chosen_columns, key_rows
from stelae.client.known import KnownTable
from stelae.client.locations import TableCache
from stelae.client.reads import Found, ManyKeys, OneKey, WantedRows, merge_found
from stelae.client.retries import all_or_first_error, on_tablet
from stelae.client.scan import scan_tablet
from stelae.client.session import Session
from stelae.client.writer import TableWriter, Versions
from stelae.core.errors import (
    DeadlineExpired,
    OutcomeUnknown,
    RetryLater,
    SchemaChanged,
    StelaeError,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages import GET, GET_MANY, GetMany, GetReply, TabletLocation, WriteOp
from stelae.core.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema import VERSION_COLUMN
from stelae.core.settings import Settings

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0
REFRESH_PAUSE_S = 0.1
CONCURRENT_TABLETS = 16


class AsyncTable:
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

    async def refresh(self) -> None:
        """Ask the masters anew what the table is like. Raises `TableNotFound`."""
        await self.cache.refresh()

    async def _refresh_by(self, deadline: float) -> None:
        """As `refresh`, again and again: a failover may take longer than one look-up."""
        clock = self.runtime.clock
        while True:
            try:
                return await self.refresh()
            except (RetryLater, OutcomeUnknown) as error:
                if clock.monotonic() >= deadline:
                    raise DeadlineExpired(f"a look at table {self.name!r}", str(error)) from error
                await clock.sleep(REFRESH_PAUSE_S)

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

    # ---- altering ---------------------------------------------------------------------------

    async def alter(
        self,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Change the table's columns, its name, or both at once; reads and writes go on meanwhile.

        ``add_columns``: Arrow fields, or types by name; one that may not be null needs a default,
        which the rows that are there show. ``defaults``: by name (after renames), what new rows
        get that leave the column out; None: no default any more. A column dropped and added again
        comes back empty. Key columns stay as they are. ``wait``: until all tablets follow.

        Raises:
            InvalidArgument, ColumnNotFound, TooLarge, TableExists: nothing was changed.
            DeadlineExpired: it is altered, but some tablet does not follow yet (`is_alter_done`).
        """
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout
        await self._refresh_by(deadline)
        record = self.cache.table
        if rename_to:
            check_name(rename_to)
        change = requested_change(
            record.schema, record.name, add_columns, drop_columns, rename_columns, defaults
        )
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        left_s = deadline - clock.monotonic()
        self.cache.take_record(await alterations.alter(record, change, rename_to, left_s))
        if wait:
            await alterations.wait_done(record, deadline - clock.monotonic())

    async def rename(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Give the table another name; this handle and all others on it go on.

        Raises:
            InvalidArgument, TableExists: it keeps its name.
        """
        check_name(name)
        await self.alter(rename_to=name, wait=False, timeout=timeout)

    async def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether every tablet has the newest schema."""
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        return await alterations.is_done(self.cache.table, timeout)

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
        known = self.known
        wire = known.codec.key(key)
        if not known.schema.is_plain:
            return None
        chosen = chosen_columns(columns, known.schema, known.name)
        return OneKey(known.partitioner.tablet_number(wire), wire, chosen, known)

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
                    [key], columns=one.columns or None, with_versions=with_version
                )
                return found.to_pylist()[0] if found.num_rows else None
            reply = await self._send_one(one, deadline - clock.monotonic(), None)
        return self.row_of(one, reply, with_version)

    async def _send_one(self, one: OneKey, timeout_s: float, tried: StelaeError | None) -> GetReply:
        async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> GetReply:
            reply = await self.runtime.peers.call(
                where.address, GET, one.request(where), timeout_s=limit_s, destination=owner
            )
            return reply.body

        return await on_tablet(
            self.runtime, self.cache, one.number, "get", attempt, timeout_s=timeout_s, tried=tried
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
        writer = self.writer
        known = writer.known
        chosen = chosen_columns(columns, known.schema, known.name)
        parts = writer.split(key_rows(keys, known.schema, known.codec, known.name))
        return ManyKeys(chosen, with_versions, known, parts)

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
        version = wanted.known.schema.version
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> Found:
            _, places, blob = wanted.parts[number]

            async def attempt(where: TabletLocation, owner: ServerUuid, limit_s: float) -> Any:
                return await self.runtime.peers.call(
                    where.address,
                    GET_MANY,
                    GetMany(where.tablet.tablet_id, wanted.columns, version),
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
        return merge_found(found, wanted.names, wanted.known.schema.arrow)

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

        Raises:
            SchemaChanged: a column that is read was dropped after the first rows were handed out.
        """
        left = limit
        wanted = self._scan_of(columns, where)
        for number in range(self.cache.tablet_count):
            if left is not None and left <= 0:
                return
            try:
                batches = await self._scan_tablet(wanted, number, left, with_versions, timeout)
            except SchemaChanged as error:
                if number:
                    raise  # rows were handed out in the columns of before
                await self._newer_than(wanted.known, error)
                wanted = self._scan_of(columns, where)
                batches = await self._scan_tablet(wanted, number, left, with_versions, timeout)
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
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout
        wanted = self._scan_of(columns, where)
        try:
            return await self._scan(wanted, limit, with_versions, timeout)
        except SchemaChanged as error:
            await self._newer_than(wanted.known, error)
            wanted = self._scan_of(columns, where)
            return await self._scan(wanted, limit, with_versions, deadline - clock.monotonic())

    async def _scan(
        self, wanted: WantedRows, limit: int | None, with_versions: bool, timeout_s: float
    ) -> pa.Table:
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)

        async def part(number: int) -> list[pa.RecordBatch]:
            async with turns:
                return await self._scan_tablet(wanted, number, limit, with_versions, timeout_s)

        parts = await all_or_first_error([part(n) for n in range(self.cache.tablet_count)])
        arrow = wanted.known.schema.arrow
        fields = [arrow.field(name) for name in (wanted.columns or arrow.names)]
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

    def _scan_of(self, columns: Sequence[str] | None, where: Where) -> WantedRows:
        known = self.known
        return WantedRows(
            known,
            chosen_columns(columns, known.schema, known.name),
            normalize_filters(where, known.schema, known.name),
        )

    async def _scan_tablet(
        self,
        wanted: WantedRows,
        number: int,
        limit: int | None,
        with_versions: bool,
        timeout_s: float,
    ) -> list[pa.RecordBatch]:
        return await scan_tablet(
            self.runtime,
            self.cache,
            number,
            wanted.columns,
            wanted.where,
            limit,
            with_versions,
            timeout_s,
            wanted.known.schema.version,
        )
