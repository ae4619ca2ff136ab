"""The cluster's spec over HTTP: who may, ETags, plans, operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.core.records.tokens import Role
from stelae.serve.app import make_app
from tests.front.http_world import PROBLEM, World, http_world
from tests.until import until_async


class Specs:
    """Somebody who carries out one thing at a time."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {"cluster": "demo"}
        self.number = 1
        self.running = False
        self.cancelled_by = ""
        self.stopped: list[str] = []
        self.asked = 0
        self.what = "apply"
        self.options: dict[str, Any] = {}

    async def kept(self, timeout_s: float) -> dict[str, Any]:
        return {"spec": self.spec, "by": "ada", "at": 1.5, "done": True, "etag": f"e{self.number}"}

    async def plan(self, spec: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        refused = ["tservers.count 1 is too few"] if spec.get("tservers") == {"count": 1} else []
        return {"differences": [], "steps": [], "refused": refused, "done": not refused}

    async def begin(
        self, spec: dict[str, Any], by: str, etag: str, timeout_s: float
    ) -> dict[str, Any]:
        if self.running:
            raise AlreadyRunning("operation op1 is changing this cluster")
        if refused := (await self.plan(spec, timeout_s))["refused"]:
            raise InvalidArgument(refused[0])
        self.spec, self.running = spec, True
        self.number += 1
        return {**self._operation(), "by": by}

    async def around(self) -> dict[str, Any]:
        self.asked += 1
        away = {"since": {"c": 1.5}, "there": {"c": ["backup-9"]}, "servers": []}
        return {"stopped": self.stopped, "away": away, "spread": "node"}

    async def begin_server(
        self, verb: str, server: str, options: dict[str, Any], by: str, timeout_s: float
    ) -> dict[str, Any]:
        if self.running:
            raise AlreadyRunning(f"operation op1 is changing this cluster: {self.what}")
        if server == "nobody":
            raise InvalidArgument("'nobody' is no server")
        self.running, self.what, self.options = True, f"server {verb} {server}", options
        return {**self._operation(), "by": by}

    def _operation(self) -> dict[str, Any]:
        made = {"id": "op1", "what": self.what, "state": "running", "by": "", "steps_done": 0}
        more = {"steps": 3, "text": "", "error": "", "result": {}}
        return {**made, **more, "cancelled_by": self.cancelled_by}

    async def operation(self, operation_id: str, timeout_s: float) -> dict[str, Any] | None:
        return self._operation() if operation_id == "op1" and self.running else None

    async def cancel(self, operation_id: str, by: str, timeout_s: float) -> dict[str, Any] | None:
        self.cancelled_by = by
        return await self.operation(operation_id, timeout_s)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with http_world(tmp_path) as found:
        yield found


async def test_what_is_put_is_planned_refused_or_carried_out_by_admins_only(world: World) -> None:
    """One at a time; what was asked for before may be named."""
    app = make_app(world.cluster.database, world.verifier, specs=Specs())
    for role in (Role.READ, Role.WRITE):
        async with world.client(role, app) as client:
            assert (await client.get("/v1/cluster/spec")).status_code == 403
            assert (await client.put("/v1/cluster/spec", json={})).status_code == 403
            assert (await client.get("/v1/cluster/operations/op1")).status_code == 403
            assert (await client.delete("/v1/cluster/operations/op1")).status_code == 403
    async with world.client(Role.ADMIN, app) as client:
        found = await client.get("/v1/cluster/spec")
        assert found.json() == {"spec": {"cluster": "demo"}, "by": "ada", "at": 1.5, "done": True}
        etag = found.headers["etag"]
        assert etag == '"e1"'
        shown = await client.put("/v1/cluster/spec?dry_run=true", json={"tservers": {"count": 1}})
        assert (shown.status_code, len(shown.json()["refused"])) == (200, 1)
        refused = await client.put("/v1/cluster/spec", json={"tservers": {"count": 1}})
        assert refused.status_code == 400
        assert refused.headers["content-type"] == PROBLEM
        assert "too few" in refused.json()["detail"]
        wrong = await client.put("/v1/cluster/spec", json={}, headers={"If-Match": '"e0"'})
        assert (wrong.status_code, wrong.json()["type"]) == (412, "/problems/precondition-failed")
        odd = await client.put("/v1/cluster/spec", json={}, headers={"If-Match": "e1"})
        assert odd.status_code == 400
        assert (await client.get("/v1/cluster/operations/op1")).status_code == 404
        assert (await client.delete("/v1/cluster/operations/op1")).status_code == 404
        spec = {"cluster": "demo", "tservers": {"count": 4}}
        begun = await client.put("/v1/cluster/spec", json=spec, headers={"If-Match": etag})
        assert begun.status_code == 202, begun.text
        assert begun.json()["by"] == "admin"
        told = await client.get(begun.headers["location"])
        assert told.json()["state"] == "running"
        ended = await client.delete(begun.headers["location"])
        assert (ended.status_code, ended.json()["cancelled_by"]) == (202, "admin")
        again = await client.put("/v1/cluster/spec", json=spec)
        assert again.status_code == 409
        assert (await client.get("/v1/cluster/spec")).json()["spec"] == spec


@pytest.mark.parametrize(
    ("verb", "sent", "options"),
    [
        ("retire", {}, {"cancel": False}),
        ("retire", {"cancel": True}, {"cancel": True}),
        ("stop", {}, {}),
        ("start", {}, {}),
        ("restart", {}, {}),
        ("replace", {}, {"drain": True, "elsewhere": False}),
        ("replace", {"drain": False, "elsewhere": True}, {"drain": False, "elsewhere": True}),
    ],
)
async def test_commands_on_a_server_are_operations(
    world: World, verb: str, sent: dict[str, Any], options: dict[str, Any]
) -> None:
    """Of admins only, one at a time: what is asked meanwhile is 409, and says what runs."""
    specs = Specs()
    app = make_app(world.cluster.database, world.verifier, specs=specs)
    url = f"/v1/servers/tserver-1:{verb}"
    async with world.client(Role.WRITE, app) as client:
        assert (await client.post(url, json=sent)).status_code == 403
    async with world.client(Role.ADMIN, app) as client:
        assert (await client.post(url, json={"odd": True})).status_code == 422
        assert (await client.post(f"/v1/servers/nobody:{verb}", json={})).status_code == 400
        assert not specs.running
        begun = await client.post(url, json=sent)
        assert begun.status_code == 202, begun.text
        assert (specs.what, specs.options) == (f"server {verb} tserver-1", options)
        assert begun.json()["by"] == "admin"
        told = await client.get(begun.headers["location"])
        assert (told.json()["what"], told.json()["state"]) == (specs.what, "running")
        again = await client.post("/v1/servers/backup-1:stop", json={})
        assert (again.status_code, specs.what in again.json()["detail"]) == (409, True)


async def test_what_masters_do_not_know_is_in_the_status_and_on_its_page(world: World) -> None:
    """Servers that an operator stopped, machines that are away, and nodes that are too few; asked
    for once in a while."""
    specs = Specs()
    app = make_app(world.cluster.database, world.verifier, specs=specs)
    names = [each["id"] for each in (await world.cluster.database.status())["servers"]]
    backup = next(name for name in names if name.startswith("backup"))
    specs.stopped = [backup]
    async with world.client(Role.READ, app) as client:
        shown = (await client.get("/v1/cluster")).json()
        assert shown["stopped"] == [], "it lives: it is being started"
        assert shown["away"]["since"] == {"c": 1.5}
        (server,) = [each for each in world.cluster.backups if each.info.name == backup]
        await server.stop()

        async def is_dead() -> bool:
            return bool((await client.get("/v1/cluster")).json()["stopped"] == [backup])

        await until_async(is_dead, 60.0, "the backup is dead", poll_s=0.05)

        async def page_says() -> bool:
            page = (await client.get("/")).text
            assert "Machine c is away: backup-9." in page
            return f"Stopped by an operator: {backup}." in page

        await until_async(page_says, 60.0, "the page says so", poll_s=0.05)

        async def of_it() -> list[Any]:
            found = (await client.get("/v1/cluster/check")).json()["findings"]
            return [each for each in found if each["subject"] == backup]

        (told,) = await until_async(of_it, 60.0, "the check has it", poll_s=0.05)
        assert (told["severity"], told["text"]) == ("note", "is stopped by an operator")
        assert told["hint"] == f"`stelae server start {backup}`"
        assert specs.asked < 20


async def test_a_front_that_is_not_the_clusters_own_says_so(world: World) -> None:
    """Nobody carries anything out there."""
    async with world.client(Role.ADMIN) as client:
        assert (await client.get("/v1/cluster/spec")).status_code == 503
        assert (await client.put("/v1/cluster/spec", json={})).status_code == 503
        assert (await client.post("/v1/servers/a:stop", json={})).status_code == 503
