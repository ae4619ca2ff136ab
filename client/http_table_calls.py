"""Requests about one table over HTTP, whatever it is called by now: what `HttpTable` is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pyarrow as pa

from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.convert import RowCodec
from stelae.client.http_protocol import SCHEMA_VERSION_HEADER
from stelae.client.http_records import json_of, table_record
from stelae.client.session import Session
from stelae.core.errors import SchemaChanged, TableNotFound, Unavailable
from stelae.core.records import TableRecord
from stelae.core.schema import TableSchema

if TYPE_CHECKING:
    from stelae.client.http import HttpTransport


class HttpTableCalls:
    """See the module."""

    def __init__(self, transport: HttpTransport, session: Session, record: TableRecord) -> None:
        self._transport = transport
        self._session = session
        self._use(record)

    def _use(self, record: TableRecord) -> None:
        self._record = record
        self._schema = record.schema
        self._codec = RowCodec(record.schema, record.name)
        self._path = f"/v1/tables/{quote(record.name, safe='')}"

    async def refresh(self) -> None:
        """Ask anew what the table is like, under whatever name. Raises `TableNotFound`."""
        response = await self._transport.call(
            "GET", "/v1/tables", what="tables", timeout_s=DEFAULT_TIMEOUT_S, repeatable=True
        )
        for record in map(table_record, json_of(response)["tables"]):
            if record.table_id == self._record.table_id:
                self._use(record)
                return
        raise TableNotFound(self.name)

    async def _newer_than(self, schema: TableSchema, error: SchemaChanged) -> None:
        """Learn of an alter that a call came too late for; raises ``error`` if there is none."""
        await self.refresh()
        if self._schema.version <= schema.version:
            raise error

    async def _call(
        self,
        method: str,
        suffix: str,
        *,
        what: str,
        timeout_s: float,
        content: bytes,
        headers: Mapping[str, str],
    ) -> httpx.Response:
        """A repeatable request, made with the schema known here. Where the table is gone it may
        have another name by now: that is looked for, once."""
        all_headers = {SCHEMA_VERSION_HEADER: str(self._schema.version), **headers}
        for is_last in (False, True):
            before = self._path
            try:
                return await self._transport.call(
                    method,
                    self._path + suffix,
                    what=f"{what} {self.name}",
                    timeout_s=timeout_s,
                    repeatable=True,
                    content=content,
                    headers=all_headers,
                )
            except TableNotFound:
                if is_last:
                    raise
                await self.refresh()
                if self._path == before:
                    raise
        raise AssertionError("the last attempt answers or raises")

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its columns."""
        return self._schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self._schema.key

    @property
    def record(self) -> TableRecord:
        return self._record


def arrow_stream(batch: pa.RecordBatch) -> bytes:
    """One batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def arrow_table(data: bytes) -> pa.Table:
    """Raises `Unavailable`: it is none."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise Unavailable("the HTTP server", f"its answer is not Arrow: {error}") from None
    return table
