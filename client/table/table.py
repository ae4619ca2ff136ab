"""One table as a client sees it: reads and writes, cut by tablet, sent straight to the tservers.

Each tablet's part of a call is atomic and applied once; across tablets there is no transaction: if
one part is refused, others may have been done, and the error's note says how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.finds.shared_finds import SharedFinds
from stelae.client.finds.table_finds import TableFinds
from stelae.client.input.convert import Key, Rows, decode_batch, encode_batch
from stelae.client.input.filters import Where, normalize_filters
from stelae.client.input.given import chosen_columns, key_rows, row_limit, staleness
from stelae.client.input.known import KnownTable
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import CONCURRENT_TABLETS, DEFAULT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.part import Versions
from stelae.client.routing.retries import on_tablet
from stelae.client.routing.session import Session
from stelae.client.routing.shared_reads import SharedReads
from stelae.client.table.alterations import TableAlterations
from stelae.client.table.api import SCAN_TIMEOUT_S, AskedRows, AskedScan, TableApi
from stelae.client.table.gathering import Gathering
from stelae.client.table.reads import Found, ManyKeys, OneKey, WantedRows, merge_found
from stelae.client.table.scan import scan_all, scan_wanted
from stelae.client.table.scan_pages import ScanPage, ScanPlace, end_scan, scan_page
from stelae.client.table.streams import Piece, pinned_pieces
from stelae.client.table.writer import TableWriter
from stelae.core.config.settings import Settings
from stelae.core.errors import DeadlineExpired, SchemaChanged, StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import GET, GET_MANY, GetManyReply, GetReply, WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.core.tasks import all_or_first_error

T = TypeVar("T")


class AsyncTable(TableAlterations, TableFinds, TableApi):
    """A handle on one table; cheap, shares its database's connections. Made by the database."""

    def __init__(
        self, runtime: Runtime, settings: Settings, session: Session, cache: TableCache
    ) -> None:
        self.runtime = runtime
        self._settings = settings
        self.session = session
        self.cache = cache
        self.shared_reads = SharedReads(runtime, cache)
        self.shared_finds = SharedFinds(runtime, cache, self.shared_reads)
        self._gathering = Gathering(runtime, cache)
        self._pinned = False
        self._is_stelae = False
        self._writer = self._made(KnownTable(cache.table))

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
        self._writer = self._made(KnownTable(record))
        return self._writer

    def _made(self, known: KnownTable) -> TableWriter:
        ours = (self.runtime, self._settings, self.session, self.cache)
        return TableWriter(*ours, known, self._gathering, is_stelae=self._is_stelae)

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

    async def _newer_than(
        self, known: KnownTable, error: SchemaChanged, deadline: float
    ) -> KnownTable:
        """The table after an alter that a call came too late for; ``error`` if there is none."""
        limit_s = deadline - self.runtime.clock.monotonic()
        await self.cache.refresh_within(limit_s, f"a call on altered table {known.name!r}")
        if self._pinned or self.known.schema.version <= known.schema.version:
            raise error
        return self.known

    @property
    def record(self) -> TableRecord:
        return self.known.record

    @property
    def _newest(self) -> TableRecord:
        return self.cache.table

    async def _locations(self, timeout_s: float) -> Sequence[TabletLocation]:
        await self.cache.refresh_within(timeout_s, self.cache.named("locations"))
        return sorted(self.cache.locations.tablets, key=lambda location: location.tablet.number)

    def with_session(self, session: Session) -> AsyncTable:
        """The same table, its writes numbered by ``session``."""
        other = copy.copy(self)
        other.session = session
        other._writer = other._made(self.known)
        return other

    def for_stelae(self) -> AsyncTable:
        """The same table for Stelae itself, which alone writes to tables of its own."""
        other = copy.copy(self)
        other._is_stelae = True
        other._writer = other._made(self.known)
        return other

    # ---- writes -----------------------------------------------------------------------------

    async def _write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        return await self.writer.write(op, rows, if_version, timeout_s)

    async def _delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions:
        return await self.writer.delete(keys, if_version, timeout_s)

    # ---- reads ------------------------------------------------------------------------------

    async def _get(self, asked: AskedRows) -> dict[str, Any] | None:
        one = self.one_key(asked.keys[0], asked.columns, asked.max_staleness)
        if one is None:
            return await super()._get(asked)
        return await self.get_one(one, asked.with_versions, asked.timeout_s)

    def one_key(
        self, key: Key, columns: Sequence[str] | None, max_staleness: float | None = None
    ) -> OneKey | None:
        """A `get` of a plain table, checked and ready to be sent; None for other tables."""
        known = self.known
        wire = known.codec.key(key)
        if not known.schema.is_plain:
            return None
        chosen = chosen_columns(columns, known.schema, known.name)
        number = known.number_of(wire, self.cache.parts)
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
            one.known = known = await self._newer_than(one.known, error, deadline)
            one.columns = chosen_columns(one.columns or None, known.schema, known.name)
            if not known.schema.is_plain:
                key = dict(zip(known.schema.key, one.key, strict=True))
                columns, left_s = one.columns or None, deadline - clock.monotonic()
                asked = AskedRows([key], columns, with_version, one.max_staleness, left_s)
                return await super()._get(asked)
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

        deadline = self.runtime.clock.monotonic() + timeout_s
        while True:
            try:
                return await on_tablet(
                    self.runtime,
                    self.cache,
                    one.number,
                    "get",
                    attempt,
                    timeout_s=deadline - self.runtime.clock.monotonic(),
                    tried=tried,
                    max_staleness_s=one.max_staleness_s,
                )
            except WasSplit as split:
                tried, one.number = split.tried, one.known.number_of(one.key, self.cache.parts)

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

    async def _get_many(self, asked: AskedRows) -> pa.Table:
        wanted = await self.runtime.offload(
            self.many_keys, asked.keys, asked.columns, asked.with_versions, asked.max_staleness
        )
        found = await self.find_many(wanted, asked.timeout_s)
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
            wanted.known = known = await self._newer_than(wanted.known, error, deadline)
            wanted.columns = chosen_columns(wanted.columns or None, known.schema, known.name)
            return await self._find_many(wanted, deadline - clock.monotonic())

    async def _find_many(self, wanted: ManyKeys, timeout_s: float) -> list[Found]:
        turns = asyncio.Semaphore(CONCURRENT_TABLETS)
        deadline = self.runtime.clock.monotonic() + timeout_s

        async def part(number: int, places: NDArray[np.int64], blob: pa.Buffer) -> list[Found]:
            found: list[Found] = []
            while True:
                try:
                    async with turns:
                        self._check_left(deadline, number, len(found))
                        reply = await self._ask_many(wanted, number, blob, deadline)
                except WasSplit:
                    again = await self.runtime.offload(self.writer.split, decode_batch(blob))
                    cut = [part(n, places[rows], keys) for n, (_, rows, keys) in again.items()]
                    parts_found = await all_or_first_error(cut)
                    return found + [rows for each in parts_found for rows in each]
                at = np.frombuffer(reply.blobs[1], np.int32)
                found.append((decode_batch(reply.blobs[0]), places[at]))
                if not (read := reply.body.keys_read):
                    return found
                # The answer was cut: the other keys are asked for, until none is left.
                places, blob = places[read:], encode_batch(decode_batch(blob).slice(read))

        parts = [part(number, *wanted.parts[number][1:]) for number in sorted(wanted.parts)]
        return [found for each in await all_or_first_error(parts) for found in each]

    def _check_left(self, deadline: float, number: int, pieces: int) -> None:
        """Raises DeadlineExpired: of an answer in pieces not all came in time."""
        if pieces and self.runtime.clock.monotonic() >= deadline:
            waited_for = f"tablet {number}, of which {pieces} pieces had come"
            raise DeadlineExpired(self.cache.named("get_many"), waited_for)

    async def _ask_many(
        self, wanted: ManyKeys, number: int, blob: pa.Buffer, deadline: float
    ) -> Reply[GetManyReply]:
        """Ask one tablet for the rows of keys, given as an Arrow IPC stream. Raises `WasSplit`."""

        async def attempt(
            where: TabletLocation, owner: ServerUuid | None, limit_s: float
        ) -> Reply[GetManyReply]:
            return await self.runtime.peers.call(
                where.address,
                GET_MANY,
                wanted.request(where),
                timeout_s=limit_s,
                blobs=[blob],
                destination=owner,
            )

        return await on_tablet(
            self.runtime,
            self.cache,
            number,
            "get_many",
            attempt,
            timeout_s=deadline - self.runtime.clock.monotonic(),
            max_staleness_s=wanted.max_staleness_s,
        )

    def table_of(self, wanted: ManyKeys, found: list[Found]) -> pa.Table:
        """The rows that tablets found, in the order of the keys. May run in any thread."""
        return merge_found(found, wanted.names, wanted.known.schema.arrow)

    async def _pieces(self, asked: AskedScan) -> AsyncGenerator[Piece, None]:
        wanted = self._wanted(asked)
        is_first = True
        for is_again in (False, True):
            read = self.runtime, self.cache, wanted, asked.limit, asked.timeout_s
            try:
                async with contextlib.aclosing(pinned_pieces(*read)) as pieces:
                    async for piece in pieces:
                        is_first = False
                        yield piece
                        del piece
                return
            except SchemaChanged as error:
                if not is_first or is_again:
                    raise  # the reader knows the schema of before
                deadline = self.runtime.clock.monotonic() + asked.timeout_s
                await self._newer_than(wanted.known, error, deadline)
                wanted = self._wanted(asked)

    async def scan_tablets(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read rows as batches, tablet by tablet; each tablet at one point of its log.

        All rows of a tablet are in memory before the first one is handed out: if its server dies
        meanwhile, the tablet is read again. ``max_staleness``: see `get`.

        Raises:
            SchemaChanged: a column that is read was dropped after the first rows were handed out.
        """
        asked = AskedScan(columns, where, row_limit(limit), with_versions, max_staleness, timeout)
        left = asked.limit
        wanted = self._wanted(asked)
        is_first = True
        for number in self.cache.numbers:
            if left is not None and left <= 0:
                return
            read = (self.runtime, self.cache, number, left, asked.timeout_s)
            try:
                batches = await scan_wanted(wanted, *read)
            except SchemaChanged as error:
                if not is_first:
                    raise  # rows were handed out in the columns of before
                deadline = self.runtime.clock.monotonic() + asked.timeout_s  # of each tablet
                await self._newer_than(wanted.known, error, deadline)
                wanted = self._wanted(asked)
                batches = await scan_wanted(wanted, *read)
            is_first = False
            for batch in batches:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                if batch.num_rows:
                    yield batch

    async def _scan(self, asked: AskedScan) -> pa.Table:
        clock = self.runtime.clock
        deadline = clock.monotonic() + asked.timeout_s
        wanted = self._wanted(asked)
        try:
            return await scan_all(self.runtime, self.cache, wanted, asked.limit, asked.timeout_s)
        except SchemaChanged as error:
            await self._newer_than(wanted.known, error, deadline)
            left_s = deadline - clock.monotonic()
            again = self._wanted(asked)
            return await scan_all(self.runtime, self.cache, again, asked.limit, left_s)

    async def scan_page(
        self,
        rows: int,
        *,
        after: ScanPlace | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        with_versions: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> ScanPage:
        """At most ``rows`` rows, and the place to go on ``after``; see `scan_page`. No rows: what
        later pages need is released."""
        asked = AskedScan(columns, where, rows, with_versions, None, timeout)
        if not rows and after is not None:
            return await end_scan(self.runtime, self._wanted(asked), after)
        return await scan_page(self.runtime, self.cache, self._wanted(asked), rows, after, timeout)

    def _wanted(self, asked: AskedScan) -> WantedRows:
        known = self.known
        return WantedRows(
            known,
            chosen_columns(asked.columns, known.schema, known.name),
            normalize_filters(asked.where, known.schema, known.name),
            asked.with_versions,
            staleness(asked.max_staleness),
        )
