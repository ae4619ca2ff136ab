"""A table that gets another durability while it is written, in the hands of one test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

from stelae.client.table.table import AsyncTable
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import World
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA
from tests.simulation.world.cluster_fixture import SimClusterFixture

KINDS: dict[str, Durability] = {
    "segments": segments("disk", "disk"),
    "wal": wal(3, ("disk",)),
    "replicas": replicas(3),
}
DIRECTIONS = list(permutations(KINDS, 2))


class DurabilityFixture(SimClusterFixture):
    """A cluster with servers of every kind, and a client."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"segment_bytes": 2000, **options})

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
    def record(self) -> TableRecord:
        """The table, as the catalog has it."""
        (found,) = self.leader.catalog.tables.values()
        assert isinstance(found, TableRecord)
        return found

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
    story: Callable[[DurabilityFixture], Awaitable[None]],
    seed: int = 1,
    *,
    tservers: int = 4,
    **options: Any,
) -> World:
    world = World(seed, Options(servers=Servers(tservers=tservers, backups=3, safekeepers=3)))
    here = DurabilityFixture(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=600.0)
    return world
