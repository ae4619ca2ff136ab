"""Passes of the cleaner over real tablets: the barrier, lost replicas, full memory, tombstones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from stelae.actors.tablet import Tablet
from stelae.core.backup_views import BackupsView
from stelae.core.durability import Durability, segments, wal
from stelae.core.errors import OutOfMemory
from stelae.core.messages import FreeReplicas, WriteOp
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.options import Limits, Servers
from stelae.storage.cleaning import Needs
from tests.simulation.planted import planted
from tests.unit.actors.tablet_world import SCHEMA, SETTINGS, TabletWorld, run

BIG = "x" * 700
NEVER_S = 1e6


# ---- one tablet ---------------------------------------------------------------------------------


async def _heads(here: TabletWorld, count: int, first: int = 0) -> None:
    """Overwrite a few rows until so many heads were closed and sealed."""
    tablet = here.tablet
    until = tablet.log.digest[-1] + count
    n = first
    while tablet.log.digest[-1] < until:
        await here.write((n % 3, BIG))
        n += 1
    await _sealed_all(here)


async def _sealed_all(here: TabletWorld) -> None:
    tablet = here.tablet
    await here.until(lambda: len(tablet.memory.statistics()) - 1 == _sealed(tablet), "seals")
    sealed = [s.segment_id for s in tablet.memory.statistics() if s.sealed]
    await here.until(lambda: all(map(tablet.log.may_clean, sealed)), "all replicas sealed")


def _sealed(tablet: Tablet) -> int:
    return sum(each.sealed for each in tablet.memory.statistics())


def _freed(here: TabletWorld) -> list[tuple[int, set[int]]]:
    """(place among all events, numbers of segments) of each call that frees."""
    return [
        (place, {segment & 0xFFFFFFFF for segment in event.body.segments})
        for place, event in enumerate(here.events)
        if event.what == "sent" and isinstance(event.body, FreeReplicas)
    ]


def test_what_was_cleaned_is_freed_when_a_later_head_is_durable_and_the_one_before_closed() -> None:
    """Not a call earlier: until then a recovery may go by the older digest."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await _heads(here, 6)
        before = set(here.tablet.log.digest)
        assert await here.tablet.cleaning.clean(memory_is_low=False)
        gone = before - set(here.tablet.log.digest)
        assert gone, "old segments have no live rows by now"
        await asyncio.sleep(5.0)
        assert not _freed(here), "no head was opened since"
        old = here.tablet.log.digest[-1] & 0xFFFFFFFF
        assert here.tablet.roll()
        await here.until(lambda: len(_freed(here)) == 2, "both backups to be told")
        first = _freed(here)[0][0]
        opened = [place for place, _ in here.writes("answered", old + 1) if place < first]
        closed = [p for p, event in here.writes("answered", old) if p < first and event.body.close]
        assert len(opened) == len(closed) == 2
        assert all(ids == {segment & 0xFFFFFFFF for segment in gone} for _, ids in _freed(here))

    run(scenario)


def test_what_was_cleaned_and_lacks_a_replica_is_told_and_worth_a_head() -> None:
    """An older digest names it until a later head is open: one more loss would be too many."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await _heads(here, 6)
        log, cleaning = here.tablet.log, here.tablet.cleaning
        assert await cleaning.clean(memory_is_low=False)
        parent = log.side.retired[0]
        assert not log.under_replicated
        parent.let_image_go()  # as memory had less of it already
        parent.lose(parent.holders[0])
        assert log.under_replicated == 1
        assert min(len(each) for each in log.holders) == 1
        assert log.side.waits_since_s is not None
        await asyncio.sleep(SETTINGS.clean_roll_after_s)
        await cleaning.clean(memory_is_low=False)
        await here.until(lambda: not log.side.retired, "a head, and what it replaces is freed")
        assert not log.under_replicated

    run(scenario)


def test_a_survivor_that_does_not_reach_its_backups_is_given_up() -> None:
    """The log stays as it was, and so does what is read."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write(*[(n, BIG) for n in range(3, 6)])
        await _heads(here, 4)
        tablet = here.tablet
        for segment in tablet.memory.statistics():
            if segment.sealed and segment.live_rows < segment.row_count:
                assert await tablet.cleaning.compact()
        while await tablet.cleaning.clean(memory_is_low=False):  # what needs no survivor
            continue
        here.see("b1")
        here.world.crash("b2", restart=False)
        before = tablet.log.digest
        work = asyncio.get_running_loop().create_task(tablet.cleaning.clean(memory_is_low=True))
        assert not await work
        # But for a head, as what was cleaned before lacks a replica by now.
        assert tablet.log.digest[: len(before)] == before
        assert not tablet.log.side._side
        assert [await here.get(n) for n in range(3, 6)] == [BIG] * 3

    run(scenario)


def test_nothing_is_cleaned_while_rows_are_still_being_fetched() -> None:
    """What looks dead may be what is yet to come."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await _heads(here, 5)
        here.tablet.may_clean = lambda: False  # type: ignore[method-assign]
        assert not await here.tablet.cleaning.compact()
        assert not await here.tablet.cleaning.clean(memory_is_low=True)
        del here.tablet.may_clean
        assert await here.tablet.cleaning.clean(memory_is_low=True)

    run(scenario)


@pytest.mark.parametrize("keeps", [False, True])
def test_tombstones_stay_while_another_tablet_is_brought_up(keeps: bool) -> None:
    """It would keep the rows for ever; otherwise they go with the rows that they guard against."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await _heads(here, 3)
        for n in range(3):
            await here.write((n,), op=WriteOp.DELETE)
        await here.write(*[(n, BIG) for n in range(10, 20)])
        here.tablet.roll()
        await _sealed_all(here)
        here.tablet.keep_all(keeps=keeps)
        while await here.tablet.cleaning.clean(memory_is_low=True):
            continue
        assert bool(here.tablet.memory.forgot_below) is not keeps
        assert bool(here.tablet.forgettings) is not keeps
        assert [await here.get(n) for n in (0, 1, 2, 15)] == [None, None, None, BIG]

    run(scenario)


def test_replicas_are_brought_into_groups_though_segments_are_cleaned_meanwhile() -> None:
    """Those are left alone, and hold up nobody: what stays is in one group at last."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await _heads(here, 8)
        here.see("b1", "b2", "b3", "b4")
        b1, b2, b3, b4 = [here.info(name).uuid for name in ("b1", "b2", "b3", "b4")]
        before = set(here.tablet.log.digest)
        here.members.see_backups(BackupsView(1, copysets=((b1, b3), (b2, b4))))
        log = here.tablet.log

        def is_moving() -> bool:
            return any(len(each.replicas) > 2 for each in log.segments)

        await here.world.wait_until(is_moving, 9.0, "one is on its way", 0.001)
        assert await here.tablet.cleaning.clean(memory_is_low=False)
        assert len(before - set(log.digest)) >= 3, "old segments have no live rows by now"
        assert here.tablet.roll()

        def are_grouped() -> bool:
            groups = ({b1, b3}, {b2, b4})
            return all(set(each.holders) in groups for each in log.segments)

        await here.until(are_grouped, "all that is left to lie in groups")

    settings = msgspec.structs.replace(SETTINGS, rereplication_bytes_per_s=2000.0)
    run(scenario, backups=4, settings=settings)


# ---- a whole cluster ----------------------------------------------------------------------------


class Calm:
    """One master, two tservers, four backups; nothing is cleaned but what the test cleans."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        settings = {"clean_memory_share": 1.0, "clean_period_s": NEVER_S, **changes}
        self.cluster = SimCluster(world, **settings)

    async def start(self, durability: Durability) -> None:
        await self.cluster.start()
        database = self.cluster.database("client")
        self.table = await database.create_table(
            "rows", SCHEMA.arrow, key="id", durability=durability, timeout=60.0
        )

    @property
    def server(self) -> Any:
        """The tserver with the only tablet."""
        servers = [self.world.server(name) for name in self.cluster.tservers]
        return next(each for each in servers if each is not None and each._tablets)

    @property
    def tablet(self) -> Tablet:
        (tablet,) = self.server._tablets.values()
        assert isinstance(tablet, Tablet)
        return tablet

    async def overwrite(self, count: int, keys: int = 4) -> dict[int, str]:
        """Write rows over and over; what they are then."""
        rows: dict[int, str] = {}
        for n in range(count):
            rows[n % keys] = f"{n}-{BIG}"
            await self.table.upsert({"id": n % keys, "value": rows[n % keys]})
        return rows

    async def settled(self) -> None:
        def is_settled() -> bool:
            closed = [each for each in self.tablet.memory.statistics() if each.closed]
            return all(self.tablet.log.may_clean(each.segment_id) for each in closed)

        await self.world.wait_until(is_settled, 60.0, "all segments to be sealed")


def run_calm(
    scenario: Callable[[Calm], Coroutine[Any, Any, None]], durability: Durability, **changes: Any
) -> None:
    limits = Limits(segment_size_bytes=4096)
    servers = Servers(masters=1, tservers=2, backups=4, safekeepers=3)
    world = World(5, Options(servers=servers, limits=limits))

    async def main() -> None:
        here = Calm(world, **changes)
        await here.start(durability)
        await scenario(here)

    world.run(main())


LOGS = [segments("disk", "disk"), wal(3, ("disk", "disk"))]


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
