"""Indexes of tables whose tablets are split at their recovery: no row is ever missing in one, and
what a split tablet has left behind does not stay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stelae.actors.master.leader import recovery as recovery_rounds
from stelae.client.table.table import AsyncTable
from stelae.core.errors import SegmentsMissing
from stelae.core.messages.indexes import IndexletProgress
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexletState
from stelae.recovery import inherited
from tests.simulation.indexes.entries import settled
from tests.simulation.splits.split_story import NEVER_S, ROWS, Story
from tests.simulation.tables.remembered_images import remembered_images
from tests.simulation.tables.tables import counts_of

Test = Callable[[Story, AsyncTable], Awaitable[None]]
INDEX = ("count",)


def tell(story: Story, test: Test) -> None:
    async def main() -> None:
        table = await story.begin()
        await settled(story.cluster)
        await test(story, table)

    with remembered_images():
        story.run(main())


async def ids(table: AsyncTable, count: int, timeout: float = 20.0) -> list[int]:
    """The keys of rows with this count, by the index."""
    found: list[int] = (await table.find("count", count, timeout=timeout))["id"].to_pylist()
    return found


async def check_found(story: Story, table: AsyncTable, changed: dict[int, int]) -> None:
    """Each row by its value, few and many at once; ``changed``: counts that are not the key."""
    counts = {key: changed.get(key, key) for key in story.values}
    for key in range(0, ROWS, 11):
        assert await ids(table, key) == [k for k, count in counts.items() if count == key]
    found = await table.find("count", between=(None, None), timeout=30.0)
    pairs = [(row["count"], row["id"]) for row in found.to_pylist()]
    assert pairs == sorted((count, key) for key, count in counts.items())


async def served(story: Story, parts: int = 2) -> None:
    """Wait until there are so many parts or more, all of them whole and served."""

    def are_served() -> bool:
        if story.cluster.leader() is None:
            return False
        records, found = story.tablets, story.served()
        return len(records) >= parts and all(
            r.inherits is None and r.state is TabletState.RUNNING and r.tablet_id in found
            for r in records
        )

    await story.world.wait_until(are_served, 120.0, f"{parts} parts are whole")


def holders(story: Story) -> list[str]:
    """The servers of indexlets that answer."""
    found = []
    for name in story.cluster.tservers:
        server = story.world.server(name)
        held = () if server is None else server.indexlets._indexlets.values()
        found += [name for i in held if i.progress is IndexletProgress.SERVING]
    return found


def leave_garbage(story: Story, keys: range) -> None:
    """Entries that no row will ever have: their calls died with the tablet's owner."""
    for name in holders(story):
        for indexlet in story.world.server(name).indexlets._indexlets.values():
            (known,) = indexlet.known.items()
            live = list(indexlet.entries.live_entries())
            codec_entries = [entry[:1] + b"\x7f" + entry[2:] for entry in live[: len(keys)]]
            writer = indexlet.entries.writer(known[0], known[1].epoch)
            indexlet.entries.put(
                writer, [1 << 20] * len(codec_entries), codec_entries, is_removal=False
            )


@pytest.mark.parametrize("load_bytes_per_s", [0.0, NEVER_S])
def test_rows_of_a_split_tablet_are_found_by_value(load_bytes_per_s: float) -> None:
    """By old handles as well, whether rows are in memory or not; writes to the parts take the old
    entries out, and what the split tablet has left goes once both parts have told what they have.
    """
    story = Story(load_bytes_per_s=load_bytes_per_s, indexes=INDEX)

    async def test(story: Story, table: AsyncTable) -> None:
        leave_garbage(story, range(20))
        assert holders(story) != [story.owner_of(story.tablets[0].tablet_id)], "it stays"
        story.kill_owner()
        few, many = await asyncio.gather(
            table.find("count", 17, timeout=60.0),
            table.find("count", between=(20, 180), timeout=60.0),
        )
        assert few["id"].to_pylist() == [17]
        assert many["id"].to_pylist() == list(range(20, 181))
        await story.wait_split()
        await check_found(story, table, {})
        await table.upsert({"id": 33, "value": "new", "count": 1000})
        await table.update({"id": 44, "count": 1000})
        await table.delete([55, 66])
        story.values[33] = "new"
        del story.values[55], story.values[66]
        await table.update([{"id": n, "count": 0} for n in range(100, 140)], timeout=20.0)
        changed = {33: 1000, 44: 1000} | dict.fromkeys(range(100, 140), 0)
        assert await ids(table, 1000) == [33, 44]
        await settled(story.cluster)
        await check_found(story, table, changed)
        assert counts_of(story.world)["index_splits_settled"] == 1
        if not load_bytes_per_s:
            await story.wait_whole()
            await settled(story.cluster)
            await check_found(story, table, changed)

    tell(story, test)


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_index_is_made_of_a_table_with_split_tablets(is_whole: bool) -> None:
    """While parts inherit as well: of rows that are with backups it gets the entries from there."""
    story = Story(load_bytes_per_s=0.0 if is_whole else NEVER_S)

    async def test(story: Story, table: AsyncTable) -> None:
        story.kill_owner()
        await story.wait_split()
        if is_whole:
            await story.wait_whole()
        await table.create_index("count", timeout=60.0)
        await check_found(story, table, {})
        await settled(story.cluster)
        if not is_whole:
            assert story.inherited_by(story.tablets[0].tablet_id), "it shows nothing else"
        await table.drop_index("count", timeout=60.0)
        await table.create_index("count", timeout=60.0)
        story.kill_owner()
        await (served(story) if is_whole else story.wait_split())
        await check_found(story, table, {})
        await settled(story.cluster)

    tell(story, test)


def test_a_fill_while_parts_make_rows_their_own_lacks_none() -> None:
    """Rows leave the log that they were inherited with in the midst of it: those who began to read
    have them as they were."""
    story = Story(2, load_bytes_per_s=8_000.0)  # in some worlds it is over within one fill

    async def test(story: Story, table: AsyncTable) -> None:
        story.kill_owner()
        await story.wait_split()
        seen: set[int] = set()
        while left := len(story.inherited_by(story.tablets[0].tablet_id)):
            seen.add(left)
            await table.create_index("count", timeout=60.0)
            await check_found(story, table, {})
            await table.drop_index("count", timeout=60.0)
        assert len(seen) >= 2, "too fast to show anything"

    tell(story, test)


def test_an_indexlet_lost_with_its_tablet_waits_for_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them comes back much later: until then the index does not answer, and says why."""
    plan_of, held = inherited.plan_of, [True]

    def planned(tablet: TabletRecord, *given: Any, **more: Any) -> Any:
        if held and tablet.number == 2:
            raise SegmentsMissing(tablet.tablet_id, "what the story holds back")
        return plan_of(tablet, *given, **more)

    monkeypatch.setattr(recovery_rounds, "plan_of", planned)
    story = Story(load_bytes_per_s=0.0, indexes=INDEX)

    async def test(story: Story, table: AsyncTable) -> None:
        for name in holders(story):
            story.world.crash(name)
        story.kill_owner()

        def is_filling() -> bool:
            server = story.world.server(story.cluster.leader() or "")
            found = list(server.catalog.indexes.found())
            reports = [
                report
                for name in story.cluster.tservers
                if (tserver := story.world.server(name)) is not None
                for report in tserver.indexlets.reports()
            ]
            return [i.state for i in found] == [IndexletState.FILLING] and [
                (r.tablets_filled, r.tablets) for r in reports
            ] == [(1, 2)]

        await story.world.wait_until(is_filling, 60.0, "one part has told what it has")
        await asyncio.sleep(5.0)
        assert is_filling(), "it counts the parts, not the places"
        scanned = asyncio.create_task(
            table.find("count", between=(None, None), if_filling="scan", timeout=90.0)
        )
        held.clear()
        await story.wait_split()
        assert (await scanned).num_rows == len(story.values)
        await check_found(story, table, {})
        await settled(story.cluster)

    tell(story, test)


def test_parts_are_split_again_while_indexlets_are_split_and_move() -> None:
    """Twice, so that what the first tablet left is spoken for by grandchildren."""
    limits = {"indexlet_entries_max": 60, "split_above_rows": 70}
    story = Story(load_bytes_per_s=0.0, indexes=INDEX, **limits)

    async def test(story: Story, table: AsyncTable) -> None:
        await story.world.wait_until(lambda: len(holders(story)) >= 4, 60.0, "indexlets split")
        leave_garbage(story, range(5))
        story.kill_owner()

        await served(story, 2)
        await check_found(story, table, {})
        before = {record.number for record in story.tablets}
        for _ in range(2):
            await story.write(table, range(0, ROWS), "more")
            story.kill_owner()
            await served(story, 3)
            await check_found(story, table, {})
        assert {record.number for record in story.tablets} != before
        await settled(story.cluster)

    tell(story, test)


def test_parts_with_indexes_get_another_durability_and_columns() -> None:
    """Successors have their numbers, so what an index knows of them."""
    story = Story(indexes=INDEX)

    async def test(story: Story, table: AsyncTable) -> None:
        story.kill_owner()
        await story.wait_split()
        await table.alter(durability=segments("disk", "disk", "disk"), timeout=120.0)
        await settled(story.cluster)
        await check_found(story, table, {})
        await table.create_index("value", timeout=60.0)
        found = await table.find("value", story.values[17], timeout=20.0)
        assert found["id"].to_pylist() == [17]
        await settled(story.cluster)

    tell(story, test)


def test_an_index_is_made_while_a_part_is_recovered() -> None:
    """It waits for that part, and goes on by itself."""
    story = Story(load_bytes_per_s=NEVER_S)

    async def test(story: Story, table: AsyncTable) -> None:
        story.kill_owner()
        await story.wait_split()
        story.kill_owner()
        await table.create_index("count", timeout=60.0)
        await check_found(story, table, {})
        await settled(story.cluster)

    tell(story, test)
