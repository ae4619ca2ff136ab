"""Tables with ``wal(n, …)`` in a whole cluster: stories, each of one thing that must not hurt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.core.durability import wal
from stelae.core.errors import NotEnoughServers
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


class Here:
    """A cluster in a world, and what stories ask of it."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **{"safekeepers": 3, "segment_bytes": 2000, **options})
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def create(self, name: str = "t", count: int = 3, buckets: int = 2) -> AsyncTable:
        return await self.database.create_table(
            name,
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=buckets),
            durability=wal(count, ("disk", "disk")),
            timeout=30.0,
        )

    @property
    def leader(self) -> Any:
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in [*self.cluster.tservers, *self.cluster.safekeepers]:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    def owners(self) -> list[str]:
        """Names of tservers that own tablets."""
        tablets = self.leader.catalog.live_tablets()
        return sorted({self.name_of(tablet.owner) for tablet in tablets})

    def keeper(self, number: int) -> str:
        """The name of a safekeeper."""
        return self.name_of(self.leader.catalog.timelines.safekeepers[number].uuid)

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    def held(self) -> dict[str, list[TabletId]]:
        """Which timelines each running safekeeper has."""
        return {
            name: sorted(server.timelines.held)
            for name in self.cluster.safekeepers
            if (server := self.world.server(name)) is not None
        }


async def write(table: AsyncTable, first: int, count: int) -> None:
    for number in range(first, first + count):
        await table.upsert({"id": number, "text": text(number)}, timeout=20.0)


def text(number: int) -> str:
    return f"{number}:" + "x" * 100


async def read_all(table: AsyncTable, count: int) -> None:
    """Each row is there, as it was written, by key and by scan."""
    for number in range(count):
        row = await table.get(number, timeout=20.0)
        assert row is not None, f"row {number} was acknowledged"
        assert row["text"] == text(number), number
    found = await table.scan(timeout=20.0)
    assert sorted(found.column("id").to_pylist()) == list(range(count))


def tell(story: Callable[[Here], Awaitable[None]], seed: int = 1, **options: Any) -> World:
    world = World(seed, Options())
    here = Here(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world


@pytest.mark.parametrize("cas_store", [False, True])
def test_a_table_survives_its_tservers_and_a_safekeeper(cas_store: bool) -> None:
    """What was acknowledged is read after the death of each tserver, and with a safekeeper less
    writes go on."""

    async def story(here: Here) -> None:
        table = await here.create()
        await write(table, 0, 40)
        for victim in here.owners():
            here.world.crash(victim)
        await read_all(table, 40)
        here.world.crash(here.keeper(2), restart=False)
        await write(table, 40, 20)
        await read_all(table, 60)

    tell(story, cas_store=cas_store)


def test_too_few_safekeepers_are_said_to_be_too_few() -> None:
    """Which kind of server, how many are needed and how many there are; no table is left."""

    async def story(here: Here) -> None:
        await here.until(lambda: len(here.leader.catalog.timelines.safekeepers) == 3, "ids")
        with pytest.raises(NotEnoughServers, match="needs 5 live safekeepers, there are 3"):
            await here.database.create_table(
                "t", SCHEMA, key=["id"], durability=wal(5), timeout=3.0
            )
        assert not await here.database.tables()

    tell(story)
