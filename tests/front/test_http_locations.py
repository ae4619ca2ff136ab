"""Where tablets are, and answers of bounded age, over HTTP; and Stelae's own client for both."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pytest

from stelae.core.errors import InvalidArgument, TableNotFound, TabletNotFound
from stelae.core.messages.catalog import LINEARIZABLE
from stelae.core.messages.rows import GET, GET_MANY, SCAN
from stelae.core.schema.partition import hash_partition
from tests.front.http_world import World, problem_of
from tests.until import until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = pa.schema([("id", pa.int64())])


async def test_a_table_shows_its_state_and_those_of_its_tablets(
    world: World, http: httpx.AsyncClient
) -> None:
    """Made without waiting, it is whole a moment later; the same by Stelae's own client."""
    database = world.database()
    made = await database.create_table(
        "t",
        SCHEMA,
        key="id",
        partition=hash_partition("id", 3),
        durability=world.durability,
        wait=False,
    )
    assert made.name == "t"
    await until_async(lambda: database.is_create_done("t"), 60.0, "t is made", poll_s=0.0)
    info = (await http.get("/v1/tables/t", params={"max_staleness": "30"})).json()
    assert (info["state"], info["tablet_states"]) == ("running", {"running": 3})
    assert "tablet_states" not in (await http.get("/v1/tables")).json()["tables"][0]


async def test_tablets_are_located_by_table_and_by_id_also_when_gone(
    world: World, http: httpx.AsyncClient
) -> None:
    """A deleted tablet is told of, an unknown one is 404."""
    database = world.database()
    await database.create_table("t", SCHEMA, key="id", durability=world.durability)
    (here,) = await database.locate_table("t", max_staleness=30.0)
    assert here.address
    (same,) = await database.locate([here.tablet.tablet_id])
    assert same == here
    await database.delete_table("t")
    (gone,) = await database.locate([here.tablet.tablet_id])
    assert (gone.tablet.state, gone.address) == ("deleted", "")
    assert gone.problem == "deleted with table 't'"
    with pytest.raises(TableNotFound):
        await database.locate_table("t")
    with pytest.raises(TabletNotFound):
        await database.locate(["none"])
    problem_of(await http.get("/v1/tablets?id=none"), 404, "tablet-not-found")


async def test_an_age_that_is_none_is_refused(world: World, http: httpx.AsyncClient) -> None:
    """Text, negative, infinite, not a number: 400, before any master is asked."""
    for text in ("soon", "-1", "inf", "nan", ""):
        for path in ("/v1/tables", "/v1/tables/t", "/v1/cluster", "/v1/tables/t/tablets"):
            answer = await http.get(path, params={"max_staleness": text})
            problem_of(answer, 400, "invalid-argument")
    problem_of(await http.get("/v1/tablets"), 422, "invalid-request")
    with pytest.raises(InvalidArgument):
        await world.database().tables(max_staleness=-1.0)


async def test_status_and_lists_may_be_a_little_old(world: World, http: httpx.AsyncClient) -> None:
    """The masters that follow answer too."""
    database = world.database()
    await database.create_table("t", SCHEMA, key="id", durability=world.durability)
    for _ in range(6):
        status = await database.status(max_staleness=30.0)
        assert [s["role"] for s in status["servers"] if s["kind"] == "master"].count("leader") == 1
        assert [table.name for table in await database.tables(max_staleness=0.0001)] in ([], ["t"])


async def test_reads_of_rows_may_be_a_little_old(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for over HTTP is what tservers are asked for; what is no age is refused."""
    table = await world.database().create_table("t", SCHEMA, key="id", durability=world.durability)
    await table.upsert({"id": 1})
    peers = world.cluster.database.runtime.peers
    call, asked = peers.call, []

    async def spy(address: Any, method: Any, request: Any, **options: Any) -> Any:
        if method in (GET, GET_MANY, SCAN):
            asked.append((method.name, request.max_staleness_s))
        return await call(address, method, request, **options)

    monkeypatch.setattr(peers, "call", spy)
    for age, query in ((2.5, "?max_staleness=2.5"), (LINEARIZABLE, "")):
        assert (await http.get(f"/v1/tables/t/rows/1{query}")).json() == {"id": 1}
        found = await http.post(f"/v1/tables/t/rows:get{query}", json={"keys": [1]})
        assert found.json() == {"rows": [{"id": 1}]}
        assert (await http.post(f"/v1/tables/t/rows:scan{query}", json={})).json() == found.json()
        names = [GET.name, GET_MANY.name, SCAN.name]
        assert asked == [(name, age) for name in names]
        asked.clear()
    assert await table.get(1, max_staleness=2.5) == {"id": 1}
    assert (await table.get_many([1], max_staleness=2.5)).num_rows == 1
    assert (await table.scan(max_staleness=2.5)).num_rows == await table.count(max_staleness=2.5)
    assert asked == [(name, 2.5) for name in (GET_MANY.name, GET_MANY.name, SCAN.name, SCAN.name)]
    for text in ("soon", "-1", "inf", "nan", ""):
        at = {"max_staleness": text}
        problem_of(await http.get("/v1/tables/t/rows/1", params=at), 400, "invalid-argument")
        for path, body in (("rows:get", {"keys": [1]}), ("rows:scan", {})):
            answer = await http.post(f"/v1/tables/t/{path}", params=at, json=body)
            problem_of(answer, 400, "invalid-argument")
    with pytest.raises(InvalidArgument):
        await table.get(1, max_staleness=-1.0)
