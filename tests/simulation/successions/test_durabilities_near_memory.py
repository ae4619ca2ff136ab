"""A table gets another durability while its servers have little memory left: stories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import NotDoneYet
from stelae.core.records.records import TableState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.successions.durability_story import DurabilityFixture, tell
from tests.simulation.successions.planted_durabilities import planted
from tests.simulation.wal.wal_cluster import SCHEMA

LIMIT_BYTES = 600_000
TEXT = "x" * 1000
LITTLE: dict[str, Any] = {
    "tservers": 3,
    "segment_bytes": 20_000,
    "memory_limit_bytes": LIMIT_BYTES,
}
BEFORE, AFTER = segments("disk", "disk"), segments("disk")


async def create(here: DurabilityFixture, name: str, rows: int) -> AsyncTable:
    """A table of one tablet, with so many rows of about a kilobyte."""
    table = await here.database.create_table(
        name,
        SCHEMA,
        key=["id"],
        partition=hash_partition("id", buckets=1),
        durability=BEFORE,
        timeout=30.0,
    )
    for first in range(0, rows, 20):
        await table.upsert([{"id": first + n, "text": TEXT} for n in range(20)], timeout=30.0)
    return table


async def write_again(table: AsyncTable, for_s: float) -> int:
    """Write the same few rows over and over; none may be refused. Returns how many were written."""
    clock = table.runtime.clock
    until_s, written = clock.monotonic() + for_s, 0
    while clock.monotonic() < until_s:
        await table.upsert({"id": written % 10, "text": TEXT}, timeout=5.0)
        written += 1
        await clock.sleep(0.05)
    return written


def altering(here: DurabilityFixture, name: str) -> bool:
    record = here.leader.catalog.find(name)
    return bool(record.state is TableState.ALTERING)


async def _waits_for_memory(here: DurabilityFixture) -> None:
    tables = [await create(here, f"big-{n}", 380) for n in range(3)]
    small = await create(here, "small", 20)
    writing = [asyncio.create_task(write_again(table, 20.0)) for table in tables]
    said: list[str] = []
    for table in tables[:2]:
        with pytest.raises(NotDoneYet) as caught:
            await table.alter(durability=AFTER, timeout=10.0)
        said.append(str(caught.value))
    assert all(await asyncio.gather(*writing))
    await small.alter(durability=AFTER, timeout=20.0)
    assert all("bytes of memory" in each and "no server has them" in each for each in said)
    assert altering(here, "big-0")
    assert altering(here, "big-1")
    here.cluster.add_tserver()
    await here.until(lambda: not altering(here, "big-0"), "the first to have changed")
    here.cluster.add_tserver()
    await here.until(lambda: not altering(here, "big-1"), "the second to have changed")
    await here.until(here.settled, "the old tablets to be gone")
    assert await tables[0].count() == await tables[1].count() == 380
    assert here.given_up() == 0, "a successor was made in vain"


def test_an_alter_waits_for_memory_and_harms_nobody_meanwhile() -> None:
    """No server has room for the tablet twice: those who write to other tables do not notice, the
    caller hears what is missing, other tables change, and so does this one once a server joins; of
    two that wait for it only one begins."""
    tell(_waits_for_memory, **LITTLE)


async def _others_change(here: DurabilityFixture) -> None:
    """Two tablets cannot go on for want of memory; there is some for a smaller one."""
    tables = [await create(here, f"big-{n}", 380) for n in range(3)]
    small = await create(here, "small", 20)
    for table in tables[:2]:
        with planted("memory_is_endless"):
            await table.alter(durability=AFTER, wait=False)
            await here.until(lambda: altering(here, "big-0"), "it is begun")
    await here.until(lambda: len(here.leader.catalog.successors()) == 2, "both are begun")
    await asyncio.sleep(5.0)
    assert len(here.leader.catalog.successors()) == 2
    await small.alter(durability=AFTER, timeout=8.0)


@pytest.mark.parametrize(
    ("bug", "story", "what"),
    [
        ("memory_is_endless", _waits_for_memory, "AssertionError"),
        ("rooms_are_given_twice", _waits_for_memory, "the first to have changed"),
        ("stuck_ones_keep_their_turns", _others_change, "'small' is not done yet"),
    ],
)
def test_a_planted_bug_of_who_has_memory_is_found(
    bug: str, story: Callable[[DurabilityFixture], Awaitable[None]], what: str
) -> None:
    """What these stories tell is not so with the bug."""
    with planted(bug), pytest.raises(SimulationFailure, match=what):
        tell(story, seed=2, **LITTLE)  # with seed 1 both happen to get rooms of different servers


def test_what_waits_for_memory_leaves_its_turn_to_others() -> None:
    """As many tablets change at a time as may; those that cannot go on do not count."""
    tell(_others_change, **LITTLE)


def test_a_successor_for_which_memory_ran_out_is_given_up_and_made_elsewhere_later() -> None:
    """It was free when the server was chosen, and is not any more: those who write there keep what
    is left, the copy goes, and is made anew once there is memory."""

    async def story(here: DurabilityFixture) -> None:
        tables = [await create(here, f"big-{n}", 380) for n in range(3)]
        writing = [asyncio.create_task(write_again(table, 60.0)) for table in tables]
        free = planted("memory_is_endless")
        with free, pytest.raises(NotDoneYet, match="its successor takes no more rows"):
            await tables[0].alter(durability=AFTER, timeout=15.0)
        assert len(here.leader.catalog.successors()) == 1
        await here.until(lambda: not here.leader.catalog.successors(), "it to be given up", 15.0)
        await here.until(here.settled, "its memory to be free")
        assert all(await asyncio.gather(*writing))
        assert altering(here, "big-0")
        (pauses,) = here.leader.coordinator.pacing.successions.waits.values()
        assert "needs" in pauses, "the pause is over, and nothing was begun in vain"
        here.cluster.add_tserver()
        await here.until(lambda: not altering(here, "big-0"), "it to have changed")
        assert await tables[0].count() == 380

    tell(story, **LITTLE)
