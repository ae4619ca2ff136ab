"""Routes of indexes: rows by the value of an indexed column; indexes made, shown and dropped."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from stelae.client.finds.calls import PAGE_ROWS, Page
from stelae.client.finds.query import NOT_GIVEN
from stelae.client.http.json_values import encode_rows, from_json_value
from stelae.client.http.protocol import ARROW_TYPE, JSON_TYPE, NEXT_PAGE_HEADER
from stelae.client.table.table import AsyncTable
from stelae.core.errors import IndexNotFound, InvalidArgument
from stelae.core.records.tokens import Role
from stelae.serve.bodies.arrow import write_stream
from stelae.serve.bodies.indexes import (
    CreateIndexRequest,
    FindRequest,
    FoundReply,
    IndexInfo,
    IndexListing,
)
from stelae.serve.bodies.openapi import (
    ORDER_PARAMETER,
    TIMEOUT_PARAMETER,
    json_body,
    problems,
    row_answers,
)
from stelae.serve.gateway.gateway import ROW_TYPES, answer_type, gateway_of, offload
from stelae.serve.gateway.guard import require
from stelae.serve.gateway.requests import ordering_on
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1/tables/{table}", tags=["indexes"])

FILL_TIMEOUT_S = 600.0


# ---- finding --------------------------------------------------------------------------------


@router.post(
    "/rows:find",
    responses=row_answers(FoundReply, (404, 413, 415, 422, 503)),
    openapi_extra=json_body(FindRequest),
)
async def find_rows(request: Request, table: str) -> Response:
    """Find rows by the value of an indexed column, or a range of values, in the order of value and
    key.

    One answer has at most `limit` rows (1,000 if absent); `next` asks for those after them. As
    Arrow: `next` is the header `Stelae-Next-Page`. 404 `index-not-found`: the column has no index.
    """
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, FindRequest, timeout_s)
    if wanted.limit is not None and wanted.limit > gateway.limits.rows:
        raise InvalidArgument(f"limit={wanted.limit}: at most {gateway.limits.rows} rows")
    if ("value" in wanted.model_fields_set) == (wanted.between is not None):
        raise InvalidArgument("give either value or between")

    async def work(handle: AsyncTable) -> Response:
        value, between = _values(handle, wanted)
        page = await handle.find_page(
            wanted.column,
            value,
            between=between,
            limit=wanted.limit or PAGE_ROWS,
            after=wanted.after,
            columns=wanted.columns,
            reverse=wanted.reverse,
            with_versions=wanted.with_versions,
            if_filling=wanted.if_filling,
            timeout=timeout_s,
        )
        return await offload(page.rows.nbytes, _answer, request, page)

    return await gateway.on_table(request, table, timeout_s, work)


def _values(table: AsyncTable, wanted: FindRequest) -> tuple[Any, Any]:
    """What is looked for, as the client takes it. Raises InvalidArgument."""
    if table.schema.get_field_index(wanted.column) < 0:
        return None, None  # the client refuses it
    kind, what = table.schema.field(wanted.column).type, f"column {wanted.column!r}"
    if wanted.between is None:
        return from_json_value(wanted.value, kind, what), None
    return NOT_GIVEN, tuple(from_json_value(value, kind, what) for value in wanted.between)


def _answer(request: Request, page: Page) -> Response:
    rows = page.rows
    if answer_type(request, ROW_TYPES) == ARROW_TYPE:
        headers = {} if page.token is None else {NEXT_PAGE_HEADER: page.token}
        content = write_stream(rows.schema, rows.to_batches())
        return Response(content, headers=headers, media_type=ARROW_TYPE)
    token = b"null" if page.token is None else b'"' + page.token.encode() + b'"'
    content = b'{"rows":[' + b",".join(encode_rows(rows)) + b'],"next":' + token + b"}"
    return Response(content, media_type=JSON_TYPE)


# ---- indexes --------------------------------------------------------------------------------

COLUMN = {
    "name": "column",
    "in": "query",
    "required": True,
    "schema": {"type": "string"},
}


@router.get("/indexes", response_model=IndexListing, responses=problems(404, 503))
async def list_indexes(request: Request, table: str) -> Response:
    """The indexes of a table, oldest first: their state, how far each is filled, and where."""
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)

    async def work(handle: AsyncTable) -> Response:
        return json_response({"indexes": await handle.indexes(timeout=timeout_s)})

    return await gateway.on_table(request, table, timeout_s, work)


@router.post(
    "/indexes",
    response_model=IndexInfo,
    status_code=201,
    responses=problems(400, 404, 409, 413, 415, 422, 503, 504),
    openapi_extra=json_body(CreateIndexRequest, parameters=(ORDER_PARAMETER,)),
)
async def create_index(request: Request, table: str) -> Response:
    """Make an index of a column, while reads and writes go on, and wait until it is filled.

    503 `not-done-yet`: it is made, and goes on being filled by itself (see the list of indexes).
    Needs the role `admin`.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request, FILL_TIMEOUT_S)
    body = await gateway.body(request, timeout_s)
    wanted = await gateway.json_body(request, CreateIndexRequest, timeout_s)
    handle = await gateway.look_up(table, timeout_s)
    try:
        await ordering_on(request, handle, b"create index", body).create_index(
            wanted.column, unique=wanted.unique, wait=wanted.wait, timeout=timeout_s
        )
    finally:
        gateway.forget(table)
    for found in await handle.indexes():
        if found["column"] == wanted.column:
            return json_response(found, 201)
    raise IndexNotFound(wanted.column, table)  # it was dropped meanwhile


@router.delete(
    "/indexes/{column}",
    status_code=204,
    responses=problems(400, 404, 422, 503, 504),
    openapi_extra={"parameters": [TIMEOUT_PARAMETER, ORDER_PARAMETER]},
)
async def drop_index(request: Request, table: str, column: str) -> Response:
    """Drop the index of a column. Needs the role `admin`. A column whose name is `.` or `..`, or
    has a slash, is named by the query: `/indexes?column=`."""
    require(request, Role.ADMIN)
    return await _drop(request, table, column)


@router.delete(
    "/indexes",
    status_code=204,
    responses=problems(400, 404, 422, 503, 504),
    openapi_extra={"parameters": [COLUMN, TIMEOUT_PARAMETER, ORDER_PARAMETER]},
)
async def drop_index_of(request: Request, table: str) -> Response:
    """Drop the index of a column that the query names; it may have any name. Needs the role
    `admin`."""
    require(request, Role.ADMIN)
    named = request.query_params.getlist("column")
    if len(named) != 1:
        raise InvalidArgument("name the column whose index is to be dropped: ?column=")
    return await _drop(request, table, named[0])


async def _drop(request: Request, table: str, column: str) -> Response:
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    handle = await gateway.look_up(table, timeout_s)
    try:
        await ordering_on(request, handle, b"drop index", b"").drop_index(column, timeout=timeout_s)
    finally:
        gateway.forget(table)
    return Response(status_code=204)
