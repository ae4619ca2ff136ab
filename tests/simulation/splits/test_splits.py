"""A tablet that is too large is split when it is recovered: each row is in one of its parts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.core.errors import StelaeError
from stelae.core.records.records import TabletState
from stelae.core.schema.durability import segments
from stelae.core.schema.shares import share_of
from stelae.simulation.runner import (
    derive_seeds,
    find_bug,
    kept_seeds,
    run_seed,
    run_seeds,
)
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.world import World
from tests.simulation.splits.planted_splits import BUGS
from tests.simulation.splits.split_story import NEVER_S, ROWS, Story
from tests.simulation.tables.tables import counts_of

EMPTY_HEADS = 30
EMPTY_BYTES = 2000
"""At least so much takes a segment without rows."""
SEEDS = 1
BUG_SEEDS = 60


@pytest.mark.parametrize("load_bytes_per_s", [0.0, NEVER_S])
def test_the_parts_of_a_split_tablet_have_all_its_rows(load_bytes_per_s: float) -> None:
    """By every way of reading, whether their rows are in memory yet or not; old handles find them,
    and writes go on."""
    story = Story(load_bytes_per_s=load_bytes_per_s)

    async def tell() -> None:
        table = await story.begin()
        (before,) = story.tablets
        story.kill_owner()
        await story.wait_split()
        records = story.tablets
        assert {share_of(r.number, 1).bits for r in records} == {1}
        assert story.catalog.tablets[before.tablet_id].state is TabletState.REPLACED
        owners = {story.owner_of(r.tablet_id) for r in records}
        assert len(owners) == 2, "two servers bring it back"
        await story.check_all(table)
        await story.write(table, range(100, 160), "second")
        await table.delete([120, 121])
        del story.values[120], story.values[121]
        await story.check_all(table)

    story.run(tell())


def test_the_log_of_a_split_tablet_is_freed_once_its_parts_are_whole() -> None:
    """Not before; and whatever dies then, all rows are there."""
    story = Story()

    async def tell() -> None:
        table = await story.begin()
        (before,) = story.tablets
        story.kill_owner()
        await story.wait_split()
        assert before.tablet_id in story.logs_held()
        await story.wait_whole()

        def is_freed() -> bool:
            return before.tablet_id not in story.logs_held()

        await story.world.wait_until(is_freed, 60.0, "its log is freed")
        await story.check_all(table)
        story.kill_owner()
        await story.wait_split(3)
        shares = [share_of(r.number, 1) for r in story.tablets]
        assert sorted(share.bits for share in shares) == [1, 2, 2], "a whole part is split as well"
        await story.check_all(table)

    story.run(tell())


@pytest.mark.parametrize("seed", range(4))
def test_a_part_that_inherits_is_recovered_from_both_logs(seed: int) -> None:
    """What it inherited and what was written to it since are there after its owner has died, again
    and again, before anything was loaded."""
    story = Story(seed, load_bytes_per_s=NEVER_S)

    async def tell() -> None:
        table = await story.begin()
        story.kill_owner()
        await story.wait_split()
        for word in ("second", "third"):
            await story.write(table, range(40, 140), word)
            await table.delete([50, 51])
            del story.values[50], story.values[51]
            story.kill_owner()
            await asyncio.sleep(0)
            await story.world.wait_until(
                lambda: all(r.state is TabletState.RUNNING for r in story.tablets),
                60.0,
                "they are served again",
            )
            await story.check_all(table)
            for name in story.cluster.tservers:
                if story.world.server(name) is None:
                    story.world.restart(name)

    story.run(tell())


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("count", [2, 40])
def test_a_write_that_is_repeated_across_the_split_counts_once(
    monkeypatch: pytest.MonkeyPatch, count: int, is_durable: bool
) -> None:
    """The owner dies before it answers. If backups have the write, all parts know its answer; if
    none has it, each part does its rows. A second delivery would give rows other versions."""
    story = Story()
    committed = Tablet._committed
    dies = [False]

    async def stopped(self: Tablet, index: int, timeout_s: float) -> None:
        if not dies[0]:
            return await committed(self, index, timeout_s)
        dies[0] = False
        if is_durable:
            await committed(self, index, timeout_s)
        story.kill_owner()
        await asyncio.Event().wait()

    monkeypatch.setattr(Tablet, "_committed", stopped)

    async def tell() -> None:
        table = await story.begin()
        (before,) = story.tablets
        if not is_durable:
            story.cut_from_backups()
        dies[0] = True
        keys = range(1000, 1000 + count)
        rows = [{"id": key, "value": f"new {key}", "count": key} for key in keys]
        versions = await table.insert(rows, timeout=60.0)
        assert story.catalog.tablets[before.tablet_id].state is TabletState.REPLACED
        await story.wait_split()
        found = await table.get_many(list(keys), with_versions=True, timeout=20.0)
        assert found["id"].to_pylist() == list(keys)
        assert found["_version"].to_pylist() == versions.tolist()
        rises = bool((np.diff(versions.astype(np.int64)) == 1).all())
        assert rises == is_durable or count == 2, "it is the split tablet's answer, or the parts'"

    story.run(tell())


def test_what_a_part_has_made_its_own_counts_after_a_crash() -> None:
    """Heads are begun meanwhile: whoever follows an owner that had nearly everything goes on from
    there, and fetches what is left."""
    story = Story(load_bytes_per_s=2000.0, clean_roll_after_s=0.5)

    async def tell() -> None:
        table = await story.begin()
        story.kill_owner()
        await story.wait_split()
        part = story.tablets[0].tablet_id
        inherited = story.inherited_by(part)
        assert len(inherited) >= 5

        def is_late() -> bool:
            return len(story.inherited_by(part)) <= len(inherited) // 4

        await story.world.wait_until(is_late, 60.0, "it has most of it")
        assert story.inherited_by(part), "it is not whole yet"
        story.kill_owner()
        await story.wait_split()
        left = story.inherited_by(part)
        assert 0 < len(left) <= len(inherited) // 2, "what was done before counts"
        assert left <= inherited
        await story.check_all(table)
        await story.wait_whole()
        await story.check_all(table)

    story.run(tell())


def test_memory_of_a_part_is_compacted_while_it_inherits() -> None:
    """Of its own segments only. One that was compacted and then loses a replica gets a survivor at
    once; after another crash all rows are there, and no deleted one."""
    story = Story(load_bytes_per_s=NEVER_S, clean_memory_share=0.0, clean_roll_after_s=0.5)

    async def tell() -> None:
        table = await story.begin()
        story.kill_owner()
        await story.wait_split()
        part = story.tablets[0].tablet_id
        for word in ("second", "third", "fourth"):
            await story.write(table, range(0, 80), word)
            await table.delete([10, 11, 12, 13])
        for key in (10, 11, 12, 13):
            del story.values[key]

        def compacted() -> list[ReplicatedSegment]:
            tablet = story.served()[part]
            own = tablet.log.side.segments.values()
            return [s for s in own if s.is_columnar and s.replicas and not s.image_bytes]

        await story.world.wait_until(lambda: bool(compacted()), 60.0, "something is compacted")
        assert story.inherited_by(part), "it inherits yet"
        await story.check_all(table)
        segment = compacted()[0]
        lost = story.backup(segment.replicas[0].backup)
        story.world.crash(lost, lose_disk=True, restart=False)
        log = story.served()[part].log

        def is_replaced() -> bool:
            return segment.segment_id not in log.digest and segment not in log.side.retired

        await story.world.wait_until(is_replaced, 60.0, "a survivor takes its place")
        await story.check_all(table)
        story.world.crash(story.owner_of(part))
        await story.wait_split()
        await story.check_all(table)

    story.run(tell())


def test_heads_that_are_begun_meanwhile_take_no_memory_from_what_a_part_inherits() -> None:
    """Those without rows leave the log, and memory, at once: there is room for the rest, though
    all of them together would not fit."""
    story = Story(clean_period_s=0.5)

    async def tell() -> None:
        table = await story.begin()
        cleaners = [story.world.server(name).cleaner for name in story.cluster.tservers]
        for cleaner in cleaners:
            cleaner.limit_bytes = 1
        story.kill_owner()
        await story.wait_split()
        for part, tablet in story.served().items():
            assert story.inherited_by(part), "there is no memory for it"
            for _ in range(EMPTY_HEADS):
                await story.world.wait_until(tablet.roll, 10.0, "the next head is begun")
        assert all(story.inherited_by(part) for part in story.served())
        for cleaner in cleaners:
            cleaner.limit_bytes = EMPTY_HEADS * EMPTY_BYTES
        await story.wait_whole()
        assert all(len(tablet.log.digest) < EMPTY_HEADS for tablet in story.served().values())
        await story.check_all(table)

    story.run(tell())


def test_a_client_that_knows_the_split_tablet_only_is_told_no_row_is_missing() -> None:
    """Reads, scans and writes that begin before the split end after it, from the same handles."""
    story = Story()

    async def tell() -> None:
        table = await story.begin()
        story.kill_owner()
        row, many, scanned = await asyncio.gather(
            table.get(17, timeout=60.0),
            table.get_many(list(range(ROWS)), timeout=60.0),
            table.scan(timeout=60.0),
        )
        assert row["value"] == story.values[17]
        assert many.num_rows == scanned.num_rows == len(story.values)
        assert len(story.tablets) == 2
        batches = [batch async for batch in table.scan_tablets(columns=["id"], timeout=60.0)]
        assert sum(batch.num_rows for batch in batches) == len(story.values)

    story.run(tell())


def test_a_part_gets_another_durability() -> None:
    """Its successor has its share of the rows, and its place in the table."""
    story = Story()

    async def tell() -> None:
        table = await story.begin()
        story.kill_owner()
        await story.wait_split()
        numbers = [record.number for record in story.tablets]
        await table.alter(durability=segments("disk", "disk", "disk"), timeout=120.0)
        await story.check_all(table)
        assert [record.number for record in story.tablets] == numbers
        assert all(record.inherits is None for record in story.tablets)

    story.run(tell())


def test_crashes_before_parts_are_whole_lose_nothing() -> None:
    """The kept seeds of the scenario without indexes, and a few others; tablets are split many
    times."""
    scenario, splits, inherited = load_scenario("unindexed_splits"), 0, 0
    for seed in [*kept_seeds(scenario.name), *derive_seeds(scenario.name, SEEDS)]:
        world = World(seed, scenario.options(seed))
        world.run(scenario.run(world, ""), limit_s=scenario.limit_s)
        splits += counts_of(world)["tablets_split"]
        inherited += counts_of(world)["segments_inherited"]
    assert splits >= SEEDS
    assert inherited >= SEEDS


def test_splits_under_faults_lose_nothing() -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario("splits"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("splits")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
