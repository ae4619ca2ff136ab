"""A planned stop of a tserver: what a client sees of it, with a hand-over before it and without."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from stelae.core.durability import replicas
from stelae.core.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
TABLETS = 4


async def longest_pause(world: World, *, planned: bool) -> float:
    """Of a client that writes to all tablets, one row at a time, while a leader is stopped."""
    cluster = SimCluster(world)
    await cluster.start()
    database = cluster.database("client")
    table = await database.create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition=hash_partition("id", buckets=TABLETS),
        durability=replicas(3),
        timeout=30.0,
    )
    pauses: list[float] = []
    goes_on = True

    async def write() -> None:
        number = 0
        while goes_on:
            began = world.loop.time()
            await table.upsert({"id": number, "text": "x"}, timeout=20.0)
            pauses.append(world.loop.time() - began)
            number += 1

    writer = asyncio.create_task(write())
    await asyncio.sleep(1.0)
    led = {
        name: sum(t.replica.is_leader for t in world.server(name).replicas.running())
        for name in cluster.tservers
    }
    victim = max(led, key=lambda name: led[name])
    assert led[victim]
    if planned:
        assert await world.server(victim).hand_over(5.0) == 0
        assert not any(t.replica.is_leader for t in world.server(victim).replicas.running())
        await world.stop(victim)
    else:
        world.crash(victim, restart=False)
    await asyncio.sleep(3.0)
    goes_on = False
    await writer
    return max(pauses)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_a_planned_stop_is_hardly_noticed(seed: int) -> None:
    """With a hand-over the longest pause is a fraction of an election timeout, which a crash
    costs. (In these worlds a server that has stopped refuses connections, as nearly always.)"""
    seen: dict[bool, float] = {}
    for planned in (True, False):
        world = World(seed, Options())

        async def story(world: World, planned: bool = planned) -> None:
            seen[planned] = await longest_pause(world, planned=planned)

        world.run(story(world), limit_s=100.0)
    settings = SimCluster(World(1, Options())).settings
    election_s = settings.tablet_election_ticks * 2 * settings.raft_tick_s
    assert seen[True] < election_s / 3
    assert seen[False] > election_s


def test_a_hand_over_that_cannot_be_ends_in_time() -> None:
    """Where no other voter is there, the leader keeps its tablets, and says how many."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await database.create_table("t", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0)
        await database.create_table("u", SCHEMA, key=["id"], durability=replicas(1), timeout=30.0)

        def leaders() -> list[str]:
            return [
                name
                for name in cluster.tservers
                for tablet in world.server(name).replicas.running()
                if tablet.replica.is_leader and len(tablet.replica.members.peers) == 3
            ]

        (leader,) = leaders()
        for name in cluster.tservers:
            if name != leader:
                world.crash(name, restart=False)
        began = world.loop.time()
        assert await world.server(leader).hand_over(0.4) == 1
        assert world.loop.time() - began < 1.0

    world = World(4, Options())
    world.run(story(world), limit_s=100.0)
