"""Routes about data that no live backup holds: what is missing, and its acceptance. (design §13)"""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stelae.client.admin.losses import record_document, report_document
from stelae.core.records.losses import LossReport
from stelae.core.records.tokens import Role
from stelae.serve.bodies.models import Body
from stelae.serve.bodies.openapi import ORDER_PARAMETER, TIMEOUT_PARAMETER, json_body, problems
from stelae.serve.bodies.status import Accepted, Losses
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.gateway.requests import ordering
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1", tags=["losses"])


class AcceptLossRequest(Body):
    fingerprint: str = Field(
        min_length=1,
        max_length=64,
        examples=["8c2f61b07d1e9a34"],
        description="Of the report whose `waiting` is accepted, from `GET /v1/losses`.",
    )
    by: str = Field(
        default="",
        max_length=150,
        examples=["Ada, ticket 7"],
        description="Who accepts it; kept on record, with the name of the token.",
    )
    tablets: list[str] = Field(
        default_factory=list, max_length=1000, description="Only of these; all if empty."
    )
    gone: list[str] = Field(
        default_factory=list,
        max_length=1000,
        examples=[["backup-2"]],
        description="Backups (names or UUIDs) of `silent` that never return.",
    )


@router.get(
    "/losses",
    response_model=Losses,
    responses=problems(503, 504),
    openapi_extra={"parameters": [TIMEOUT_PARAMETER]},
)
async def get_losses(request: Request) -> Response:
    """Which tablets wait for segments that no live backup holds, and what was ever given up."""
    gateway = gateway_of(request)
    database = await gateway.database()
    report = await database.losses(timeout=gateway.timeout_s(request))
    return json_response(report_document(report))


@router.post(
    "/losses:accept",
    response_model=Accepted,
    responses=problems(400, 413, 415, 422, 503, 504),
    openapi_extra=json_body(AcceptLossRequest, parameters=(ORDER_PARAMETER,)),
)
async def accept_loss(request: Request) -> Response:
    """Give up for good what is missing, and recover from what is left. Needs the role `admin`.

    It cannot be taken back. If something else is missing by now than the report of that fingerprint
    said, or nothing, this is 400, and nothing is done; and so it is while a backup is away that is
    not among `gone`.
    """
    principal = require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, AcceptLossRequest, timeout_s)
    database = await ordering(request, b"accept loss", await gateway.body(request, timeout_s))
    records = await database.accept_loss(
        LossReport((), wanted.fingerprint),
        by=f"{wanted.by} (token {principal.name})".strip(),
        tablets=wanted.tablets,
        gone=wanted.gone,
        timeout=timeout_s,
    )
    return json_response({"accepted": [record_document(record) for record in records]})
