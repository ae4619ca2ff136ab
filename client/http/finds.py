"""Indexes of one table over HTTP: the part of `HttpTable` that `TableFinds` is of `AsyncTable`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from stelae.client.finds.calls import Asked, AsyncFinds, Page
from stelae.client.finds.index_calls import Progress, wait_serving
from stelae.client.http.json_values import to_json_value
from stelae.client.http.protocol import (
    ARROW_TYPE,
    JSON_TYPE,
    NEXT_PAGE_HEADER,
)
from stelae.client.http.records import json_of
from stelae.client.http.table_calls import HttpTableCalls, arrow_table
from stelae.client.input.known import KnownTable
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.core.errors import (
    ColumnNotFound,
    IndexNotFound,
    InvalidArgument,
    SchemaChanged,
)
from stelae.core.schema.schema import is_plain_type
from stelae.core.schema.values import from_wire, to_wire

FIND_ROWS_MAX = 100_000
"""Of one request, where a `find` has no limit."""


class HttpFinds(HttpTableCalls, AsyncFinds):
    """See the module."""

    async def find_asked(self, asked: Asked) -> pa.Table:
        """In several requests where there are many rows."""
        asked.check()
        wanted, parts = asked.limit, list[pa.Table]()
        while True:
            limit = FIND_ROWS_MAX if wanted is None else min(max(wanted, 1), FIND_ROWS_MAX)
            page = await self.page_asked(replace(asked, limit=limit))
            parts.append(page.rows if wanted is None else page.rows.slice(0, wanted))
            wanted = None if wanted is None else wanted - parts[-1].num_rows
            if page.token is None or wanted == 0:
                return pa.concat_tables(parts)
            asked = replace(asked, after=page.token)

    async def page_asked(self, asked: Asked) -> Page:
        asked.check_page()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + asked.timeout_s
        for is_last in (False, True):
            schema = self._schema
            try:
                return await self._sent(self._body(asked), deadline - loop.time())
            except (IndexNotFound, ColumnNotFound, SchemaChanged):
                if is_last:
                    raise
                await self.refresh(deadline - loop.time())
                if self._schema.version <= schema.version:
                    raise
        raise AssertionError("the last attempt answers or raises")

    def _body(self, asked: Asked) -> dict[str, Any]:
        """What is looked for, checked here as on the direct way but for its token, as JSON."""
        query = replace(asked, after=None).query(KnownTable(self._record))
        body: dict[str, Any] = {
            "column": asked.column,
            "columns": list(query.columns) or None,
            "with_versions": asked.with_versions,
            "reverse": asked.reverse,
            "limit": asked.limit,
            "after": asked.after,
            "if_filling": asked.if_filling,
        }
        if asked.between is None:
            return {**body, "value": self._json_value(asked.column, asked.value)}
        return {
            **body,
            "between": [self._json_value(asked.column, bound) for bound in asked.between],
        }

    def _json_value(self, column: str, value: Any) -> Any:
        kind = self._schema.arrow.field(column).type
        if value is not None and is_plain_type(kind):
            value = from_wire(to_wire(value, kind, f"column {column!r}"), kind)
        elif value is not None:
            value = pa.scalar(value, kind).as_py()
        return to_json_value(value, kind)

    async def _sent(self, body: dict[str, Any], timeout_s: float) -> Page:
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
        response = await self._call("GET", "/indexes", what="indexes", timeout_s=timeout)
        return list(json_of(response)["indexes"])

    async def _create_index(
        self, column: str, unique: bool, wait: bool, progress: Progress | None, timeout_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        body = {"column": column, "unique": bool(unique), "wait": False}
        left_s = min(timeout_s, DEFAULT_TIMEOUT_S)
        await self._order("POST", "/indexes", what="create_index", timeout_s=left_s, body=body)
        await self._refresh_after(f"the index of {column!r}", deadline)
        if not wait:
            return

        async def look(timeout_s: float) -> dict[str, Any] | None:
            found = await self.indexes(timeout=timeout_s)
            return next((index for index in found if index["column"] == column), None)

        left_s, rng = deadline - loop.time(), self._transport.rng
        if not await wait_serving(look, loop.time, asyncio.sleep, rng, column, progress, left_s):
            raise IndexNotFound(column, self._record.name)

    async def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        if not isinstance(column, str) or not column:
            raise InvalidArgument(f"column={column!r}: the name of one column")
        path = f"/indexes?{urlencode({'column': column})}"
        deadline = asyncio.get_running_loop().time() + timeout
        await self._order("DELETE", path, what="drop_index", timeout_s=timeout)
        await self._refresh_after(f"the drop of the index of {column!r}", deadline)
