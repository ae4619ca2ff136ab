"""Each HTTP request has an id, in the answer, in problem documents, and in the audit log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from stelae.core.records.tokens import Role
from stelae.serve.app import make_app
from stelae.serve.gateway.audit import AuditLog
from tests.cluster_fixture import local_cluster
from tests.front.http_world import World, problem_of

NEW = re.compile(r"[0-9a-f]{16}")


async def test_ids_are_taken_over_if_sane_and_are_in_all_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of refusals, of what is open to all, of bugs, and of the way of single rows."""
    async with local_cluster(tmp_path / "c", tservers=1) as cluster:
        world, folder = World(cluster), tmp_path / "audit"
        app = make_app(cluster.database, world.verifier, audit=AuditLog(folder))
        async with world.client(app=app) as http, world.client(None, app) as stranger:
            given = {"X-Request-Id": "ticket-42.a:b"}
            assert (await http.get("/v1/tables", headers=given)).headers.get_list(
                "x-request-id"
            ) == ["ticket-42.a:b"]
            for bad in ("a b", "x" * 65, "", "<script>"):
                made = (await http.get("/healthz", headers={"X-Request-Id": bad})).headers
                assert NEW.fullmatch(made["x-request-id"])
            for attempt, status in (
                (stranger.get("/v1/tables", headers=given), 401),
                (http.get("/v1/tables/none/rows/1", headers=given), 404),
                (http.get("/v1/tables/none", headers=given), 404),
                (http.post("/v1/tables", json={}, headers=given), 422),
                (http.delete("/v1/tables/none?confirm=none", headers=given), 404),
            ):
                answer: httpx.Response = await attempt
                assert (answer.status_code, answer.json()["request_id"]) == (
                    status,
                    given["X-Request-Id"],
                )
                assert answer.headers.get_list("x-request-id") == [given["X-Request-Id"]]
            notes = [json.loads(line) for line in (folder / "http.jsonl").read_text().splitlines()]
            assert {note["request_id"] for note in notes if note["path"] == "/v1/tables/none"} == {
                "ticket-42.a:b"
            }

            behind = make_app(cluster.database, world.verifier, is_named=True)
            async with world.client(app=behind) as served:
                for path in ("/v1/tables", "/v1/tables/none"):
                    named = await served.get(path, headers=given)
                    assert "x-request-id" not in named.headers
                assert named.json()["request_id"] == "ticket-42.a:b"
                odd = await served.get("/v1/tables/none", headers={"X-Request-Id": "a b"})
                assert "x-request-id" not in odd.headers, "or there would be two"
                assert NEW.fullmatch(odd.json()["request_id"])

            async def broken(**_: object) -> None:
                raise RuntimeError("a bug")

            monkeypatch.setattr(cluster.database, "status", broken)
            answer = await http.get("/v1/cluster", headers=given)
            assert (answer.status_code, answer.json()["request_id"]) == (500, "ticket-42.a:b")
            assert answer.headers["x-request-id"] == "ticket-42.a:b"
            async with world.client(Role.READ, app) as reader:
                refused = problem_of(await reader.delete("/v1/tables/t"), 403, "not-permitted")
            assert NEW.fullmatch(str(refused["request_id"]))
