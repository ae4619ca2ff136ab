"""Backups that hang: masters hear them, and no other server has an answer of them."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pyarrow as pa
import pytest

from stelae.client.table.table import AsyncTable
from stelae.coordinator.backoff import complaints
from stelae.core.errors import StelaeError
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.simulation import Options, Servers, SimulationFailure, World
from tests.simulation.world.cluster_fixture import SimClusterFixture

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
ROWS = 40
NEW = 1000
"""Key of the row that is written while the backup hangs."""
HUNG_S = 90.0
"""Several times the first patience with an owner."""
READ_S = 5.0
HEALED_S = 120.0


class HungFixture(SimClusterFixture):
    """A table of one tablet with two replicas of each segment, in heads on backups."""

    table: AsyncTable

    async def create(self) -> None:
        self.table = await self.database.create_table(
            "t", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=30.0
        )
        await self.table.upsert([{"id": key, "text": "x" * 100} for key in range(ROWS)])

    @property
    def tablet(self) -> TabletRecord:
        (found,) = self.leader.catalog.live_tablets()
        assert isinstance(found, TabletRecord)
        return found

    def hang(self, backup: str) -> None:
        """Masters alone hear it from now on."""
        others = [name for name in self._others(backup) if name not in self.cluster.masters]
        self.world.partition([backup], others)

    async def read(self) -> None:
        """Each row that was acknowledged, by itself: none waits for the write that is pending."""
        for key in range(0, ROWS, 7):
            row = await self.table.get(key, timeout=READ_S)
            assert row is not None, f"row {key} is gone"

    async def judge(self) -> None:
        """All that was written is there, and each segment has its replicas."""
        assert await self.table.get(NEW, timeout=READ_S) is not None
        found = await self.table.scan(timeout=30.0)
        assert found.num_rows == ROWS + 1
        await self.until(lambda: self.cluster.is_whole(1, 2), "full strength", HEALED_S)


async def one_of_two_hangs(here: HungFixture, mend: str) -> None:
    """One of two backups hangs, and comes back, or another one comes: reads go on all the while."""
    await here.create()
    hung = here.cluster.backups[-1]
    before = here.tablet
    here.hang(hung)
    end_s = here.world.loop.time() + HUNG_S
    writing = asyncio.create_task(
        here.table.upsert({"id": NEW, "text": "new"}, timeout=HUNG_S + HEALED_S)
    )
    while here.world.loop.time() < end_s:
        await here.read()
        await asyncio.sleep(1.0)
    assert not writing.done(), "it was acknowledged with one replica"
    now = here.tablet
    assert (now.owner, now.term) == (before.owner, before.term), "the tablet was moved"
    if mend == "another":
        here.cluster.add_backup()
    else:
        here.world.network.unblock_all()
    await writing
    await here.read()
    assert here.tablet.term == before.term
    here.world.network.unblock_all()
    await here.judge()


async def one_owner_misses_both(here: HungFixture) -> None:
    """The owner is cut off from all backups, which others reach: that is no backup's fault."""
    await here.create()
    first = here.name_of(here.tablet.owner)
    for backup in here.cluster.backups:
        here.world.partition([backup], [first])
    began_s = here.world.loop.time()
    writing = asyncio.create_task(here.table.upsert({"id": NEW, "text": "new"}, timeout=HEALED_S))

    def is_served() -> bool:
        if here.cluster.leader() is None:
            return False
        return here.tablet.state is TabletState.RUNNING and here.tablet.term > 1

    await here.until(is_served, "another owner serves it", HEALED_S)
    assert here.name_of(here.tablet.owner) != first
    try:
        await writing
    except StelaeError:  # it may have been told to the first owner
        await here.table.upsert({"id": NEW, "text": "new"}, timeout=READ_S)
    assert here.world.loop.time() < began_s + HEALED_S
    here.world.network.unblock_all()
    await here.judge()


def tell(seed: int, story: str) -> None:
    options = Options(servers=Servers(tservers=3, backups=2))
    world = World(seed, options)
    here = HungFixture(world, segment_bytes=8000)

    async def run() -> None:
        await here.start()
        if story == "cut off":
            await one_owner_misses_both(here)
        else:
            await one_of_two_hangs(here, story)

    world.run(run(), limit_s=900.0)


@pytest.mark.parametrize("mend", ["another", "goes on"])
@pytest.mark.parametrize("seed", [1, 2])
def test_while_one_of_two_backups_hangs_reads_go_on_and_the_tablet_stays(
    seed: int, mend: str
) -> None:
    """No tserver could open the tablet without it. The write waits for a second replica, and ends
    once another backup is there, or the one that hung answers."""
    tell(seed, mend)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_owner_that_misses_two_backups_which_others_reach_gives_the_tablet_up(
    seed: int,
) -> None:
    """It is cut off itself: another owner opens the tablet, and writes go on."""
    tell(seed, "cut off")


def test_where_one_missed_server_is_enough_reads_stop() -> None:
    """The planted bug: the tablet is closed for the backup that hangs, and nobody can open it."""
    with (
        patch.object(complaints, "MISSED_WHILE_SERVED", 1),
        pytest.raises(SimulationFailure, match="get on table 't'"),
    ):
        tell(1, "another")


def test_where_a_served_tablet_is_never_closed_writes_stop() -> None:
    """The planted bug: an owner that serves keeps its tablet, whatever it misses."""
    with (
        patch.object(complaints, "MISSED_WHILE_SERVED", 1_000),
        pytest.raises(SimulationFailure, match="another owner serves it"),
    ):
        tell(1, "cut off")
