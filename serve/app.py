"""The HTTP API as a FastAPI application over a database. Knows no Ray. (design §12)

Paths and bodies are in ``/openapi.json``. Every error is a problem document
(`stelae.serve.bodies.problems`); every path but ``/healthz`` wants a token
(`stelae.serve.gateway.guard`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import HTMLResponse, Response

from stelae.core.current import request_id
from stelae.core.errors import StelaeError
from stelae.serve.bodies.indexes import CreateIndexRequest, FindRequest
from stelae.serve.bodies.models import (
    AlterTableRequest,
    CreateTableRequest,
    GetRequest,
    Health,
    Problem,
    ScanRequest,
    WriteRequest,
)
from stelae.serve.bodies.openapi import finish, problems
from stelae.serve.bodies.problems import (
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    UNHEALTHY,
    ProblemType,
    all_problems,
    error_response,
    has_condition,
    plain_response,
)
from stelae.serve.bodies.safekeepers import (
    MigrateRequest,
    MigrateSafekeeperRequest,
    SafekeeperStatusRequest,
    UpsertSafekeeperRequest,
)
from stelae.serve.bodies.status import (
    Cluster,
    CopyListing,
    ProblemInfo,
    RecoveryListing,
    ServerListing,
    TabletStatus,
)
from stelae.serve.gateway.around import Around
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.audit_copier import AuditCopier
from stelae.serve.gateway.following import TokenFollower
from stelae.serve.gateway.gateway import DatabaseSource, Gateway, InvalidBody, gateway_of
from stelae.serve.gateway.guard import Guard, Limits
from stelae.serve.gateway.head import HeadAsGet
from stelae.serve.gateway.request_ids import HEADER, RequestIds
from stelae.serve.gateway.tokens import TokenVerifier
from stelae.serve.pages.page import REFRESH_S, headers, status_page
from stelae.serve.pages.tables import View
from stelae.serve.routes import audit as audit_routes
from stelae.serve.routes import cluster_spec, finds, losses, operators, rows, scans, tables
from stelae.serve.routes import safekeepers as control
from stelae.serve.routes import servers as server_routes
from stelae.serve.routes import tokens as token_routes
from stelae.serve.routes.losses import AcceptLossRequest
from stelae.serve.routes.operators import (
    MoveRequest,
    ReplicasRequest,
    RetireRequest,
    StepDownRequest,
)
from stelae.serve.routes.row_shortcut import RowShortcut
from stelae.serve.routes.tables import json_response
from stelae.serve.routes.tokens import CreateTokenRequest

logger = logging.getLogger(__name__)

DESCRIPTION = """Strongly consistent, durable tables inside Ray.

Send `Authorization: Bearer <token>`. Roles: `read` reads, `write` also writes rows, `admin` also
makes and deletes tables, and moves logs. JSON for a few rows, Arrow IPC streams
(`application/vnd.apache.arrow.stream`) for many.

JSON: dates and timestamps are ISO 8601 text, times and durations are counts of their unit, binary
is base64, decimals are text, NaN and the infinities are the text `NaN`, `Infinity`, `-Infinity`;
integers are exact beyond 2**53. What `GET` gives, `PUT` takes back.

A row is named in the path, or by `?key=` once for each key column, which takes every key: clients
and proxies change paths (`.`, `..`, slashes), and no queries.

`HEAD` is answered wherever `GET` is. Bodies may have `Content-Encoding: gzip`.
"""
_BODIES = (
    Problem,
    CreateTableRequest,
    AlterTableRequest,
    WriteRequest,
    GetRequest,
    ScanRequest,
    FindRequest,
    CreateIndexRequest,
    UpsertSafekeeperRequest,
    SafekeeperStatusRequest,
    MigrateSafekeeperRequest,
    MigrateRequest,
    AcceptLossRequest,
    cluster_spec.ClusterSpecRequest,
    MoveRequest,
    ReplicasRequest,
    StepDownRequest,
    RetireRequest,
    server_routes.NoOptions,
    server_routes.LeaveRequest,
    server_routes.ReplaceRequest,
    CreateTokenRequest,
)


def make_app(
    database: DatabaseSource,
    tokens: TokenVerifier,
    limits: Limits | None = None,
    token_key: bytes = b"",
    audit: AuditLog | None = None,
    specs: cluster_spec.ClusterSpecs | None = None,
    *,
    is_named: bool = False,
) -> FastAPI:
    """The application.

    ``specs``: who carries out what is put to the cluster's spec; None: nobody does here.
    ``database``: an `AsyncDatabase` of the loop that the application will run in, or a function
    that makes one there, called at the first request; what it made is closed with the application.
    ``is_named``: whoever stands before it gives answers the ids of their requests.
    ``token_key``: the same in all replicas, so that each understands the tokens of another.
    """
    limits = limits or Limits()
    gateway = Gateway(database, limits, token_key)
    audit = audit or AuditLog()
    around = Around(None if specs is None else specs.around)
    copier = None
    if audit.folder is not None:
        copier = AuditCopier(audit, gateway.database, lambda: gateway.limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        if copier is not None:
            copier.start()
        yield
        if copier is not None:
            await copier.close()
        await around.close()
        await gateway.close()

    app = _Application(
        title="Stelae",
        version="1",
        description=DESCRIPTION,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.state.cluster_specs = specs
    app.state.around = around
    for router in _ROUTERS:
        app.include_router(router)
    _add_error_handlers(app)
    app.state.tokens = tokens
    app.add_middleware(RowShortcut, handlers=_HANDLERS)
    app.add_middleware(HeadAsGet)
    follower = TokenFollower(tokens, gateway.database)
    app.add_middleware(Guard, tokens=follower, limits=lambda: gateway.limits, audit=audit)
    app.add_middleware(RequestIds, is_named=is_named)
    app.state.is_named = is_named
    return app


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = finish(super().openapi(), _BODIES)
        return self.openapi_schema


# ---- health and status ----------------------------------------------------------------------

_health = APIRouter(tags=["health"])
_status = APIRouter(tags=["status"])
_ROUTERS = (
    rows.router,  # first, as routes are tried in turn
    _health,
    _status,
    tables.router,
    scans.router,
    finds.router,
    control.router,
    losses.router,
    cluster_spec.router,
    operators.router,
    server_routes.router,
    token_routes.router,
    audit_routes.router,
)


@_health.get(
    "/healthz",
    response_model=Health,
    responses={503: {"description": "The masters do not answer.", "model": Problem}},
)
async def healthz(request: Request) -> Response:
    """Whether the cluster's masters answer, at most half a second ago. The one path that needs no
    token."""
    error = await gateway_of(request).health.check()
    if error is not None:
        return plain_response(UNHEALTHY, f"the masters do not answer: {error}")
    return json_response({"status": "ok"})


@_status.get("/", response_class=HTMLResponse, responses=problems(503))
async def page(
    request: Request,
    table: Annotated[str, Query(max_length=1000, description="Tablets of this table alone.")] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Of the tablets.")] = 1,
    refresh: Annotated[int, Query(ge=0, le=3600, description="Seconds; 0: never.")] = REFRESH_S,
) -> Response:
    """The status page. A browser may give the token as password (any user name)."""
    shown = status_page(await _document(request), View(table, page, refresh))
    return HTMLResponse(shown, headers=headers())


@_status.get("/v1/cluster", response_model=Cluster, responses=problems(503))
async def cluster(request: Request) -> Response:
    """The status document: servers, tables, tablets, recoveries.

    With `?max_staleness=` (seconds) any master may answer whose state is no older; a follower does
    not know how much is in tablets (null).
    """
    return json_response(await _document(request, gateway_of(request).max_staleness(request)))


@_status.get("/v1/servers", response_model=ServerListing, responses=problems(503))
async def servers(request: Request) -> Response:
    """All servers."""
    return json_response({"servers": (await _document(request))["servers"]})


@_status.get("/v1/recoveries", response_model=RecoveryListing, responses=problems(503))
async def recoveries(request: Request) -> Response:
    """Recoveries, past and under way."""
    return json_response({"recoveries": (await _document(request))["recoveries"]})


@_status.get("/v1/copies", response_model=CopyListing, responses=problems(503))
async def copies(request: Request) -> Response:
    """Copies of tablets from one server to another: under way, throttled, or about to begin."""
    return json_response({"copies": (await _document(request))["copies"]})


@_status.get("/v1/tablets/{tablet_id}", response_model=TabletStatus, responses=problems(404, 503))
async def tablet(request: Request, tablet_id: str) -> Response:
    """One tablet: where it is, its state, leader, term and durability."""
    for found in (await _document(request))["tablets"]:
        if found["id"] == tablet_id:
            return json_response(found)
    raise HTTPException(404, f"there is no tablet {tablet_id[:80]!r}")


@_status.get("/problems/{slug}", response_model=ProblemInfo, responses=problems(404))
async def problem(slug: str) -> Response:
    """What a problem type means."""
    kind = all_problems().get(slug)
    if kind is None:
        raise HTTPException(404, f"there is no problem type {slug[:80]!r}")
    return json_response({"type": kind.uri, "title": kind.title, "status": kind.status})


async def _document(request: Request, max_staleness: float | None = None) -> dict[str, Any]:
    gateway = gateway_of(request)
    database = await gateway.database()
    status = await database.status(max_staleness=max_staleness, timeout=gateway.timeout_s(request))
    around: Around = request.app.state.around
    return await around.added(status)


# ---- errors ---------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _unexpected)


async def _stelae_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StelaeError)
    return error_response(error, conditional=has_condition(request))


async def _invalid_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidBody)
    return _invalid(error.errors)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _invalid(
        [
            {"path": ".".join(str(part) for part in item["loc"]), "message": item["msg"]}
            for item in error.errors()[:20]
        ]
    )


def _invalid(errors: list[dict[str, str]]) -> Response:
    detail = "; ".join(f"{error['path'] or 'body'}: {error['message']}" for error in errors)
    return plain_response(INVALID_REQUEST, detail, errors=errors)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    kind = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}.get(error.status_code)
    if kind is None:
        kind = ProblemType(error.status_code, "http-error", str(error.detail))
    return plain_response(kind, str(error.detail), headers=error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises it again after this answer, so that the server's log has its trace."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    # This answer goes out past all middleware.
    named = {} if request.app.state.is_named else {HEADER: request_id()}
    detail = f"an unexpected {type(error).__name__}; the log has more"
    return plain_response(INTERNAL, detail, headers=named)


_HANDLERS = {
    StelaeError: _stelae_error,
    InvalidBody: _invalid_body,
    RequestValidationError: _validation_error,
    StarletteHTTPException: _http_error,
}
