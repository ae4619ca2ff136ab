"""The way of single rows past the framework's routing, which takes longer than a row does.

The same handlers, answers and errors as by the routes that OpenAPI describes: only how the handler
is found differs. Stands behind the guard, so token and bounds hold here as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stelae.serve.gateway.guard import path_of
from stelae.serve.routes.rows import delete_row, get_row, put_row

_ROW = re.compile(r"/v1/tables/([^/]+)/rows(?:/.*)?", re.DOTALL)
_HANDLERS: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "GET": get_row,
    "PUT": put_row,
    "DELETE": delete_row,
}


class RowShortcut:
    """ASGI middleware; see the module. ``handlers``: of the application's errors, by class."""

    def __init__(
        self,
        app: ASGIApp,
        handlers: Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]],
    ) -> None:
        self._app = app
        self._errors = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = _HANDLERS.get(scope["method"]) if scope["type"] == "http" else None
        found = _ROW.fullmatch(path_of(scope)) if handler is not None else None
        if found is None or handler is None:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = {"table": found[1]}
        request = Request(scope, receive, send)
        try:
            response = await handler(request)
        except Exception as error:
            shown = next((self._errors[k] for k in type(error).__mro__ if k in self._errors), None)
            if shown is None:
                raise
            response = await shown(request, error)
        await response(scope, receive, send)
