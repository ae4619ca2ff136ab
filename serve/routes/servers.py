"""Routes of operators who stop, start, restart, retire and replace servers. Need the role `admin`.

Each is what `stelae server` does, by the same code, in the background: the answer is an operation,
as that of the cluster's spec, with the same way to ask how far it is and to end it. One operation
changes the cluster at a time; what is asked meanwhile is 409, and names the one that does. A
replacement that only waits keeps others from its own server alone, whose drain may be taken back.
Decisions §81.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field
from starlette.responses import Response

from stelae.core.records.tokens import Role
from stelae.serve.bodies.models import Body
from stelae.serve.bodies.openapi import json_body, problems
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.routes.cluster_spec import Operation, begun_response, specs_of

router = APIRouter(prefix="/v1/servers", tags=["operators"])

NAME_MAX = 255
_RESPONSES = problems(400, 403, 404, 409, 413, 415, 422, 503, 504)
_Server = Annotated[str, Path(max_length=NAME_MAX, description="A name, or a UUID.")]


class NoOptions(Body):
    """`{}`"""


class LeaveRequest(Body):
    cancel: bool = Field(default=False, description="Take it back; what has moved stays.")


class ReplaceRequest(Body):
    drain: bool = Field(
        default=True,
        examples=[True],
        description="`false`: end it without a drain, where others have all that it has.",
    )
    elsewhere: bool = Field(
        default=False, examples=[False], description="Start the new server on another machine."
    )


async def _begin(request: Request, verb: str, server: str, model: type[Body]) -> Response:
    principal = require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    options = (await gateway.json_body(request, model, timeout_s)).model_dump()
    specs = await specs_of(request)
    return begun_response(
        await specs.begin_server(verb, server, options, principal.name, timeout_s)
    )


@router.post(
    "/{server}:retire",
    status_code=202,
    response_model=Operation,
    responses=_RESPONSES,
    openapi_extra=json_body(LeaveRequest),
)
async def retire(request: Request, server: _Server) -> Response:
    """Move everything off a server of any kind, and give it nothing new. Needs the role `admin`.

    As `stelae server retire --no-wait`: the operation is done once the server is marked, and `text`
    says what is left. `{"cancel": true}` passes while the same server is being replaced.
    """
    return await _begin(request, "retire", server, LeaveRequest)


@router.post(
    "/{server}:stop",
    status_code=202,
    response_model=Operation,
    responses=_RESPONSES,
    openapi_extra=json_body(NoOptions),
)
async def stop(request: Request, server: _Server) -> Response:
    """End a server in order until it is started again. Needs the role `admin`.

    As `stelae server stop`: refused (`failed`, with the reasons) where a table would have too few
    servers.
    """
    return await _begin(request, "stop", server, NoOptions)


@router.post(
    "/{server}:start",
    status_code=202,
    response_model=Operation,
    responses=_RESPONSES,
    openapi_extra=json_body(NoOptions),
)
async def start(request: Request, server: _Server) -> Response:
    """Start a server that was stopped, in its folder. Needs the role `admin`.

    As `stelae server start`.
    """
    return await _begin(request, "start", server, NoOptions)


@router.post(
    "/{server}:restart",
    status_code=202,
    response_model=Operation,
    responses=_RESPONSES,
    openapi_extra=json_body(NoOptions),
)
async def restart(request: Request, server: _Server) -> Response:
    """Restart a server while the others serve. Needs the role `admin`.

    As `stelae server restart`.
    """
    return await _begin(request, "restart", server, NoOptions)


@router.post(
    "/{server}:replace",
    status_code=202,
    response_model=Operation,
    responses=_RESPONSES,
    openapi_extra=json_body(ReplaceRequest),
)
async def replace(request: Request, server: _Server) -> Response:
    """Give a server's name to a new, empty server. Needs the role `admin`.

    As `stelae server replace`: it is drained, ended, and fenced permanently, its folders are
    renamed, and the operation is `done` once the new server lives and nothing lacks. Its `result`
    says the new UUID, and where the former one's folders are.
    """
    return await _begin(request, "replace", server, ReplaceRequest)
