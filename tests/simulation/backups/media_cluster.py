"""A whole cluster with all media, for stories of single faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stelae.client.table.table import AsyncTable
from stelae.core.ids import ServerUuid
from stelae.core.schema.durability import Durability
from stelae.simulation import World
from stelae.simulation.world.options import Options, Servers
from tests.simulation.backups.media import MEDIA
from tests.simulation.wal.wal_cluster import SCHEMA
from tests.simulation.world.cluster_fixture import SimClusterFixture

CALL_S = 20.0


class MediaFixture(SimClusterFixture):
    """A cluster with all media, and a table."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **{"segment_bytes": 2000, "media": MEDIA, **options})

    async def create(self, durability: Durability) -> AsyncTable:
        return await self.database.create_table(
            "t", SCHEMA, key="id", durability=durability, timeout=30.0
        )

    def uuid(self, name: str) -> ServerUuid:
        found = self.world.server(name).info.uuid
        assert isinstance(found, str)
        return ServerUuid(found)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in self.cluster.backups:
            server = self.world.server(name)
            if server is not None and hasattr(server, "info") and server.info.uuid == uuid:
                return name
        return uuid

    def owner(self) -> str:
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and server.holders():
                return name
        raise AssertionError("nobody serves it")

    def holders(self) -> list[list[str]]:
        (held,) = self.world.server(self.owner()).holders().values()
        return [sorted(self.name_of(uuid) for uuid in uuids) for uuids in held]

    def is_sealed(self, count: int) -> bool:
        """Whether so many segments of the table are sealed, on two backups each."""
        return sum(len(names) == 2 for names in self.holders()) >= count

    async def until_whole(self, replicas: int = 2) -> None:
        await self.until(lambda: self.cluster.is_whole(1, replicas), "full strength")

    def count(self, name: str) -> int:
        counts = (metrics.counts for metrics in self.world.metrics.values())
        return int(sum(v for c in counts for k, v in c.items() if k.partition("{")[0] == name))


def tell(
    story: Callable[[MediaFixture], Awaitable[None]],
    backups: int = 4,
    seed: int = 1,
    safekeepers: int = 0,
    **options: Any,
) -> None:
    servers = Servers(tservers=2, backups=backups, safekeepers=safekeepers)
    world = World(seed, Options(servers=servers))
    here = MediaFixture(world, **options)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=900.0)
