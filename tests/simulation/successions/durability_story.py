"""A table that gets another durability while it is written, in the hands of one test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.ids import ServerUuid
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA

KINDS: dict[str, Durability] = {
    "segments": segments("disk", "disk"),
    "wal": wal(3, ("disk",)),
    "replicas": replicas(3),
}
DIRECTIONS = list(permutations(KINDS, 2))


class Here:
    """A cluster with servers of every kind, and a client."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **{"segment_bytes": 2000, **options})
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def create(self, durability: Durability, buckets: int = 2) -> AsyncTable:
        return await self.database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=buckets),
            durability=durability,
            timeout=30.0,
        )

    @property
    def leader(self) -> Any:
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    @property
    def record(self) -> TableRecord:
        """The table, as the catalog has it."""
        (found,) = self.leader.catalog.tables.values()
        assert isinstance(found, TableRecord)
        return found

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    def settled(self) -> bool:
        """No tablet is hidden, and nothing is left of those that have made way."""
        if self.cluster.leader() is None:
            return False
        catalog = self.leader.catalog
        wanted = {t.tablet_id for table in catalog.tables for t in catalog.tablets_of(table)}
        held: set[str] = set()
        for name in self.cluster.tservers:
            server = self.world.server(name)
            held |= {r.tablet_id for r in server.reports()} if server is not None else set()
        return not catalog.successors() and held == wanted

    def given_up(self) -> int:
        """How many successors were, by all masters that ever led and live."""
        counts = (metrics.counts.items() for metrics in self.world.metrics.values())
        step = 'successions{step="GiveUpSuccessor"}'
        return sum(int(count) for found in counts for name, count in found if name == step)


def tell(
    story: Callable[[Here], Awaitable[None]], seed: int = 1, *, tservers: int = 4, **options: Any
) -> World:
    world = World(seed, Options(servers=Servers(tservers=tservers, backups=3, safekeepers=3)))
    here = Here(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world
