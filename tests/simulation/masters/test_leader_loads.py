"""Leaders go where there is least to do, by loads that heartbeats tell: whole clusters."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver.server import TabletServer
from stelae.actors.tserver.tablet.load_rate import WARM_S
from stelae.client.table.table import AsyncTable
from stelae.core.schema.durability import replicas, segments
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
TABLES = 6
ROWS = [{"id": number, "text": "x" * 40_000} for number in range(5)]
"""Weigh as a dozen calls."""


class Busy:
    """Tables of one tablet each, some of which are written to all the time."""

    def __init__(self, world: World, cluster: SimCluster) -> None:
        self.world, self.cluster = world, cluster
        self.database = cluster.database("client")
        self.tables: dict[str, AsyncTable] = {}

    async def begin(self) -> None:
        await self.cluster.start()
        for number in range(TABLES):
            name = f"t{number}"
            self.tables[name] = await self.database.create_table(
                name, SCHEMA, key=["id"], durability=replicas(3), timeout=30.0
            )

    async def status(self) -> dict[str, dict[str, Any]]:
        """Tablets by the names of their tables."""
        document = await self.database.status()
        return {tablet["table"]: tablet for tablet in document["tablets"]}

    async def leaders(self) -> dict[str, str]:
        return {name: tablet["leader"] for name, tablet in (await self.status()).items()}

    async def write(self, names: list[str], seconds: float) -> None:
        """To each of these tables, by itself, again and again."""
        until = self.world.loop.time() + seconds

        async def one(table: AsyncTable) -> None:
            while self.world.loop.time() < until:
                await table.upsert(ROWS, timeout=20.0)
                await asyncio.sleep(0.1)

        await asyncio.gather(*(one(self.tables[name]) for name in names))


def play(seed: int, story: Any, **settings: Any) -> None:
    world = World(seed, Options(servers=Servers(tservers=3)))

    async def told() -> None:
        busy = Busy(world, SimCluster(world, **settings))
        await busy.begin()
        await story(busy)

    world.run(told(), limit_s=1000.0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2])
def test_busy_tablets_of_one_leader_part_and_then_stay(seed: int) -> None:
    """Counts are even all the time: only loads can tell. Once parted, nothing flaps."""

    async def story(busy: Busy) -> None:
        world = busy.world
        for _ in range(100):
            led = list((await busy.leaders()).values())
            if all(led.count(name) == TABLES // 3 for name in busy.cluster.tservers):
                break
            await asyncio.sleep(1.0)
        leaders = await busy.leaders()
        hot = leaders["t0"]
        names = [name for name, leader in leaders.items() if leader == hot]
        assert len(names) == 2
        before = await busy.status()
        assert all(tablet["load_per_s"] in (0.0, None) for tablet in before.values())
        await busy.write(names, 60.0)
        after = await busy.status()
        assert after[names[0]]["leader"] != after[names[1]]["leader"]
        assert all(after[name]["load_per_s"] > 50 for name in names)
        terms = {name: after[name]["term"] for name in after}
        await busy.write(names, 60.0)
        calm = await busy.status()
        assert {name: calm[name]["term"] for name in calm} == terms, "nothing flaps"
        assert world.loop.time() < 900

    play(seed, story, rebalance_after_s=2.0)


@pytest.mark.soak
def test_rebalancing_that_is_off_moves_nothing_however_uneven_the_load() -> None:
    """It is paused as all of the rebalancer is; loads are told all the same."""

    async def story(busy: Busy) -> None:
        await busy.database.rebalancing(0.0)
        leaders = await busy.leaders()
        hot = leaders["t0"]
        for name, leader in leaders.items():
            if leader != hot:
                server = busy.world.server(leader)
                (tablet,) = [
                    t
                    for t in server.replicas.running()
                    if t.replica.is_leader and t.machine.schemas.table.name == name
                ]
                target = busy.world.server(hot).info.uuid
                await tablet.replica.transfer_leadership(target, 5.0)
        await asyncio.sleep(5.0)
        before = await busy.leaders()
        await busy.write(["t0", "t1"], 40.0)
        assert await busy.leaders() == before
        status = await busy.status()
        assert status["t0"]["load_per_s"] > 50
        await busy.database.rebalancing(1.0)
        await busy.write(["t0", "t1"], 30.0)
        now = await busy.leaders()
        assert now["t0"] != now["t1"]

    play(1, story, rebalance_after_s=2.0)


def test_idle_tablets_say_nothing_of_their_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first seconds heartbeats carry no tablet's report, also of tablets with segments;
    and a single busy one brings its own, now and then."""
    sent: list[list[str]] = []
    beat = TabletServer._beat

    def counted(server: TabletServer, reporter: Any) -> Any:
        found = beat(server, reporter)
        sent.append([report.tablet_id for report in found[0].tablets])
        return found

    monkeypatch.setattr(TabletServer, "_beat", counted)

    async def story(busy: Busy) -> None:
        await busy.database.create_table(
            "s", SCHEMA, key=["id"], durability=segments("disk"), timeout=30.0
        )
        await asyncio.sleep(2 * WARM_S)
        sent.clear()
        await asyncio.sleep(20.0)
        assert len(sent) > 500
        assert not any(sent)
        status = await busy.status()
        assert {tablet["load_per_s"] for tablet in status.values()} == {0.0}
        await busy.write(["t0"], 20.0)
        assert {i for each in sent for i in each} == {status["t0"]["id"]}

    play(1, story)
