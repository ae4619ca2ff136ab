"""Routes of rows: one by its key, as JSON; many as JSON or Arrow.

The ETag of a row is its version. A request names a row in its path or in its query
(`stelae.serve.routes.row_keys`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stelae.client.http.json_values import (
    batch_to_json_rows,
    encode_rows,
    from_json_value,
    to_json_value,
)
from stelae.client.http.protocol import ARROW_TYPE, IF_VERSION_COLUMN, JSON_TYPE
from stelae.client.table.table import AsyncTable
from stelae.core.errors import ColumnNotFound, InvalidArgument, RowNotFound
from stelae.core.records.tokens import Role
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.core.schema.values import from_wire
from stelae.serve.bodies.arrow import check_row_count, read_stream, write_stream
from stelae.serve.bodies.models import (
    GetRequest,
    RowReply,
    RowsReply,
    WriteReply,
    WriteRequest,
)
from stelae.serve.bodies.openapi import (
    ENCODING_PARAMETER,
    IDEMPOTENCY_PARAMETER,
    IF_MATCH,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    STALENESS_PARAMETER,
    TIMEOUT_PARAMETER,
    json_body,
    problems,
    row_answers,
)
from stelae.serve.bodies.problems import MalformedBody, UnsupportedMedia
from stelae.serve.gateway.conditions import MAX_VERSION, condition_of
from stelae.serve.gateway.gateway import (
    ROW_TYPES,
    Gateway,
    answer_type,
    body_type,
    gateway_of,
    offload,
    parse_json,
    parse_model,
)
from stelae.serve.gateway.guard import require
from stelae.serve.gateway.requests import numbered
from stelae.serve.routes.conditional_rows import write_under
from stelae.serve.routes.row_keys import row_key
from stelae.serve.routes.row_parameters import (
    COLUMNS,
    OP,
    OPS,
    ROW_ANSWER,
    ROW_BODY,
    ROW_PATH,
    ROW_QUERY,
    STREAM,
)
from stelae.serve.routes.row_streams import write_stream_of
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1/tables/{table}", tags=["rows"])

STREAM_TIMEOUT_S = 600.0

# Paths and queries of one row are read here: FastAPI takes longer for that than a row takes.


# ---- one row --------------------------------------------------------------------------------

_RowHandler: TypeAlias = Callable[[Request], Awaitable[Response]]


def _row_route(
    method: str, *parameters: dict[str, Any], body: dict[str, Any] | None = None, **options: Any
) -> Callable[[_RowHandler], _RowHandler]:
    """Register a handler for both ways to name a row: by the path, and by the query."""

    def register(handler: _RowHandler) -> _RowHandler:
        for path, named in (("/rows/{key:path}", ROW_PATH), ("/rows", ROW_QUERY)):
            extra: dict[str, Any] = {"parameters": [*named, *parameters]}
            if body is not None:
                extra["requestBody"] = body
            router.add_api_route(path, handler, methods=[method], openapi_extra=extra, **options)
        return handler

    return register


@_row_route(
    "GET",
    COLUMNS,
    IF_MATCH,
    IF_NONE_MATCH,
    STALENESS_PARAMETER,
    TIMEOUT_PARAMETER,
    responses={200: ROW_ANSWER, 304: NOT_MODIFIED, **problems(404, 412, 503)},
)
async def get_row(request: Request) -> Response:
    """Read one row, linearizably unless `?max_staleness=` says otherwise. Its version is the
    ETag."""
    gateway, table = gateway_of(request), _table(request)
    max_staleness, timeout_s = gateway.max_staleness(request), gateway.timeout_s(request)
    columns = request.query_params.getlist("columns") or None
    condition = condition_of(request)

    async def work(handle: AsyncTable) -> Response:
        values = row_key(request, handle)
        row = await _read(handle, values, columns, max_staleness, timeout_s)
        if row is None:
            raise RowNotFound(table, str(tuple(_show_key(handle, values))))
        version = str(row.pop(VERSION_COLUMN))
        headers = {"ETag": f'"{version}"'}
        if condition is not None:
            condition.check_match(version, f"the row of {table!r}")
            if condition.excludes(version):
                return Response(status_code=304, headers=headers)
        return json_response(row, headers=headers)

    return await gateway.on_table(request, table, timeout_s, work)


async def _read(
    table: AsyncTable,
    key: tuple[Any, ...],
    columns: list[str] | None,
    max_staleness: float | None,
    timeout_s: float,
) -> dict[str, Any] | None:
    """One row as JSON, with its version; None: there is none."""
    if table.record.schema.is_plain:
        row = await table.get(
            key,
            columns=columns,
            with_version=True,
            max_staleness=max_staleness,
            timeout=timeout_s,
        )
        kinds = table.schema
        return row and {
            name: value if name == VERSION_COLUMN else to_json_value(value, kinds.field(name).type)
            for name, value in row.items()
        }
    # Python's values have no nanoseconds, so they do not come between.
    found = await table.get_many(
        [key],
        columns=columns,
        with_versions=True,
        max_staleness=max_staleness,
        timeout=timeout_s,
    )
    return batch_to_json_rows(found)[0] if found.num_rows else None


@_row_route(
    "PUT",
    IF_MATCH,
    IF_NONE_MATCH,
    TIMEOUT_PARAMETER,
    ENCODING_PARAMETER,
    IDEMPOTENCY_PARAMETER,
    body=ROW_BODY,
    response_model=RowReply,
    responses=problems(404, 409, 412, 413, 415, 503, 504),
)
async def put_row(request: Request) -> Response:
    """Add or replace one row; columns not named get their default, or null.

    With `If-Match: *` only a row that is there is replaced, with `If-None-Match: *` only one that
    is not there is added. Needs the role `write`.
    """
    require(request, Role.WRITE)
    gateway, table = gateway_of(request), _table(request)
    timeout_s = gateway.timeout_s(request)
    condition = condition_of(request)
    if body_type(request) != JSON_TYPE:
        raise UnsupportedMedia(f"this path takes {JSON_TYPE}")
    body = await gateway.body(request, timeout_s)
    content = await offload(len(body), parse_json, body)
    if not isinstance(content, dict):
        raise MalformedBody("the body must be a JSON object: column names and values")

    async def work(handle: AsyncTable) -> Response:
        values = row_key(request, handle)
        row = _row(content, handle)
        for name, value in zip(handle.key, values, strict=True):
            if row.setdefault(name, value) != value:
                raise InvalidArgument(f"key column {name!r} differs between path and body")
        if condition is None:
            target = numbered(request, handle, b"put", body)
            versions = await target.upsert([row], timeout=timeout_s)
        else:
            versions = await write_under(
                condition,
                request,
                handle,
                values,
                b"put",
                body,
                timeout_s,
                lambda to, version, s: to.upsert([row], if_version=version, timeout=s),
            )
        return _versioned(int(versions[0]))

    return await gateway.on_table(request, table, timeout_s, work)


@_row_route(
    "DELETE",
    IF_MATCH,
    IF_NONE_MATCH,
    TIMEOUT_PARAMETER,
    IDEMPOTENCY_PARAMETER,
    status_code=204,
    responses=problems(404, 409, 412, 503, 504),
)
async def delete_row(request: Request) -> Response:
    """Delete one row; that it is absent is no error. Needs the role `write`."""
    require(request, Role.WRITE)
    gateway, table = gateway_of(request), _table(request)
    timeout_s = gateway.timeout_s(request)
    condition = condition_of(request)

    async def work(handle: AsyncTable) -> Response:
        values = row_key(request, handle)
        if condition is None:
            target = numbered(request, handle, b"delete", b"")
            await target.delete([values], timeout=timeout_s)
        else:
            await write_under(
                condition,
                request,
                handle,
                values,
                b"delete",
                b"",
                timeout_s,
                lambda to, version, s: to.delete([values], if_version=version, timeout=s),
            )
        return Response(status_code=204)

    return await gateway.on_table(request, table, timeout_s, work)


def _table(request: Request) -> str:
    name: str = request.path_params["table"]
    return name


def _versioned(version: int) -> Response:
    return json_response({"version": version}, headers={"ETag": f'"{version}"'})


def _show_key(table: AsyncTable, values: tuple[Any, ...]) -> list[Any]:
    kinds = [table.schema.field(name).type for name in table.key]
    return [
        to_json_value(from_wire(value, kind), kind)
        for value, kind in zip(values, kinds, strict=True)
    ]


def _row(content: dict[str, Any], table: AsyncTable) -> dict[str, Any]:
    """A JSON object as a row. Raises ColumnNotFound, InvalidArgument."""
    schema = table.schema
    row = {}
    for name, value in content.items():
        if schema.get_field_index(name) < 0:
            raise ColumnNotFound(name[:80], table.name, ", ".join(schema.names))
        row[name] = from_json_value(value, schema.field(name).type, f"column {name!r}")
    return row


# ---- many rows: writing ---------------------------------------------------------------------


@router.post(
    "/rows:write",
    responses=row_answers(WriteReply, (404, 409, 413, 415, 422, 503, 504)),
    openapi_extra=json_body(
        WriteRequest, arrow=True, parameters=(OP, STREAM, IDEMPOTENCY_PARAMETER)
    ),
)
async def write_rows(request: Request, table: str) -> Response:
    """Write many rows, in order; all that fall into one tablet are written together or not at all.

    As Arrow: `op` is a query parameter, and a column `_if_version` (uint64) may name versions.
    Across tablets there is no transaction: after an error some may have done their part, and
    the problem's `notes` say how many. Needs the role `write`.
    """
    require(request, Role.WRITE)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    media = body_type(request)
    if media not in ROW_TYPES:
        raise UnsupportedMedia(f"this path takes {JSON_TYPE} and {ARROW_TYPE}")
    if media == ARROW_TYPE and request.query_params.get("stream") == "true":
        return await _write_stream(request, table)
    body = await gateway.body(request, timeout_s)
    data: Any
    if media == ARROW_TYPE:
        op = request.query_params.get("op", "upsert")
        if op not in OPS:
            raise InvalidArgument(f"op={op[:40]!r}: one of {', '.join(OPS)}")
        data, expected = await offload(len(body), _arrow_rows, body, gateway)
    else:
        wanted = await offload(len(body), parse_model, body, WriteRequest)
        check_row_count(len(wanted.rows), gateway.limits.rows)
        op, data, expected = wanted.op, wanted.rows, wanted.if_versions

    async def work(handle: AsyncTable) -> Response:
        target = numbered(request, handle, op.encode(), body)
        rows = data
        if media == ARROW_TYPE and op in ("update", "delete"):
            _check_key_columns(data, handle)
        if media == JSON_TYPE:
            rows = await offload(len(body), _json_rows, data, handle, op)
        versions = await _write(target, op, rows, expected, timeout_s)
        if answer_type(request, ROW_TYPES) == ARROW_TYPE:
            column = pa.table({VERSION_COLUMN: pa.array(versions, pa.uint64())})
            return Response(write_stream(column.schema, column.to_batches()), media_type=ARROW_TYPE)
        return json_response({"versions": versions.tolist()})

    return await gateway.on_table(request, table, timeout_s, work)


async def _write_stream(request: Request, table: str) -> Response:
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request, STREAM_TIMEOUT_S)
    op = request.query_params.get("op", "upsert")
    if op not in OPS:
        raise InvalidArgument(f"op={op[:40]!r}: one of {', '.join(OPS)}")

    async def write(number: int, window: bytes, rows: pa.Table, left_s: float) -> None:
        data, expected = _with_versions(rows)

        async def work(handle: AsyncTable) -> None:
            if op in ("update", "delete"):
                _check_key_columns(data, handle)
            target = numbered(request, handle, f"{op} window {number}".encode(), window)
            await _write(target, op, data, expected, left_s)

        await gateway.on_table(request, table, left_s, work)

    await gateway.look_up(table, timeout_s)
    return json_response({"rows": await write_stream_of(request, gateway, timeout_s, write)})


async def _write(
    table: AsyncTable, op: str, rows: Any, expected: list[int] | None, timeout_s: float
) -> Any:
    if expected is not None:
        _checked_versions(expected)
    if not len(rows):
        return np.empty(0, np.uint64)
    if op == "insert":
        if expected is not None:
            raise InvalidArgument("insert takes no versions: it wants every row to be absent")
        return await table.insert(rows, timeout=timeout_s)
    if op == "upsert":
        return await table.upsert(rows, if_version=expected, timeout=timeout_s)
    if op == "update":
        return await table.update(rows, if_version=expected, timeout=timeout_s)
    return await table.delete(rows, if_version=expected, timeout=timeout_s)


def _arrow_rows(body: bytes, gateway: Gateway) -> tuple[pa.Table, list[int] | None]:
    limits = gateway.limits
    table = read_stream(body, size_bytes_max=limits.body_bytes, rows_max=limits.rows)
    return _with_versions(table)


def _with_versions(table: pa.Table) -> tuple[pa.Table, list[int] | None]:
    """The rows, and the versions that they must have. Raises InvalidArgument."""
    if IF_VERSION_COLUMN not in table.column_names:
        return table, None
    column = table.column(IF_VERSION_COLUMN)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidArgument(f"column {IF_VERSION_COLUMN} holds a version for each row")
    expected = column.to_pylist()
    return table.drop_columns([IF_VERSION_COLUMN]), expected


def _checked_versions(expected: list[int]) -> list[int]:
    if any(not 0 <= version <= MAX_VERSION for version in expected):
        raise InvalidArgument("a version is 0 or more")
    return expected


def _json_rows(rows: list[dict[str, Any]], table: AsyncTable, op: str) -> list[Any]:
    if op == "delete":
        return [_json_key(row, table) for row in rows]
    if op == "update" and any(row.keys() != rows[0].keys() for row in rows):
        raise InvalidArgument("the rows of one update must name the same columns")
    return [_row(row, table) for row in rows]


def _json_key(value: Any, table: AsyncTable) -> tuple[Any, ...]:
    """A key as JSON has it: an object, an array, or the value of the one key column."""
    names = table.key
    if isinstance(value, dict):
        if value.keys() != set(names):
            raise InvalidArgument(f"the key of {table.name!r} is made of {', '.join(names)}")
        value = [value[name] for name in names]
    elif not isinstance(value, list):
        value = [value]
    if len(value) != len(names):
        raise InvalidArgument(
            f"the key of {table.name!r} has {len(names)} column(s), {', '.join(names)}; "
            f"{len(value)} value(s) were given"
        )
    return tuple(
        from_json_value(part, table.schema.field(name).type, f"key column {name!r}")
        for name, part in zip(names, value, strict=True)
    )


# ---- many rows: reading ---------------------------------------------------------------------


@router.post(
    "/rows:get",
    responses=row_answers(RowsReply, (404, 413, 415, 422, 503)),
    openapi_extra=json_body(GetRequest, arrow=True, parameters=(STALENESS_PARAMETER,)),
)
async def get_rows(
    request: Request,
    table: str,
    columns: Annotated[list[str] | None, Query()] = None,
    with_versions: bool = False,
) -> Response:
    """Read many rows by key: those found, in the order of their keys.

    As Arrow: the body's columns are the key columns, and `columns` and `with_versions` are query
    parameters. `?max_staleness=` for both.
    """
    gateway = gateway_of(request)
    max_staleness, timeout_s = gateway.max_staleness(request), gateway.timeout_s(request)
    media = body_type(request)
    if media not in ROW_TYPES:
        raise UnsupportedMedia(f"this path takes {JSON_TYPE} and {ARROW_TYPE}")
    body = await gateway.body(request, timeout_s)
    keys: Any
    if media == ARROW_TYPE:
        keys, _ = await offload(len(body), _arrow_rows, body, gateway)
    else:
        wanted = await offload(len(body), parse_model, body, GetRequest)
        check_row_count(len(wanted.keys), gateway.limits.rows)
        keys, columns, with_versions = wanted.keys, wanted.columns, wanted.with_versions

    async def work(handle: AsyncTable) -> Response:
        chosen = keys
        if media == JSON_TYPE:
            chosen = [_json_key(key, handle) for key in keys]
        else:
            _check_key_columns(keys, handle)
        found = await handle.get_many(
            chosen,
            columns=columns,
            with_versions=with_versions,
            max_staleness=max_staleness,
            timeout=timeout_s,
        )
        return await offload(found.nbytes, _rows_answer, request, found)

    return await gateway.on_table(request, table, timeout_s, work)


def _check_key_columns(keys: pa.Table, table: AsyncTable) -> None:
    missing = [name for name in table.key if name not in keys.column_names]
    if missing:
        raise InvalidArgument(f"the body lacks the key column {missing[0]!r}")


def _rows_answer(request: Request, found: pa.Table) -> Response:
    if answer_type(request, ROW_TYPES) == ARROW_TYPE:
        return Response(write_stream(found.schema, found.to_batches()), media_type=ARROW_TYPE)
    return Response(b'{"rows":[' + b",".join(encode_rows(found)) + b"]}", media_type=JSON_TYPE)
