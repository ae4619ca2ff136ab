"""How a client uses the indexes of one table: the part of `AsyncTable` that finds rows by value.

A look-up gets entries from indexlets, reads the rows that they name from the tablets, and drops
those whose value is another by now: an index may name too much for a moment, never too little. So
a row that had the value throughout is found. One whose value changes meanwhile, within what is
looked for, may be found with either value; if that takes several calls to indexlets, also not.

Source: SLIK (ATC 2016), §4: range look-ups; design §11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import pyarrow as pa

from stelae.client.finds.calls import Asked, AsyncFinds, Page
from stelae.client.finds.few import Found, is_few, rows_of_few
from stelae.client.finds.index_calls import IndexCalls, Progress
from stelae.client.finds.query import FindQuery
from stelae.client.finds.read_table import ReadTable
from stelae.client.finds.shared_finds import SharedFinds
from stelae.client.input.known import KnownTable
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.indexlets import Filling, entries_in, look_up
from stelae.client.routing.locations import TableCache
from stelae.client.routing.session import Session
from stelae.client.routing.shared_reads import SharedReads
from stelae.core.errors import ColumnNotFound, IndexNotFound, SchemaChanged
from stelae.core.messages.index_catalog import describe_index
from stelae.core.messages.indexes import LOOKUP_ENTRIES_MAX, LookupReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import END, is_empty, just_after

SPARE = 8
"""Entries asked for beyond the rows wanted: some may be of rows that have moved on."""


Entries: TypeAlias = list[bytes] | pa.BinaryArray
"""In order; few of them as they came."""


class FoundTable(ReadTable, Protocol):
    """The part of an `AsyncTable` that finding rows takes."""

    @property
    def name(self) -> str: ...

    @property
    def known(self) -> KnownTable: ...

    @property
    def shared_finds(self) -> SharedFinds: ...

    async def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table: ...

    async def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table: ...


class TableFinds(AsyncFinds):
    """See the module."""

    runtime: Runtime
    session: Session
    cache: TableCache
    shared_reads: SharedReads
    shared_finds: SharedFinds

    if TYPE_CHECKING:

        @property
        def known(self) -> KnownTable: ...

    # ---- finding ----------------------------------------------------------------------------

    async def find_asked(self, asked: Asked) -> pa.Table:
        return (await self._found(asked)).rows

    async def page_asked(self, asked: Asked) -> Page:
        asked.check_page()
        return await self._found(asked)

    async def _found(self, asked: Asked) -> Page:
        """The rows, and the token of what is left, if ``limit`` cut it."""
        asked.check()
        deadline = self.runtime.clock.monotonic() + asked.timeout_s
        for is_last in (False, True):
            known = self.known
            try:
                query, waits = asked.query(known), asked.if_filling == "wait"
                table = cast(FoundTable, self)
                return await Finding(table, query, asked.limit, deadline, waits=waits).run()
            except (IndexNotFound, ColumnNotFound, SchemaChanged):
                if is_last:
                    raise
                # It may be there since, or be called otherwise.
                left_s = deadline - self.runtime.clock.monotonic()
                await self.cache.refresh_within(left_s, f"find by {asked.column!r}")
                if self.known.schema.version <= known.schema.version:
                    raise
        raise AssertionError("the last attempt answers or raises")

    # ---- indexes ----------------------------------------------------------------------------

    async def indexes(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[dict[str, Any]]:
        """The indexes of this table, oldest first: ``column``, ``state``, which part is ``filled``
        (0 to 1), ``entries``, and the ``indexlets`` with where each is."""
        views = await self._index_calls().views(self.cache.table, timeout)
        return [describe_index(self.cache.table.name, view) for view in views]

    async def _create_index(
        self, column: str, unique: bool, wait: bool, progress: Progress | None, timeout_s: float
    ) -> None:
        calls = self._index_calls()
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout_s
        table = await calls.create(self.cache.table, column, unique, timeout_s)
        self.cache.take_record(table)
        if wait:
            await calls.wait_filled(table, column, progress, deadline)

    async def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        table = await self._index_calls().drop(self.cache.table, column, timeout)
        self.cache.take_record(table)

    def _index_calls(self) -> IndexCalls:
        return IndexCalls(self.runtime, self.cache.masters, self.session)


class Finding:
    """One `find`, or one page of one, under way."""

    def __init__(
        self,
        table: FoundTable,
        query: FindQuery,
        limit: int | None,
        deadline: float,
        *,
        waits: bool,
    ) -> None:
        self._table = table
        self._query = query
        self._limit = limit
        self._deadline = deadline
        self._waits = waits
        self._parts: list[tuple[pa.Table, Entries]] = []
        self._count = 0

    @property
    def _left_s(self) -> float:
        return self._deadline - self._table.runtime.clock.monotonic()

    async def run(self) -> Page:
        query, shared = self._query, self._table.shared_finds
        left: tuple[bytes, bytes] | None = None if query.is_empty else (query.low, query.high)
        shared.under_way += 1
        try:
            if left is not None and query.is_one_value and self._limit != 0:
                left = await self._shared_piece(query.low, query.high)
            while left is not None and (self._limit is None or self._count < self._limit):
                low, high = left
                try:
                    left = await self._piece(low, high)
                except Filling:
                    await self._scan(low, high)
                    left = None
        finally:
            shared.under_way -= 1
        return self._answer(is_whole=left is None)

    def _wanted(self) -> int:
        """So many entries are asked for."""
        if self._limit is None:
            return LOOKUP_ENTRIES_MAX
        return min(LOOKUP_ENTRIES_MAX, self._limit - self._count + SPARE)

    async def _shared_piece(self, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """As `_piece`, together with other look-ups; the whole range is left if it cannot be."""
        query, table = self._query, self._table
        found = await table.shared_finds.find(query, self._wanted(), self._deadline)
        if found is None:
            return low, high
        last = await self._read(Reply(found.said), found)
        return self._left_after(found.said, last, low, high)

    async def _piece(self, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """What one indexlet has of a range, or some of it; returns what is left of the range."""
        query = self._query
        reply = await look_up(
            self._table.runtime,
            self._table.cache.indexlets,
            query.index.index_id,
            low,
            high,
            limit=self._wanted(),
            is_reverse=query.is_reverse,
            waits=self._waits,
            schema_version=query.known.schema.version,
            deadline=self._deadline,
            what=(query.codec.column, query.known.name),
        )
        last = await self._read(reply, None)
        return self._left_after(reply.body, last, low, high)

    async def _read(self, reply: Reply[LookupReply], found: Found | None) -> bytes:
        """Read the rows of an answer, but for those that were found with it; its last entry."""
        entries = reply.body.entries
        if entries and is_few(self._query, len(entries)):
            rows = await rows_of_few(self._table, self._query, entries, self._left_s, found)
            self._keep(*rows)
            self._check_schema()
            return entries[-1]
        many = entries_in(reply)
        if not len(many):
            return b""
        await self._take(many)
        last: bytes = many[-1].as_py()
        return last

    def _left_after(
        self, said: LookupReply, last: bytes, low: bytes, high: bytes
    ) -> tuple[bytes, bytes] | None:
        """What is left of a range after an answer with ``last`` as its last entry."""
        if self._query.is_reverse:
            left = low, (last if said.is_more else said.low)
            is_over = left[1] <= low
        else:
            left = (just_after(last) if said.is_more else said.high), high
            is_over = left[0] == END or is_empty(*left)
        return None if is_over else left

    async def _take(self, entries: pa.BinaryArray) -> None:
        """Read the rows that entries name, and keep those that still have them."""
        query, table = self._query, self._table
        keys = await self._offload(len(entries), query.keys_of, entries)
        found = await table.get_many(
            pa.Table.from_batches([keys]),
            columns=query.read_columns or None,
            with_versions=query.with_versions,
            timeout=self._left_s,
        )
        self._check_schema()
        self._keep(*await self._offload(len(entries), query.ordered, found, entries))

    async def _offload(self, size: int, work: Callable[..., Any], *args: Any) -> Any:
        if size <= LOOKUP_ENTRIES_MAX // 10:
            return work(*args)
        return await self._table.runtime.offload(work, *args)

    async def _scan(self, low: bytes, high: bytes) -> None:
        """The rest of the range, by a scan of the table."""
        query, table = self._query, self._table
        found = await table.scan(
            columns=query.read_columns or None,
            with_versions=query.with_versions,
            timeout=self._left_s,
        )
        self._check_schema()
        rest = query.within(low, high)
        self._keep(*await table.runtime.offload(rest.ordered, found))

    def _keep(self, rows: pa.Table, own: Entries) -> None:
        if rows.num_rows:
            self._parts.append((rows, own))
            self._count += rows.num_rows

    def _check_schema(self) -> None:
        """Raise `SchemaChanged` if what was read may be in newer columns than those asked for."""
        asked, present = self._query.known.schema.version, self._table.known.schema.version
        if asked != present:
            raise SchemaChanged(self._table.name, asked, present)

    def _answer(self, *, is_whole: bool) -> Page:
        """At most as many rows as are wanted; the token of the last if there may be more."""
        token: str | None = None
        left, parts = self._limit, self._parts
        if left is not None and self._count >= left:
            parts = []
            for rows, own in self._parts:
                parts.append((rows.slice(0, left), own[:left]))
                left -= min(left, rows.num_rows)
            is_whole = is_whole and self._count == self._limit
            last = next((own for _, own in reversed(parts) if len(own)), None)
            if not is_whole and last is not None:
                entry = last[-1]
                token = self._query.token(entry if isinstance(entry, bytes) else entry.as_py())
        return Page(self._query.joined([rows for rows, _ in parts]), token)
