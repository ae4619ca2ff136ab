"""A tserver with tablets of all kinds is retired and then ended for good, on a whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.core.messages.operators import ServerProgress
from stelae.core.records.records import TabletState
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.tables.planted_moves import planted

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def tell(story: Callable[[World], Coroutine[Any, Any, None]], backups: int = 3) -> None:
    world = World(1, Options(servers=Servers(tservers=3, backups=backups)))
    world.run(story(world), limit_s=600.0)


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


async def _one_by_one(world: World) -> None:
    """Never do clients wait for more than one of a retiring server's tablets."""
    cluster = SimCluster(world)
    await cluster.start()
    database = cluster.database("client")
    table = await _table(database, "logged", segments("disk", "disk"))
    for number in range(60):
        await table.upsert({"id": number, "text": "x"}, timeout=20.0)
    await world.wait_until(lambda: cluster.is_whole(6, 2), 60.0, "full strength")
    victim = max(await database.tservers(), key=lambda server: (server["owned"], server["name"]))
    assert victim["owned"] > 1
    retiring = asyncio.create_task(database.retire_server(victim["name"], timeout=100.0))
    while not retiring.done():
        catalog = world.server(cluster.leader() or "").catalog
        paused = [t for t in catalog.live_tablets() if t.state is TabletState.RECOVERING]
        assert len(paused) <= 1, "several pause at once"
        await asyncio.sleep(0.002)
    assert (await retiring).tablets == 0
    assert (await table.scan(timeout=20.0)).num_rows == 60


def test_tablets_leave_one_by_one() -> None:
    """With the bug all are closed at once."""
    tell(_one_by_one)
    with planted("all_at_once"), pytest.raises(SimulationFailure, match="several pause at once"):
        tell(_one_by_one)


async def _without_replicas(world: World) -> None:
    """One of two backups loses its disk; a server is to be retired; as soon as a tablet leaves, or
    after a while, the other backup loses its disk. The rows are in the owner's memory."""
    cluster = SimCluster(world, metadata_first=True, load_bytes_per_s=100.0)
    await cluster.start()
    database = cluster.database("client")
    table = await database.create_table(
        "logged", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=30.0
    )
    for number in range(60):
        await table.upsert({"id": number, "text": "x" * 100}, timeout=20.0)
    await world.wait_until(lambda: cluster.is_whole(1, 2), 60.0, "full strength")
    first, second = cluster.backups
    world.crash(first, lose_disk=True, restart=False)
    (tablet,) = world.server(cluster.leader() or "").catalog.live_tablets()
    owner = world.server(cluster.leader() or "").liveness.newest(tablet.owner)
    await world.wait_until(
        lambda: owner.reports[tablet.tablet_id].under_replicated > 0, 30.0, "it lacks replicas"
    )
    await database.retire_server(owner.server.name, wait=False)
    for _ in range(2500):
        now = world.server(cluster.leader() or "").catalog.tablets[tablet.tablet_id]
        if now.term > tablet.term and now.state is TabletState.RUNNING:
            break
        await asyncio.sleep(0.002)
    world.crash(second, lose_disk=True, restart=False)
    for name in (first, second):
        world.restart(name)
    await world.wait_until(lambda: cluster.is_whole(1, 2), 60.0, "full strength")
    assert (await table.scan(timeout=20.0)).num_rows == 60


def test_a_tablet_that_lacks_replicas_does_not_leave() -> None:
    """What it has in memory is needed, to make them anew. With the bug rows are lost."""
    tell(_without_replicas, backups=2)
    bug = "leaves_without_its_replicas"
    with planted(bug), pytest.raises(SimulationFailure, match="full strength"):
        tell(_without_replicas, backups=2)


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


def test_a_master_that_starts_anew_keeps_up_only_once_it_has_what_is_committed() -> None:
    """Status says so, of each of them: a rolling restart waits for that."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await world.wait_until(lambda: cluster.leader() is not None, 30.0, "a leader")
        await asyncio.sleep(2.0)

        async def keeps_up() -> dict[str, Any]:
            servers = (await database.status())["servers"]
            return {s["id"]: s["keeps_up"] for s in servers if s["kind"] == "master"}

        assert set((await keeps_up()).values()) == {True}
        follower = next(name for name in cluster.masters if name != cluster.leader() or "")
        world.crash(follower, restart=False)
        await _table(database, "logged", segments("disk", "disk"))
        await asyncio.sleep(3.0)
        assert (await keeps_up())[follower] is False
        world.restart(follower)
        for _ in range(100):
            if (await keeps_up())[follower]:
                break
            await asyncio.sleep(0.1)
        assert (await keeps_up())[follower] is True

    world = World(7, Options(servers=Servers(masters=3)))
    world.run(story(world), limit_s=600.0)
