"""A tserver with tablets of all kinds is retired and then ended for good, on a whole cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.durability import replicas, segments
from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.core.partition import hash_partition
from stelae.core.server_messages import ServerProgress
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


async def _table(database: Any, name: str, durability: Any) -> Any:
    return await database.create_table(
        name,
        SCHEMA,
        key=["id"],
        partition=hash_partition("id", buckets=6),
        durability=durability,
        timeout=30.0,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_a_retired_server_has_nothing_left_and_can_be_switched_off(seed: int) -> None:
    """Replicas move, tablets with segments are recovered elsewhere one by one, under load, and
    though the leader master is lost on the way; no acknowledged row is missing."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await world.wait_until(lambda: cluster.leader() is not None, 30.0, "a leader")
        await asyncio.sleep(1.0)
        tables = [
            await _table(database, "logged", segments("disk", "disk")),
            await _table(database, "copied", replicas(3)),
        ]
        goes_on, written, pauses = True, [0, 0], [0.0, 0.0]

        async def write(which: int) -> None:
            while goes_on:
                began = world.loop.time()
                row = {"id": written[which], "text": "x" * 30}
                await tables[which].upsert(row, timeout=30.0)
                pauses[which] = max(pauses[which], world.loop.time() - began)
                written[which] += 1
                await asyncio.sleep(0.01)

        writers = [asyncio.create_task(write(which)) for which in range(2)]
        await asyncio.sleep(2.0)
        listed = await database.tservers()
        victim = max(listed, key=lambda server: (server["owned"], server["name"]))
        assert victim["owned"]
        assert victim["replicas"]
        seen: list[int] = []

        def progress(found: ServerProgress) -> None:
            seen.append(found.tablets)

        first = await database.retire_server(victim["name"], wait=False)
        assert first.tablets == victim["owned"]
        world.crash(cluster.leader() or "")
        done = await database.retire_server(victim["name"], progress=progress, timeout=300.0)
        assert (done.replicas, done.tablets, done.bound, done.problem) == (0, 0, 0, "")
        assert seen == sorted(seen, reverse=True)
        assert not [r for r in world.server(victim["name"]).reports() if r.group is None]
        world.crash(victim["name"], restart=False, lose_disk=True)
        await asyncio.sleep(5.0)
        goes_on = False
        await asyncio.gather(*writers)
        for table, count in zip(tables, written, strict=True):
            rows = await table.scan(timeout=30.0)
            assert rows.num_rows == count > 100
        assert max(pauses) < 5.0, pauses
        shown = await database.status()
        assert all(tablet["state"] == "running" for tablet in shown["tablets"])

    world = World(seed, Options(servers=Servers(tservers=4)))
    world.run(story(world), limit_s=600.0)


def test_rows_that_are_nowhere_else_keep_a_server_from_being_retired() -> None:
    """Tablets of tables with segments() stay where they are, served; the answer names the tables.
    Once these are gone, the server has nothing left."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await world.wait_until(lambda: cluster.leader() is not None, 30.0, "a leader")
        await asyncio.sleep(1.0)
        table = await _table(database, "fleeting", segments())
        await _table(database, "logged", segments("disk"))
        for number in range(60):
            await table.upsert({"id": number, "text": "x"}, timeout=20.0)
        victim = (await database.tservers())[0]["name"]
        found = await database.retire_server(victim, timeout=60.0)
        assert found.bound == found.tablets > 0
        assert "tables fleeting, with segments()" in found.problem
        await asyncio.sleep(5.0)
        assert (await table.scan(timeout=20.0)).num_rows == 60
        await database.delete_table("fleeting")
        found = await database.retire_server(victim, timeout=60.0)
        assert (found.tablets, found.bound, found.problem) == (0, 0, "")

        others = [server["name"] for server in await database.tservers()][1:]
        for name in others[:-1]:
            await database.retire_server(name, timeout=60.0)
        with pytest.raises(RetryLater, match="no other live tserver"):
            await database.retire_server(others[-1], timeout=10.0)
        assert all(t["state"] == "running" for t in (await database.status())["tablets"])

    world = World(5, Options())
    world.run(story(world), limit_s=600.0)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_retirement_that_arrives_again_late_does_not_undo_its_cancellation(
    is_given_up: bool,
) -> None:
    """The first copy of the order is long on its way. The second is acknowledged, or the order is
    given up instead; and then it is cancelled. Then the first copy arrives, and changes nothing."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await _table(database, "copied", replicas(3))
        leader = cluster.leader()
        assert leader is not None
        victim = next(s["name"] for s in await database.tservers() if s["replicas"])
        arrives_s = world.loop.time() + 4.0
        world.network.clog("client", leader, 4.0)
        timeout = 1.0 if is_given_up else 30.0
        saying = asyncio.create_task(database.retire_server(victim, wait=False, timeout=timeout))
        await asyncio.sleep(0.01)
        world.network.clog("client", leader, 0.0)  # what is on its way stays so
        if is_given_up:
            with pytest.raises(OutcomeUnknown):
                await saying
        else:
            assert (await saying).mark.retiring
        said = await database.retire_server(victim, cancel=True)
        assert not said.mark.retiring
        assert world.loop.time() < arrives_s
        await asyncio.sleep(5.0)
        assert not [s["name"] for s in await database.tservers() if s["retiring"]]
        assert cluster.leader() == leader, "which the first copy was sent to"

    world = World(3, Options(servers=Servers(tservers=4)))
    world.run(story(world), limit_s=600.0)
