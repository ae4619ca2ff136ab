"""Scans whose server is gone without notice: nothing comes from it any more, not even an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from stelae.client.table import owner_watch, scan
from stelae.client.table.table import AsyncTable
from stelae.core.errors import DeadlineExpired, OutcomeUnknown, RetryLater
from stelae.core.schema.durability import Durability, Wal, segments, wal
from stelae.simulation import World
from stelae.simulation.world.node import SimulationFailure
from stelae.simulation.world.options import Options, Servers
from tests.simulation.wal.wal_cluster import SCHEMA, text, write
from tests.simulation.world.cluster_fixture import SimClusterFixture

ROWS = 60
SOON_S = 10.0
"""Until the masters have given a server up, and another one has the tablet; well below the time
that one piece may take."""


class ScanFixture(SimClusterFixture):
    """A cluster with one tablet of `ROWS` rows, and a client that scans it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, segment_bytes=2000)
        self.table: AsyncTable

    async def create(self, durability: Durability) -> None:
        self.table = await self.database.create_table(
            "t", SCHEMA, key="id", durability=durability, timeout=30.0
        )
        await write(self.table, 0, ROWS)

    @property
    def now_s(self) -> float:
        return self.world.loop.time()

    def owner(self) -> str:
        holding = (n for n in self.cluster.tservers if self.world.server(n).holders())
        return next(holding)

    def open_scans(self, name: str) -> int:
        return len(self.world.server(name)._scans._scans)

    async def scan(self, timeout_s: float) -> dict[int, str]:
        found = await self.table.scan(timeout=timeout_s)
        return {row["id"]: row["text"] for row in found.to_pylist()}

    async def cut_off_in_the_midst(self, timeout_s: float = 120.0) -> asyncio.Task[dict[int, str]]:
        """A scan whose server is cut off after its first piece."""
        owner = self.owner()
        scanning = asyncio.create_task(self.scan(timeout_s))
        begun = lambda: self.open_scans(owner) > 0  # noqa: E731
        await self.world.wait_until(begun, 5, "the first piece", 0.0002)
        assert not scanning.done(), "it has several pieces"
        self.cut_off(owner)
        return scanning


def tell(
    story: Callable[[ScanFixture], Awaitable[None]], durability: Durability, seed: int = 1
) -> None:
    safekeepers = 3 if isinstance(durability, Wal) else 0
    world = World(seed, Options(servers=Servers(tservers=3, backups=3, safekeepers=safekeepers)))
    here = ScanFixture(world)

    async def run() -> None:
        await here.start()
        await here.create(durability)
        await story(here)

    world.run(run(), limit_s=600.0)


async def _soon(here: ScanFixture) -> None:
    scanning = await here.cut_off_in_the_midst()
    since_s = here.now_s
    await write(here.table, ROWS, 1)  # the next owner serves it
    rows = await scanning
    assert here.now_s - since_s < SOON_S, "it waited for the server that was cut off"
    assert rows.items() >= {number: text(number) for number in range(ROWS)}.items()
    assert len(rows) in (ROWS, ROWS + 1), "one point of the log"


@pytest.mark.parametrize("durability", [segments("disk", "disk"), wal(3, ("disk",))], ids=str)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_scan_goes_to_the_next_owner_as_soon_as_there_is_one(
    durability: Durability, seed: int
) -> None:
    """Whole and of one point of the log: it is read anew there."""
    tell(_soon, durability, seed)


def test_without_the_masters_word_it_waits_for_the_piece() -> None:
    """The story sees that; else it would prove nothing."""
    blind = patch.object(owner_watch, "FIRST_LOOK_S", 1000.0)
    with blind, pytest.raises(SimulationFailure, match="it waited"):
        tell(_soon, segments("disk", "disk"))


def test_the_callers_deadline_holds_whatever_is_gone() -> None:
    """Also before the masters have given the server up, and while they are silent themselves."""

    async def story(here: ScanFixture) -> None:
        for timeout_s in (0.3, 1.0):
            since_s = here.now_s
            scanning = await here.cut_off_in_the_midst(timeout_s)
            with pytest.raises((OutcomeUnknown, RetryLater)):
                await scanning
            assert here.now_s - since_s <= timeout_s + 0.01
            here.world.network.unblock_all()
            assert len(await here.scan(60.0)) == ROWS
        owner = here.owner()
        here.world.partition([*here.cluster.masters], ["client"])
        here.world.partition(["client"], [*here.cluster.masters])
        here.cut_off(owner)
        since_s = here.now_s
        with pytest.raises((OutcomeUnknown, RetryLater, DeadlineExpired)):
            await here.scan(7.0)
        assert here.now_s - since_s <= 7.01

    tell(story, segments("disk", "disk"))


def test_a_server_that_is_slow_is_waited_for() -> None:
    """It is the owner, as the masters say: what it has begun is not begun again."""

    async def story(here: ScanFixture) -> None:
        owner = here.owner()
        real = scan.PIECE_TIMEOUT_S
        assert real > 12.0
        sessions = here.world.server(owner)._scans
        read, begun = sessions._read, []

        async def slow(*args: object) -> object:
            begun.append(here.now_s)
            await here.database.runtime.clock.sleep(12.0)
            return await read(*args)

        sessions._read = slow
        looks = len(begun)
        scanning = asyncio.create_task(here.scan(600.0))
        await asyncio.sleep(11.0)
        assert len(begun) == looks + 1
        sessions._read = read
        assert len(await scanning) == ROWS

    tell(story, segments("disk", "disk"))
