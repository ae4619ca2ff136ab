"""Generated requests against every route of the API: no answer outside its own description."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytestmark = pytest.mark.slow

CALLS_PER_ROUTE = 60


def test_generated_requests_are_answered_as_described(tmp_path: Path) -> None:
    """schemathesis: no 5xx of ours, and status, media type and body as OpenAPI says. Of safekeepers
    and timelines half of the requests name one that is there."""
    import asyncio
    import threading

    import schemathesis
    from http_world import Role, http_world
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    started, stop = threading.Event(), asyncio.Event()
    box: dict[str, object] = {}

    async def serve_until_stopped() -> None:
        box["loop"] = asyncio.get_running_loop()
        async with http_world(tmp_path) as world:
            box["world"] = world
            box["there"] = await make_timeline(world)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_stopped()))
    thread.start()
    assert started.wait(30)
    world, loop = box["world"], box["loop"]
    there: dict[str, object] = box["there"]  # type: ignore[assignment]
    statuses: dict[str, set[int]] = {}
    headers = {"Authorization": f"Bearer {world.tokens[Role.ADMIN]}"}  # type: ignore[attr-defined]
    try:
        app = in_loop(world.app, loop)  # type: ignore[attr-defined]
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=headers)
        for result in schema.get_all_operations():
            operation = result.ok()

            @given(case=operation.as_strategy(), is_there=st.booleans())
            @settings(
                max_examples=CALLS_PER_ROUTE,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def check(case: schemathesis.Case, is_there: bool) -> None:
                if is_there and case.operation.path.startswith("/control/"):
                    for name in case.path_parameters:
                        case.path_parameters[name] = there[name]
                answer = case.call_and_validate(
                    headers=headers,
                    checks=[
                        no_unexpected_error,
                        status_code_conformance,
                        content_type_conformance,
                        response_schema_conformance,
                    ],
                )
                statuses.setdefault(case.operation.label, set()).add(answer.status_code)

            check()
    finally:
        loop.call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
        thread.join(30)
    control = {label: found for label, found in statuses.items() if "/control/" in label}
    unreached = [
        label for label in control if label.startswith("GET ") and 200 not in control[label]
    ]
    assert len(control) >= 11, sorted(control)
    assert not unreached, control


async def make_timeline(world: object) -> dict[str, object]:
    """A table with a timeline; the path parameters that name them, and a safekeeper."""
    body = {
        "name": "timelines",
        "columns": [{"name": "id", "type": "int64", "nullable": False}],
        "key": ["id"],
        "durability": {"wal": 3, "segments": ["disk"]},
    }
    async with world.client() as client:  # type: ignore[attr-defined]
        assert (await client.post("/v1/tables", json=body)).status_code == 201
        found = (await client.get("/v1/tables/timelines/tablets")).json()["tablets"]
    tablet = found[0]["tablet"]["tablet_id"]
    return {"tenant_id": "timelines", "timeline_id": tablet, "node_id": 1}


def no_unexpected_error(context: object, response: object, case: object) -> None:
    """503 and 504 are answers (a deadline of a nanosecond gets them); 500 and 502 are not."""
    assert response.status_code not in (500, 502), response.text  # type: ignore[attr-defined]


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
