"""What holds on every route that OpenAPI names: roles, malformed and oversized bodies."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from stelae.core.records.tokens import Role
from stelae.serve.app import make_app
from stelae.serve.gateway.audit import REFUSED_S, AuditLog
from stelae.serve.gateway.guard import Limits
from tests.front.http_flights import make_flights
from tests.front.http_world import ARROW, PROBLEM, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

READERS_POST = {"rows:get", "rows:scan", "rows:find"}
ROW_PATHS = ("/v1/tables/{table}/rows/{key}", "/v1/tables/{table}/rows")
WRITERS = {(method, path) for method in ("PUT", "DELETE") for path in ROW_PATHS}
WRITERS_POST = "/v1/tables/{table}/rows:write"
ADMINS_GET = {
    "/v1/audit",
    "/v1/tokens",
    "/v1/cluster/spec",
    "/v1/cluster/operations/{operation_id}",
}
OF_NAMES = {"table": "flights", "key": "1", "tenant_id": "flights", "node_id": "1"}


def needed(method: str, path: str) -> Role:
    """The role that a route needs, by the design: only admins change what is no row."""
    if method == "GET":
        return Role.ADMIN if path in ADMINS_GET else Role.READ
    if method == "POST" and path.rpartition("/")[2] in READERS_POST:
        return Role.READ
    if (method, path) in WRITERS or path == WRITERS_POST:
        return Role.WRITE
    return Role.ADMIN


async def every_route(http: httpx.AsyncClient) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Method, path as described, a path to ask for, and the description."""
    document = (await http.get("/openapi.json")).json()
    return [
        (
            method.upper(),
            path,
            re.sub(r"\{(\w+)\}", lambda name: OF_NAMES.get(name[1], "none"), path),
            operation,
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


async def test_a_role_that_is_too_small_is_403_on_every_route(
    world: World, http: httpx.AsyncClient
) -> None:
    """Before anything is looked up or read; no token is 401."""
    await make_flights(world, http, 3)
    routes = await every_route(http)
    assert len(routes) > 40
    roles = list(Role)
    async with world.client(None) as nobody:
        for method, path, url, _ in routes:
            if path == "/healthz":
                continue
            assert (await nobody.request(method, url)).status_code == 401, (method, path)
            needs = needed(method, path)
            for role in roles[: roles.index(needs)]:
                async with world.client(role) as client:
                    answer = await client.request(method, url, content=b"{}")
                assert answer.status_code == 403, (method, path, role)
                assert answer.json()["type"] == "/problems/not-permitted"
            if needs is not Role.ADMIN:  # and enough is enough
                async with world.client(needs) as client:
                    answer = await client.request(method, url, content=b"{}")
                assert answer.status_code not in (401, 403, 500), (method, path, answer.text)
    assert (await http.get("/v1/tables/flights/rows/1")).status_code == 404  # DELETE was permitted


async def test_every_change_of_admins_is_in_the_audit_log_and_no_read(
    world: World, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """One line when it begins and one when it is answered; one for who may not do it, reads too."""
    await make_flights(world, http, 3)
    minutes = itertools.count()
    audit = AuditLog(tmp_path, monotonic=lambda: REFUSED_S * next(minutes))
    app = make_app(world.cluster.database, world.verifier, audit=audit)
    log = tmp_path / "http.jsonl"
    for method, path, url, _ in await every_route(http):
        if path == "/healthz":
            continue
        is_admins = needed(method, path) is Role.ADMIN
        for role in (Role.READ, Role.ADMIN):
            log.write_bytes(b"")
            async with world.client(role, app) as client:
                answer = await client.request(method, url, content=b"{")
            found = [json.loads(line) for line in log.read_text().splitlines()]
            noted = [(e["stage"], e["token"], e["method"], e.get("status")) for e in found]
            whole = [("begun", role, method, None), ("answered", role, method, answer.status_code)]
            if role is Role.READ:
                whole = [("refused", role, method, 403)]
            elif method == "GET":
                whole = []
            assert noted == (whole if is_admins else []), (method, path, role)


BODIES = [
    (b"\xff\xfe", "application/json"),
    (b"{", "application/json"),
    (b"[" * 50_000, "application/json"),
    (b'{"unknown": 1}', "application/json"),
    (b"NaN", "application/json"),
    (b"null", "application/json"),
    (b"not arrow", ARROW),
    (b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x00" * 16, ARROW),
    (b"", ARROW),
    (b"{}", "text/plain"),
    (b"{}", "\x7f;;=,"),
]


async def test_malformed_bodies_are_4xx_as_described_on_every_route(
    world: World, http: httpx.AsyncClient
) -> None:
    """A problem document, of a status that OpenAPI names for the route."""
    await make_flights(world, http)
    for method, path, url, operation in await every_route(http):
        if "requestBody" not in operation:
            continue
        for content, kind in BODIES:
            answer = await http.request(
                method, url, content=content, headers={"Content-Type": kind}
            )
            what = (method, path, content[:20], answer.status_code, answer.text[:200])
            if path.endswith(("rows/{key}", "rows:write")) and answer.status_code == 200:
                continue  # (an Arrow body of nothing, …)
            assert 400 <= answer.status_code < 500, what
            assert answer.headers["content-type"] == PROBLEM, what
            assert str(answer.status_code) in operation["responses"], what


async def test_oversized_bodies_are_413_on_every_route(
    world: World, http: httpx.AsyncClient
) -> None:
    """By what they say and by what they are, whether the route reads a body or not."""
    await make_flights(world, http)
    app = make_app(world.cluster.database, world.verifier, Limits(body_bytes=1000))
    big = json.dumps({"x": "y" * 2000}).encode()
    async with world.client(app=app) as client:
        for method, path, url, operation in await every_route(http):
            if path == "/healthz":
                continue
            answer = await client.request(method, url, content=big)
            assert answer.status_code == 413, (method, path, answer.text[:200])
            if "requestBody" in operation:
                assert "413" in operation["responses"], (method, path)

                async def pieces() -> Any:
                    yield big[:900]
                    yield big[900:]

                answer = await client.request(method, url, content=pieces())
                assert answer.status_code == 413, (method, path, answer.text[:200])


async def test_head_is_answered_as_get_wherever_there_is_one(
    world: World, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Status and headers are the same, without a body, also where there is none; and the audit log
    has the method that was sent."""
    await make_flights(world, http, 3)
    app = make_app(world.cluster.database, world.verifier, audit=AuditLog(tmp_path))
    routes = await every_route(http)
    urls = {url for _, _, url, _ in routes} | {"/openapi.json", "/v1/none"}
    async with world.client(app=app) as client:
        for url in sorted(urls):
            got, head = await client.get(url), await client.head(url)
            assert (head.status_code, head.content) == (got.status_code, b""), url
            assert head.headers.get("content-type") == got.headers.get("content-type")
            assert head.headers.get("etag") == got.headers.get("etag")
        (tmp_path / "http.jsonl").write_bytes(b"")
        await client.head("/v1/tokens")
    async with world.client(Role.READ, app) as client:
        await client.head("/v1/tokens")
    noted = [json.loads(line)["method"] for line in (tmp_path / "http.jsonl").open()]
    assert noted == ["HEAD"], "and an admin's read is not in it"
    async with world.client(None) as nobody:
        assert (await nobody.head("/v1/tables")).status_code == 401
        assert (await nobody.head("/healthz")).status_code == 200
