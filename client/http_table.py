"""One table over HTTP: `AsyncTable` again. Rows travel as Arrow streams, checked at both ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.client.alter import NewColumns, requested_change
from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.convert import Key, Rows, is_table, to_arrow
from stelae.client.filters import Where, normalize_filters
from stelae.client.given import (
    check_key_given,
    check_name,
    check_rows,
    chosen_columns,
    given_columns,
    key_rows,
    row_versions,
    update_columns,
)
from stelae.client.http_finds import HttpFinds
from stelae.client.http_protocol import (
    ARROW_END,
    ARROW_TYPE,
    IF_VERSION_COLUMN,
    JSON_TYPE,
    REQUEST_ID_HEADER,
    format_request_id,
    staleness_query,
)
from stelae.client.http_records import (
    defaults_json,
    durability_json,
    json_of,
    table_record,
)
from stelae.client.http_table_calls import arrow_stream, arrow_table
from stelae.client.json_values import to_json_value
from stelae.core.durability import Durability
from stelae.core.errors import InvalidArgument, SchemaChanged, Unavailable
from stelae.core.ids import RequestId
from stelae.core.records import TableState
from stelae.core.row_messages import WriteOp
from stelae.core.schema import VERSION_COLUMN
from stelae.core.values import check_batch, from_wire, rows_to_batch
from stelae.storage.versions import SchemaView

if TYPE_CHECKING:
    pass

Versions = NDArray[np.uint64]
SCAN_TIMEOUT_S = 600.0


class HttpTable(HttpFinds):
    """See `stelae.client.table.AsyncTable`. Made by the database."""

    # ---- altering ---------------------------------------------------------------------------

    async def alter(
        self,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """See `AsyncTable.alter`."""
        await self.refresh()
        if rename_to:
            check_name(rename_to)
        change = requested_change(
            self._schema, self.name, add_columns, drop_columns, rename_columns, defaults
        )
        body = {
            "name": rename_to or None,
            "add_arrow_schema": base64.b64encode(change.add_ipc).decode() or None,
            "drop_columns": change.drop,
            "rename_columns": dict(change.rename),
            "defaults": defaults_json(change),
            "durability": None if durability is None else durability_json(durability),
            "wait": wait,
        }
        with self._session.request() as request:
            response = await self._call(
                "PATCH",
                "",
                what="alter",
                timeout_s=timeout,
                content=msgspec.json.encode(body),
                headers={
                    "Content-Type": JSON_TYPE,
                    REQUEST_ID_HEADER: format_request_id(request),
                },
            )
        self._use(table_record(json_of(response)))

    async def rename(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """See `AsyncTable.rename`."""
        check_name(name)
        await self.alter(rename_to=name, wait=False, timeout=timeout)

    async def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """See `AsyncTable.is_alter_done`."""
        response = await self._call(
            "GET", "", what="is_alter_done", timeout_s=timeout, content=b"", headers={}
        )
        return table_record(json_of(response)).state is not TableState.ALTERING

    # ---- writes -----------------------------------------------------------------------------

    async def insert(self, rows: Rows, *, timeout: float = DEFAULT_TIMEOUT_S) -> Versions:
        """See `AsyncTable.insert`."""
        return await self._write("insert", rows, None, timeout)

    async def upsert(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """See `AsyncTable.upsert`."""
        return await self._write("upsert", rows, if_version, timeout)

    async def update(
        self, rows: Rows, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """See `AsyncTable.update`."""
        return await self._write("update", rows, if_version, timeout)

    async def delete(
        self, keys: Any, *, if_version: Any = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Versions:
        """See `AsyncTable.delete`."""
        if not is_table(keys) and not isinstance(keys, list):
            keys = [keys]
        return await self._send("delete", self._key_rows(keys), if_version, timeout)

    async def _write(self, op: str, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        if isinstance(rows, list) and not rows:
            row_versions(if_version, 0)
            return np.empty(0, np.uint64)
        batch = await asyncio.to_thread(self._batch, op, rows)
        return await self._send(op, batch, if_version, timeout_s)

    def _batch(self, op: str, rows: Rows) -> pa.RecordBatch:
        if isinstance(rows, dict):
            rows = [rows]
        columns: tuple[str, ...] = ()
        if op == "update" and isinstance(rows, list):
            columns = update_columns(rows, self._schema, self.name)
        if isinstance(rows, list) and self._schema.is_plain:
            if op != "update":
                check_rows(rows)
                columns = self._codec.given(rows)
            names = columns or tuple(self.schema.names)
            wire = [self._codec.row(row, columns) for row in rows]
            batch = rows_to_batch(wire, pa.schema([self.schema.field(name) for name in names]))
            return check_batch(batch, self._schema, columns=names, table=self.name)
        table = to_arrow(rows, self.schema, self._codec.defaults)
        if op == "update":
            check_key_given(table.column_names, self._schema)
            columns = tuple(n for n in self.schema.names if n in table.column_names)
        else:
            columns = given_columns(table.column_names, self._schema)
        return check_batch(table, self._schema, columns=columns, table=self.name)

    async def _send(
        self, op: str, batch: pa.RecordBatch, if_version: Any, timeout_s: float
    ) -> Versions:
        versions = None
        if if_version is not None:
            if op == "insert":
                raise InvalidArgument("insert takes no versions: it wants every row to be absent")
            versions = np.array(row_versions(if_version, batch.num_rows), np.uint64)
        if not batch.num_rows:
            return np.empty(0, np.uint64)
        schema = self._schema
        with self._session.request() as request:
            try:
                response = await self._send_batch(op, batch, versions, request, timeout_s)
            except SchemaChanged as error:  # before anything was done: the columns mean nothing
                await self._newer_than(schema, error)
                view = SchemaView(schema, self._schema, self.name)
                kept, _ = view.write(WriteOp[op.upper()], batch, ())
                response = await self._send_batch(op, kept, versions, request, timeout_s)
        table = arrow_table(response.content)
        return table.column(VERSION_COLUMN).to_numpy()  # type: ignore[no-any-return]

    async def _send_batch(
        self, op: str, batch: Any, versions: Versions | None, request: RequestId, timeout_s: float
    ) -> httpx.Response:
        if versions is not None:
            batch = batch.append_column(IF_VERSION_COLUMN, pa.array(versions))
        return await self._call(
            "POST",
            f"/rows:write?op={op}",
            what=op,
            timeout_s=timeout_s,
            content=await asyncio.to_thread(arrow_stream, batch),
            headers={
                "Content-Type": ARROW_TYPE,
                "Accept": ARROW_TYPE,
                REQUEST_ID_HEADER: format_request_id(request),
            },
        )

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
        """See `AsyncTable.get`."""
        found = await self.get_many(
            [key],
            columns=columns,
            with_versions=with_version,
            max_staleness=max_staleness,
            timeout=timeout,
        )
        rows = found.to_pylist()
        return rows[0] if rows else None

    async def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """See `AsyncTable.get_many`."""
        schema, age = self._schema, staleness_query(max_staleness, first="&")
        try:
            return await self._get_many(keys, columns, with_versions, age, timeout)
        except SchemaChanged as error:
            await self._newer_than(schema, error)
            return await self._get_many(keys, columns, with_versions, age, timeout)

    async def _get_many(
        self,
        keys: Any,
        columns: Sequence[str] | None,
        with_versions: bool,
        age: str,
        timeout_s: float,
    ) -> pa.Table:
        chosen = self._chosen(columns)
        content = await asyncio.to_thread(arrow_stream, self._key_rows(keys))
        query: list[tuple[str, str]] = [("columns", name) for name in chosen]
        query.append(("with_versions", "true" if with_versions else "false"))
        response = await self._call(
            "POST",
            f"/rows:get?{urlencode(query)}{age}",
            what="get",
            timeout_s=timeout_s,
            content=content,
            headers={"Content-Type": ARROW_TYPE, "Accept": ARROW_TYPE},
        )
        return await asyncio.to_thread(arrow_table, response.content)

    async def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> pa.Table:
        """See `AsyncTable.scan`."""
        schema, age = self._schema, staleness_query(max_staleness)
        try:
            return await self._scan(columns, where, limit, with_versions, age, timeout)
        except SchemaChanged as error:
            await self._newer_than(schema, error)
            return await self._scan(columns, where, limit, with_versions, age, timeout)

    async def _scan(
        self,
        columns: Sequence[str] | None,
        where: Where,
        limit: int | None,
        with_versions: bool,
        age: str,
        timeout_s: float,
    ) -> pa.Table:
        body = {
            "columns": list(self._chosen(columns)) or None,
            "where": self._filters_json(where),
            "limit": limit,
            "with_versions": with_versions,
        }
        response = await self._call(
            "POST",
            f"/rows:scan{age}",
            what="scan",
            timeout_s=timeout_s,
            content=msgspec.json.encode(body),
            headers={"Content-Type": JSON_TYPE, "Accept": ARROW_TYPE},
        )
        if not response.content.endswith(ARROW_END):
            raise Unavailable(self._transport.url, f"the scan of {self.name!r} broke off")
        return await asyncio.to_thread(arrow_table, response.content)

    async def scan_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        with_versions: bool = False,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> AsyncIterator[pa.RecordBatch]:
        """See `AsyncTable.scan_batches`. Handed out once all are here: a scan that breaks off
        begins anew."""
        table = await self.scan(
            columns=columns,
            where=where,
            limit=limit,
            with_versions=with_versions,
            max_staleness=max_staleness,
            timeout=timeout,
        )
        for batch in table.to_batches():
            yield batch

    async def count(
        self,
        *,
        where: Where = None,
        max_staleness: float | None = None,
        timeout: float = SCAN_TIMEOUT_S,
    ) -> int:
        """See `AsyncTable.count`."""
        table = await self.scan(
            columns=[self.key[0]], where=where, max_staleness=max_staleness, timeout=timeout
        )
        return int(table.num_rows)

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
