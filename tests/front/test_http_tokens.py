"""Tokens over HTTP: made, good in every replica, revoked; and what the audit log says of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from stelae.client.http.database import HttpDatabase
from stelae.core.errors import Unauthorized
from stelae.core.records.tokens import Role, hash_token
from stelae.serve.app import make_app
from stelae.serve.gateway import audit as audit_module
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.tokens import TokenVerifier, make_token, new_token
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "http.jsonl").read_text().splitlines()]


async def test_tokens_live_in_the_catalog_and_die_in_every_replica(tmp_path: Path) -> None:
    """Made at one replica and good at another at once, with its role only; kept as a hash; gone
    everywhere two seconds after it was revoked; the one made at launch too."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world = World(cluster)
        launched, entry = make_token("launched", Role.ADMIN)
        other = make_app(cluster.connect("other"), TokenVerifier([entry]))
        async with world.client() as http, world.client(None, other) as there:
            made = await http.post("/v1/tokens", json={"name": "ada", "role": "write"})
            assert made.status_code == 201, made.text
            assert made.headers["cache-control"] == "no-store"
            token = made.json()["token"]
            ada = {"Authorization": f"Bearer {token}"}
            assert (await there.get("/v1/tables", headers=ada)).status_code == 200
            refused = await there.post(
                "/v1/tokens", json={"name": "x", "role": "read"}, headers=ada
            )
            problem_of(refused, 403, "not-permitted")
            again = await http.post("/v1/tokens", json={"name": "ada", "role": "read"})
            problem_of(again, 409, "token-exists")
            admin = await http.post("/v1/tokens", json={"name": "admin", "role": "read"})
            problem_of(admin, 409, "token-exists")  # (that one is the file's)
            bad = await http.post("/v1/tokens", json={"name": "a/b", "role": "read"})
            problem_of(bad, 400, "invalid-argument")
            listed = (await http.get("/v1/tokens")).json()["tokens"]
            assert [(t["name"], t["role"]) for t in listed] == [
                ("ada", "write"), ("admin", "admin"), ("read", "read"), ("write", "write"),
            ]  # fmt: skip
            assert listed[0]["created_by"] == "token admin"
            assert token not in json.dumps(listed)
            kept = cluster.masters[0].catalog.access
            assert [t.sha256 for t in kept.tokens] == [hash_token(token)]

            assert (await http.delete("/v1/tokens/ada")).status_code == 204
            problem_of(await http.delete("/v1/tokens/ada"), 404, "token-not-found")
            problem_of(await http.get("/v1/tables", headers=ada), 401, "not-authenticated")
            await asyncio.sleep(2.0)
            problem_of(await there.get("/v1/tables", headers=ada), 401, "not-authenticated")

            mine = {"Authorization": f"Bearer {launched}"}
            assert (await there.get("/v1/tables", headers=mine)).status_code == 200
            gone = await there.delete("/v1/tokens/launched", headers=mine)
            assert gone.status_code == 204
            problem_of(await there.get("/v1/tables", headers=mine), 401, "not-authenticated")
        with pytest.raises(Unauthorized):
            await HttpDatabase("http://stelae", launched, world.client(None)).status()
        direct = cluster.connect("direct")
        named = new_token()
        await direct.put_token("eve", "read", hash_token(named), by="me")
        async with world.client(None) as http:
            found = await http.get("/v1/tables", headers={"Authorization": f"Bearer {named}"})
            assert found.status_code == 200
        await direct.revoke_token("eve")
        assert await direct.tokens() == []


async def test_what_is_known_holds_while_no_master_answers(tmp_path: Path) -> None:
    """Known tokens go on at once, but for half a second now and then; unknown ones are 401."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world = World(cluster)
        async with world.client() as http:
            assert (await http.get("/v1/tokens")).status_code == 200
            for master in cluster.masters:
                await master.stop()
            await asyncio.sleep(2.1)
            assert (await http.get("/problems/row-exists")).status_code == 200
            wrong = {"Authorization": "Bearer stelae_x"}
            problem_of(await http.get("/", headers=wrong), 401, "not-authenticated")


async def test_the_audit_log_has_who_did_what_and_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun before, answered after, refusals too; reads and rows are not in it; and no token. When
    it cannot be written nothing is done."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world = World(cluster)
        folder = tmp_path / "audit"
        app = make_app(cluster.database, world.verifier, audit=AuditLog(folder))
        async with world.client(app=app) as http, world.client(Role.WRITE, app) as writer:
            made = await http.post("/v1/tokens", json={"name": "ada", "role": "read"})
            problem_of(await writer.delete("/v1/tables/t?x=1"), 403, "not-permitted")
            await writer.get("/v1/tables")
            found = lines(folder)
            assert [(e["stage"], e["token"], e["method"], e["path"]) for e in found] == [
                ("begun", "admin", "POST", "/v1/tokens"),
                ("answered", "admin", "POST", "/v1/tokens"),
                ("refused", "write", "DELETE", "/v1/tables/t"),
            ]
            assert [e.get("status") for e in found] == [None, 201, 403]
            assert found[0]["id"] == found[1]["id"] != found[2]["id"]
            assert found[1]["body"] == '{"name":"ada","role":"read"}'
            assert found[2]["query"] == "x=1"
            assert made.json()["token"] not in (folder / "http.jsonl").read_text()
            assert (folder / "http.jsonl").stat().st_mode & 0o077 == 0

            monkeypatch.setattr(audit_module, "FILE_BYTES", 10)
            for _ in range(6):
                await http.delete("/v1/tables/t?confirm=t")
            assert len(list(folder.glob("*.jsonl"))) == audit_module.KEPT_FILES

            def full(*args: object, **kwargs: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(audit_module, "_append", full)
            answer = await http.post("/v1/tokens", json={"name": "bob", "role": "read"})
            problem_of(answer, 503, "retry-later")
            names = [t["name"] for t in await cluster.database.tokens()]
            assert names == ["ada"]


async def test_hanging_up_in_mid_stream_leaves_nothing_in_hand(tmp_path: Path) -> None:
    """Readers that go away while a scan streams, and writers before their body is whole: no slot
    and no byte stays taken, and the half of a body is not written."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world = World(cluster)
        async with world.client() as http:
            body = {
                "name": "t",
                "columns": [{"name": "a", "type": "int64"}, {"name": "b", "type": "string"}],
                "key": ["a"],
                "durability": {"segments": []},
            }
            assert (await http.post("/v1/tables", json=body)).status_code == 201
            rows = [{"a": i, "b": "x" * 200} for i in range(20_000)]
            await http.post("/v1/tables/t/rows:write", json={"rows": rows})
        for path, content in (
            ("/v1/tables/t/rows:scan", b"{}"),
            ("/v1/tables/t/rows:write", b'{"rows": [{"a": 99999999}'),
        ):
            for pieces in (0, 1, 3):
                await hang_up(world, path, content, pieces)
        guard = guard_of(world)
        async with world.client() as http:
            assert (guard._requests, guard._bytes) == (0, 0)
            assert (await http.get("/v1/tables/t/rows/99999999")).status_code == 404
            assert (await http.get("/v1/tables/t/rows/7")).status_code == 200


async def hang_up(world: World, path: str, content: bytes, pieces: int) -> None:
    """A client of the application that goes away after so many pieces of the answer."""
    gone = asyncio.Event()
    sent = False
    seen = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": content, "more_body": "write" in path}
        if "write" in path or pieces == 0:
            gone.set()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal seen
        if message["type"] == "http.response.body":
            seen += 1
            if seen >= pieces:
                gone.set()
        if gone.is_set() and message["type"] != "http.response.start":
            raise OSError("the client went away")

    token = world.tokens[Role.ADMIN]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("stelae", 80),
        "http_version": "1.1",
    }
    with contextlib.suppress(OSError, ClientDisconnect):
        async with asyncio.timeout(10):
            await world.app(scope, receive, send)


def guard_of(world: World) -> Any:
    layer: Any = world.app.middleware_stack
    while type(layer).__name__ != "Guard":
        layer = layer.app
    return layer
