"""Routes of the catalog: tables as JSON, made and deleted."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stelae.client.database import DEFAULT_DURABILITY
from stelae.client.http.json_values import column_to_json, from_json_value, to_json_value
from stelae.client.http.records import durability_json, durability_of
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    KeyReused,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    TableChanged,
    TableNotFound,
)
from stelae.core.messages.catalog import TabletLocation
from stelae.core.records.records import TableRecord
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import HashPartition, Partitioning, RangePartition
from stelae.core.schema.schema import type_named
from stelae.core.schema.values import from_wire
from stelae.serve.bodies.models import (
    AlterTableRequest,
    CreateTableRequest,
    Partition,
    TableInfo,
    TableListing,
    TabletListing,
)
from stelae.serve.bodies.openapi import (
    IF_MATCH,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    ORDER_PARAMETER,
    TIMEOUT_PARAMETER,
    json_body,
    problems,
)
from stelae.serve.bodies.problems import ConfirmationNeeded, has_condition
from stelae.serve.gateway.conditions import condition_of, list_tag, table_tag, wanted_edition
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import principal_of, require
from stelae.serve.gateway.requests import is_numbered, ordering, ordering_on

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["tables"])

GONE = "gone"
"""The edition of no table."""
WAIT = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "`false`: answer once it exists, and not once all tablets can be written to.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}
CONFIRM_FIELD = "confirm"
CONFIRM = {
    "name": CONFIRM_FIELD,
    "in": "query",
    "required": True,
    "description": "The name of the table, once more. A request for a row of which a client or a "
    "proxy has changed the path never has it.",
    "schema": {"type": "string"},
}


@router.get(
    "/tables",
    response_model=TableListing,
    responses={304: NOT_MODIFIED, **problems(412, 503)},
    openapi_extra={"parameters": [IF_MATCH, IF_NONE_MATCH, TIMEOUT_PARAMETER]},
)
async def list_tables(request: Request) -> Response:
    """All tables that the token is good for, by name. The ETag changes when one comes, goes, or is
    altered.

    With `?max_staleness=` (seconds) any master may answer whose state is no older; so it works
    while the masters have no leader.
    """
    gateway, condition = gateway_of(request), condition_of(request)
    database = await gateway.database()
    records = await database.tables(
        max_staleness=gateway.max_staleness(request), timeout=gateway.timeout_s(request)
    )
    principal = principal_of(request)
    records = [record for record in records if principal.may_see(record.name)]
    tag = list_tag(records)
    if condition is not None:
        condition.check_match(tag, "the list of tables")
        if condition.excludes(tag):
            return Response(status_code=304, headers={"ETag": f'"{tag}"'})
    listed = {"tables": [describe_table(record) for record in records]}
    return json_response(listed, headers={"ETag": f'"{tag}"'})


@router.post(
    "/tables",
    response_model=TableInfo,
    status_code=201,
    responses=problems(400, 409, 413, 422, 503, 504),
    openapi_extra=json_body(CreateTableRequest, parameters=(WAIT, ORDER_PARAMETER)),
)
async def create_table(request: Request) -> Response:
    """Create a table, and wait until it can be written to (`?wait=false`: return once it exists;
    `tablet_states` of the table tells the rest). Needs the role `admin`.

    A repeated call answers 409 (`table-exists`) if the first one succeeded; with the same
    `Idempotency-Key` it answers as the first one, with the table as it is now (404 if it was
    deleted since).
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    body = await gateway.json_body(request, CreateTableRequest, timeout_s)
    schema = requested_schema(body)
    database = await ordering(request, b"create table", await gateway.body(request, timeout_s))
    table = await database.create_table(
        body.name,
        schema,
        key=body.key,
        partition=requested_partition(body.partition, schema),
        durability=requested_durability(body),
        indexes=body.indexes,
        wait=wanted_wait(request),
        timeout=timeout_s,
    )
    gateway.forget(body.name)
    response = _described(table.record, 201)
    response.headers["Location"] = f"/v1/tables/{quote(table.name, safe='')}"
    return response


@router.get(
    "/tables/{table}",
    response_model=TableInfo,
    responses={304: NOT_MODIFIED, **problems(404, 412, 503)},
    openapi_extra={"parameters": [IF_MATCH, IF_NONE_MATCH, TIMEOUT_PARAMETER]},
)
async def get_table(request: Request, table: str) -> Response:
    """One table: its columns, key, partitioning, durability, and the states of its tablets.

    The ETag changes with the description, and while not all tablets run with their states.
    `?max_staleness=`: see the list of tables.
    """
    gateway, condition = gateway_of(request), condition_of(request)
    max_staleness, timeout_s = gateway.max_staleness(request), gateway.timeout_s(request)
    handle = await gateway.look_up(table, timeout_s, max_staleness)
    database = await gateway.database()
    tablets = await database.locate_table(table, max_staleness=max_staleness, timeout=timeout_s)
    states = [location.tablet.state.value for location in tablets]
    counts = {state: states.count(state) for state in sorted(set(states))}
    tag = table_tag(handle.record, counts)
    if condition is not None:
        condition.check_match(tag, f"table {table!r}")
        if condition.excludes(tag):
            return Response(status_code=304, headers={"ETag": f'"{tag}"'})
    content = {**describe_table(handle.record), "tablet_states": counts}
    return json_response(content, headers={"ETag": f'"{tag}"'})


@router.get(
    "/tables/{table}/tablets", response_model=TabletListing, responses=problems(400, 404, 503)
)
async def locate_table(request: Request, table: str) -> Response:
    """The tablets of a table, by number, and where each is served. `?max_staleness=` as above."""
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.locate_table(
        table,
        max_staleness=gateway.max_staleness(request),
        timeout=gateway.timeout_s(request),
    )
    return json_response({"tablets": [describe_location(each) for each in found]})


@router.get("/tablets", response_model=TabletListing, responses=problems(400, 404, 503))
async def locate_tablets(
    request: Request, ids: Annotated[list[str], Query(alias="id", min_length=1, max_length=1000)]
) -> Response:
    """Where tablets are, by id: `?id=…&id=…`. Those that were deleted or replaced are told of
    too. `?max_staleness=` as above."""
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.locate(
        ids, max_staleness=gateway.max_staleness(request), timeout=gateway.timeout_s(request)
    )
    return json_response({"tablets": [describe_location(each) for each in found]})


@router.patch(
    "/tables/{table}",
    response_model=TableInfo,
    responses=problems(400, 404, 409, 412, 413, 422, 503, 504),
    openapi_extra=json_body(
        AlterTableRequest, parameters=(IF_MATCH, IF_NONE_MATCH, ORDER_PARAMETER)
    ),
)
async def alter_table(request: Request, table: str) -> Response:
    """Rename a table, change its columns or its durability; reads and writes go on.

    With `If-Match` only if it was not altered since that ETag; that its tablets are somewhere else,
    or not all of them run, does not count.
    Requests that name columns as they were before are understood if they say so with the header
    `Stelae-Schema-Version`. A rename that is sent again is 404, as the table has another name by
    then; with the same `Idempotency-Key` it is answered as the first one. Needs the role `admin`.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    body = await gateway.body(request, timeout_s)
    wanted = await gateway.json_body(request, AlterTableRequest, timeout_s)
    try:
        handle = await gateway.look_up(table, timeout_s)
    except TableNotFound:
        if not (wanted.name and is_numbered(request)):
            raise
        return await _renamed_before(request, table, wanted.name, body, timeout_s)
    added = _requested_fields(wanted)
    deadline = handle.runtime.clock.monotonic() + timeout_s
    try:
        await ordering_on(request, handle, b"alter", body).alter(
            add_columns=added,
            drop_columns=wanted.drop_columns,
            rename_columns=wanted.rename_columns,
            defaults=_requested_defaults(wanted, added, handle.schema, table),
            rename_to=wanted.name or "",
            durability=None if wanted.durability is None else requested_durability(wanted),
            if_edition=wanted_edition(request, handle.record),
            wait=wanted.wait,
            timeout=timeout_s,
        )
    finally:
        gateway.forget(table)
    return await _altered(handle, deadline)


async def _altered(handle: AsyncTable, deadline: float) -> Response:
    """The table after an alter, as the masters see it by ``deadline``.

    If they do not answer, or the table was deleted meanwhile, the response has what they answered
    to the alter. That was executed, which a 503 or 404 would deny.
    """
    try:
        left_s = deadline - handle.runtime.clock.monotonic()
        await handle.cache.refresh_within(left_s, f"a look at table {handle.name!r}")
    except (RetryLater, RetryElsewhere, OutcomeUnknown, TableNotFound) as error:
        logger.warning("table %r was altered, and is shown as it was then: %s", handle.name, error)
    return _described(handle.record)


async def _renamed_before(
    request: Request, table: str, name: str, body: bytes, timeout_s: float
) -> Response:
    """Answer a rename again, if it was this very request that did it. No edition is meant: so if it
    was not, nothing is changed. Raises TableNotFound."""
    gateway = gateway_of(request)
    try:
        handle = await gateway.look_up(name, timeout_s)
        deadline = handle.runtime.clock.monotonic() + timeout_s
        order = ordering_on(request, handle, b"alter", body)
        await order.alter(rename_to=name, if_edition=GONE, wait=False, timeout=timeout_s)
    except (TableNotFound, TableChanged, KeyReused):
        raise TableNotFound(table) from None
    finally:
        gateway.forget(name)
    return await _altered(handle, deadline)


@router.delete(
    "/tables/{table}",
    status_code=204,
    responses=problems(404, 412, 422, 503, 504),
    openapi_extra={
        "parameters": [CONFIRM, IF_MATCH, IF_NONE_MATCH, TIMEOUT_PARAMETER, ORDER_PARAMETER]
    },
)
async def delete_table(request: Request, table: str) -> Response:
    """Delete a table and all its rows permanently. Needs the role `admin`, and the name of the
    table once more: `?confirm=`.

    `If-Match`: as in altering a table. Rows written since count for nothing.
    """
    require(request, Role.ADMIN)
    if request.query_params.getlist(CONFIRM_FIELD) != [table]:
        # Clients make this path of DELETE …/rows/.., too: such a request deletes nothing.
        raise ConfirmationNeeded(
            f"this deletes table {table!r} with all its rows: if that is what you want, add "
            f"?{CONFIRM_FIELD}={quote(table, safe='')}; a row whose key is . or .. is deleted with "
            f"DELETE /v1/tables/…/rows?key=…"
        )
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    database = await ordering(request, b"delete table", b"")
    edition = await _edition_to_delete(request, table, timeout_s)
    gateway.forget(table)
    try:
        await database.delete_table(table, if_edition=edition, timeout=timeout_s)
    finally:
        gateway.forget(table)
    return Response(status_code=204)


async def _edition_to_delete(request: Request, table: str, timeout_s: float) -> str:
    """See `wanted_edition`. Where it is gone, perhaps by this very request: none that there is."""
    if not has_condition(request):
        return ""
    try:
        return wanted_edition(request, (await gateway_of(request).look_up(table, timeout_s)).record)
    except TableNotFound:
        if not is_numbered(request):
            raise
        return GONE


# ---- to JSON --------------------------------------------------------------------------------


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def _described(record: TableRecord, status: int = 200) -> Response:
    return json_response(describe_table(record), status, {"ETag": f'"{table_tag(record)}"'})


def describe_table(record: TableRecord) -> dict[str, Any]:
    """A table as `TableInfo` shows it."""
    schema = record.schema.arrow
    defaults = record.schema.defaults
    return {
        "id": record.table_id,
        "name": record.name,
        "columns": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in schema
        ],
        "arrow_schema": base64.b64encode(record.schema.arrow_ipc).decode(),
        "arrow_defaults": base64.b64encode(record.schema.defaults_ipc).decode(),
        "defaults": {} if defaults is None else describe_defaults(defaults),
        "column_ids": list(record.schema.column_ids),
        "next_column_id": record.schema.next_column_id,
        "key": list(record.schema.key),
        "partition": _describe_partition(record.partitioning, schema),
        "durability": durability_json(record.durability),
        "becoming": None if record.becoming is None else durability_json(record.becoming),
        "indexes": [
            {"id": index.index_id, "column": record.schema.column_of(index)}
            for index in record.schema.indexes
        ],
        "schema_version": record.schema.version,
        "state": record.state.value,
        "generation": record.generation,
        "tablets": record.partitioning.tablet_count,
    }


def describe_location(location: TabletLocation) -> dict[str, Any]:
    """Where a tablet is, as `TabletInfo` shows it."""
    tablet = msgspec.to_builtins(location.tablet)
    return {
        "tablet": tablet,
        "address": location.address,
        "problem": location.problem,
        "replicas": [
            {"uuid": r.uuid, "address": r.address, "voter": r.voter, "leader": r.is_leader}
            for r in location.replicas
        ],
    }


def describe_defaults(defaults: pa.RecordBatch) -> dict[str, Any]:
    """What rows get that leave columns out, by column; columns without default are not named."""
    written = defaults.slice(1, 1)
    return {
        name: column_to_json(column)[0]
        for name, column in zip(written.schema.names, written.columns, strict=True)
        if not column.null_count
    }


def _describe_partition(partitioning: Partitioning, schema: pa.Schema) -> dict[str, Any]:
    by_hash, by_range = partitioning.hash, partitioning.range
    found: dict[str, Any] = {"hash": None, "range": None}
    if by_hash is not None:
        found["hash"] = {"columns": list(by_hash.columns), "buckets": by_hash.buckets}
    if by_range is not None:
        kinds = [schema.field(name).type for name in by_range.columns]
        found["range"] = {
            "columns": list(by_range.columns),
            "splits": [
                [
                    to_json_value(from_wire(value, kind), kind)
                    for value, kind in zip(split, kinds, strict=True)
                ]
                for split in by_range.splits
            ],
        }
    return found


def wanted_wait(request: Request) -> bool:
    """``?wait=``. Raises InvalidArgument."""
    text = request.query_params.get("wait", "true")
    if text not in ("true", "false"):
        raise InvalidArgument(f"wait={text[:40]!r}: true or false")
    return text == "true"


# ---- from JSON ------------------------------------------------------------------------------


def requested_schema(body: CreateTableRequest) -> pa.Schema:
    """Raises InvalidArgument."""
    if (body.columns is None) == (body.arrow_schema is None):
        raise InvalidArgument("give either columns or arrow_schema")
    if body.columns is not None:
        fields = [
            pa.field(column.name, type_named(column.type, column.name), column.nullable)
            for column in body.columns
        ]
        return pa.schema(fields)
    assert body.arrow_schema is not None
    return _arrow_schema(body.arrow_schema)


def _arrow_schema(text: str) -> pa.Schema:
    try:
        data = base64.b64decode(text, validate=True)
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (binascii.Error, ValueError, pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"arrow_schema is not an Arrow schema in base64: {error}") from None


def _requested_fields(body: AlterTableRequest) -> list[pa.Field]:
    fields = [
        pa.field(column.name, type_named(column.type, column.name), column.nullable)
        for column in body.add_columns
    ]
    if body.add_arrow_schema is not None:
        fields += list(_arrow_schema(body.add_arrow_schema))
    return fields


def _requested_defaults(
    body: AlterTableRequest, added: list[pa.Field], schema: pa.Schema, table: str
) -> dict[str, Any]:
    """Defaults as the client takes them. Raises ColumnNotFound, InvalidArgument."""
    names = body.rename_columns
    kinds = {names.get(f.name, f.name): f.type for f in schema if f.name not in body.drop_columns}
    kinds |= {field.name: field.type for field in added}
    unknown = [name for name in body.defaults if name not in kinds]
    if unknown:
        raise ColumnNotFound(unknown[0][:80], table, ", ".join(kinds))
    return {
        name: None
        if value is None
        else from_json_value(value, kinds[name], f"the default of column {name!r}")
        for name, value in body.defaults.items()
    }


def requested_durability(body: CreateTableRequest | AlterTableRequest) -> Durability:
    """Raises InvalidArgument."""
    if body.durability is None:
        return DEFAULT_DURABILITY
    return durability_of(body.durability.model_dump())


def requested_partition(partition: Partition | None, schema: pa.Schema) -> Partitioning:
    """Splits become wire values. Raises InvalidArgument."""
    if partition is None:
        return Partitioning()
    by_hash = by_range = None
    if partition.hash is not None:
        by_hash = HashPartition(tuple(partition.hash.columns), partition.hash.buckets)
    if partition.range is not None:
        names = partition.range.columns
        for name in names:
            if schema.get_field_index(name) < 0:
                raise InvalidArgument(f"partition.range: there is no column {name!r}")
        kinds = [schema.field(name).type for name in names]
        if any(len(split) != len(kinds) for split in partition.range.splits):
            raise InvalidArgument("each split has one value for each range column")
        splits = tuple(
            tuple(
                from_json_value(value, kind, "range split")
                for value, kind in zip(split, kinds, strict=True)
            )
            for split in partition.range.splits
        )
        by_range = RangePartition(tuple(names), splits)
    return Partitioning(by_hash, by_range)
