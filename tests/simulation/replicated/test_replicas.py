"""A table with ``replicas(3)``, from its creation by a client to its end, on a whole cluster."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
LONGEST_PAUSE_S = 3.0


def test_a_table_of_replicas_outlives_a_leader_and_leaves_nothing_behind() -> None:
    """Created, written, altered, read at a leader and elsewhere, and deleted as any other."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=2),
            durability=replicas(3),
            timeout=30.0,
        )
        for number in range(20):
            await table.upsert({"id": number, "text": str(number)}, timeout=10.0)
        located = await database.locate_table("t")
        assert all(len(tablet.replicas) == 3 for tablet in located)
        names = {world.server(name).info.address: name for name in cluster.tservers}
        killed_at = world.loop.time()
        world.crash(names[located[0].address])
        for number in range(20, 40):
            await table.upsert({"id": number, "text": str(number)}, timeout=20.0)
        assert world.loop.time() - killed_at < LONGEST_PAUSE_S
        assert (await table.scan(timeout=20.0)).num_rows == 40
        assert await table.get(39, max_staleness=5.0) == {"id": 39, "text": "39"}
        await table.alter(add_columns={"more": pa.int64()}, defaults={"more": 7}, timeout=30.0)
        assert await table.get(3) == {"id": 3, "text": "3", "more": 7}
        await database.delete_table("t")
        await world.wait_until(
            lambda: not any(world.server(name).reports() for name in cluster.tservers),
            20.0,
            "all replicas to be gone",
        )
        await asyncio.sleep(1.0)

    world = World(1, Options())
    world.run(story(world))


def test_a_server_that_is_lost_for_good_is_replaced_by_copies() -> None:
    """The masters name another; leaders have the tablets copied to it, and let the lost one go."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=3),
            durability=replicas(3),
            timeout=30.0,
        )
        for number in range(50):
            await table.upsert({"id": number, "text": str(number)}, timeout=10.0)
        located = await database.locate_table("t")
        names = {world.server(name).info.address: name for name in cluster.tservers}
        lost = names[located[0].address]
        world.crash(lost, restart=False, lose_disk=True)
        for number in range(50, 100):
            await table.upsert({"id": number, "text": str(number)}, timeout=20.0)

        def healed() -> bool:
            leader = cluster.leader()
            if leader is None:
                return False
            groups = [
                tablet.configuration.peers
                for tablet in world.server(leader).catalog.tablets.values()
                if tablet.configuration is not None
            ]
            return len(groups) == 3 and all(
                [peer.voter for peer in peers] == [True] * 3
                and all(peer.name != lost for peer in peers)
                for peers in groups
            )

        await world.wait_until(healed, 120.0, "three replicas of each tablet on the others")
        assert (await table.scan(timeout=20.0)).num_rows == 100

    world = World(2, Options(servers=Servers(tservers=4)))
    world.run(story(world))


def test_a_copy_may_last_longer_than_a_server_may_be_silent() -> None:
    """Its leader hears nothing of it, and there is one copy at a time: each lost replica is made
    anew once, and no member that only waits, or is being copied, is let go again."""
    dead_after_s = 3.0

    async def story(world: World) -> None:
        cluster = SimCluster(
            world,
            segment_bytes=2000,
            raft_keep_bytes=500,
            replica_dead_after_s=dead_after_s,
            copies_max=1,
            copy_piece_bytes=500,
        )
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=3),
            durability=replicas(3),
            timeout=30.0,
        )
        for number in range(600):
            await table.upsert({"id": number, "text": "x" * 100}, timeout=10.0)
        lost, target = cluster.tservers[0], cluster.add_tserver()
        await world.wait_ready(target)
        world.nodes[target].disk.slowness = 300.0
        world.crash(lost, restart=False, lose_disk=True)
        coming: dict[tuple[str, str], float] = {}
        seen: dict[tuple[str, str], None] = {}
        lasted: list[float] = []

        def healed() -> bool:
            leader = cluster.leader()
            if leader is None:
                return False
            now, found = world.loop.time(), list(world.server(leader).catalog.groups())
            members = {(t.tablet_id, p.uuid): p for t in found for p in t.configuration.peers}
            for key, peer in members.items():
                if not peer.voter:
                    coming.setdefault(key, now)
            for key in list(coming):
                assert key in members, "it was let go before it was a voter"
                if members[key].voter:
                    lasted.append(now - coming.pop(key))
            assert len(coming) <= 1, "there is one copy at a time"
            seen.update(dict.fromkeys(members))
            return all(
                p.voter and p.name != lost for t in found for p in t.configuration.peers
            ) and all(len(t.configuration.peers) == 3 for t in found)

        await world.wait_until(healed, 400.0, "three replicas of each tablet", poll_s=0.05)
        assert len(seen) == 9 + len(lasted)
        assert max(lasted) > 2 * dead_after_s, "the copies were quick, and show nothing"
        assert (await table.scan(timeout=20.0)).num_rows == 600

    world = World(4, Options())
    world.run(story(world))
