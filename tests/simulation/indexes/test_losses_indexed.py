"""Rows that are back after a loss, in tables with an index: no look-up misses them.

A row had one value, then another; what the index had of the first one was taken out. Then the end
of the log is lost, and the row has its first value again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.tserver.indexes.removals import IndexRemovals
from stelae.core.schema.durability import Durability, segments
from stelae.simulation import World
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.backups.media import MEDIA
from tests.simulation.indexes.entries import SCHEMA, TABLE, Tally, Watch
from tests.simulation.recovery import loss_cluster
from tests.simulation.recovery.loss_cluster import CALL_S
from tests.simulation.tables.remembered_images import remembered_images

MOVED = range(4)
"""Keys whose value changed last."""
ROWS = range(30)


class IndexedLossFixture(loss_cluster.LossFixture):
    """A table with an index of ``value``, of one tablet, and whoever sees everything."""

    def __init__(self, world: World, durability: Durability) -> None:
        super().__init__(world, media=MEDIA)
        self.durability = durability
        self.watch = Watch(self.cluster, Tally())

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")
        self.table = await self.database.create_table(
            TABLE, SCHEMA, key="id", durability=self.durability, indexes=["value"], timeout=60.0
        )
        for key in ROWS:
            await self.put(key, "a")
        segments = len(self.holders())
        while len(self.holders()) == segments:  # so that what was written before is sealed
            await self.put(100 + len(ROWS), "c")
        await self.until(lambda: self.cluster.is_whole(1, 2), "full strength")
        await self.until_indexed()

    async def put(self, key: int, value: str) -> None:
        await self.table.upsert({"id": key, "value": value, "n": 0}, timeout=CALL_S)

    async def move(self) -> None:
        """Give some rows another value, which stands in the head alone."""
        for key in MOVED:
            await self.put(key, "b")
        await self.until_indexed()
        assert await self.found("b") == list(MOVED)

    async def until_indexed(self) -> None:
        await self.until(lambda: not self.watch.difference(), "the index is what the rows say")

    def indexlet_server(self) -> str:
        (held,) = self.watch.indexlets()
        assert held.server != self.owner, "it would die with its tablet's owner"
        return held.server

    async def found(self, value: str, **given: Any) -> list[int]:
        rows = await self.table.find("value", value, timeout=CALL_S, **given)
        found: list[int] = rows.column("id").to_pylist()
        return found

    async def nothing_lacks(self, **given: Any) -> None:
        """From the moment in which the tablet answers on."""
        await self.until(lambda: self.watch.tablets(), "the tablet is served")
        self.watch.look()
        first = await self.found("a", **given)
        assert set(MOVED) & set(first), "the loss has brought no row's former value back"
        rows = (await self.table.scan(timeout=CALL_S)).to_pylist()
        assert first == sorted(row["id"] for row in rows if row["value"] == "a")
        for _ in range(60):
            self.watch.look()
            await asyncio.sleep(0.05)
        await self.until_indexed()


def tell(
    story: Callable[[IndexedLossFixture], Awaitable[None]],
    medium: str = "disk",
    seed: int = 1,
) -> None:
    servers = Servers(tservers=3, backups=5)
    world = World(seed, Options(servers=servers, keep_unsynced_rate=0.0))
    here = IndexedLossFixture(world, segments(medium, medium))

    async def run() -> None:
        await here.start()
        await here.move()
        await story(here)

    with remembered_images():
        world.run(run(), limit_s=900.0)


async def accepted(here: IndexedLossFixture, **given: Any) -> None:
    """All replicas of the head are gone, its tablet's owner too, and the indexlet is not."""
    indexlet = here.indexlet_server()
    await here.lose(here.holders()[-1])
    await here.accept()
    await here.nothing_lacks(**given)
    assert here.indexlet_server() == indexlet


async def short(here: IndexedLossFixture) -> None:
    """All backups lose their power, and with it the end of the head; nobody has to accept it."""
    here.indexlet_server()
    owner = here.owner
    for name in here.cluster.backups:
        here.world.crash(name, restart=False)
    here.world.crash(owner)
    await here.bring_back(*here.cluster.backups)
    await here.nothing_lacks()
    assert not (await here.database.losses()).accepted


@pytest.mark.parametrize("if_filling", ["wait", "scan"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_an_accepted_loss_every_row_is_found_by_the_value_it_has_again(
    seed: int, if_filling: str
) -> None:
    """The indexlet answers for nobody before it has compared what is left."""
    tell(lambda here: accepted(here, if_filling=if_filling), seed=seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_a_loss_of_power_every_row_is_found_by_the_value_it_has_again(seed: int) -> None:
    """What flash had not synced is gone, though it was acknowledged."""
    tell(short, "flash", seed)


@pytest.mark.parametrize(
    ("story", "medium"), [(accepted, "disk"), (short, "flash")], ids=["accepted", "short"]
)
def test_this_would_see_indexlets_that_do_not_hear_of_a_loss(story: Any, medium: str) -> None:
    """They would answer from what they have until they have compared, as after any recovery."""
    announce = IndexRemovals.announce

    async def silent(
        self: IndexRemovals, *, is_lossy: bool = False, may_lack: bool = False
    ) -> None:
        if not may_lack:
            await announce(self, is_lossy=is_lossy)

    planted = patch.object(IndexRemovals, "announce", silent)
    with planted, pytest.raises(SimulationFailure, match="lacks"):
        tell(story, medium)
