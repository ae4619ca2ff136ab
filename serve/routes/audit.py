"""The audit log over HTTP, for admins."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from stelae.client.audit import MAX_ENTRIES
from stelae.core.errors import InvalidArgument
from stelae.core.records.tokens import Role
from stelae.serve.bodies.openapi import TIMEOUT_PARAMETER, problems
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1/audit", tags=["audit"])

Time = Annotated[
    str, Query(max_length=64, description="ISO 8601 with a time zone, as 2026-12-01T09:00:00Z.")
]


class AuditEntryInfo(BaseModel):
    id: str = Field(examples=["5f0c6e0b1d2a4c77"])
    time: str = Field(
        examples=["2026-12-01T09:00:00.123456+00:00"], description="When the call began; UTC."
    )
    gateway: str = Field(examples=["host-1/http-4711"])
    caller: str = Field(
        examples=["admin"],
        description="The token's name; user@host of a caller with the cluster's secret; empty: a "
        "bad token.",
    )
    role: str = Field(examples=["admin"])
    method: str = Field(
        examples=["DELETE"], description="Of HTTP; or cli, python, applier: not over HTTP."
    )
    path: str = Field(examples=["/v1/tables/flights"])
    object: str = Field(examples=["flights"], description="What the call is about, if it is known.")
    outcome: Literal["begun", "done", "refused", "failed", "lost"] = Field(
        description="refused: 4xx. failed: 5xx, it may have been carried out. begun: no answer is "
        "noted. lost: not a call; some may be missing here."
    )
    status: int | None = Field(examples=[200])
    calls: int = Field(examples=[1], description="How many calls the entry stands for.")
    duration_s: float | None = Field(examples=[0.0123])
    request_id: str = Field(examples=["5f0c6e0b1d2a4c77"])
    source: str = Field(examples=["127.0.0.1"])
    details: str = Field(examples=['?confirm=flights {"name": "flights"}'])


class AuditListing(BaseModel):
    entries: list[AuditEntryInfo]


@router.get(
    "",
    response_model=AuditListing,
    responses=problems(400, 503, 504),
    openapi_extra={"parameters": [TIMEOUT_PARAMETER]},
)
async def audit(
    request: Request,
    since: Time = "",
    until: Time = "",
    who: Annotated[str, Query(max_length=1000, description="The token's name.")] = "",
    outcome: Annotated[
        str, Query(max_length=20, description="done, refused, failed, begun or lost.")
    ] = "",
    path: Annotated[str, Query(max_length=1000, description="The path's beginning.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES, description="The newest so many.")] = 100,
    before: Annotated[
        str, Query(max_length=100, description="The id of an entry: only older ones.")
    ] = "",
) -> Response:
    """Calls that only admins may make, without reads, and requests that were refused for their
    token, the newest last. Needs the role `admin`.

    An entry is there about a second after the call was answered. For older ones give the `id` of
    the first entry as `before`.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.audit(
        since=_time("since", since),
        until=_time("until", until),
        who=who,
        outcome=outcome,
        path=path,
        limit=limit,
        before=before,
        timeout=gateway.timeout_s(request),
    )
    return json_response({"entries": [audit_document(entry) for entry in found]})


def audit_document(entry: dict[str, Any]) -> dict[str, Any]:
    """For JSON: times are text."""
    return {**entry, "time": entry["time"].isoformat(timespec="microseconds")}


def _time(name: str, text: str) -> datetime.datetime | None:
    """Raises InvalidArgument."""
    if not text:
        return None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{name}={text!r}: as 2026-12-01T09:00:00Z") from None
