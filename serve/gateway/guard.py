"""What stands before every request: the token, and the bounds on what is in hand at once.

Plain ASGI around the whole application, so that no path, known or unknown, answers past it.
Invariants: who has no token takes no slot and has no body read; a body is counted while it
arrives, whatever its Content-Length said; what is refused here was surely not begun. (design §12,
§13.7)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stelae.core.errors import Overloaded, StelaeError, TooLarge
from stelae.core.records.tokens import Role
from stelae.core.schema.schema import MAX_CALL_BYTES
from stelae.serve.bodies.problems import NotAuthenticated, error_response
from stelae.serve.gateway.audit import BODY_BYTES, AuditLog
from stelae.serve.gateway.following import TokenFollower
from stelae.serve.gateway.tokens import Principal

OPEN_PATHS = ("/healthz",)
BROWSER_PATHS = ("/",)
"""Pages a browser opens: the token is also taken as the password of HTTP Basic, for GET alone."""
MAX_AUTHORIZATION = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one HTTP replica."""

    body_bytes: int = MAX_CALL_BYTES
    """Of one request; beyond it, 413."""
    bodies_bytes: int = 4 * MAX_CALL_BYTES
    """Of all requests in hand; beyond it, 429."""
    requests: int = 256
    """In hand at once; beyond it, 429."""
    rows: int = 1_000_000
    """Of one call; beyond it, 400."""
    timeout_s: float = 30.0
    """Of a call that does not say."""
    timeout_max_s: float = 600.0


class Guard:
    """ASGI middleware; see the module."""

    def __init__(
        self, app: ASGIApp, tokens: TokenFollower, limits: Callable[[], Limits], audit: AuditLog
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._audit = audit
        self._limits_now = limits
        self._requests = 0
        self._bytes = 0

    @property
    def _limits(self) -> Limits:
        return self._limits_now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not path_of(scope):  # the prefix itself, without a slash
            scope = {**scope, "path": scope["path"] + "/"}
        if scope["type"] != "http" or path_of(scope) in OPEN_PATHS:
            await self._pass(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            principal = await self._authenticate(scope, headers)
            self._admit(scope, headers)
        except StelaeError as error:
            await self._refusal(scope, error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        counted = _CountedBody(self, receive)
        state.update(principal=principal, audit=self._audit, counted=counted)
        self._requests += 1
        try:
            await self._app(scope, counted.receive, _audited(state, counted, send))
        finally:
            self._requests -= 1
            self._bytes -= counted.size_bytes

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lifespan events and open paths; there are no websockets here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Principal:
        given = headers.get("authorization", "")
        if not given:
            raise NotAuthenticated("send the header Authorization: Bearer <token>")
        scheme, _, rest = given[:MAX_AUTHORIZATION].partition(" ")
        if scheme.lower() == "basic" and _is_page(scope):
            rest = _basic_password(rest)
        elif scheme.lower() != "bearer":
            raise NotAuthenticated("the header Authorization must begin with Bearer")
        return await self._tokens.verify(rest.strip())

    def _admit(self, scope: Scope, headers: Headers) -> None:
        if self._requests >= self._limits.requests:
            raise Overloaded("the number of concurrent requests", self._limits.requests)
        if _is_stream(scope):
            return
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length) > self._limits.body_bytes:
            raise TooLarge("the body", int(length), self._limits.body_bytes)

    def _refusal(self, scope: Scope, error: StelaeError) -> Response:
        response = error_response(error)
        if isinstance(error, NotAuthenticated) and _is_page(scope):
            response.headers.append("WWW-Authenticate", 'Basic realm="stelae", charset="UTF-8"')
        return response

    def take(self, more_bytes: int, so_far_bytes: int) -> None:
        """Count bytes of a body as they arrive. Raises `TooLarge` or `Overloaded`."""
        if so_far_bytes + more_bytes > self._limits.body_bytes:
            raise TooLarge("the body", so_far_bytes + more_bytes, self._limits.body_bytes)
        if self._bytes + more_bytes > self._limits.bodies_bytes:
            raise Overloaded("the size of all bodies in hand", self._limits.bodies_bytes)
        self._bytes += more_bytes

    def give_back(self, size_bytes: int) -> None:
        """Bytes of a body that is still arriving are not in hand any more."""
        self._bytes -= size_bytes


class _CountedBody:
    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard = guard
        self._receive = receive
        self.size_bytes = 0
        self.head = b""
        """How it begins."""

    def release(self, size_bytes: int) -> None:
        """So much of it was dealt with, and is not in hand any more."""
        self.size_bytes -= size_bytes
        self._guard.give_back(size_bytes)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            size = len(body)
            if len(self.head) < BODY_BYTES:
                self.head += body[:BODY_BYTES]
            self._guard.take(size, self.size_bytes)
            self.size_bytes += size
        return message


def _audited(state: dict[str, Any], body: _CountedBody, send: Send) -> Send:
    """Note how a call ends that only admins may make, before it is answered."""

    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start" and (entry := state.get("audited")):
            await state["audit"].end(entry, message["status"], body.head)
        await send(message)

    return noting


def path_of(scope: Scope) -> str:
    """The path below where this application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root.rstrip("/")) if root else path


def _is_stream(scope: Scope) -> bool:
    """Whether a body is read in windows, and so may be longer than any body in hand."""
    query: bytes = scope.get("query_string", b"")
    return path_of(scope).endswith("/rows:write") and b"stream=true" in query.split(b"&")


def release_body(request: Request, size_bytes: int) -> None:
    """So much of the request's body was dealt with."""
    counted: _CountedBody = request.state.counted
    counted.release(size_bytes)


def _is_page(scope: Scope) -> bool:
    return scope["method"] == "GET" and path_of(scope) in BROWSER_PATHS


def _basic_password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        raise NotAuthenticated("the header Authorization is not well formed") from None


def require(request: Request, role: Role) -> Principal:
    """Who asks, if that is enough for the role; what only admins may do is noted first.

    Raises `NotPermitted`.
    """
    principal = principal_of(request)
    if role is Role.ADMIN:
        audit: AuditLog = request.state.audit
        request.state.audited = audit.begin(request.scope, principal.name, principal.role.value)
    principal.check(role)
    return principal


def principal_of(request: Request) -> Principal:
    """Who asks, as the guard found."""
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal
