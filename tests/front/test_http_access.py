"""Who may ask the HTTP API, and how much at once; what it says of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from stelae.core.records.tokens import Role
from stelae.serve import app as app_module
from stelae.serve.app import make_app
from stelae.serve.gateway.guard import Limits
from tests.front.http_flights import flights_of, make_flights
from tests.front.http_world import World, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


# ---- who may ask ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/tables",
        "/v1/cluster",
        "/openapi.json",
        "/docs",
        "/nothing",
        "/healthz/",
        "//healthz",
        "/problems/row-exists",
    ],
)
async def test_nothing_but_health_answers_without_a_token(world: World, path: str) -> None:
    """Known and unknown paths alike are 401 with a challenge."""
    async with world.client(None) as client:
        response = await client.get(path)
        problem_of(response, 401, "not-authenticated")
        assert "Bearer" in response.headers["www-authenticate"]
        wrong = await client.get(path, headers={"Authorization": "Bearer stelae_wrong"})
        problem_of(wrong, 401, "not-authenticated")


async def test_health_is_open_and_true(world: World) -> None:
    """200 while the masters answer."""
    async with world.client(None) as client:
        response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_health_says_when_the_masters_do_not_answer(world: World, tmp_path: Path) -> None:
    """503 when there is no master at the addresses."""
    from stelae.client.database import AsyncDatabase
    from stelae.core.ids import Address

    lost = AsyncDatabase(world.cluster.client_runtime(tmp_path.name), [Address("127.0.0.1:1")])
    app = make_app(lost, world.verifier)
    async with world.client(None, app) as client:
        response = await client.get("/healthz")
    problem_of(response, 503, "no-quorum")
    async with world.client(Role.READ, app) as client:
        response = await client.get(
            "/v1/tables/t/rows/1", headers={"Stelae-Timeout-Seconds": "0.2"}
        )
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


async def test_roles_are_enforced(world: World, http: httpx.AsyncClient) -> None:
    """read reads, write also writes rows, only admin makes and deletes tables."""
    await make_flights(world, http, 1)
    async with world.client(Role.READ) as reader, world.client(Role.WRITE) as writer:
        assert (await reader.get("/v1/tables/flights/rows/0")).status_code == 200
        for attempt in (
            reader.put("/v1/tables/flights/rows/0", json={}),
            reader.delete("/v1/tables/flights/rows/0"),
            reader.post("/v1/tables/flights/rows:write", json={"rows": []}),
            writer.delete("/v1/tables/flights"),
            writer.post("/v1/tables", json=flights_of(world)),
        ):
            problem_of(await attempt, 403, "not-permitted")
        assert (await writer.delete("/v1/tables/flights/rows/0")).status_code == 204


async def test_the_page_takes_the_token_as_a_password_and_writes_do_not(
    world: World, http: httpx.AsyncClient
) -> None:
    """Browsers can open /, but their stored password is no way to write."""
    await make_flights(world, http)
    auth = httpx.BasicAuth("me", world.tokens[Role.ADMIN])
    async with world.client(None) as client:
        assert "Basic" in (await client.get("/")).headers.get_list("www-authenticate")[1]
        page = await client.get("/", auth=auth)
        assert page.status_code == 200
        assert "flights" in page.text
        assert "tserver-0" in page.text
        assert "http" not in page.text.replace("http-equiv", "")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        problem_of(await client.delete("/v1/tables/flights", auth=auth), 401, "not-authenticated")


# ---- bounds ---------------------------------------------------------------------------------


async def test_bodies_are_bounded_while_they_arrive(world: World, http: httpx.AsyncClient) -> None:
    """413 by Content-Length, and by counting where there is none."""
    await make_flights(world, http)
    app = make_app(world.cluster.database, world.verifier, Limits(body_bytes=1000, rows=10))
    async with world.client(app=app) as client:
        path = "/v1/tables/flights/rows:write"
        problem_of(await client.post(path, content=b"x" * 1001), 413, "too-large")
        sent = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(100):
                sent += 1
                yield b"x" * 100

        problem_of(await client.post(path, content=pieces()), 413, "too-large")
        rows = {"rows": [{"id": i} for i in range(11)]}
        problem_of(await client.post(path, json=rows), 400, "invalid-argument")


async def test_more_requests_than_the_limit_are_turned_away(
    world: World, http: httpx.AsyncClient
) -> None:
    """429 with Retry-After while others are in hand; afterwards all is well again."""
    app = make_app(world.cluster.database, world.verifier, Limits(requests=2))
    release = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"rows": ['
        begun.release()
        await release.wait()
        yield b"]}"

    await make_flights(world, http)
    path = "/v1/tables/flights/rows:write"
    async with (
        world.client(app=app) as client,
        world.client(Role.WRITE, app) as writer,
        asyncio.TaskGroup() as group,
    ):
        senders = (client, writer)  # one token has half of the slots
        tasks = [group.create_task(each.post(path, content=slow())) for each in senders]
        for _ in tasks:
            await begun.acquire()
        refused = await client.get("/v1/tables")
        problem_of(refused, 429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        release.set()
        assert [(await task).status_code for task in tasks] == [200, 200]
        assert (await client.get("/v1/tables")).status_code == 200


async def test_a_body_that_does_not_come_ends_at_the_deadline(http: httpx.AsyncClient) -> None:
    """No request is held longer than its deadline by a client that sends nothing."""
    never = asyncio.Event()

    async def nothing() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    response = await http.post(
        "/v1/tables", content=nothing(), headers={"Stelae-Timeout-Seconds": "0.05"}
    )
    problem_of(response, 503, "deadline-expired")


# ---- status and description -----------------------------------------------------------------


async def test_status_documents_agree(world: World, http: httpx.AsyncClient) -> None:
    """/v1/cluster, /v1/servers, /v1/recoveries and /v1/tablets/{id} show one state."""
    await make_flights(world, http, 10)
    cluster = (await http.get("/v1/cluster")).json()
    kinds = {server["kind"] for server in (await http.get("/v1/servers")).json()["servers"]}
    assert kinds == {"master", "tserver", "safekeeper", "backup"}
    assert (await http.get("/v1/recoveries")).json() == {"recoveries": cluster["recoveries"]}
    for tablet in cluster["tablets"]:
        shown = (await http.get(f"/v1/tablets/{tablet['id']}")).json()
        assert (shown["table"], shown["term"]) == ("flights", tablet["term"])
    problem_of(await http.get("/v1/tablets/none"), 404, "not-found")
    described = (await http.get("/problems/row-exists")).json()
    assert described["status"] == 409


async def test_the_description_names_every_route_and_resolves(http: httpx.AsyncClient) -> None:
    """OpenAPI: the routes of the design, problem schemas for errors, no dangling reference."""
    text = (await http.get("/openapi.json")).text
    document = json.loads(text)
    for path in (
        "/healthz",
        "/",
        "/v1/tables",
        "/v1/tables/{table}",
        "/v1/tables/{table}/rows/{key}",
        "/v1/tables/{table}/rows:write",
        "/v1/tables/{table}/rows:get",
        "/v1/tables/{table}/rows:scan",
        "/v1/cluster",
        "/v1/servers",
        "/v1/recoveries",
        "/v1/tablets/{tablet_id}",
    ):
        assert path in document["paths"]
    schemas = document["components"]["schemas"]
    for part in text.split('"$ref":"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in schemas
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status[0] in "45" and "Health" not in json.dumps(answer):
                    kinds = ["application/problem+json"]
                    kinds += ["text/plain"] if status in ("408", "429", "503") else []
                    assert list(answer["content"]) == kinds


async def test_every_json_body_is_described_with_an_example_that_is_one(
    http: httpx.AsyncClient,
) -> None:
    """Of a JSON body there is an example, and the models themselves take it."""
    document = (await http.get("/openapi.json")).json()
    models = {model.__name__: model for model in app_module._BODIES}
    shown = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "requestBody" not in operation:
                continue
            body = operation["requestBody"]["content"]["application/json"]
            assert body["example"] is not None, (method, path)
            name = body["schema"].get("$ref", "").rpartition("/")[2]
            if name:
                models[name].model_validate(body["example"])
            shown += 1
    assert shown > 15


async def test_bounds_that_change_hold_at_once(world: World) -> None:
    """In an application that runs, as `stelae apply` changes them: in the guard, and in routes."""
    app = make_app(world.cluster.database, world.verifier)
    async with world.client(app=app) as client:
        assert (await client.post("/v1/tables", content=b"x" * 2000)).status_code == 400
        app.state.gateway.limits = Limits(body_bytes=1000, timeout_max_s=5.0)
        problem_of(await client.post("/v1/tables", content=b"x" * 2000), 413, "too-large")
        late = await client.get("/v1/tables", headers={"Stelae-Timeout-Seconds": "6"})
        problem_of(late, 400, "invalid-argument")
        app.state.gateway.limits = Limits()
        assert (await client.post("/v1/tables", content=b"x" * 2000)).status_code == 400
