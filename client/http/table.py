"""One table over HTTP: `AsyncTable` again. Rows travel as Arrow streams, checked at both ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import numpy as np
import pyarrow as pa

from stelae.client.http.finds import HttpFinds
from stelae.client.http.json_values import to_json_value
from stelae.client.http.one_row import row_fields, row_of
from stelae.client.http.protocol import (
    ARROW_END,
    ARROW_TYPE,
    IF_VERSION_COLUMN,
    JSON_TYPE,
    NEXT_PAGE_HEADER,
    REQUEST_ID_HEADER,
    SCHEMA_VERSION_HEADER,
    format_request_id,
    staleness_query,
)
from stelae.client.http.records import (
    defaults_json,
    durability_json,
    json_of,
    table_record,
    tablet_location,
)
from stelae.client.http.scan_pieces import Page, page_pieces
from stelae.client.http.table_calls import (
    FEW_BYTES,
    arrow_stream,
    arrow_table,
    computed,
    is_few,
    table_path,
)
from stelae.client.input.convert import Key, Rows, to_arrow
from stelae.client.input.filters import Where, normalize_filters
from stelae.client.input.given import (
    chosen_columns,
    key_list,
    key_rows,
    row_versions,
    update_columns,
    wire_rows,
    written_columns,
)
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.part import Versions
from stelae.client.table.alter import AskedAlter
from stelae.client.table.api import AskedRows, AskedScan, TableApi
from stelae.client.table.streams import Piece
from stelae.core.errors import InvalidArgument, SchemaChanged, Unavailable
from stelae.core.ids import RequestId
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import WriteOp
from stelae.core.records.records import TableState
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.core.schema.values import check_batch, from_wire, rows_to_batch
from stelae.storage.rows.versions import SchemaView


class HttpTable(HttpFinds, TableApi):
    """See `stelae.client.table.table.AsyncTable`. Made by the database."""

    # ---- altering ---------------------------------------------------------------------------

    async def _alter(
        self, asked: AskedAlter, if_edition: str, wait: bool, timeout_s: float
    ) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.refresh(timeout_s)
        timeout_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
        change = asked.change(self._record)
        durability = asked.durability
        body = {
            "name": asked.rename_to or None,
            "add_arrow_schema": base64.b64encode(change.add_ipc).decode() or None,
            "drop_columns": change.drop,
            "rename_columns": dict(change.rename),
            "defaults": defaults_json(change),
            "durability": None if durability is None else durability_json(durability),
            "wait": wait,
        }
        response = await self._order(
            "PATCH", "", what="alter", timeout_s=timeout_s, body=body, if_edition=if_edition
        )
        self._use(table_record(json_of(response)))

    async def _locations(self, timeout_s: float) -> Sequence[TabletLocation]:
        path = f"{table_path(self.name)}/tablets"
        found = await self._transport.read(path, what="locations", timeout_s=timeout_s)
        return [tablet_location(info) for info in found["tablets"]]

    async def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """See `AsyncTable.is_alter_done`."""
        response = await self._call("GET", "", what="is_alter_done", timeout_s=timeout)
        return table_record(json_of(response)).state is not TableState.ALTERING

    # ---- writes -----------------------------------------------------------------------------

    async def _delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions:
        batch = self._key_rows(key_list(keys))
        return await self._send(WriteOp.DELETE, batch, if_version, timeout_s)

    async def _write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        if isinstance(rows, list) and not rows:
            row_versions(if_version, 0)
            return np.empty(0, np.uint64)
        batch = await computed(is_few(rows), self._batch, op, rows)
        return await self._send(op, batch, if_version, timeout_s)

    def _batch(self, op: WriteOp, rows: Rows) -> pa.RecordBatch:
        if isinstance(rows, dict):
            rows = [rows]
        if isinstance(rows, list) and self._schema.is_plain:
            wire, columns = wire_rows(op, rows, self._schema, self._codec, self.name)
            names = columns or tuple(self.schema.names)
            batch = rows_to_batch(wire, pa.schema([self.schema.field(name) for name in names]))
            return check_batch(batch, self._schema, columns=names, table=self.name)
        if isinstance(rows, list) and op is WriteOp.UPDATE:
            update_columns(rows, self._schema, self.name)
        table = to_arrow(rows, self.schema, self._codec.defaults)
        columns = written_columns(op, table.column_names, self._schema)
        return check_batch(table, self._schema, columns=columns, table=self.name)

    async def _send(
        self, op: WriteOp, batch: pa.RecordBatch, if_version: Any, timeout_s: float
    ) -> Versions:
        versions = None
        if if_version is not None:
            if op is WriteOp.INSERT:
                raise InvalidArgument("insert takes no versions: it wants every row to be absent")
            versions = np.array(row_versions(if_version, batch.num_rows), np.uint64)
        if not batch.num_rows:
            return np.empty(0, np.uint64)
        deadline = asyncio.get_running_loop().time() + timeout_s
        schema = self._schema
        with self._session.request() as request:
            try:
                response = await self._send_batch(op, batch, versions, request, timeout_s)
            except SchemaChanged as error:  # before anything was done: the columns mean nothing
                await self._newer_than(schema, error, deadline)
                view = SchemaView(schema, self._schema, self.name)
                kept, _ = view.write(op, batch, ())
                response = await self._send_batch(op, kept, versions, request, timeout_s)
        table = arrow_table(response.content)
        return table.column(VERSION_COLUMN).to_numpy()  # type: ignore[no-any-return]

    async def _send_batch(
        self,
        op: WriteOp,
        batch: Any,
        versions: Versions | None,
        request: RequestId,
        timeout_s: float,
    ) -> httpx.Response:
        if versions is not None:
            batch = batch.append_column(IF_VERSION_COLUMN, pa.array(versions))
        name = op.name.lower()
        return await self._call(
            "POST",
            f"/rows:write?op={name}",
            what=name,
            timeout_s=timeout_s,
            content=await computed(batch.nbytes < FEW_BYTES, arrow_stream, batch),
            headers={
                "Content-Type": ARROW_TYPE,
                "Accept": ARROW_TYPE,
                REQUEST_ID_HEADER: format_request_id(request),
            },
        )

    # ---- reads ------------------------------------------------------------------------------

    def get_here(
        self,
        key: Key,
        columns: Sequence[str] | None,
        with_version: bool,
        max_staleness: float | None,
        timeout_s: float,
    ) -> tuple[dict[str, Any] | None] | None:
        """See `TableApi.get_here`."""
        schema = self._schema
        fields = row_fields(self._codec.key(key), schema)
        if fields is None:
            return None
        chosen = self._chosen(columns)
        query = urlencode([*fields, *(("columns", name) for name in chosen)])
        age = staleness_query(max_staleness, first="&")
        headers = {SCHEMA_VERSION_HEADER: str(schema.version), "Accept": JSON_TYPE}
        path = f"{self._path}/rows?{query}{age}"
        answer = self._transport.get_directly(path, timeout_s, headers)
        return None if answer is None else row_of(answer, schema, chosen, with_version)

    async def _get_many(self, asked: AskedRows) -> pa.Table:
        age = staleness_query(asked.max_staleness, first="&")
        return await self._again_if_altered(lambda: self._ask_many(asked, age), asked.timeout_s)

    async def _ask_many(self, asked: AskedRows, age: str) -> pa.Table:
        chosen = self._chosen(asked.columns)
        content = await computed(is_few(asked.keys), self._key_stream, asked.keys)
        query: list[tuple[str, str]] = [("columns", name) for name in chosen]
        query.append(("with_versions", "true" if asked.with_versions else "false"))
        response = await self._call(
            "POST",
            f"/rows:get?{urlencode(query)}{age}",
            what="get",
            timeout_s=asked.timeout_s,
            content=content,
            headers={"Content-Type": ARROW_TYPE, "Accept": ARROW_TYPE},
        )
        return await computed(len(response.content) < FEW_BYTES, arrow_table, response.content)

    def _key_stream(self, keys: Any) -> bytes:
        return arrow_stream(self._key_rows(keys))

    async def _scan(self, asked: AskedScan) -> pa.Table:
        age = staleness_query(asked.max_staleness)
        return await self._again_if_altered(lambda: self._ask_scan(asked, age), asked.timeout_s)

    async def _ask_scan(self, asked: AskedScan, age: str) -> pa.Table:
        body = {
            "columns": list(self._chosen(asked.columns)) or None,
            "where": self._filters_json(asked.where),
            "limit": asked.limit,
            "with_versions": asked.with_versions,
        }
        response = await self._call(
            "POST",
            f"/rows:scan{age}",
            what="scan",
            timeout_s=asked.timeout_s,
            content=msgspec.json.encode(body),
            headers={"Content-Type": JSON_TYPE, "Accept": ARROW_TYPE},
        )
        if not response.content.endswith(ARROW_END):
            raise Unavailable(self._transport.url, f"the scan of {self.name!r} broke off")
        return await asyncio.to_thread(arrow_table, response.content)

    def _pieces(self, asked: AskedScan) -> AsyncGenerator[Piece, None]:
        body: dict[str, Any] = {}

        async def first(rows: int) -> Page:
            body["columns"] = list(self._chosen(asked.columns)) or None
            body["where"] = self._filters_json(asked.where)
            body["with_versions"] = asked.with_versions
            return await self._page(body, "", rows, asked.timeout_s)

        async def fetch(after: str, rows: int) -> Page:
            if after:
                return await self._page(body, after, rows, asked.timeout_s)
            return await self._again_if_altered(lambda: first(rows), asked.timeout_s)

        return page_pieces(fetch, asked.limit)

    async def _page(self, body: dict[str, Any], after: str, rows: int, timeout_s: float) -> Page:
        response = await self._call(
            "POST",
            "/rows:scan",
            what="scan",
            timeout_s=timeout_s,
            content=msgspec.json.encode({**body, "page_rows": rows, "after": after or None}),
            headers={"Content-Type": JSON_TYPE, "Accept": ARROW_TYPE},
        )
        found = await asyncio.to_thread(arrow_table, response.content)
        return Page(found, response.headers.get(NEXT_PAGE_HEADER, ""))

    # ---- helpers ----------------------------------------------------------------------------

    def _chosen(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        return chosen_columns(columns, self._schema, self.name)

    def _key_rows(self, keys: Any) -> pa.RecordBatch:
        return key_rows(keys, self._schema, self._codec, self.name)

    def _filters_json(self, where: Where) -> list[Any] | None:
        groups = normalize_filters(where, self._schema, self.name)
        if not groups:
            return None
        found = []
        for group in groups:
            terms = []
            for column, operator, value in group:
                kind = self.schema.field(column).type
                if isinstance(value, tuple):
                    shown: Any = [to_json_value(from_wire(item, kind), kind) for item in value]
                else:
                    shown = to_json_value(from_wire(value, kind), kind)
                terms.append([column, operator, shown])
            found.append(terms)
        return found
