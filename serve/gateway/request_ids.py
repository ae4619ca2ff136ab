"""Each HTTP request has an id: the caller's ``X-Request-Id`` if it is sane, else a new one.

Plain ASGI, outermost, so that refusals have one, too. The id is in the answer's header, in problem
documents, in the audit log, and in every line that this replica or a server logs while it works on
the request.
"""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stelae.core import tracing
from stelae.core.current import CURRENT, is_sane_id
from stelae.core.tracing import sane_parent

HEADER = "X-Request-Id"
METHOD_CHARS, PATH_CHARS = 20, 200
"""So much is noted of what anybody may send, with a token or without."""


class RequestIds:
    """ASGI middleware; see the module. ``is_named``: whoever stands before it puts the id that it
    was sent, or has made for it, into each answer, as Ray Serve does; this one sets no header then,
    so that there are not two, and if the caller's was not sane its own is in the body alone."""

    def __init__(self, app: ASGIApp, *, is_named: bool = False) -> None:
        self.app = app
        self._is_named = is_named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if is_sane_id(given) else secrets.token_hex(8)
        span = _begin_span(scope, request_id)
        trace = "" if span is None else span.context
        # Not taken back: what answers a request that broke down is outside of this, in its task.
        CURRENT.set((request_id, f"{scope['method'][:METHOD_CHARS]} {_path(scope)}", None, trace))
        if self._is_named and span is None:
            await self.app(scope, receive, send)
            return
        status = 500

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not self._is_named:
                    MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            if span is not None:
                failed = f"HTTP {status}" if status >= 500 else ""
                span.end(failed, {"http.response.status_code": status})


def _begin_span(scope: Scope, request_id: str) -> tracing.Span | None:
    """Part of the caller's trace, if there is one."""
    if tracing.active is None:
        return None
    parent = sane_parent(Headers(scope=scope).get("traceparent", ""))
    about = {
        "http.request.method": str(scope["method"][:METHOD_CHARS]),
        "url.path": _path(scope),
        "stelae.request_id": request_id,
    }
    name = f"HTTP {scope['method'][:METHOD_CHARS]}"
    return tracing.active.begin(name, "server", parent, about)


def _path(scope: Scope) -> str:
    """Its beginning, with everything escaped that is not plain ASCII."""
    return ascii(scope["path"][:PATH_CHARS])[1:-1]
