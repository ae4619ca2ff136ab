"""Generated requests against every route of the API: no answer outside its own description."""

from __future__ import annotations

from pathlib import Path

CALLS_PER_ROUTE = 15


def test_generated_requests_are_answered_as_described(tmp_path: Path) -> None:
    """schemathesis: no 5xx of ours, and status, media type and body as OpenAPI says. Of safekeepers
    and timelines half of the requests name one that is there."""
    import asyncio
    import threading

    import schemathesis

    from tests.front.generated_requests import ask_every_route, check_control_routes, make_timeline
    from tests.front.http_world import Role, http_world

    started, stop = threading.Event(), asyncio.Event()
    box: dict[str, object] = {}

    async def serve_until_stopped() -> None:
        box["loop"] = asyncio.get_running_loop()
        async with http_world(tmp_path) as world:
            box["world"] = world
            async with world.client() as client:
                box["there"] = await make_timeline(client)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_stopped()))
    thread.start()
    assert started.wait(120)
    world, loop = box["world"], box["loop"]
    there: dict[str, object] = box["there"]  # type: ignore[assignment]
    headers = {"Authorization": f"Bearer {world.tokens[Role.ADMIN]}"}  # type: ignore[attr-defined]
    try:
        app = in_loop(world.app, loop)  # type: ignore[attr-defined]
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=headers)
        statuses = ask_every_route(schema, headers, there, calls_per_route=CALLS_PER_ROUTE)
    finally:
        loop.call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
        thread.join(120)
    check_control_routes(statuses)


def in_loop(app: object, loop: object) -> object:
    """The application, run in the loop that its cluster lives in, for callers of other loops."""
    import asyncio

    async def wrapped(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
        if scope["type"] == "lifespan":
            await receive()  # type: ignore[operator]
            await send({"type": "lifespan.startup.complete"})  # type: ignore[operator]
            await receive()  # type: ignore[operator]
            await send({"type": "lifespan.shutdown.complete"})  # type: ignore[operator]
            return
        here = asyncio.get_running_loop()

        def across(function):  # type: ignore[no-untyped-def]
            async def call(*args):  # type: ignore[no-untyped-def]
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(function(*args), here)
                )

            return call

        work = app(scope, across(receive), across(send))  # type: ignore[operator]
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))  # type: ignore[arg-type]

    return wrapped
