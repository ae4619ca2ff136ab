"""How a client uses the indexes of one table: the part of `AsyncTable` that finds rows by value.

A look-up gets entries from indexlets, reads the rows that they name from the tablets, and drops
those whose value is another by now: an index may name too much for a moment, never too little. So
a row that had the value throughout is found. One whose value changes meanwhile, within what is
looked for, may be found with either value; if that takes several calls to indexlets, also not.

Source: SLIK (ATC 2016), §4: range look-ups; design §11.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.find_query import NOT_GIVEN, FindQuery, IfFilling, find_query
from stelae.client.index_calls import IndexCalls, Progress
from stelae.client.indexlets import Filling, entries_in, look_up
from stelae.client.known import KnownTable
from stelae.client.locations import TableCache
from stelae.client.session import Session
from stelae.core.errors import ColumnNotFound, IndexNotFound, InvalidArgument, SchemaChanged
from stelae.core.index_messages import LOOKUP_ENTRIES_MAX
from stelae.core.index_views import IndexView
from stelae.core.indexes import END
from stelae.core.runtime import Runtime

PAGE_ROWS = 1000
SPARE = 8
"""Entries asked for beyond the rows wanted: some may be of rows that have moved on."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that a `find_page` found, and by what to ask for those after them."""

    rows: pa.Table
    token: str | None
    """None: there are no more."""


class TableFinds:
    """See the module."""

    runtime: Runtime
    session: Session
    cache: TableCache
    known: KnownTable

    # ---- finding ----------------------------------------------------------------------------

    async def find(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """Rows by the value of an indexed column, in the order of value and key.

        ``find("dest", "LAX")``; ``find("dest", None)``: those that have null there;
        ``find("dest", between=("A", "M"))``: both ends are included, None is no bound, nulls are
        left out. ``if_filling``: while the index is made, or made anew after the loss of a server,
        "wait" for it, or "scan" the table in its place.

        Raises:
            IndexNotFound: the column has no index; `create_index` makes one.
            ColumnNotFound, InvalidArgument: what is asked for cannot be.
            RetryLater: the index was not there in time; the text says what it waits for.
        """
        rows, _ = await self._found(
            column,
            value,
            between,
            columns,
            with_versions,
            reverse,
            if_filling,
            _checked_limit(limit),
            None,
            timeout,
        )
        return rows

    async def find_page(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        limit: int = PAGE_ROWS,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Page:
        """At most ``limit`` rows, and a token by which to ask for those ``after`` them.

        Each page shows what is there when it is asked for; a row whose value changes between two
        pages may be on both. Raises as `find`.
        """
        if _checked_limit(limit) == 0:
            raise InvalidArgument("limit=0: a page has at least one row")
        rows, token = await self._found(
            column,
            value,
            between,
            columns,
            with_versions,
            reverse,
            if_filling,
            limit,
            after,
            timeout,
        )
        return Page(rows, token)

    async def find_pages(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        page_rows: int = PAGE_ROWS,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> AsyncIterator[pa.Table]:
        """All rows of a `find`, page by page; ``timeout`` is of each."""
        after: str | None = None
        while True:
            page = await self.find_page(
                column,
                value,
                between=between,
                limit=page_rows,
                after=after,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout=timeout,
            )
            if page.rows.num_rows:
                yield page.rows
            if page.token is None:
                return
            after = page.token

    async def _found(
        self,
        column: str,
        value: Any,
        between: Any,
        columns: Sequence[str] | None,
        with_versions: bool,
        reverse: bool,
        if_filling: IfFilling,
        limit: int | None,
        after: str | None,
        timeout_s: float,
    ) -> tuple[pa.Table, str | None]:
        """The rows, and the token of what is left, if ``limit`` cut it."""
        if if_filling not in ("wait", "scan"):
            raise InvalidArgument(f'if_filling={if_filling!r}: "wait" or "scan"')
        deadline = self.runtime.clock.monotonic() + timeout_s
        for is_last in (False, True):
            known = self.known
            try:
                query = find_query(
                    known,
                    column,
                    value,
                    between,
                    columns,
                    with_versions=with_versions,
                    is_reverse=reverse,
                )
                if after is not None:
                    query = query.from_token(after)
                work = Finding(self, query, limit, deadline, waits=if_filling == "wait")
                return await work.run()
            except (IndexNotFound, ColumnNotFound, SchemaChanged):
                if is_last:
                    raise
                await self.cache.refresh()  # it may be there since, or be called otherwise
                if self.known.schema.version <= known.schema.version:
                    raise
        raise AssertionError("the last attempt answers or raises")

    # ---- indexes ----------------------------------------------------------------------------

    async def indexes(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[IndexView]:
        """The indexes of this table, and how far each is filled."""
        return await self._index_calls().views(self.cache.table, timeout)

    async def create_index(
        self,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = 3600.0,
    ) -> None:
        """Make an index of a column; reads and writes go on meanwhile.

        ``wait``: until it answers (`find`), which takes longer with more rows; it is made whether
        anybody waits or not. ``progress`` is told of each look.

        Raises:
            IndexExists, ColumnNotFound, InvalidArgument: nothing was changed. ``unique`` always is
                refused; the text says what to do in its place.
            NotDoneYet: it is not filled in time, and goes on by itself.
        """
        calls = self._index_calls()
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout
        table = await calls.create(self.cache.table, column, unique, timeout)
        self.cache.take_record(table)
        if wait:
            await calls.wait_filled(table, column, progress, deadline)

    async def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a column. Raises `IndexNotFound`, `ColumnNotFound`."""
        table = await self._index_calls().drop(self.cache.table, column, timeout)
        self.cache.take_record(table)

    def _index_calls(self) -> IndexCalls:
        return IndexCalls(self.runtime, self.cache.masters, self.session)


class Finding:
    """One `find`, or one page of one, under way."""

    def __init__(
        self, table: Any, query: FindQuery, limit: int | None, deadline: float, *, waits: bool
    ) -> None:
        self._table = table
        self._query = query
        self._limit = limit
        self._deadline = deadline
        self._waits = waits
        self._parts: list[tuple[pa.Table, pa.BinaryArray]] = []
        self._count = 0

    @property
    def _left_s(self) -> float:
        return float(self._deadline - self._table.runtime.clock.monotonic())

    async def run(self) -> tuple[pa.Table, str | None]:
        query = self._query
        low, high = query.low, query.high
        while not _is_over(low, high) and (self._limit is None or self._count < self._limit):
            try:
                low, high = await self._piece(low, high)
            except Filling:
                return await self._scanned(low, high)
        return self._answer(is_whole=_is_over(low, high))

    async def _piece(self, low: bytes, high: bytes) -> tuple[bytes, bytes]:
        """What one indexlet has of a range; returns what is left of that."""
        query = self._query
        runtime = self._table.runtime
        wanted = LOOKUP_ENTRIES_MAX
        if self._limit is not None:
            wanted = min(wanted, self._limit - self._count + SPARE)
        reply = await look_up(
            runtime,
            self._table.cache.indexlets,
            query.index.index_id,
            low,
            high,
            limit=wanted,
            is_reverse=query.is_reverse,
            waits=self._waits,
            schema_version=query.known.schema.version,
            deadline=self._deadline,
            what=(query.codec.column, query.known.name),
        )
        entries, said = entries_in(reply), reply.body
        if len(entries):
            await self._take(entries)
        if said.is_more:
            last = entries[-1].as_py()
            return (low, last) if query.is_reverse else query.after(last)[:1] + (high,)
        if query.is_reverse:
            return low, said.low
        return (said.high, high) if said.high != END else (high, b"")

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
        rows, own = await self._offload(len(entries), query.ordered, found, entries)
        if rows.num_rows:
            self._parts.append((rows, own))
            self._count += rows.num_rows

    async def _offload(self, size: int, work: Callable[..., Any], *args: Any) -> Any:
        if size <= LOOKUP_ENTRIES_MAX // 10:
            return work(*args)
        return await self._table.runtime.offload(work, *args)

    async def _scanned(self, low: bytes, high: bytes) -> tuple[pa.Table, str | None]:
        """The rest of the range, by a scan of the table."""
        query, table = self._query, self._table
        found = await table.scan(
            columns=query.read_columns or None,
            with_versions=query.with_versions,
            timeout=self._left_s,
        )
        rest = query.within(low, high)
        rows, own = await table.runtime.offload(rest.ordered, found)
        if rows.num_rows:
            self._parts.append((rows, own))
            self._count += rows.num_rows
        return self._answer(is_whole=True)

    def _answer(self, *, is_whole: bool) -> tuple[pa.Table, str | None]:
        rows = self._query.joined(self._parts)
        if self._limit is None or self._count <= self._limit:
            if is_whole or not self._parts:
                return rows, None
            return rows, self._query.token(self._parts[-1][1][-1].as_py())
        left = self._limit
        for part, own in self._parts:
            if part.num_rows >= left:
                token = self._query.token(own[left - 1].as_py()) if left else None
                return rows.slice(0, self._limit), token
            left -= part.num_rows
        raise AssertionError("there are more rows than the limit")


def _is_over(low: bytes, high: bytes) -> bool:
    return high != END and high <= low


def _checked_limit(limit: Any) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidArgument(f"limit={limit!r}: a number of rows, not negative")
    return limit
