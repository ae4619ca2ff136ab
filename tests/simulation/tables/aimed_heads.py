"""Stories of heads whose last entries a recovery cannot see, told to whoever waits for them.

In each of them an owner dies in the one moment that counts. A call that was acknowledged must be
there after the recovery; one that was not goes on at the next owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from stelae.actors.tserver.segments import segment
from stelae.client.table.table import AsyncTable
from stelae.core.messages.backups import WRITE_REPLICA
from stelae.core.messages.servers import RAISE_EPOCH
from stelae.core.schema.durability import segments
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Servers
from tests.simulation.tables.held_back import held_back

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
PIECE_BYTES = 2000
"""Maximum bytes of one write to a replica, far below those of a server, as the rows are small."""
LARGE = "x" * 3 * PIECE_BYTES
SOON_S = 0.2
"""Less than the time after which an owner gives a backup up."""
Story = Callable[[World, SimCluster, AsyncTable], Coroutine[Any, Any, None]]


def play(story: Story, seed: int = 1) -> None:
    """Run a story in a cluster with a table of one tablet."""
    world = World(seed, Options(servers=Servers(masters=1, tservers=2, backups=5)))
    cluster = SimCluster(world, segment_bytes=64 << 10)

    async def run() -> None:
        await cluster.start()
        database = cluster.database("client")
        table = await database.create_table(
            "t", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=60.0
        )
        await table.upsert({"id": -1, "value": "before"}, timeout=60.0)
        await world.spawn("client", story(world, cluster, table))

    with ExitStack() as sizes:
        for name in ("PIECE_BYTES", "JOIN_BYTES"):
            sizes.enter_context(patch.object(segment, name, PIECE_BYTES))
        world.run(run(), limit_s=300.0)


def owner_of(world: World, cluster: SimCluster) -> str:
    """The tserver that serves the table."""
    [name] = [name for name in cluster.tservers if world.server(name).holders()]
    return name


def head_backups(world: World, cluster: SimCluster, owner: str) -> list[str]:
    """The backups that hold the tablet's head whole."""
    ((_, holders),) = world.server(owner).holders().items()
    return [name for name in cluster.backups if world.server(name).info.uuid in holders[-1]]


async def judge(table: AsyncTable, calls: dict[int, asyncio.Task[Any]], told: list[int]) -> None:
    """All that was acknowledged is there; all calls are carried out in the end."""
    ended = await asyncio.gather(*calls.values(), return_exceptions=True)
    there = set((await table.scan(timeout=60.0)).column("id").to_pylist())
    acknowledged = {
        key for key, end in zip(calls, ended, strict=True) if not isinstance(end, BaseException)
    }
    lost = sorted(acknowledged - there)
    assert not lost, f"rows {lost} are gone; acknowledged before the owner died: {told}"
    assert acknowledged == set(calls), "each call goes on at the next owner"


async def dies_between_pieces(world: World, cluster: SimCluster, table: AsyncTable) -> None:
    """A small row and a large one leave in the same pieces; the backups receive the first piece,
    which has all of the small row, but no certificate; then the owner dies."""
    owner = owner_of(world, cluster)

    def write(key: int, value: str) -> asyncio.Task[Any]:
        return asyncio.create_task(table.upsert({"id": key, "value": value}, timeout=60.0))

    with held_back(world, WRITE_REPLICA, lambda body: body.certificate is not None) as held:
        calls = {0: write(0, "first")}
        await asyncio.sleep(SOON_S / 4)
        assert held.bodies, "the first row is on its way to the backups"
        calls |= {1: write(1, "small")}
        await asyncio.sleep(SOON_S / 4)
        calls |= {2: write(2, LARGE)}
        await asyncio.sleep(SOON_S / 4)
        held.let_go()
        await asyncio.sleep(SOON_S)
        told = [key for key, call in calls.items() if call.done()]
        assert 0 in told
        world.crash(owner, restart=False)
    await judge(table, calls, told)


async def dies_before_its_epoch_counts(
    world: World, cluster: SimCluster, table: AsyncTable
) -> None:
    """A replica of the head is replaced, and the masters do not learn of the new epoch. Then the
    owner dies with one of the new replicas, and the other one does not answer: what is left is the
    replica that was replaced, which the catalog calls good."""
    owner = owner_of(world, cluster)
    stale, kept = head_backups(world, cluster, owner)
    with held_back(world, RAISE_EPOCH) as held:
        world.partition([owner], [stale])
        call = asyncio.create_task(table.upsert({"id": 0, "value": "late"}, timeout=60.0))
        await world.wait_until(lambda: bool(held.bodies), 30.0, "the epoch is to be raised")
        await asyncio.sleep(SOON_S)
        told = [0] if call.done() else []
        [other] = [name for name in head_backups(world, cluster, owner) if name != kept]
        world.crash(owner, restart=False)
        world.crash(kept, restart=False)
        world.pause(other)
        world.unpartition([owner], [stale])
    await judge(table, {0: call}, told)
    world.resume(other)
