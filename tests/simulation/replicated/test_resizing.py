"""The number of a table's replicas is changed on a whole cluster, while it is written to."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from stelae.core.errors import InvalidArgument, TooFewServers
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def voters_in(cluster: SimCluster) -> list[int]:
    """So many each tablet has, as the leader master knows."""
    leader = cluster.leader()
    records = cluster.world.server(leader).catalog.groups() if leader is not None else ()
    return sorted(len(record.configuration.voters) for record in records)


def replicas_of(cluster: SimCluster) -> int:
    """So many replicas there are on all servers, of whatever tablets the catalog has."""
    return sum(
        cluster.world.server(name).replicas.tablet(tablet_id) is not None
        for name in cluster.tservers
        for tablet_id in cluster.world.server(cluster.leader() or "").catalog.tablets
    )


def test_a_table_gets_five_replicas_and_then_three_again() -> None:
    """Healing does it, one member at a time, also under another leader master; writes go on, and
    every row is on every replica at the end."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        two = hash_partition("id", buckets=2)
        table = await database.create_table(
            "t", SCHEMA, key=["id"], partition=two, durability=replicas(3), timeout=30.0
        )
        written = 0
        goes_on = True

        async def write() -> None:
            nonlocal written
            while goes_on:
                await table.upsert({"id": written, "text": "x" * 40}, timeout=20.0)
                written += 1
                await asyncio.sleep(0.05)

        for written in range(100):
            await table.upsert({"id": written, "text": "x" * 40}, timeout=20.0)
        writer = asyncio.create_task(write())
        await table.alter(durability=replicas(5), wait=False)
        assert voters_in(cluster) == [3, 3]
        world.crash(cluster.leader() or "")
        await table.alter(durability=replicas(5), timeout=120.0)
        assert voters_in(cluster) == [5, 5]
        assert (await database.table("t")).record.durability == replicas(5)
        report = await database.check(checksums=True, wait=20)
        assert report.is_well, [str(finding) for finding in report.findings]
        holders = [len(tablet.replicas) for tablet in await database.locate_table("t")]
        assert holders == [5, 5]

        await table.alter(durability=replicas(3), timeout=120.0)
        assert voters_in(cluster) == [3, 3]
        goes_on = False
        await writer
        what = "replicas that are no members any more are deleted"
        await world.wait_until(lambda: replicas_of(cluster) == 6, 30.0, what)
        assert (await table.scan(timeout=20.0)).num_rows == written > 100
        report = await database.check(checksums=True, wait=20)
        assert report.is_well, [str(finding) for finding in report.findings]

    world = World(11, Options(servers=Servers(tservers=5)))
    world.run(story(world), limit_s=600.0)


def test_a_number_of_replicas_that_cannot_be_is_refused_with_a_way_out() -> None:
    """More than there are servers, and even numbers: nothing changes."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        await asyncio.sleep(40.0)  # until the masters know that there are no further servers
        table = await database.create_table("t", SCHEMA, key="id", durability=replicas(3))
        with pytest.raises(TooFewServers, match="5 tservers; the cluster has 3"):
            await table.alter(durability=replicas(5))
        with pytest.raises(InvalidArgument, match="odd number"):
            replicas(4)
        assert await table.is_alter_done()
        assert table.record.durability == replicas(3)

    world = World(12, Options())
    world.run(story(world), limit_s=600.0)
