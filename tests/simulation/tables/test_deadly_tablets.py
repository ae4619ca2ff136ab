"""Servers that die one after the other of the same tablet, and those that die of something else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.check.status import problems_of
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.tables.deadly_tablets import Death, deadly_tablets, until_dead
from tests.simulation.tables.planted_moves import planted

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BUCKETS = 6
ROWS = 300
STORY_S = 120.0
"""Time with a tablet that ends every server. Without pauses one dies of it every second or two."""
DEATHS_MAX = 9
"""Upper bound in that time: pauses are 2, 4, 8, 16, 32 and 64 s from the second death on, and at
most twice as long where several tablets are suspected."""


class Doomed:
    """A cluster with a table of which one tablet ends each server that opens it, after the first
    that owned it."""

    def __init__(self, seed: int, tservers: int) -> None:
        self.world = World(seed, Options(servers=Servers(tservers=tservers, backups=3)))
        self.cluster = SimCluster(self.world, metadata_first=True, load_bytes_per_s=0.0)

    async def begin(self) -> Any:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        table = await self.database.create_table(
            "rows",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=BUCKETS),
            durability=segments("disk", "disk"),
            timeout=30.0,
        )
        await table.upsert([{"id": n, "text": "x" * 50} for n in range(ROWS)], timeout=30.0)
        return table

    @property
    def leader(self) -> Any:
        return self.world.server(self.cluster.leader() or "")

    def tablet_of(self, name: str) -> str:
        """One of the tablets that a server owns."""
        uuid = self.world.server(name).info.uuid
        owned = [t for t in self.leader.catalog.live_tablets() if t.owner == uuid]
        return str(max(tablet.tablet_id for tablet in owned))

    def served(self) -> set[str]:
        """The tablets that are open, with all of their rows in memory."""
        servers = (self.world.server(name) for name in self.cluster.tservers)
        tablets = [pair for s in servers if s is not None for pair in s._tablets.items()]
        return {name for name, each in tablets if each.holders() and not each.is_loading}


def tell(story: Callable[[Doomed], Coroutine[Any, Any, None]], doomed: Doomed) -> None:
    doomed.world.run(story(doomed), limit_s=900.0)


def pauses_of(deaths: list[Death]) -> list[float]:
    return [later.at - former.at for former, later in itertools.pairwise(deaths)]


async def _deadly(doomed: Doomed) -> None:
    world, deadly = doomed.world, ""
    with deadly_tablets(world, lambda tablet: tablet == deadly) as deaths:
        table = await doomed.begin()
        first = doomed.cluster.tservers[0]
        sick = deadly = doomed.tablet_of(first)
        world.crash(first)
        await until_dead(deaths, 4, STORY_S)
        said = problems_of(await doomed.database.status())
        assert any(deadly_problem(len(deaths), text) for text in said), f"nobody says it: {said}"
        others = {t.tablet_id for t in doomed.leader.catalog.live_tablets()} - {sick}
        served_s = 0.0
        began = world.loop.time()
        while world.loop.time() < began + STORY_S:
            served_s += others <= doomed.served()
            await asyncio.sleep(1.0)
        assert len(deaths) <= DEATHS_MAX, f"{len(deaths)} servers died of one tablet"
        assert served_s > STORY_S / 2, f"all others were served for {served_s} s only"
        if len(doomed.cluster.tservers) > 1:
            victims = [each.server for each in deaths]
            assert len({*victims[:3]}) > 1, f"the same server was chosen again: {victims}"
        assert pauses_of(deaths)[-1] > 3 * pauses_of(deaths)[1], "pauses grow"
        deadly = ""
        await world.wait_until(lambda: sick in doomed.served(), 300.0, "it is opened at last")
    assert (await table.scan(timeout=30.0)).num_rows == ROWS
    await world.wait_until(lambda: len(doomed.served()) == BUCKETS, 60.0, "all are served")
    said = problems_of(await doomed.database.status())
    assert not any("in a row" in text for text in said), f"it is open, and said not to be: {said}"


def deadly_problem(deaths: int, text: str) -> bool:
    return f"{deaths} servers in a row ended while they opened it" in text


@pytest.mark.parametrize(("seed", "tservers"), [(1, 1), (1, 3), (2, 3)])
def test_a_tablet_that_ends_its_servers_is_tried_ever_less_often(seed: int, tservers: int) -> None:
    """Each death is a failure of that choice: another server is next, the pause grows, status says
    so. All other tablets are served meanwhile, also by the only server that there is; and the
    tablet is opened once it can be."""
    tell(_deadly, Doomed(seed, tservers))


@pytest.mark.parametrize(
    ("bug", "tservers", "what"),
    [
        ("forgets_who_died", 3, "servers died of one tablet|nobody says it"),
        ("suspects_all_at_once", 1, "all others were served"),
    ],
)
def test_a_leader_that_learns_nothing_from_deaths_is_found(
    bug: str, tservers: int, what: str
) -> None:
    """The planted bugs: a death counts as no failure; suspects are opened at the same moment, so
    that those that end nobody are suspected each time."""
    with planted(bug), pytest.raises(SimulationFailure, match=what):
        tell(_deadly, Doomed(1, tservers))


async def _struck(doomed: Doomed) -> None:
    """Two servers lose their power while they open tablets, of which none is at fault."""
    world, first, left = doomed.world, doomed.cluster.tservers[0], 0

    def strikes(_: str) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    with deadly_tablets(world, strikes) as deaths:
        await doomed.begin()
        left = 2
        world.crash(first, restart=False)
        await until_dead(deaths, 2, 30.0)
        assert len(deaths) == 2, "two die"
        world.restart(first)
        await world.wait_until(lambda: len(doomed.served()) == BUCKETS, 30.0, "all are served")
    await asyncio.sleep(20.0)
    assert not doomed.leader.coordinator.pacing.owners.doubted(), "a server is doubted for ever"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_death_of_something_else_dooms_nobody(seed: int) -> None:
    """Every tablet on its way is suspected and opens elsewhere; the next success ends the doubt."""
    tell(_struck, Doomed(seed, 3))
