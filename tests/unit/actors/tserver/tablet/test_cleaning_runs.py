"""Cleaners that pass by themselves while rows are written: bounded logs, and no row comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import OutOfMemory
from stelae.core.schema.durability import Durability, segments
from stelae.storage.rows.cleaning import Needs
from tests.simulation.tables.planted import planted
from tests.unit.actors.tserver.owned_tablet.cleaned_logs import BIG, LOGS, Calm, run_calm


@pytest.mark.parametrize("durability", LOGS, ids=str)
def test_a_compacted_segment_that_loses_a_replica_comes_back_whole(durability: Durability) -> None:
    """Memory has no image of it any more: a survivor takes its place, and a recovery from that
    alone gives the same rows (research, scenario 53)."""

    async def scenario(here: Calm) -> None:
        await here.table.upsert([{"id": n, "value": BIG} for n in range(100, 103)])
        rows = await here.overwrite(40)
        await here.settled()
        tablet = here.tablet
        before = tablet.memory_bytes
        while await tablet.cleaning.compact():
            continue
        assert tablet.memory_bytes < before / 2
        lost = here.cluster.backups[0]
        held = set(here.world.server(lost)._holdings.segments(tablet.tablet_id))
        assert held & set(tablet.log.digest), "chance has put something there"
        here.world.crash(lost, lose_disk=True, restart=False)
        await here.world.wait_until(lambda: tablet.log.under_replicated > 0, 30.0, "the loss")
        while tablet.log.under_replicated:
            await tablet.cleaning.clean(memory_is_low=False)
            await asyncio.sleep(0.1)
        tablet.roll()
        await here.settled()
        owner = next(n for n in here.cluster.tservers if here.world.server(n) is here.server)
        here.world.crash(owner, restart=False)
        for key, value in rows.items():
            assert (await here.table.get(key, timeout=60.0)) == {"id": key, "value": value}
        assert await here.table.count() == len(rows) + 3

    run_calm(scenario, durability)


@pytest.mark.parametrize("durability", LOGS, ids=str)
def test_a_log_is_bounded_by_what_lives_of_it(durability: Durability) -> None:
    """Overwritten many times, it stays within the factor, and a cold start brings all back."""

    async def scenario(here: Calm) -> None:
        await here.table.upsert([{"id": n, "value": BIG} for n in range(100, 112)])
        rows = await here.overwrite(300, keys=7)
        await here.settled()
        await asyncio.sleep(3.0)
        report = here.tablet.cleaning.report()
        assert report.segments_cleaned > 20
        assert report.log_bytes < 3 * (19 * len(BIG) + 2 * 4096)
        for name in [*here.cluster.tservers, *here.cluster.backups]:
            here.world.crash(name)
        for key, value in rows.items():
            assert (await here.table.get(key, timeout=60.0)) == {"id": key, "value": value}
        assert await here.table.count() == len(rows) + 12

    run_calm(scenario, durability, clean_memory_share=0.0, clean_period_s=0.05)


@pytest.mark.parametrize("durability", [segments(), *LOGS], ids=str)
def test_overwrites_go_on_in_memory_that_would_be_full_of_dead_rows(durability: Durability) -> None:
    """They wait for the cleaner; rows that live alone are refused beyond the cap, by a number;
    deletes always go through, and make room."""

    async def scenario(here: Calm) -> None:
        cleaner = here.server.cleaner
        cleaner.limit_bytes = 60_000
        await here.overwrite(400)
        assert cleaner.used_bytes <= 1.2 * cleaner.limit_bytes
        written = 1000

        async def fill() -> None:
            nonlocal written
            while written < 2000:
                await here.table.insert({"id": written, "value": BIG})
                written += 1

        with pytest.raises(OutOfMemory) as caught:
            await fill()
        _, used, limit = caught.value.args
        assert used > limit == cleaner.cap_bytes
        assert written > 1010
        for key in range(1000, written):
            await here.table.delete(key)
        rows = await here.overwrite(60)
        assert (await here.table.get(3)) == {"id": 3, "value": rows[3]}
        assert await here.table.count() == 4
        await asyncio.sleep(1.5)
        shown = [here.world.metrics[name].gauges for name in here.cluster.tservers]
        assert any(
            0 < each.get("memory_live_bytes", 0) <= each["memory_used_bytes"] for each in shown
        )

    run_calm(scenario, durability, clean_memory_share=0.8, clean_period_s=0.1)


def test_many_that_wait_for_the_same_room_all_get_it_in_the_end() -> None:
    """Who is told of room that others take goes on to wait, before whoever came later."""

    async def scenario(here: Calm) -> None:
        here.server.cleaner.limit_bytes = 100_000

        async def writer(first: int) -> None:
            for n in range(40):
                rows = [{"id": first + key, "value": f"{n}-{BIG}"} for key in range(8)]
                await here.table.upsert(pa.Table.from_pylist(rows))

        await asyncio.gather(*[writer(8 * number) for number in range(6)])
        assert await here.table.count() == 48
        assert here.tablet.cleaning.report().segments_compacted > 5

    run_calm(scenario, segments(), clean_memory_share=0.8, clean_period_s=0.1)


async def _clean_the_tombstone(here: Calm) -> Any:
    """Clean just the segment with the tombstone of a row that lies, dead, in an older segment; then
    the owner dies. What is read of that row by its successor."""
    cold = [{"id": key, "value": BIG} for key in (100, 101)]
    await here.table.upsert([*cold, {"id": 50, "value": BIG}])
    await here.overwrite(8)
    await here.table.delete(50)
    await here.overwrite(8)
    await here.settled()
    tablet = here.tablet
    while await tablet.cleaning.compact():
        continue
    (chosen,) = [each for each in tablet.cleaning.candidates() if each.tombstones]
    assert tablet.memory.earlier(chosen.slot), "the row lies before it"
    needs = Needs(4096, 1.0)
    assert await tablet.cleaning._clean([chosen], needs)
    assert tablet.roll()
    await here.settled()
    await asyncio.sleep(1.0)
    owner = next(n for n in here.cluster.tservers if here.world.server(n) is here.server)
    here.world.crash(owner, restart=False)
    assert (await here.table.get(100, timeout=60.0)) == cold[0]
    return await here.table.get(50, timeout=60.0)


@pytest.mark.parametrize("durability", LOGS, ids=str)
def test_a_deleted_row_does_not_return_after_its_tombstone_was_cleaned(
    durability: Durability,
) -> None:
    """The log has the row still, though memory does not: its tombstone stays."""

    async def scenario(here: Calm) -> None:
        assert await _clean_the_tombstone(here) is None

    run_calm(scenario, durability)


def test_a_tombstone_that_goes_too_early_is_seen_by_whoever_reads_after_a_crash() -> None:
    """The same with the planted bug: the row is back."""

    async def scenario(here: Calm) -> None:
        assert await _clean_the_tombstone(here) == {"id": 50, "value": BIG}

    with planted("tombstone_dropped_early"):
        run_calm(scenario, LOGS[0])
