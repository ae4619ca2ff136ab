"""Requests about one table over HTTP, whatever it is called by now: what `HttpTable` is of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import pyarrow as pa

from stelae.client.http.protocol import (
    JSON_TYPE,
    REQUEST_ID_HEADER,
    SCHEMA_VERSION_HEADER,
    format_request_id,
    if_match,
)
from stelae.client.http.records import table_record
from stelae.client.http.transport import HttpTransport
from stelae.client.input.convert import RowCodec
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.session import Session
from stelae.core.errors import (
    InvalidArgument,
    NotDoneYet,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    TableNotFound,
    Unavailable,
)
from stelae.core.records.records import TableRecord
from stelae.core.schema.schema import DOT_SEGMENTS, TableSchema, check_known_name

T = TypeVar("T")
FEW_ROWS = 16
FEW_BYTES = 64 << 10
"""Work on so much is done at once: to hand it to a thread takes longer."""


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
        self._path = table_path(record.name)

    async def refresh(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Ask anew what the table is like, under whatever name. Raises `TableNotFound`."""
        found = await self._transport.read(
            "/v1/tables", what=f"a look at table {self._record.name!r}", timeout_s=timeout_s
        )
        for record in map(table_record, found["tables"]):
            if record.table_id == self._record.table_id:
                self._use(record)
                return
        raise TableNotFound(self._record.name)

    async def _refresh_after(self, order: str, deadline: float) -> None:
        """As `refresh`, after an order that was executed.

        Raises:
            NotDoneYet: the server did not answer by the deadline (of the loop's clock).
        """
        try:
            await self.refresh(max(deadline - asyncio.get_running_loop().time(), 0.0))
        except (RetryLater, RetryElsewhere, OutcomeUnknown) as error:
            # The order was executed: these errors would say that it was not, or may not have been.
            raise NotDoneYet(order, str(error)) from error

    async def _newer_than(self, schema: TableSchema, error: SchemaChanged, deadline: float) -> None:
        """Learn of an alter that a call came too late for; raises ``error`` if there is none."""
        await self.refresh(max(deadline - asyncio.get_running_loop().time(), 0.0))
        if self._schema.version <= schema.version:
            raise error

    async def _call(
        self,
        method: str,
        suffix: str,
        *,
        what: str,
        timeout_s: float,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A repeatable request, made with the schema known here. Where the table is gone it may
        have another name by now: that is looked for, once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        all_headers = {SCHEMA_VERSION_HEADER: str(self._schema.version), **(headers or {})}
        for is_last in (False, True):
            before = self._path
            try:
                return await self._transport.call(
                    method,
                    self._path + suffix,
                    what=f"{what} {self._record.name}",
                    timeout_s=deadline - loop.time(),
                    repeatable=True,
                    content=content,
                    headers=all_headers,
                )
            except TableNotFound:
                if is_last:
                    raise
                await self.refresh(deadline - loop.time())
                if self._path == before:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def _order(
        self,
        method: str,
        suffix: str,
        *,
        what: str,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        if_edition: str = "",
    ) -> httpx.Response:
        """A request that changes what the table is like, carried out once."""
        content, headers = b"", if_match(if_edition)
        if body is not None:
            content, headers = msgspec.json.encode(body), {**headers, "Content-Type": JSON_TYPE}
        with self._session.request() as request:
            headers = {**headers, REQUEST_ID_HEADER: format_request_id(request)}
            return await self._call(
                method, suffix, what=what, timeout_s=timeout_s, content=content, headers=headers
            )

    async def _again_if_altered(self, call: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """A call that is made of the schema known here; once more if that was too old."""
        schema, deadline = self._schema, asyncio.get_running_loop().time() + timeout_s
        try:
            return await call()
        except SchemaChanged as error:
            await self._newer_than(schema, error, deadline)
            return await call()

    @property
    def record(self) -> TableRecord:
        return self._record

    @property
    def _newest(self) -> TableRecord:
        return self._record


def is_few(rows: Any) -> bool:
    """Whether rows or keys of a call are known to be few; tables and frames are not counted."""
    return isinstance(rows, dict) or (isinstance(rows, list) and len(rows) <= FEW_ROWS)


async def computed(is_small: bool, work: Callable[..., T], *arguments: Any) -> T:
    """Do ``work`` here if it is small, else in a thread."""
    return work(*arguments) if is_small else await asyncio.to_thread(work, *arguments)


def table_path(name: str) -> str:
    """Return the path of an existing table.

    Raises:
        InvalidArgument: no table has such a name, or no path leads to it.
    """
    check_known_name(name)
    if name in DOT_SEGMENTS or "/" in name:  # the request would reach another path
        raise InvalidArgument(
            f"table {name!r} cannot be addressed by a URL; rename it with the native client "
            "(stelae.connect to the cluster's name or data_dir)"
        )
    return f"/v1/tables/{quote(name, safe='')}"


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
