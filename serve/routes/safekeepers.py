"""Routes of safekeepers and timelines: the API of the seed, with its paths and bodies.

*Tenant* is the table (its name, or its id), *timeline* the tablet, *node* the safekeeper. Timelines
are created and deleted with their tables. Migrations are scheduled, and go on by themselves; the
timeline's own path tells of them. What is refused has changed nothing.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from stelae.client.admin.timeline_views import (
    migrations_document,
    result_document,
    safekeeper_document,
    scheduled_document,
    scrub_document,
    timeline_document,
)
from stelae.core.addresses import split_address
from stelae.core.errors import InvalidArgument, TableNotFound, TabletNotFound
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import SafekeeperView, TimelineView
from stelae.core.records.records import TableRecord
from stelae.core.records.tokens import Role
from stelae.serve.bodies.openapi import TIMEOUT_PARAMETER, json_body, problems
from stelae.serve.bodies.problems import SafekeeperNotFound
from stelae.serve.bodies.safekeepers import (
    U32_MAX,
    MigrateRequest,
    MigrateSafekeeperRequest,
    MigrationListing,
    MigrationResult,
    SafekeeperInfo,
    SafekeeperStatusRequest,
    Scheduled,
    Scrubbed,
    TimelineInfo,
    UpsertSafekeeperRequest,
)
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/control/v1", tags=["safekeepers"])

NodeId = Annotated[int, Path(ge=0, le=U32_MAX)]
TIMELINE = "/tenant/{tenant_id}/timeline/{timeline_id}"
_WITH_TIMEOUT = {"parameters": [TIMEOUT_PARAMETER]}


# ---- safekeepers ----------------------------------------------------------------------------


@router.post(
    "/safekeepers",
    response_model=SafekeeperInfo,
    responses=problems(400, 404, 413, 415, 422, 503, 504),
    openapi_extra=json_body(UpsertSafekeeperRequest),
)
async def upsert_safekeeper(request: Request) -> Response:
    """Set the status of a safekeeper that has registered. Needs the role `admin`.

    Safekeepers register themselves. Of an id that no safekeeper has this is 404; with another host
    or port than the safekeeper's own it is 400. Repeating it changes nothing.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    wanted = await gateway.json_body(request, UpsertSafekeeperRequest, gateway.timeout_s(request))
    _check_place(await _known(request, wanted.id), wanted)
    return await _answer_safekeeper(request, wanted.id, wanted.status)


@router.get("/safekeepers", response_model=list[SafekeeperInfo], responses=problems(503))
async def list_safekeepers(request: Request) -> Response:
    """All safekeepers that ever registered, by id."""
    return json_response([safekeeper_document(each) for each in await _safekeepers(request)])


@router.get(
    "/safekeepers/{node_id}",
    response_model=SafekeeperInfo,
    responses=problems(404, 422, 503),
)
async def get_safekeeper(request: Request, node_id: NodeId) -> Response:
    """One safekeeper."""
    return await _answer_safekeeper(request, node_id, None)


@router.put(
    "/safekeepers/{node_id}/status",
    response_model=SafekeeperInfo,
    responses=problems(404, 413, 415, 422, 503, 504),
    openapi_extra=json_body(SafekeeperStatusRequest),
)
async def set_safekeeper_status(request: Request, node_id: NodeId) -> Response:
    """Say what is to be expected of a safekeeper. Needs the role `admin`.

    Timelines of one that is decommissioned move to others, one after the other.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    wanted = await gateway.json_body(request, SafekeeperStatusRequest, gateway.timeout_s(request))
    return await _answer_safekeeper(request, node_id, wanted.status)


@router.put(
    "/safekeepers/{node_id}/scrub",
    response_model=Scrubbed,
    responses=problems(404, 422, 503, 504),
    openapi_extra=_WITH_TIMEOUT,
)
async def scrub_safekeeper(request: Request, node_id: NodeId) -> Response:
    """Remove from a safekeeper the timelines that it should not have. Needs the role `admin`.

    What it should have is what the configuration store says; of what that has never heard nothing
    is removed.
    """
    require(request, Role.ADMIN)
    await _known(request, node_id)
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.scrub_safekeeper(node_id, timeout=gateway.timeout_s(request))
    return json_response(scrub_document(found))


@router.put(
    "/safekeepers/migrate",
    response_model=list[Scheduled],
    responses=problems(409, 413, 415, 422, 503, 504),
    openapi_extra=json_body(MigrateSafekeeperRequest),
)
async def migrate_safekeeper(request: Request) -> Response:
    """Schedule the move of all timelines, or so many, from one safekeeper to another. Needs the
    role `admin`.

    Answers with what was scheduled. Timelines that are being changed, or that the target has
    already, stay.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, MigrateSafekeeperRequest, timeout_s)
    database = await gateway.database()
    scheduled = await database.migrate_safekeeper(
        wanted.src_sk, wanted.dst_sk, limit=wanted.limit, timeout=timeout_s
    )
    return json_response([scheduled_document(each) for each in scheduled])


@router.get("/migrations", response_model=MigrationListing, responses=problems(503))
async def list_migrations(request: Request) -> Response:
    """Migrations under way, and how the last ones ended under this leader master."""
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.migrations(timeout=gateway.timeout_s(request))
    return json_response(migrations_document(found))


# ---- timelines ------------------------------------------------------------------------------


@router.put(
    "/tenant/{tenant_id}/safekeeper_migrate",
    response_model=list[Scheduled],
    responses=problems(404, 409, 413, 415, 422, 503, 504),
    openapi_extra=json_body(MigrateRequest),
)
async def migrate_tenant(request: Request, tenant_id: str) -> Response:
    """Schedule the move of all timelines of a table that are elsewhere. Needs the role `admin`.

    Answers with what was scheduled.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, MigrateRequest, timeout_s)
    database = await gateway.database()
    table = await _table(request, tenant_id)
    scheduled = await database.migrate_table(table.name, wanted.desired_set, timeout=timeout_s)
    return json_response([scheduled_document(each) for each in scheduled])


@router.get(TIMELINE + "/", response_model=TimelineInfo, responses=problems(404, 503))
@router.get(TIMELINE, response_model=TimelineInfo, include_in_schema=False)
async def get_timeline(request: Request, tenant_id: str, timeline_id: str) -> Response:
    """Where a tablet's log is, the migration under way, and how the last one ended.

    400 for a tablet that has no timeline: its table is not `wal(n)`.
    """
    return json_response(timeline_document(await _timeline(request, tenant_id, timeline_id)))


@router.put(
    TIMELINE + "/safekeeper_migrate",
    response_model=Scheduled,
    responses=problems(404, 409, 413, 415, 422, 503, 504),
    openapi_extra=json_body(MigrateRequest),
)
async def migrate_timeline(request: Request, tenant_id: str, timeline_id: str) -> Response:
    """Schedule the move of one timeline. Needs the role `admin`.

    409 (`migration-under-way`) while another change of it is made.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, MigrateRequest, timeout_s)
    view = await _timeline(request, tenant_id, timeline_id)
    database = await gateway.database()
    (scheduled,) = await database.migrate_timeline(
        view.tablet.tablet_id, wanted.desired_set, timeout=timeout_s
    )
    return json_response(scheduled_document(scheduled))


@router.put(
    TIMELINE + "/safekeeper_migrate_abort",
    response_model=MigrationResult,
    responses={
        202: {"model": MigrationResult, "description": "It is not decided yet."},
        **problems(404, 409, 503, 504),
    },
    openapi_extra=_WITH_TIMEOUT,
)
async def abort_migration(request: Request, tenant_id: str, timeline_id: str) -> Response:
    """Take the move of a timeline back, if that can still be done. Needs the role `admin`.

    `verdict` is `aborted`, or `done` with the reason: there was nothing to take back any more. 202
    if it is not decided within the time of the call: it goes on.
    """
    require(request, Role.ADMIN)
    view = await _timeline(request, tenant_id, timeline_id)
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.abort_migration(
        view.tablet.tablet_id, timeout=gateway.timeout_s(request)
    )
    is_decided = found.verdict in ("aborted", "done")
    return json_response(result_document(found), 200 if is_decided else 202)


# ---- look-ups -------------------------------------------------------------------------------


async def _safekeepers(request: Request) -> list[SafekeeperView]:
    gateway = gateway_of(request)
    database = await gateway.database()
    return await database.safekeepers(timeout=gateway.timeout_s(request))


async def _known(request: Request, node_id: int) -> SafekeeperView:
    """Raises SafekeeperNotFound."""
    for each in await _safekeepers(request):
        if each.record.safekeeper_id == node_id:
            return each
    raise SafekeeperNotFound(f"there is no safekeeper {node_id}: each registers itself")


def _check_place(found: SafekeeperView, wanted: UpsertSafekeeperRequest) -> None:
    """Raises InvalidArgument: it is elsewhere."""
    host, port = split_address(found.address) if found.address else ("", 0)
    is_there = wanted.host in (None, host) and wanted.port in (None, port)
    if not is_there:
        where = found.address or "nothing yet to this leader master"
        text = f"safekeeper {wanted.id} says itself where it is, and that is {where}"
        raise InvalidArgument(text)


async def _answer_safekeeper(request: Request, node_id: int, status: str | None) -> Response:
    """One safekeeper, after its status was set, if one is given. Raises SafekeeperNotFound."""
    found = await _known(request, node_id)
    if status is not None:
        gateway = gateway_of(request)
        database = await gateway.database()
        timeout_s = gateway.timeout_s(request)
        found = await database.set_safekeeper_status(node_id, status, timeout=timeout_s)
    return json_response(safekeeper_document(found))


async def _table(request: Request, tenant_id: str) -> TableRecord:
    """By name, or else by id. Raises TableNotFound."""
    gateway = gateway_of(request)
    database = await gateway.database()
    tables = await database.tables(own=True, timeout=gateway.timeout_s(request))
    named = [table for table in tables if table.name == tenant_id]
    found = named or [table for table in tables if table.table_id == tenant_id]
    if not found:
        raise TableNotFound(tenant_id[:200])
    return found[0]


async def _timeline(request: Request, tenant_id: str, timeline_id: str) -> TimelineView:
    """Raises TableNotFound, TabletNotFound (also if it is another table's), InvalidArgument."""
    table = await _table(request, tenant_id)
    gateway = gateway_of(request)
    database = await gateway.database()
    view = await database.locate_timeline(timeline_id, timeout=gateway.timeout_s(request))
    if view.tablet.table_id != table.table_id:
        raise TabletNotFound(TabletId(timeline_id[:200]))
    return view
