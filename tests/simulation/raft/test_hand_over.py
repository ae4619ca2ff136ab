"""A planned stop of a tserver or a master: what clients see of it, with a hand-over and without."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from stelae.actors.tserver.ordered_end import ENDS_FOR_S
from stelae.coordinator.liveness.liveness import Run
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
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
    costs; in worlds where connections of a process end when it does, as they nearly always do."""
    options = Options(unnoticed_end_rate=0.0)
    seen: dict[bool, float] = {}
    for planned in (True, False):
        world = World(seed, options)

        async def story(world: World, planned: bool = planned) -> None:
            seen[planned] = await longest_pause(world, planned=planned)

        world.run(story(world), limit_s=100.0)
    settings = SimCluster(World(1, Options())).settings
    election_s = settings.tablet_election_ticks * settings.group_tick_s
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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hand_over_that_is_asked_for_twice_or_given_up_harms_nothing(seed: int) -> None:
    """Whoever stops a server may be impatient: a second request while the first is under way, the
    end of the first, and a third after all: each ends in time, with nothing left."""

    async def story(world: World) -> None:
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
        await asyncio.sleep(1.0)
        led = {
            name: sum(t.replica.is_leader for t in world.server(name).replicas.running())
            for name in cluster.tservers
        }
        victim = world.server(max(led, key=lambda name: led[name]))
        began = world.loop.time()
        first = asyncio.create_task(victim.hand_over(5.0))
        second = asyncio.create_task(victim.hand_over(5.0))
        await asyncio.sleep(0)
        first.cancel()
        third = asyncio.create_task(victim.hand_over(5.0))
        assert await second == await third == 0
        assert await victim.hand_over(5.0) == 0
        assert world.loop.time() - began < 1.0
        assert not any(t.replica.is_leader for t in victim.replicas.running())
        await table.upsert({"id": 1, "text": "x"}, timeout=5.0)

    world = World(seed, Options())
    world.run(story(world), limit_s=100.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_leader_master_knows_an_end_by_order_before_it_comes(seed: int) -> None:
    """Otherwise it would count as a death of what the server was opening. It is so for a minute,
    and a server that no master hears hands over in bounded time as well."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        name = cluster.tservers[0]

        def is_known() -> bool:
            leader = cluster.leader()
            assert leader is not None
            server = world.server(leader)
            run = Run(world.server(name).info.uuid, world.server(name).info.incarnation)
            seen = server.liveness.find(run)
            return seen is not None and seen.heartbeat.ends_by_order

        assert not is_known()
        assert await world.server(name).hand_over(5.0) == 0
        assert is_known()
        await asyncio.sleep(ENDS_FOR_S + 2.0)
        assert not is_known(), "it runs on"
        for master in cluster.masters:
            world.crash(master, restart=False)
        began = world.loop.time()
        assert await world.server(name).hand_over(60.0) == 0
        assert world.loop.time() - began <= cluster.settings.lease_s + 0.1

    world = World(seed, Options(unnoticed_end_rate=0.0))
    world.run(story(world), limit_s=200.0)


async def masters_pause(world: World, *, planned: bool) -> float:
    """From the stop of the leader master to the first answer that only a leader gives."""
    cluster = SimCluster(world)
    await cluster.start()
    await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
    database = cluster.database("client")
    await database.create_table("t", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0)
    name = cluster.leader()
    assert name is not None
    began = world.loop.time()
    if planned:
        twice = [asyncio.create_task(world.server(name).hand_over(5.0)) for _ in range(2)]
        assert [await each for each in twice] == [0, 0]
        assert not world.server(name).is_leader
        await world.stop(name)
    else:
        world.crash(name, restart=False)
    await database.create_table("u", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0)
    assert cluster.leader() not in (None, name)
    return world.loop.time() - began


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_planned_stop_of_the_leader_master_is_hardly_noticed(seed: int) -> None:
    """Another leads at once; after a crash the others wait for a whole election timeout."""
    seen: dict[bool, float] = {}
    for planned in (True, False):
        # A client that does not notice the end waits for its own time, however it came about.
        world = World(seed, Options(unnoticed_end_rate=0.0))

        async def story(world: World, planned: bool = planned) -> None:
            seen[planned] = await masters_pause(world, planned=planned)

        world.run(story(world), limit_s=100.0)
    settings = SimCluster(World(1, Options())).settings
    election_s = settings.raft_election_ticks * settings.raft_tick_s
    assert seen[False] - seen[True] > election_s / 2, seen


def test_a_master_that_is_alone_says_that_nobody_takes_over() -> None:
    """The others are dead: it is stopped all the same, in time."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        name = cluster.leader()
        assert name is not None
        for other in cluster.masters:
            if other != name:
                world.crash(other, restart=False)
        began = world.loop.time()
        assert await world.server(name).hand_over(0.4) == 1
        assert world.loop.time() - began < 1.0

    world = World(4, Options())
    world.run(story(world), limit_s=100.0)
