"""What stands before every request: the token, and the bounds on what is in hand at once.

Plain ASGI around the whole application, so that no path, known or unknown, answers past it.

Rules:

1. A request without a good token, or whose token is not for its path, takes no slot, and its body
   is not read.
2. A body is counted while it arrives, whatever its Content-Length said, and has to progress
   (`stelae.serve.gateway.arriving`).
3. One token takes at most `TOKEN_SHARE` of the requests and of the bytes in hand. So the holder of
   one token, by mistake or on purpose, keeps no other token's holder out.
4. What is refused here was definitely not begun.

(design §12, §13.7)
"""

from __future__ import annotations

import base64
import binascii
import time
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
from stelae.serve.bodies.problems import NotAuthenticated, NotPermitted, error_response
from stelae.serve.gateway.arriving import ArrivingBody
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.following import TokenFollower
from stelae.serve.gateway.tokens import Principal

OPEN_PATHS = ("/healthz",)
BROWSER_PATHS = ("/",)
"""Pages a browser opens: the token is also taken as the password of HTTP Basic, for reads alone."""
READS = ("GET", "HEAD")
MAX_AUTHORIZATION = 1024
TOKEN_SHARE = 2
"""One token takes at most one of so many parts of what a replica has in hand."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one HTTP replica."""

    body_bytes: int = MAX_CALL_BYTES
    """Of one request; beyond it, 413."""
    bodies_bytes: int = 4 * MAX_CALL_BYTES
    """Of all requests in hand; beyond it, 429."""
    requests: int = 256
    """In hand at once, half of them of one token; beyond it, 429."""
    rows: int = 1_000_000
    """Of one call; beyond it, 400."""
    timeout_s: float = 30.0
    """Of a call that does not say."""
    timeout_max_s: float = 600.0
    audit_keep_s: float = 90 * 86400.0
    """Seconds for which the audit table keeps a call."""
    audit_rows: int = 50_000
    """Maximum rows of the audit table; the oldest go. Refused requests have a fifth of them."""

    @property
    def token_requests(self) -> int:
        """Maximum requests in hand of one token."""
        return max(1, self.requests // TOKEN_SHARE)

    @property
    def token_bytes(self) -> int:
        """Maximum bytes in hand of the bodies of one token: one body always fits."""
        return max(self.body_bytes, self.bodies_bytes // TOKEN_SHARE)


@dataclass(slots=True)
class _InHand:
    """What the requests of one token hold."""

    requests: int = 0
    size_bytes: int = 0


class Guard:
    """ASGI middleware; see the module. ``clock``: monotonic seconds, for the rate of bodies."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: TokenFollower,
        limits: Callable[[], Limits],
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._audit = audit
        self._limits_now = limits
        self._clock = clock
        self._requests = 0
        self._bytes = 0
        self._of_tokens: dict[str, _InHand] = {}
        """By name; only those with requests in hand."""

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
            self._check_path(scope, principal)
            self._admit(scope, headers, principal)
            account = _TokenAccount(self, principal.name)
            body = ArrivingBody(account, headers, receive, self._clock)
        except StelaeError as error:
            if isinstance(error, NotAuthenticated):
                self._audit.refused(scope, str(error))
            await self._refusal(scope, error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state.update(principal=principal, audit=self._audit, body=body, method=scope["method"])
        self._begin(principal.name)
        try:
            await self._app(scope, body.receive, _audited(state, body, send))
        finally:
            self._end(principal.name, body.size_bytes)

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

    def _check_path(self, scope: Scope, principal: Principal) -> None:
        """Raise `NotPermitted`, once it is noted, unless the token is good for the path."""
        try:
            principal.check_path(path_of(scope))
        except NotPermitted as error:
            self._audit.not_permitted(scope, principal.name, principal.role.value, str(error))
            raise

    def _admit(self, scope: Scope, headers: Headers, principal: Principal) -> None:
        limits = self._limits
        if self._requests >= limits.requests:
            raise Overloaded("the number of concurrent requests", limits.requests)
        held = self._of_tokens.get(principal.name)
        if held is not None and held.requests >= limits.token_requests:
            what = f"the number of concurrent requests of token {principal.name!r}"
            raise Overloaded(what, limits.token_requests)
        if _is_stream(scope):
            return
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length) > limits.body_bytes:
            raise TooLarge("the body", int(length), limits.body_bytes)

    def _begin(self, token: str) -> None:
        self._requests += 1
        self._of_tokens.setdefault(token, _InHand()).requests += 1

    def _end(self, token: str, size_bytes: int) -> None:
        self._requests -= 1
        self.give_back(token, size_bytes)
        held = self._of_tokens[token]
        held.requests -= 1
        if not held.requests:
            del self._of_tokens[token]

    def _refusal(self, scope: Scope, error: StelaeError) -> Response:
        response = error_response(error)
        if isinstance(error, NotAuthenticated) and _is_page(scope):
            response.headers.append("WWW-Authenticate", 'Basic realm="stelae", charset="UTF-8"')
        return response

    def take(self, token: str, more_bytes: int, so_far_bytes: int) -> None:
        """Count bytes of a body as they arrive. Raises `TooLarge` or `Overloaded`."""
        limits, held = self._limits, self._of_tokens[token]
        if so_far_bytes + more_bytes > limits.body_bytes:
            raise TooLarge("the body", so_far_bytes + more_bytes, limits.body_bytes)
        if self._bytes + more_bytes > limits.bodies_bytes:
            raise Overloaded("the size of all bodies in hand", limits.bodies_bytes)
        if held.size_bytes + more_bytes > limits.token_bytes:
            what = f"the size of all bodies in hand of token {token!r}"
            raise Overloaded(what, limits.token_bytes)
        self._bytes += more_bytes
        held.size_bytes += more_bytes

    def give_back(self, token: str, size_bytes: int) -> None:
        """Bytes of a body are not in hand any more."""
        self._bytes -= size_bytes
        self._of_tokens[token].size_bytes -= size_bytes


@dataclass(frozen=True, slots=True)
class _TokenAccount:
    """The account that the bodies of one token go to."""

    guard: Guard
    token: str

    def take(self, more_bytes: int, so_far_bytes: int) -> None:
        self.guard.take(self.token, more_bytes, so_far_bytes)

    def give_back(self, size_bytes: int) -> None:
        self.guard.give_back(self.token, size_bytes)


def _audited(state: dict[str, Any], body: ArrivingBody, send: Send) -> Send:
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
    body: ArrivingBody = request.state.body
    body.release(size_bytes)


def _is_page(scope: Scope) -> bool:
    return scope["method"] in READS and path_of(scope) in BROWSER_PATHS


def _basic_password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        raise NotAuthenticated("the header Authorization is not well formed") from None


def require(request: Request, role: Role) -> Principal:
    """Who asks, if that is enough for the role. What only admins may do is noted first unless it
    is a read, and whoever else asks for it.

    Raises `NotPermitted`; RetryLater: it cannot be noted, so it is not done.
    """
    principal = principal_of(request)
    if role is not Role.ADMIN:
        principal.check(role)
        return principal
    audit: AuditLog = request.state.audit
    asked = {**request.scope, "method": request.state.method}
    try:
        principal.check(role)
    except NotPermitted as error:
        audit.not_permitted(asked, principal.name, principal.role.value, str(error))
        raise
    if request.state.method not in READS:
        request.state.audited = audit.begin(asked, principal.name, principal.role.value)
    return principal


def principal_of(request: Request) -> Principal:
    """Who asks, as the guard found."""
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal
