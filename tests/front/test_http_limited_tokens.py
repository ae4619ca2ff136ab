"""Tokens for some tables, and for some time: what they reach, and that nothing else does."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from stelae.cli.cluster import tokens as cli_tokens
from stelae.client.http.database import HttpDatabase
from stelae.core.errors import InvalidArgument, TableNotFound, Unauthorized
from stelae.core.records.tokens import AccessToken, AccessTokens, Role, hash_token
from stelae.serve.app import make_app
from stelae.serve.bodies.problems import NotAuthenticated, NotPermitted
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.tokens import Principal, TokenVerifier, make_token
from tests.cluster_fixture import local_cluster
from tests.front.http_flights import make_flights
from tests.front.http_world import World, problem_of
from tests.front.test_cli_operators import database_of, run
from tests.front.test_http_every_route import every_route, needed

OF_ITS_TABLE = "/v1/tables/{table}"
OF_NO_TABLE = ("/v1/tables", "/problems/{slug}", "/openapi.json")


async def test_a_token_for_one_table_reaches_that_table_alone(tmp_path: Path) -> None:
    """On every route: another table's, and those of the cluster, are 403 before anything is looked
    up; its own are answered, as far as its role goes."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world = World(cluster)
        async with world.client() as http:
            await make_flights(world, http, 3)
            await make_flights(world, http, 3, name="other")
            wanted = {"name": "ada", "role": "write", "tables": ["flights"]}
            made = await http.post("/v1/tokens", json=wanted)
            assert made.status_code == 201, made.text
            assert made.json()["tables"] == ["flights"]
            assert made.json()["expires_at"] is None
            routes = await every_route(http)
        ada = {"Authorization": f"Bearer {made.json()['token']}"}
        async with world.client(None) as http:
            assert (await http.get("/healthz", headers=ada)).status_code == 200
            for method, path, url, _ in routes:
                if path == "/healthz":
                    continue
                answer = await http.request(method, url, headers=ada, content=b"{}")
                of_table = path.startswith(OF_ITS_TABLE)
                may = (of_table or path in OF_NO_TABLE) and needed(method, path) is not Role.ADMIN
                assert (answer.status_code == 403) is not may, (method, path, answer.text)
                if of_table:
                    elsewhere = url.replace("/tables/flights", "/tables/other")
                    answer = await http.request(method, elsewhere, headers=ada, content=b"{}")
                    assert "for the tables flights; not for table 'other'" in answer.text
            for path in ("/v1/cluster", "/", "/v1/tables/", "/v1/tablets?id=x", "/v2/x"):
                problem_of(await http.get(path, headers=ada), 403, "not-permitted")
            assert (await http.head("/v1/cluster", headers=ada)).status_code == 403
            listed = (await http.get("/v1/tables", headers=ada)).json()["tables"]
            assert [table["name"] for table in listed] == ["flights"]


async def test_what_such_a_token_is_refused_is_in_the_audit_log(tmp_path: Path) -> None:
    """As what a role is too small for, counted by the minute; what it may do is not."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world = World(cluster)
        app = make_app(cluster.database, world.verifier, audit=AuditLog(tmp_path / "audit"))
        async with world.client(app=app) as http:
            await make_flights(world, http, 1)
            wanted = {"name": "ada", "role": "write", "tables": ["flights"]}
            token = (await http.post("/v1/tokens", json=wanted)).json()["token"]
            ada = {"Authorization": f"Bearer {token}"}
            assert (await http.get("/v1/tables/flights", headers=ada)).status_code == 200
            for _ in range(3):
                problem_of(await http.post("/v1/tokens", headers=ada), 403, "not-permitted")
        lines = [json.loads(e) for e in (tmp_path / "audit/http.jsonl").read_text().splitlines()]
        found = [(e["stage"], e["path"], e["status"]) for e in lines if e["token"] == "ada"]
        assert found == [("refused", "/v1/tokens", 403)]


async def test_the_python_client_works_with_such_a_token(tmp_path: Path) -> None:
    """Reads, writes, scans and lists; the rest is `Unauthorized`."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world = World(cluster)
        async with world.client() as http:
            await make_flights(world, http, 3)
            await make_flights(world, http, 3, name="other")
            wanted = {"name": "ada", "role": "write", "tables": ["flights"]}
            token = (await http.post("/v1/tokens", json=wanted)).json()["token"]
        database = HttpDatabase("http://stelae", token, world.client(None))
        assert [record.name for record in await database.tables()] == ["flights"]
        table = await database.table("flights")
        row = await table.get(1)
        assert row is not None
        await table.upsert([row])
        assert (await table.scan()).num_rows == 3
        with pytest.raises(Unauthorized, match="for the tables flights"):
            await database.table("other")
        with pytest.raises(Unauthorized, match="for the tables flights"):
            await database.status()


async def test_limits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """The same through HTTP and by the cluster's secret; nothing is made."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        world, database = World(cluster), cluster.database
        async with world.client() as http:
            await make_flights(world, http, 1)
            refused: list[tuple[dict[str, Any], int, str]] = [
                ({"role": "read", "tables": ["fligths"]}, 404, "table-not-found"),
                ({"role": "admin", "tables": ["flights"]}, 400, "invalid-argument"),
                ({"role": "read", "tables": ["flights", "flights"]}, 400, "invalid-argument"),
                ({"role": "read", "lifetime_s": 0}, 422, "invalid-request"),
                ({"role": "read", "lifetime_s": 1e12}, 422, "invalid-request"),
            ]
            for more, status, slug in refused:
                answer = await http.post("/v1/tokens", json={"name": "ada", **more})
                problem_of(answer, status, slug)
        digest = hash_token("stelae_x")
        with pytest.raises(TableNotFound):
            await database.put_token("ada", "read", digest, tables=["fligths"])
        with pytest.raises(InvalidArgument, match="whole cluster"):
            await database.put_token("ada", "admin", digest, tables=["flights"])
        with pytest.raises(InvalidArgument, match="a list of names"):
            await database.put_token("ada", "read", digest, tables="flights")
        for lifetime_s in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidArgument, match="lifetime"):
                await database.put_token("ada", "read", digest, lifetime_s=lifetime_s)
        assert await database.tokens() == []


async def test_a_token_is_good_until_it_expires(tmp_path: Path) -> None:
    """Then it is 401 and says why; it is listed still, and can be revoked."""
    async with local_cluster(tmp_path, tservers=1) as cluster:
        launched, entry = make_token("admin", Role.ADMIN)
        now_s = cluster.masters[0].runtime.clock.now()
        later_s = [0.0]
        verifier = TokenVerifier([entry], lambda: now_s + later_s[0])
        app = make_app(cluster.database, verifier)
        transport = httpx.ASGITransport(app)
        admin = {"Authorization": f"Bearer {launched}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://stelae") as http:
            wanted = {"name": "ada", "role": "read", "lifetime_s": 600}
            made = await http.post("/v1/tokens", json=wanted, headers=admin)
            ada = {"Authorization": f"Bearer {made.json()['token']}"}
            assert 590 < made.json()["expires_at"] - now_s < 700
            assert (await http.get("/v1/tables", headers=ada)).status_code == 200
            later_s[0] = 590.0
            assert (await http.get("/v1/tables", headers=ada)).status_code == 200
            later_s[0] = 700.0
            problem = problem_of(
                await http.get("/v1/tables", headers=ada), 401, "not-authenticated"
            )
            assert "'ada' has expired" in problem["detail"]
            assert (await http.get("/v1/tables", headers=admin)).status_code == 200
            listed = (await http.get("/v1/tokens", headers=admin)).json()["tokens"]
            assert [token["name"] for token in listed] == ["ada", "admin"]
            assert (await http.delete("/v1/tokens/ada", headers=admin)).status_code == 204


def test_a_replica_that_knows_no_limits_does_not_know_such_tokens() -> None:
    """It looks at `tokens` alone: a limited one there would be good for everything."""
    limited = AccessToken("ada", Role.WRITE, hash_token("a"), 0.0, "", ("flights",))
    with_end = AccessToken("bob", Role.WRITE, hash_token("b"), 0.0, "", (), 5.0)
    verifier = TokenVerifier(now=lambda: 4.0)
    verifier.follow(AccessTokens((), (), 2, (limited, with_end)))
    assert verifier.verify("a") == Principal("ada", Role.WRITE, frozenset({"flights"}))
    assert verifier.verify("b").name == "bob"
    verifier.follow(AccessTokens((), (hash_token("a"),), 3, (limited, with_end)))
    with pytest.raises(NotAuthenticated):
        verifier.verify("a")


@pytest.mark.parametrize(
    "path", ["/v1/tablesflights", "/v1/tables/flights2", "/v1/tables/", "/x/v1/tables/flights"]
)
def test_paths_that_only_look_alike_are_refused(path: str) -> None:
    """What is not known to be about the table is about another."""
    principal = Principal("ada", Role.WRITE, frozenset({"flights"}))
    principal.check_path("/v1/tables/flights/rows/a/b\n")
    with pytest.raises(NotPermitted):
        principal.check_path(path)


async def test_such_tokens_are_made_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And listed with what they are good for."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        monkeypatch.setattr(cli_tokens, "open_cluster", lambda _: database_of(cluster))
        monkeypatch.setattr(cli_tokens, "files_of", lambda *_: nullcontext(tmp_path))
        world = World(cluster)
        async with world.client() as http:
            await make_flights(world, http, 1)

        async def command(*arguments: str) -> tuple[int, str]:
            return await asyncio.to_thread(run, capsys, "token", *arguments)

        asked = ("create", "ada", "--table", "flights", "--expires", "30d", "--json")
        code, out = await command(*asked)
        assert code == 0, out
        made = json.loads(out)
        assert (made["tables"], made["lifetime_s"]) == (["flights"], 30 * 86400.0)
        _, out = await command("list", "--json")
        (listed,) = json.loads(out)["tokens"]
        assert listed["tables"] == ["flights"]
        assert listed["expires_at"] - listed["created_at"] == 30 * 86400.0
        _, out = await command("list")
        assert "flights" in out
        for wrong in ("30", "soon", "0s"):
            assert (await command("create", "bob", "--expires", wrong))[0] == 2
        assert (await command("create", "bob", "--table", "none"))[0] == 1
