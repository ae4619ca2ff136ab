"""Routes of the cluster's spec: what was asked for, and what is to be. Needs the role `admin`.

What is put is compared with what runs, as `stelae apply` does it. Refused, it has changed nothing
and all reasons are told at once. What is not refused is done in the background, by a process that
outlives this one; how far it is says its operation. Who carries it out is not known here
(`ClusterSpecs`). Design §12; decisions §44.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import Unavailable
from stelae.core.records.tokens import Role
from stelae.serve.bodies.models import Body
from stelae.serve.bodies.openapi import (
    IF_MATCH,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    TIMEOUT_PARAMETER,
    json_body,
    problems,
)
from stelae.serve.bodies.problems import OperationNotFound
from stelae.serve.gateway.conditions import condition_of
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1/cluster", tags=["cluster"])

Document = dict[str, Any]
WHAT = "what was asked of the cluster"
OPERATIONS = "/v1/cluster/operations"


class ClusterSpecs(Protocol):
    """Who knows what was asked of the cluster, and carries out what is. Raises StelaeError."""

    async def kept(self, timeout_s: float) -> Document:
        """What was asked for last: ``spec``, ``by``, ``at``, ``done``, and its ``etag``."""
        ...

    async def plan(self, spec: Document, timeout_s: float) -> Document:
        """What differs, what would be done, and what keeps it from being done."""
        ...

    async def begin(self, spec: Document, by: str, etag: str, timeout_s: float) -> Document:
        """Begin to carry it out, and return the operation. ``etag``: of what was asked for before;
        empty: whatever that was. Raises InvalidArgument: all reasons why not; PreconditionFailed:
        the etag is another by now; OutcomeUnknown: it may have begun."""
        ...

    async def around(self) -> Document:
        """What the masters do not know: servers that an operator ``stopped``, machines that are
        ``away`` (`SpecHost.away`; None: nothing is known), and the ``spread`` that the spec asks
        for (None, ``node``, ``rack``). Starts nothing, and writes nothing. It may take as long as
        Ray takes: whoever asks waits as long as he likes, and asks once at a time."""
        ...

    async def begin_server(
        self, verb: str, server: str, options: Document, by: str, timeout_s: float
    ) -> Document:
        """Begin to ``retire``, ``stop``, ``start``, ``restart`` or ``replace`` a server, and return
        the operation. Raises InvalidArgument: there is no such server; AlreadyRunning: which
        operation runs; OutcomeUnknown: it may have begun."""
        ...

    async def operation(self, operation_id: str, timeout_s: float) -> Document | None:
        """How far it is; None: there is none."""
        ...

    async def cancel(self, operation_id: str, by: str, timeout_s: float) -> Document | None:
        """Have it end at its next look, if it runs; how far it is. None: there is none."""
        ...


class ClusterSpecRequest(Body):
    """A document like ``cluster.yaml``, as JSON."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _has_known_parts(self) -> ClusterSpecRequest:
        """What the parts have in them is checked with all reasons told, by who carries it out."""
        known = {field.alias or name for name, field in ClusterSpec.model_fields.items()}
        unknown = sorted(set(self.model_extra or {}) - known)
        if unknown:
            raise ValueError(f"a cluster has no {', '.join(unknown)[:200]}")
        return self


class KeptSpec(BaseModel):
    spec: Document = Field(
        examples=[{"cluster": "demo", "tservers": {"count": 3}}],
        description="As `cluster.yaml` has it.",
    )
    by: str = Field(examples=["ada"])
    at: float = Field(examples=[1795752444.26], description="Seconds since 1970.")
    done: bool = Field(examples=[True], description="Whether it has come true.")
    generation: int = Field(
        examples=[7],
        description="How many specs were asked for, with this one: `stelae apply --if-generation`.",
    )


class Plan(BaseModel):
    differences: list[Document] = Field(
        examples=[[{"path": "tservers.count", "now": "3", "wanted": "4"}]]
    )
    steps: list[Document] = Field(examples=[[{"text": "add tserver-3"}]])
    refused: list[str] = Field(
        examples=[[]], description="Reasons why it cannot be; empty: it can."
    )
    done: bool = Field(examples=[False], description="Whether there is nothing to do.")


class Operation(BaseModel):
    id: str = Field(examples=["3f2c9a7d10be"])
    what: str = Field(examples=["server replace tserver-3"], description="Or `apply`.")
    state: str = Field(examples=["running"])
    by: str = Field(examples=["ada"])
    steps_done: int = Field(examples=[1])
    steps: int = Field(examples=[3])
    text: str = Field(examples=["tserver-3 starts"])
    error: str = Field(examples=[""])
    cancelled_by: str = Field(examples=[""])
    result: Document = Field(
        examples=[{}],
        description="Of `server replace` that is done: `uuid`, `former`, `set_aside`, `machine`.",
    )


async def specs_of(request: Request) -> ClusterSpecs:
    """Who changes the cluster. Raises Unavailable: nobody does here."""
    found: ClusterSpecs | None = request.app.state.cluster_specs
    if found is None:
        raise Unavailable("the cluster's spec", "this front is not run by the cluster itself")
    return found


@router.get(
    "/spec",
    response_model=KeptSpec,
    responses={304: NOT_MODIFIED, **problems(403, 404, 412, 503, 504)},
    openapi_extra={"parameters": [IF_MATCH, IF_NONE_MATCH, TIMEOUT_PARAMETER]},
)
async def get_spec(request: Request) -> Response:
    """What was asked for last, by whom, and whether it came true. Needs the role `admin`.

    The header `ETag` says which asking it is: `PUT` takes it as `If-Match`.
    """
    require(request, Role.ADMIN)
    specs = await specs_of(request)
    condition = condition_of(request)
    kept = await specs.kept(gateway_of(request).timeout_s(request))
    etag = kept.pop("etag")
    headers = {"ETag": f'"{etag}"'}
    if condition is not None:
        condition.check_match(etag, WHAT)
        if condition.excludes(etag):
            return Response(status_code=304, headers=headers)
    return json_response(kept, headers=headers)


@router.put(
    "/spec",
    response_model=Plan,
    responses={
        202: {"model": Operation, "description": "It is being carried out."},
        **problems(400, 403, 409, 412, 413, 415, 422, 503, 504),
    },
    openapi_extra=json_body(ClusterSpecRequest, parameters=(IF_MATCH, IF_NONE_MATCH)),
)
async def put_spec(
    request: Request,
    dry_run: Annotated[bool, Query(description="Only say what would be done.")] = False,
) -> Response:
    """Make the cluster what this document says, while it serves. Needs the role `admin`.

    With `dry_run` the answer is the plan, and what keeps it from being done (`refused`). Else it is
    the operation that carries it out, or a problem with all reasons why it cannot be.
    """
    principal = require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    condition = condition_of(request)
    body = await gateway.json_body(request, ClusterSpecRequest, timeout_s)
    specs = await specs_of(request)
    spec = body.model_dump()
    etag = ""
    if condition is not None:
        etag = (await specs.kept(timeout_s))["etag"]
        condition.check(etag, WHAT)
        if condition.match is None or condition.match.is_any:
            etag = ""  # whatever it is by then
    if dry_run:
        return json_response(await specs.plan(spec, timeout_s))
    return begun_response(await specs.begin(spec, principal.name, etag, timeout_s))


def begun_response(operation: Document) -> Response:
    """The answer to what goes on in the background: 202, and where to ask how far it is."""
    response = json_response(operation, 202)
    response.headers["Location"] = f"{OPERATIONS}/{operation['id']}"
    return response


@router.get(
    "/operations/{operation_id}",
    response_model=Operation,
    responses=problems(403, 404, 422, 503, 504),
)
async def get_operation(
    request: Request, operation_id: Annotated[str, Path(max_length=64)]
) -> Response:
    """How far it is: `running`, `done`, `cancelled`, or `failed` (`error` says why).

    It is known while the process that carries it out lives. Needs the role `admin`.
    """
    require(request, Role.ADMIN)
    specs = await specs_of(request)
    found = await specs.operation(operation_id, gateway_of(request).timeout_s(request))
    return json_response(_require_found(found, operation_id))


@router.delete(
    "/operations/{operation_id}",
    status_code=202,
    response_model=Operation,
    responses=problems(403, 404, 422, 503, 504),
)
async def cancel_operation(
    request: Request, operation_id: Annotated[str, Path(max_length=64)]
) -> Response:
    """Have it end at its next look; `state` is `cancelled` then. Needs the role `admin`.

    Steps that are done stay done, and what is being drained stays marked: put the same spec again
    to go on, or another one. One that has ended is left as it is.
    """
    principal = require(request, Role.ADMIN)
    specs = await specs_of(request)
    timeout_s = gateway_of(request).timeout_s(request)
    found = await specs.cancel(operation_id, principal.name, timeout_s)
    return json_response(_require_found(found, operation_id), 202)


def _require_found(found: Document | None, operation_id: str) -> Document:
    if found is None:
        raise OperationNotFound(f"no operation {operation_id!r} of this cluster is known")
    return found
