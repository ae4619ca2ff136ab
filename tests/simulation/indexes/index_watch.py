"""An index beside a scenario of rows: no row may be missing in it at any time, nor be too much in
the end; a `tests.simulation.tables.tables.Beside`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stelae.client.database import AsyncDatabase
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.world.world import World
from tests.simulation.indexes.entries import Tally, Watch
from tests.simulation.tables.tables import TABLE, Beside

COLUMN = "value"
INDEXED_SHARE = 0.6
"""Of runs."""
HEAL_TIMEOUT_S = 120.0


class IndexWatch:
    """Looks at all servers at once, while the scenario runs; ``beside`` runs along."""

    def __init__(
        self, cluster: SimCluster, database: AsyncDatabase, beside: Beside | None = None
    ) -> None:
        self._world = cluster.world
        self._database = database
        self._beside = beside
        self._tally = Tally()
        self._watch = Watch(cluster, self._tally)

    async def run(self, until_s: float) -> None:
        parts = [self._watch.run(until_s)]
        parts += [] if self._beside is None else [self._beside.run(until_s)]
        await asyncio.gather(*parts)

    async def judge(self, history: History) -> None:
        """The index has the entries of all rows and no others, and finds each row."""
        if self._beside is not None:
            await self._beside.judge(history)
        end_s = self._world.loop.time() + HEAL_TIMEOUT_S
        while difference := self._watch.difference():
            assert self._world.loop.time() < end_s, f"the index is not the rows': {difference}"
            self._watch.look()
            await asyncio.sleep(0.1)
        table = await self._database.table(TABLE)
        rows = (await table.scan(timeout=HEAL_TIMEOUT_S)).to_pylist()
        for row in rows[:: max(1, len(rows) // 8)]:
            found = await table.find(COLUMN, row[COLUMN], timeout=HEAL_TIMEOUT_S)
            assert row in found.to_pylist(), f"{row} is not found by its value: {found}"
        self._world.note("judge", f"an index was looked at: {self._tally}")


def in_some_runs(
    world: World,
    make: Callable[[SimCluster, AsyncDatabase], Beside] | None = None,
) -> tuple[tuple[str, ...], Callable[[SimCluster, AsyncDatabase], Beside] | None]:
    """The columns that a table is to have indexes of in this run, and what is to run beside."""
    if world.rng("index").random() >= INDEXED_SHARE:
        return (), make

    def watched(cluster: SimCluster, database: AsyncDatabase) -> Beside:
        return IndexWatch(cluster, database, None if make is None else make(cluster, database))

    return (COLUMN,), watched
