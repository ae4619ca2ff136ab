"""Pinned tables under writes and strikes: every read of a pin gives the rows of that point, in the
same order, or `SnapshotLost`; never others, nor fewer."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.actors.tserver.pins import Pinned, Pins
from stelae.client.table.snapshots import PinnedTablet, TableSnapshot, keep, pin_table, read_pinned
from stelae.client.table.table import AsyncTable
from stelae.core.errors import SnapshotLost, StelaeError
from stelae.core.ids import TabletId
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation import World
from stelae.simulation.world.node import SimulationFailure
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA, text, write
from tests.simulation.world.cluster_fixture import SimClusterFixture

ROWS = 90
STRIKES = ("none", "crash", "cut off", "pause", "retire")


class PinnedFixture(SimClusterFixture):
    """A cluster with a table of some tablets, one reader, one writer."""

    def __init__(self, world: World, durability: Durability) -> None:
        super().__init__(world, segment_bytes=2000)
        self.rng = world.rng("story")
        self.durability = durability
        self.table: AsyncTable
        self.written = 0

    async def start(self) -> None:
        await super().start()
        self.table = await self.database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 2),
            durability=self.durability,
            timeout=30.0,
        )
        await write(self.table, 0, ROWS)

    async def change(self) -> None:
        """Go on to write over, delete and add rows."""
        while True:
            self.written += 1
            await asyncio.sleep(0.1)
            n = self.rng.randrange(ROWS)
            try:
                await self.table.upsert({"id": n, "text": f"new {self.written}"}, timeout=20.0)
                await self.table.delete(self.rng.randrange(ROWS), timeout=20.0)
                await self.table.upsert({"id": ROWS + self.written, "text": "more"}, timeout=20.0)
            except StelaeError:
                await asyncio.sleep(0.5)

    def server_of(self, tablet: PinnedTablet) -> str:
        names = self.cluster.tservers
        return next(n for n in names if self.world.address(n) == tablet.address)

    async def strike(self, kind: str, name: str) -> None:
        if kind == "crash":
            self.world.crash(name)
        elif kind == "cut off":
            self.cut_off(name)
            await asyncio.sleep(self.rng.uniform(0.5, 5.0))
            self.join_again(name)
        elif kind == "pause":
            self.world.pause(name)
            await asyncio.sleep(self.rng.uniform(0.1, 4.0))
            self.world.resume(name)
        elif kind == "retire":
            await self.database.retire_server(name, wait=False, timeout=20.0)

    async def read(
        self, snapshot: TableSnapshot, tablet: PinnedTablet, shares: int = 1
    ) -> list[pa.RecordBatch]:
        """All of it; in shares it is the same rows in the same order."""
        runtime, found = self.database.runtime, list[pa.RecordBatch]()
        for n in range(shares):
            rows = read_pinned(runtime, snapshot, tablet, share=(n, shares), patience_s=2.0)
            found += [batch async for batch in rows]
        return found


async def _story(here: PinnedFixture, kind: str) -> int:
    """How many reads found the pin lost."""
    await here.start()
    runtime, lost = here.database.runtime, 0
    snapshot = await pin_table(runtime, here.table.cache, keep_s=60.0, timeout_s=30.0)
    changing = asyncio.create_task(here.change())
    first = {}
    for tablet in snapshot.tablets:
        first[tablet.number] = pa.Table.from_batches(await here.read(snapshot, tablet))
    whole = pa.concat_tables(first.values()).sort_by("id")
    assert whole["id"].to_pylist() == list(range(ROWS))
    assert whole["text"].to_pylist() == [text(n) for n in range(ROWS)]
    striking = asyncio.create_task(here.strike(kind, here.server_of(snapshot.tablets[0])))
    for shares in (1, 2, 5):
        await asyncio.sleep(here.rng.uniform(0.0, 2.0))
        told = await keep(runtime, snapshot)
        for tablet in snapshot.tablets:
            try:
                found = pa.Table.from_batches(await here.read(snapshot, tablet, shares))
            except SnapshotLost:
                lost += 1
                continue
            assert found == first[tablet.number], "other rows than before"
            assert tablet not in told, "what was lost came back"
    await striking
    changing.cancel()
    return lost


def tell(seed: int, durability: Durability, kind: str) -> int:
    safekeepers = 3 if "wal" in str(durability) else 0
    servers = Servers(tservers=3, backups=3, safekeepers=safekeepers)
    world = World(seed, Options(servers=servers))
    return world.run(_story(PinnedFixture(world, durability), kind), limit_s=900.0)


@pytest.mark.parametrize("kind", STRIKES)
@pytest.mark.parametrize(
    "durability", [segments("disk", "disk"), wal(3, ("disk",)), replicas(3)], ids=str
)
@pytest.mark.parametrize("seed", [1])
def test_a_pin_gives_the_rows_of_its_point_or_nothing(
    seed: int, durability: Durability, kind: str
) -> None:
    """Whatever happens to the server that has it, and only a crash always loses it."""
    lost = tell(seed, durability, kind)
    assert lost or kind != "crash", "its server lost all that it had"
    assert not lost or kind != "none"


def test_a_pin_that_is_quietly_made_anew_is_noticed() -> None:
    """A server that answers for a pin it lost shows other rows: the story sees that."""
    real, seen = Pins.find, dict[str, tuple[object, int]]()

    def find(self: Pins, pin: str, tablet_id: TabletId, schema_version: int) -> Pinned:
        found = real(self, pin, tablet_id, schema_version)
        tablet = found.tablet
        rows = tablet._rows_now(schema_version)  # as of now, and not as of then
        seen[pin] = (tablet, rows.snapshot.row_count)
        return Pinned(tablet, rows, schema_version, found.keep_s, found.until)

    with patch.object(Pins, "find", find), pytest.raises(SimulationFailure):
        tell(1, segments("disk", "disk"), "none")
    assert seen
