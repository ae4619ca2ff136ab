"""Indexes of one table over HTTP: the part of `HttpTable` that `TableFinds` is of `AsyncTable`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa

from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.find_query import NOT_GIVEN, IfFilling, find_query
from stelae.client.http_protocol import (
    ARROW_TYPE,
    JSON_TYPE,
    NEXT_PAGE_HEADER,
    REQUEST_ID_HEADER,
    format_request_id,
)
from stelae.client.http_records import json_of
from stelae.client.http_table_calls import HttpTableCalls, arrow_table
from stelae.client.index_calls import FIRST_POLL_S, LONGEST_POLL_S, Progress
from stelae.client.json_values import to_json_value
from stelae.client.known import KnownTable
from stelae.client.table_finds import PAGE_ROWS, Page, checked_limit
from stelae.core.errors import (
    ColumnNotFound,
    IndexNotFound,
    InvalidArgument,
    NotDoneYet,
    SchemaChanged,
)
from stelae.core.indexes import IndexletState
from stelae.core.schema import is_plain_type
from stelae.core.values import from_wire, to_wire

FIND_ROWS_MAX = 100_000
"""Of one request, where a `find` has no limit."""


class HttpFinds(HttpTableCalls):
    """See the module."""

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
        """See `AsyncTable.find`. Without a limit, in several requests where there are many rows."""
        wanted, after = checked_limit(limit), None
        parts: list[pa.Table] = []
        while wanted is None or wanted > 0 or not parts:
            page = await self.find_page(
                column,
                value,
                between=between,
                limit=min(FIND_ROWS_MAX if wanted is None else max(wanted, 1), FIND_ROWS_MAX),
                after=after,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout=timeout,
            )
            parts.append(page.rows if wanted is None else page.rows.slice(0, wanted))
            wanted = None if wanted is None else wanted - parts[-1].num_rows
            after = page.token
            if after is None:
                break
        return pa.concat_tables(parts)

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
        """See `AsyncTable.find_page`."""
        if not checked_limit(limit):
            raise InvalidArgument(f"limit={limit!r}: a page has at least one row")
        if if_filling not in ("wait", "scan"):
            raise InvalidArgument(f'if_filling={if_filling!r}: "wait" or "scan"')
        for is_last in (False, True):
            schema = self._schema
            try:
                what = self._what(column, value, between, columns, with_versions, reverse)
                body = {**what, "limit": limit, "after": after, "if_filling": if_filling}
                return await self._page(body, timeout)
            except (IndexNotFound, ColumnNotFound, SchemaChanged):
                if is_last:
                    raise
                await self.refresh()
                if self._schema.version <= schema.version:
                    raise
        raise AssertionError("the last attempt answers or raises")

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
        """See `AsyncTable.find_pages`."""
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

    def _what(
        self,
        column: str,
        value: Any,
        between: Sequence[Any] | None,
        columns: Sequence[str] | None,
        with_versions: bool,
        reverse: bool,
    ) -> dict[str, Any]:
        """What is looked for, checked here as on the direct way, as JSON."""
        query = find_query(
            KnownTable(self._record),
            column,
            value,
            between,
            columns,
            with_versions=with_versions,
            is_reverse=reverse,
        )
        what: dict[str, Any] = {
            "column": column,
            "columns": list(query.columns) or None,
            "with_versions": with_versions,
            "reverse": reverse,
        }
        if between is None:
            what["value"] = self._json_value(column, value)
        else:
            what["between"] = [self._json_value(column, bound) for bound in between]
        return what

    def _json_value(self, column: str, value: Any) -> Any:
        kind = self.schema.field(column).type
        if value is not None and is_plain_type(kind):
            value = from_wire(to_wire(value, kind, f"column {column!r}"), kind)
        elif value is not None:
            value = pa.scalar(value, kind).as_py()
        return to_json_value(value, kind)

    async def _page(self, body: dict[str, Any], timeout_s: float) -> Page:
        response = await self._call(
            "POST",
            "/rows:find",
            what="find",
            timeout_s=timeout_s,
            content=msgspec.json.encode(body),
            headers={"Content-Type": JSON_TYPE, "Accept": ARROW_TYPE},
        )
        rows = await asyncio.to_thread(arrow_table, response.content)
        return Page(rows, response.headers.get(NEXT_PAGE_HEADER))

    # ---- indexes ----------------------------------------------------------------------------

    async def indexes(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[dict[str, Any]]:
        """See `AsyncTable.indexes`."""
        response = await self._call(
            "GET", "/indexes", what="indexes", timeout_s=timeout, content=b"", headers={}
        )
        return list(json_of(response)["indexes"])

    async def create_index(
        self,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = 3600.0,
    ) -> None:
        """See `AsyncTable.create_index`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        body = {"column": column, "unique": bool(unique), "wait": False}
        with self._session.request() as request:
            await self._call(
                "POST",
                "/indexes",
                what="create_index",
                timeout_s=min(timeout, DEFAULT_TIMEOUT_S),
                content=msgspec.json.encode(body),
                headers={
                    "Content-Type": JSON_TYPE,
                    REQUEST_ID_HEADER: format_request_id(request),
                },
            )
        await self.refresh()
        pause_s, waits_for = FIRST_POLL_S, "the masters"
        while wait:
            found = [index for index in await self.indexes() if index["column"] == column]
            if not found:
                raise IndexNotFound(column, self.name)
            if progress is not None:
                progress(found[0])
            if found[0]["state"] == IndexletState.SERVING.value:
                return
            waits_for = found[0]["problem"] or "its indexlets to be filled"
            if loop.time() >= deadline:
                raise NotDoneYet(f"the index of {column!r}", waits_for)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_POLL_S)

    async def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """See `AsyncTable.drop_index`."""
        if not isinstance(column, str) or not column:
            raise InvalidArgument(f"column={column!r}: the name of one column")
        with self._session.request() as request:
            await self._call(
                "DELETE",
                f"/indexes/{quote(column, safe='')}",
                what="drop_index",
                timeout_s=timeout,
                content=b"",
                headers={REQUEST_ID_HEADER: format_request_id(request)},
            )
        await self.refresh()
