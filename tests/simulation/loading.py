"""The ``loading`` scenario: tablet servers die again and again, and rows follow slowly.

Many keys, most of them written once, so that what is read lies in segments that are not here; their
owners die, with backups and without, while the rows are on their way; in some runs all servers
lose their power at the same moment, and start on their disks. Updates leave a column out,
which they need of a row that may not be here. The rules are those of ``tables``.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.core.errors import StelaeError
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.options import Limits, Options
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world import World
from tests.simulation.planted_loading import planted
from tests.simulation.tables import SCHEMA, Client, run_tables, struck_options

LOADING_S = 25.0
"""So long the rows of a whole run would take to follow a recovery."""
ROW_BYTES = 250
KINDS = ("kill", "stall", "cut", "bounce")
BLACKOUT_GAPS_S = (0.0, 0.0, 8.0, 16.0)
UPDATE_SHARE = 0.4
"""Of writes of one row."""


class UpdatingClient(Client):
    """Whose rows have a column that follows from their key, and that updates do not name."""

    schema = SCHEMA.append(pa.field("note", pa.string()))

    def row(self, table: AsyncTable, key: int, value: str) -> dict[str, Any]:
        return {"id": key, "value": value, "note": _note(key)}

    def value(self, table: AsyncTable, row: dict[str, Any]) -> str:
        assert row["note"] == _note(row["id"]), f"an update has changed the rest of {row}"
        return super().value(table, row)

    async def _write(self, table: AsyncTable) -> None:
        if self._rng.random() >= UPDATE_SHARE:
            return await super()._write(table)
        key, value = self._key(), self._value()
        operation = self._history.begin(self.name, "write", str(key), value)
        try:
            versions = await table.update({"id": key, "value": value}, timeout=self._timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._seen[key] = int(versions[0])
            self._history.ok(operation, version=int(versions[0]))


class Blackouts:
    """Losses of power of everything; a `tests.simulation.tables.Beside`."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase) -> None:
        self._cluster = cluster
        self._sleep = database.runtime.clock.sleep
        self._rng = cluster.world.rng("blackouts")
        self._gap_s = self._rng.choice(BLACKOUT_GAPS_S)

    async def run(self, until_s: float) -> None:
        """In some runs none at all."""
        cluster, world = self._cluster, self._cluster.world
        while self._gap_s and world.loop.time() < until_s:
            await self._sleep(self._rng.uniform(0.2, 1.0) * self._gap_s)
            world.note("nemesis", "all servers lose their power")
            for name in [*cluster.masters, *cluster.tservers, *cluster.backups]:
                world.crash(name)

    async def judge(self, history: History) -> None:
        """The rules of rows say it all."""


def _note(key: int) -> str:
    return f"note of {key}"


async def run(world: World, bug: str = "") -> None:
    """Tables under strikes, with rows that take as long to come as the next strike."""
    work, rng = world.options.workload, world.rng("kinds of strikes")
    size_bytes = work.clients * work.operations * (work.value_bytes + ROW_BYTES)
    with planted(bug):
        await run_tables(
            world,
            rng.sample(KINDS, 2),
            longest_gap_s=3.0,
            make_client=UpdatingClient,
            make_beside=Blackouts,
            metadata_first=True,
            load_bytes_per_s=size_bytes / LOADING_S,
        )


def options(seed: int) -> Options:
    """Enough keys for old rows to be read, and small segments."""
    drawn, rng = struck_options(seed), random.Random(f"{seed}/loading")
    work = replace(
        drawn.workload,
        keys=rng.choice([40, 80, 160]),
        clients=rng.choice([4, 6]),
        operations=120,
        value_bytes=rng.choice([40, 200]),
        write_share=rng.choice([0.3, 0.5]),
        read_share=0.6,
        think_s=0.01,
    )
    crashes = rng.choice([0.0, 4.0])
    limits = Limits(segment_size_bytes=rng.choice([1024, 4096]))
    return drawn.but(workload=work, limits=limits, crash_every_s=crashes)


SCENARIO = Scenario("loading", run, options)
