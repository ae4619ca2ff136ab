"""All servers lose their power at the same moment, and start on what their disks have synced."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.client.database import AsyncDatabase
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History

GAPS_S = (0.0, 0.0, 8.0, 16.0)
"""At most so long between two; 0: there are none in that run."""


class Blackouts:
    """Blackouts, one after the other; a `tests.simulation.tables.tables.Beside`."""

    def __init__(
        self, cluster: SimCluster, database: AsyncDatabase, gaps_s: Sequence[float] = GAPS_S
    ) -> None:
        self.count = 0
        self._cluster = cluster
        self._sleep = database.runtime.clock.sleep
        self._rng = cluster.world.rng("blackouts")
        self._gap_s = self._rng.choice(gaps_s)

    async def run(self, until_s: float) -> None:
        cluster, world = self._cluster, self._cluster.world
        while self._gap_s and world.loop.time() < until_s:
            await self._sleep(self._rng.uniform(0.2, 1.0) * self._gap_s)
            world.note("nemesis", "all servers lose their power")
            self.count += 1
            servers = [*cluster.masters, *cluster.tservers, *cluster.backups, *cluster.safekeepers]
            for name in servers:
                world.crash(name)

    async def judge(self, history: History) -> None:
        """The rules of rows say it all."""
