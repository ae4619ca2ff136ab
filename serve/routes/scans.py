"""The route of scans: rows as a stream of Arrow batches, JSON lines, or one JSON object.

The first batch is read before the answer begins, so whatever is wrong with the request is still a
problem document.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from stelae.client.http.json_values import encode_rows, from_json_value
from stelae.client.http.protocol import ARROW_TYPE, JSON_TYPE, NDJSON_TYPE, NEXT_PAGE_HEADER
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.serve.bodies.arrow import write_stream
from stelae.serve.bodies.models import ScanReply, ScanRequest
from stelae.serve.bodies.openapi import STALENESS_PARAMETER, json_body, row_answers
from stelae.serve.gateway.gateway import ALL_TYPES, answer_type, gateway_of, offload
from stelae.serve.gateway.scan_tokens import decode_place, encode_place, request_digest

router = APIRouter(prefix="/v1/tables/{table}", tags=["rows"])

SCAN_TIMEOUT_S = 600.0
JSON_PIECE_ROWS = 5000


@router.post(
    "/rows:scan",
    responses=row_answers(ScanReply, (404, 409, 410, 413, 415, 422, 503), ndjson=True),
    openapi_extra=json_body(ScanRequest, parameters=(STALENESS_PARAMETER,)),
)
async def scan_rows(request: Request, table: str) -> Response:
    """Read all rows that match, as a stream: Arrow, JSON lines, or one JSON object.

    Each tablet is read at one point of its log. An error after the first rows breaks the connection
    off: an Arrow stream is whole if it has its end marker, JSON if it can be parsed, and JSON lines
    if the chunked transfer ended as it should.

    With `page_rows` the answer is one page, and `next` asks for the one after it, from any replica
    (as Arrow and JSON lines: the header `Stelae-Next-Page`).
    """
    gateway = gateway_of(request)
    max_staleness = gateway.max_staleness(request)
    timeout_s = gateway.timeout_s(request, SCAN_TIMEOUT_S)
    wanted = await gateway.json_body(request, ScanRequest, timeout_s)
    if wanted.page_rows is not None or wanted.after is not None:
        return await _page(request, table, wanted)

    async def work(handle: AsyncTable) -> Response:
        batches = handle.scan_tablets(
            columns=wanted.columns,
            where=_filters(wanted.where, handle),
            limit=wanted.limit,
            with_versions=wanted.with_versions,
            max_staleness=max_staleness,
            timeout=timeout_s,
        )
        first = await anext(batches, None)  # what is wrong with the request shows here
        media = answer_type(request, ALL_TYPES)
        if media == ARROW_TYPE:
            schema = _scan_schema(handle, wanted)
            return StreamingResponse(_arrow_pieces(schema, first, batches), media_type=media)
        pieces = _json_pieces(first, batches, lines=media == NDJSON_TYPE)
        return StreamingResponse(pieces, media_type=media)

    return await gateway.on_table(request, table, timeout_s, work)


async def _page(request: Request, table: str, wanted: ScanRequest) -> Response:
    gateway = gateway_of(request)
    timeout_s, rows = gateway.timeout_s(request), wanted.page_rows
    if rows is None or wanted.limit is not None:
        raise InvalidArgument("a page needs page_rows, and takes no limit")
    if not rows and wanted.after is None:
        raise InvalidArgument("page_rows=0 ends a scan: it needs after")
    if gateway.max_staleness(request) is not None:
        raise InvalidArgument("max_staleness is not for pages: each tablet is read as it is now")

    # A page may be shorter than it was asked for: clients need not know this replica's bound.
    page_rows = min(rows, gateway.limits.rows)

    async def work(handle: AsyncTable) -> Response:
        digest = request_digest(handle.record.table_id, wanted)
        place, known = None, handle
        if wanted.after is not None:
            place, version = decode_place(gateway.token_key, digest, wanted.after)
            known = handle.at_version(version)
        page = await known.scan_page(
            page_rows,
            after=place,
            columns=wanted.columns,
            where=_filters(wanted.where, known),
            with_versions=wanted.with_versions,
            timeout=timeout_s,
        )
        token = None
        if page.next is not None:
            version = known.record.schema.version
            token = encode_place(gateway.token_key, digest, page.next, version)
        return await offload(page.rows.nbytes, _page_answer, request, page.rows, token)

    return await gateway.on_table(request, table, timeout_s, work)


def _page_answer(request: Request, rows: pa.Table, token: str | None) -> Response:
    media = answer_type(request, ALL_TYPES)
    if media == JSON_TYPE:
        end = b"null" if token is None else b'"' + token.encode() + b'"'
        content = b'{"rows":[' + b",".join(encode_rows(rows)) + b'],"next":' + end + b"}"
        return Response(content, media_type=media)
    headers = {} if token is None else {NEXT_PAGE_HEADER: token}
    if media == ARROW_TYPE:
        content = write_stream(rows.schema, rows.to_batches())
    else:
        content = b"".join([row + b"\n" for row in encode_rows(rows)])
    return Response(content, headers=headers, media_type=media)


def _filters(where: list[Any] | None, table: AsyncTable) -> list[Any] | None:
    """Filters with their JSON values as the client takes them; the client checks their shape."""
    if where is None:
        return None
    if all(isinstance(term, list) and term and isinstance(term[0], str) for term in where):
        return [_filter(term, table) for term in where]
    groups = [group if isinstance(group, list) else [group] for group in where]
    return [[_filter(term, table) for term in group] for group in groups]


def _filter(term: Any, table: AsyncTable) -> Any:
    if isinstance(term, list) and len(term) == 2:  # [column, "is null"]
        term = [*term, None]
    if not isinstance(term, list) or len(term) != 3 or not isinstance(term[0], str):
        raise InvalidArgument(
            f"filter {msgspec.json.encode(term).decode()[:80]} is not [column, operator, value]"
        )
    column, operator, value = term
    if not isinstance(operator, str):
        raise InvalidArgument("the operator of a filter is text")
    if table.schema.get_field_index(column) >= 0:
        kind, what = table.schema.field(column).type, f"filter on {column!r}"
        if isinstance(value, list):
            value = [from_json_value(item, kind, what) for item in value]
        else:
            value = from_json_value(value, kind, what)
    return (column, operator, value)


def _scan_schema(table: AsyncTable, wanted: ScanRequest) -> pa.Schema:
    fields = [table.schema.field(name) for name in wanted.columns or table.schema.names]
    if wanted.with_versions:
        fields.append(pa.field(VERSION_COLUMN, pa.uint64(), False))
    return pa.schema(fields)


async def _all(
    first: pa.RecordBatch | None, rest: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[pa.RecordBatch]:
    if first is not None:
        yield first
        async for batch in rest:
            yield batch


async def _arrow_pieces(
    schema: pa.Schema, first: pa.RecordBatch | None, rest: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[bytes]:
    """An Arrow stream in pieces: its start, one for each batch, its end marker."""
    sink = _Pieces()
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)
    yield sink.take()
    async for batch in _all(first, rest):
        await offload(batch.nbytes, writer.write_batch, batch.cast(schema))
        yield sink.take()
    writer.close()
    yield sink.take()


class _Pieces:
    """A file that hands out what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(self._written[-1])

    def flush(self) -> None:
        """Everything is there at once."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)


async def _json_pieces(
    first: pa.RecordBatch | None, rest: AsyncIterator[pa.RecordBatch], *, lines: bool
) -> AsyncIterator[bytes]:
    separator = b"\n" if lines else b","
    if not lines:
        yield b'{"rows":['
    begun = False
    async for batch in _all(first, rest):
        for start in range(0, batch.num_rows, JSON_PIECE_ROWS):
            part = batch.slice(start, JSON_PIECE_ROWS)
            rows = await offload(part.nbytes, encode_rows, part)
            piece = separator.join(rows)
            yield piece + b"\n" if lines else b"," + piece if begun else piece
            begun = True
    if not lines:
        yield b"]}"
