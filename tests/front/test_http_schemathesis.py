"""Generated requests against every route of the API: no answer outside its own description."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tests.front.http_world import World

CALLS_PER_ROUTE = 15


def test_generated_requests_are_answered_as_described(tmp_path: Path) -> None:
    """schemathesis: no 5xx of ours, and status, media type and body as OpenAPI says. Of safekeepers
    and timelines half of the requests name one that is there."""
    import threading

    import schemathesis

    from stelae.core.records.tokens import Role
    from tests.front.generated_requests import ask_every_route, check_control_routes, make_timeline
    from tests.front.http_world import http_world

    started, stop = threading.Event(), asyncio.Event()
    served: list[tuple[asyncio.AbstractEventLoop, World, dict[str, object]]] = []

    async def serve_until_stopped() -> None:
        async with http_world(tmp_path) as world:
            async with world.client() as client:
                there = await make_timeline(client)
            served.append((asyncio.get_running_loop(), world, there))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_stopped()))
    thread.start()
    assert started.wait(120)
    ((loop, world, there),) = served
    headers = {"Authorization": f"Bearer {world.tokens[Role.ADMIN]}"}
    try:
        app = in_loop(world.app, loop)
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=headers)
        statuses = ask_every_route(schema, headers, there, calls_per_route=CALLS_PER_ROUTE)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(120)
    check_control_routes(statuses)


def in_loop(app: ASGIApp, loop: asyncio.AbstractEventLoop) -> ASGIApp:
    """The application, run in the loop that its cluster lives in, for callers of other loops."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        here = asyncio.get_running_loop()

        def across(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def made(*args: Any) -> Any:
                return await function(*args)

            async def call(*args: Any) -> Any:
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(made(*args), here)
                )

            return call

        async def work() -> None:
            await app(scope, across(receive), across(send))

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))

    return wrapped
