"""The ``counter`` scenario: clients increment numbers by compare-and-set, under every fault.

Each client reads a row with its version and writes it back, one higher, if the version still holds.
The row also lists the names of all its increments, so that at the end the sum is known exactly:
what was acknowledged is in it once, what was refused is not, what is unknown is once or not at all.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from stelae.client.table.table import AsyncTable
from stelae.core.errors import OutcomeUnknown, RetryElsewhere, RetryLater, VersionMismatch
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation.cluster import SimCluster
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.tables.planted import planted
from tests.simulation.tables.tables import HEAL_TIMEOUT_S, Client, may_lose

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.int64(), False),
        pa.field("names", pa.string(), False),
    ]
)
TABLE = "rows"
TABLETS = 2
CALL_TIMEOUT_S = 8.0
COUNTERS = 3
FAULTS_S = 15.0


class Counter:
    """One client, and what it knows of its increments."""

    def __init__(self, name: str, world: World, cluster: SimCluster) -> None:
        self.name = name
        self.sure: dict[int, list[str]] = {key: [] for key in range(COUNTERS)}
        """Of each counter the increments of this client that were acknowledged."""
        self.unsure: dict[int, list[str]] = {key: [] for key in range(COUNTERS)}
        """Those with an unknown outcome."""
        self._world = world
        self._database = cluster.database(name)
        self._rng = world.rng(f"client/{name}")
        self._count = 0

    async def run(self, until_s: float) -> None:
        """Increment one counter after the other until ``until_s`` of the loop's time."""
        table = await open_table(self._world, self._database)
        while self._world.loop.time() < until_s:
            # What follows from an error was noted where it was raised.
            with contextlib.suppress(OutcomeUnknown, RetryElsewhere, RetryLater, VersionMismatch):
                await self._increment(table, self._rng.randrange(COUNTERS))
            await self._database.runtime.clock.sleep(self._rng.expovariate(1.0) * 0.05)

    async def _increment(self, table: AsyncTable, key: int) -> None:
        row = await table.get(key, with_version=True, timeout=CALL_TIMEOUT_S)
        self._count += 1
        name = f"{self.name}-{self._count} "
        old = row or {"value": 0, "names": "", "_version": 0}
        new = {"id": key, "value": old["value"] + 1, "names": old["names"] + name}
        try:
            await table.upsert(new, if_version=old["_version"], timeout=CALL_TIMEOUT_S)
        except OutcomeUnknown:
            self.unsure[key].append(name.strip())
            raise
        self.sure[key].append(name.strip())


async def open_table(world: World, database: object) -> AsyncTable:
    """The table, however long the masters take to say where it is."""
    client = Client("opener", world, database, None, world.rng("opener"))  # type: ignore[arg-type]
    return await client.table()


async def run(world: World, bug: str = "") -> None:
    """Start a cluster, count under faults, end the faults, and compare sums."""
    with planted(bug):
        await _run(world)


async def _run(world: World) -> None:
    cluster = SimCluster(world)
    await cluster.start()
    admin = cluster.database("admin")
    table = await admin.create_table(
        TABLE,
        SCHEMA,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=segments("disk", "disk"),
        timeout=60.0,
    )
    clients = [Counter(f"c{n}", world, cluster) for n in range(2)]
    world.may_lose_disk = lambda name: may_lose(cluster, name)
    nemesis = Nemesis.begin(world, FAULTS_S, losable=("backup",))
    until_s = world.loop.time() + FAULTS_S
    tasks = [world.spawn(client.name, client.run(until_s)) for client in clients]
    await world.wait_until(lambda: all(t.done() for t in tasks), 600.0, "the clients to end")
    for task in tasks:
        task.result()
    await nemesis.finish()
    for key in range(COUNTERS):
        row = await table.get(key, timeout=HEAL_TIMEOUT_S) or {"value": 0, "names": ""}
        names = row["names"].split()
        sure = [name for client in clients for name in client.sure[key]]
        unsure = [name for client in clients for name in client.unsure[key]]
        assert len(set(names)) == len(names) == row["value"], f"counter {key}: {row} counts twice"
        lost = [name for name in sure if name not in names]
        assert not lost, f"counter {key} has lost {lost}"
        strange = [name for name in names if name not in sure and name not in unsure]
        assert not strange, f"counter {key} has {strange}, which were refused"


def options(seed: int) -> Options:
    """What the servers promise to survive, as for tables."""
    drawn = Options.draw(seed)
    return drawn.but(full_disk_every_s=0.0, restart_mean_s=min(drawn.restart_mean_s, 1.0))


SCENARIO = Scenario("counter", run, options)
