"""Routes of operators: the check, replicas that move, leaders that step down, servers that go.

What is ordered is in the masters' catalog when it is answered, and goes on by itself; the same
order again changes nothing, and tells how far it is. (design §12)
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from stelae.client.admin.operators import describe_tservers
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument
from stelae.core.records.records import TabletRecord
from stelae.core.records.tokens import Role
from stelae.serve.bodies.models import Body
from stelae.serve.bodies.openapi import json_body, problems
from stelae.serve.bodies.status import CheckReport, RetiredServer, TabletReply
from stelae.serve.gateway.around import Around
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1", tags=["operators"])

_ORDER = problems(400, 404, 413, 415, 422, 503, 504)


class MoveRequest(Body):
    source: str = Field(default="", examples=["tserver-1"], description="A name, or a UUID.")
    target: str = Field(
        default="", examples=["tserver-4"], description="Empty: give the move up that goes on."
    )


class ReplicasRequest(Body):
    servers: list[str] = Field(
        min_length=1,
        max_length=64,
        examples=[["tserver-0", "tserver-2", "tserver-4"]],
        description="Where all replicas are to be: names or UUIDs. One may differ from what is.",
    )


class StepDownRequest(Body):
    target: str = Field(
        default="", examples=["tserver-2"], description="Who is to lead; empty: who has most."
    )


class RetireRequest(Body):
    cancel: bool = Field(default=False, description="Take it back; what has moved stays.")


@router.get("/cluster/check", response_model=CheckReport, responses=problems(404, 422, 503, 504))
async def check(
    request: Request,
    table: Annotated[list[str] | None, Query(max_length=100)] = None,
    checksums: bool = False,
) -> Response:
    """What is not well, as `stelae check --json` has it: `well`, and `findings`.

    `?table=` (again and again): only these. `?checksums=true` compares all rows of all replicas,
    and needs the role `admin`, as it costs a read of everything.
    """
    if checksums:
        require(request, Role.ADMIN)
    gateway = gateway_of(request)
    database = await gateway.database()
    timeout_s = gateway.timeout_s(request, 600.0 if checksums else None)
    around: Around = request.app.state.around
    report = await database.check(
        table or (), checksums=checksums, timeout=timeout_s, stopped=around.stopped
    )
    return json_response(report.document())


@router.post(
    "/tablets/{tablet_id}:move",
    response_model=TabletReply,
    responses=_ORDER,
    openapi_extra=json_body(MoveRequest),
)
async def move_replica(request: Request, tablet_id: str) -> Response:
    """Move one replica of a tablet to another server, while it serves. Needs the role `admin`.

    Answers with the tablet's record: `move` is null once it is done.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, MoveRequest, timeout_s)
    if wanted.target and not wanted.source:
        raise InvalidArgument("source: which replica is to move?")
    database = await gateway.database()
    return _record(await _move(database, tablet_id, wanted.source, wanted.target, timeout_s))


@router.post(
    "/tablets/{tablet_id}:changeReplicas",
    response_model=TabletReply,
    responses=_ORDER,
    openapi_extra=json_body(ReplicasRequest),
)
async def change_replicas(request: Request, tablet_id: str) -> Response:
    """Say on which servers all replicas of a tablet are to be. Needs the role `admin`.

    One replica at a time: if more than one server differs it is 400. How many replicas there are is
    the table's durability, and no tablet has a number of its own: `PATCH /v1/tables/{table}` with
    `durability` adds replicas to all its tablets, or removes some.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, ReplicasRequest, timeout_s)
    database = await gateway.database()
    record = (await database.locate([tablet_id], timeout=timeout_s))[0].tablet
    status = await database.status(timeout=timeout_s)
    source, target = _difference(record, wanted.servers, status)
    if source:
        record = await _move(database, tablet_id, source, target, timeout_s)
    return _record(record)


def _difference(
    record: TabletRecord, servers: list[str], status: dict[str, Any]
) -> tuple[str, str]:
    """The replica to be moved, and where to; empty: none. Raises InvalidArgument."""
    if record.configuration is None:
        raise InvalidArgument(f"tablet {record.tablet_id} has no replicas")
    known = describe_tservers(status)
    chosen: set[str] = set()
    for server in servers:
        found = [s["uuid"] for s in known if server in (s["name"], s["uuid"])]
        found = [u for u in found if len(found) == 1 or _is_live(known, u)]
        if len(found) != 1:
            raise InvalidArgument(f"{server[:80]!r}: {len(found)} tservers are called so")
        chosen.add(found[0])
    have: set[str] = {peer.uuid for peer in record.configuration.peers}
    if record.move is not None:
        have = (have | {record.move.target}) - {record.move.source}
    gone, new = sorted(have - chosen), sorted(chosen - have)
    if not gone and not new:
        return "", ""
    if len(gone) != 1 or len(new) != 1:
        raise InvalidArgument(
            f"{len(new)} servers are new and {len(gone)} are left out: one replica at a time"
        )
    return gone[0], new[0]


def _is_live(known: list[dict[str, Any]], uuid: str) -> bool:
    return any(server["uuid"] == uuid and server["state"] == "live" for server in known)


async def _move(
    database: AsyncDatabase, tablet_id: str, source: str, target: str, timeout_s: float
) -> TabletRecord:
    return await database.move_replica(tablet_id, source, target, wait=False, timeout=timeout_s)


def _record(record: TabletRecord) -> Response:
    return json_response({"tablet": msgspec.to_builtins(record)})


@router.post(
    "/tablets/{tablet_id}:stepDown",
    status_code=204,
    responses=_ORDER,
    openapi_extra=json_body(StepDownRequest),
)
async def step_down(request: Request, tablet_id: str) -> Response:
    """Have a tablet's leader hand over to another replica. Needs the role `admin`."""
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, StepDownRequest, timeout_s)
    database = await gateway.database()
    await database.step_down(tablet_id, wanted.target, timeout=timeout_s)
    return Response(status_code=204)


@router.post(
    "/tservers/{server}:retire",
    response_model=RetiredServer,
    responses=_ORDER,
    openapi_extra=json_body(RetireRequest, parameters=()),
)
async def retire_server(request: Request, server: str) -> Response:
    """Move everything off a tablet server or backup (name or UUID), and give it nothing new. Needs
    the role `admin`.

    Answers at once with what it still has; asked again it tells how far it is. Once `replicas`,
    `tablets`, `indexlets` and `segments` are 0 it may be stopped for good.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, RetireRequest, timeout_s)
    database = await gateway.database()
    found = await database.retire_server(
        server, wait=False, cancel=wanted.cancel, timeout=timeout_s
    )
    return json_response(
        {
            "name": found.mark.name,
            "uuid": found.mark.uuid,
            "retiring": found.mark.retiring,
            "live": found.is_live,
            "replicas": found.replicas,
            "tablets": found.tablets,
            "bound": found.bound,
            "indexlets": found.indexlets,
            "segments": found.segments,
            "problem": found.problem,
        }
    )
