"""Tables get another durability while they are used: what callers see of it."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import (
    InvalidArgument,
    NotDoneYet,
    NotEnoughServers,
    TableNotFound,
    TooFewServers,
    TooManyReplicas,
)
from stelae.core.records.records import TableState
from stelae.core.schema.durability import Durability, replicas, segments, wal
from tests.simulation.successions.durability_story import DIRECTIONS, KINDS, DurabilityFixture, tell
from tests.simulation.wal.wal_cluster import read_all, write


@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_a_table_gets_another_durability_while_it_is_written(before: str, after: str) -> None:
    """What was acknowledged before, while and after stays, and survives the death of its servers;
    what was deleted stays deleted; and nothing is left of the tablets that were."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS[before])
        await write(table, 0, 60)
        for number in range(1000, 1020):
            await table.upsert({"id": number, "text": "to be deleted"})
        await table.delete(1000)
        old = {t.tablet_id for t in here.leader.catalog.tablets_of(here.record.table_id)}
        writing = asyncio.create_task(write(table, 60, 60))
        await asyncio.sleep(0.02)
        for number in range(1001, 1010):
            await table.delete(number)
        await table.alter(durability=KINDS[after], timeout=60.0)
        for number in range(1010, 1020):
            await table.delete(number)
        await writing
        await read_all(table, 120)
        assert here.record.durability == KINDS[after]
        assert here.record.state is TableState.RUNNING
        assert here.record.becoming is None
        new = here.leader.catalog.tablets_of(here.record.table_id)
        assert [t.number for t in new] == [0, 1]
        assert not old & {t.tablet_id for t in new}
        await here.until(here.settled, "the old tablets to be gone")
        for victim in here.cluster.tservers:
            here.world.crash(victim)
        await read_all(table, 120)
        await write(table, 120, 10)
        await read_all(table, 130)

    tell(story)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (segments("disk", "disk"), segments("disk")),
        (wal(3, ("disk",)), wal(1, ("disk", "disk"))),
        (replicas(3), replicas(1)),
    ],
)
def test_media_and_numbers_change_as_well(before: Durability, after: Durability) -> None:
    """Of the same kind too: by successors, and by healing for replicas."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(before)
        await write(table, 0, 30)
        await table.alter(durability=after, timeout=60.0)
        await read_all(table, 30)
        assert here.record.durability == after
        await here.until(here.settled, "the old tablets to be gone")

    tell(story)


def test_a_table_goes_there_and_back_before_it_is_there() -> None:
    """An alter back takes the first one back; versions only grow."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS["segments"], buckets=5)
        await write(table, 0, 60)
        row = await table.get(7, with_version=True)
        assert row is not None
        await table.alter(durability=KINDS["replicas"], wait=False)
        await here.until(
            lambda: any(t.change for t in here.leader.catalog.tablets_of(here.record.table_id)),
            "the first tablet to have changed",
        )
        with pytest.raises(InvalidArgument, match="wait until that is done, or alter it back"):
            await table.alter(durability=KINDS["wal"])
        await table.alter(durability=KINDS["segments"], timeout=60.0)
        assert here.record.durability == KINDS["segments"]
        await read_all(table, 60)
        again = await table.get(7, with_version=True)
        assert again == row, "a change keeps versions"
        (version,) = await table.upsert({"id": 7, "text": "new"})
        assert int(version) > row["_version"]
        await here.until(here.settled, "the successors to be gone")

    tell(story)


def test_what_there_are_too_few_servers_for_is_refused() -> None:
    """With numbers, and nothing is changed: for a while, as long as more may be heard of, and then
    for good. The refusal does not wait for servers as long as for tablets."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS["segments"])
        with pytest.raises(NotEnoughServers, match="5 live tservers, there are 4"):
            await table.alter(durability=replicas(5), timeout=2.0)
        asked = here.world.loop.time()
        with pytest.raises(TooFewServers, match="5 safekeepers; the cluster has 3"):
            await table.alter(durability=wal(5), timeout=600.0)
        assert here.world.loop.time() - asked < 40.0
        with pytest.raises(TooFewServers, match="5 tservers; the cluster has 4"):
            await table.alter(durability=replicas(5), timeout=20.0)
        with pytest.raises(TooManyReplicas, match="1 backups with medium 'gold'"):
            await table.alter(durability=segments("gold"), timeout=20.0)
        for wrong in ("replicas(3)", 3):
            with pytest.raises(InvalidArgument, match="give segments"):
                await table.alter(durability=wrong)  # type: ignore[arg-type]
        assert here.record.becoming is None
        assert here.record.state is TableState.RUNNING

    tell(story)


def test_an_alter_that_takes_longer_than_its_caller_waits_goes_on() -> None:
    """The caller hears that it does, and for which tablets it waits."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS["segments"])
        await write(table, 0, 60)
        with pytest.raises(NotDoneYet, match=r"goes on by itself \(it waits for tablets [0-9a-f]"):
            await table.alter(durability=KINDS["wal"], timeout=0.05)
        await here.until(lambda: here.record.durability == KINDS["wal"], "the alter to be done")
        await read_all(table, 60)

    tell(story)


def test_a_table_that_changes_can_be_dropped_and_renamed() -> None:
    """Nothing of it is left anywhere; a name changes at once."""

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS["replicas"], buckets=4)
        await write(table, 0, 40)
        await table.alter(durability=KINDS["wal"], wait=False)
        await table.rename("other")
        await write(table, 40, 10)
        await here.database.delete_table("other")
        with pytest.raises(TableNotFound):
            await here.database.table("other")
        await here.until(here.settled, "all tablets to be gone")

    tell(story)


def test_writes_wait_for_a_moment_only() -> None:
    """The longest pause of a writer while both tablets of its table change, in calm."""
    pauses: list[float] = []

    async def story(here: DurabilityFixture) -> None:
        table = await here.create(KINDS["segments"])
        await write(table, 0, 100)
        task = asyncio.create_task(table.alter(durability=KINDS["wal"], timeout=60.0))
        number = 0
        while not task.done():
            began = here.world.loop.time()
            await table.upsert({"id": number % 100, "text": "x" * 500}, timeout=20.0)
            pauses.append(here.world.loop.time() - began)
            number += 1
        await task

    tell(story)
    assert max(pauses) < 0.5, f"a write waited {max(pauses)} s"
