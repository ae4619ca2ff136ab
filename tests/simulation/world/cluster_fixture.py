"""A whole cluster in the hands of one story, with a client: what tests of single faults begin with.

What a subject asks of its cluster beyond this is in a fixture of its own, which inherits it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.core.ids import ServerUuid
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster


class SimClusterFixture:
    """A cluster in a world. ``options``: of `SimCluster`."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.cluster = SimCluster(world, **options)
        self.database: AsyncDatabase

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    @property
    def leader(self) -> Any:
        """The master that leads."""
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    def name_of(self, uuid: ServerUuid) -> str:
        """Of a server that runs."""
        cluster = self.cluster
        for name in [*cluster.tservers, *cluster.backups, *cluster.safekeepers]:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    def cut_off(self, name: str) -> None:
        """Nobody hears of it any more, nor it of anybody."""
        others = self._others(name)
        self.world.partition([name], others)
        self.world.partition(others, [name])

    def join_again(self, name: str) -> None:
        others = self._others(name)
        self.world.unpartition([name], others)
        self.world.unpartition(others, [name])

    def _others(self, name: str) -> list[str]:
        return [node for node in [*self.world.nodes, "client"] if node != name]
