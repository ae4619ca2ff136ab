"""Rows of a recovered tablet are read where they are as long as they are not back: past a backup of
this machine, from another replica than a damaged or lost one, and where memory has no place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.actors.tserver.row_loading import loader as remote_rows
from stelae.actors.tserver.row_loading.near_rows import NearRows
from stelae.core.schema.durability import segments
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.recovery.loading_story import NEVER_S, Story
from tests.simulation.recovery.planted_loading import blocks_believed, near_blocks_believed


def test_a_damaged_replica_is_passed_over_and_replaced() -> None:
    """One backup's frames are damaged: rows come from the other one, and bad ones are replaced."""
    story = Story(4, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        story.world.crash(story.tablet()[0], restart=False)
        disk = story.world.nodes[story.cluster.backups[0]].disk
        (path,) = [path for path in disk.paths() if path.endswith("frames") or "disk" in path][:1]
        for offset in range(20_000, 200_000, 700):
            if offset < len(disk.durable(path)):
                disk.corrupt(path, offset)
        await asyncio.sleep(1.0)
        await story.check_all(table)
        await story.world.wait_until(lambda: not story.remote(), 60.0, "all rows are back")
        await story.world.wait_until(
            lambda: story.cluster.is_whole(1, 2), 60.0, "all replicas are there again"
        )
        assert story.count("replicas_corrupt") >= 1
        assert story.count("backup_damaged_replicas") >= 1
        assert not story.damaged_holders()
        await story.check_all(table)

    story.run(tell())


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("one_machine", [False, True])
def test_no_block_that_is_damaged_is_believed(one_machine: bool, bug: bool) -> None:
    """By a backup, or by who reads past it: each segment has one damaged replica, and every row is
    read as it was written. The planted bugs show that the story would tell."""
    story = Story(6, NEVER_S, segments("disk", "disk"), one_machine=one_machine)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        for segment in story.remote():
            disk = story.world.nodes[story.holders(segment)[0]].disk
            for key in story.keys_of(segment):
                whole = disk.durable("disk/frames")
                encoded = story.values[key].encode()
                at = whole.find(encoded)
                while at >= 0:
                    disk.corrupt("disk/frames", at + len(encoded) - 1)
                    at = whole.find(encoded, at + 1)
        for key, value in story.values.items():
            row = await table.get(key, timeout=20.0)
            assert row is not None
            assert row["value"] == value, "a damaged block was served"
        assert story.count("near_rows_unlike" if one_machine else "replicas_corrupt") >= 1

    if not bug:
        story.run(tell())
        return
    planted = near_blocks_believed() if one_machine else blocks_believed()
    with planted, pytest.raises(SimulationFailure, match="a damaged block was served"):
        story.run(tell())


def test_a_row_comes_by_itself_and_its_neighbours_once_a_second_one_is_wanted() -> None:
    """Nobody waits for these: the second row comes by itself as well, the third is here."""
    story = Story(11, NEVER_S, segments("disk", "disk"), one_machine=False)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        _, tablet = story.tablet()
        run = next(s.remote for s in tablet._memory.remote if s.remote.piece_rows >= 3)
        keys = [int(run.key(row)[0]) for row in range(*run.rows_of(1))[:3]]

        async def get(key: int) -> tuple[float, float]:
            row = await table.get(key)
            assert row is not None
            assert row["value"] == story.values[key]
            return story.count("single_rows_fetched"), story.count("row_pieces_fetched")

        assert await get(keys[0]) == (1, 0)
        assert (await get(keys[1]))[0] == 2
        await story.world.wait_until(
            lambda: story.count("row_pieces_fetched") == 1, 5.0, "its neighbours follow"
        )
        assert await get(keys[2]) == (2, 1)

    story.run(tell())


@pytest.mark.parametrize("one_machine", [True, False])
def test_rows_on_this_machine_are_read_past_the_backup(one_machine: bool) -> None:
    """Once a backup has said where the image lies; on another machine it is always asked."""
    story = Story(7, NEVER_S, segments("disk", "disk"), one_machine=one_machine)

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        for key, value in story.values.items():
            row = await table.get(key, timeout=20.0)
            assert row is not None
            assert row["value"] == value
        near = story.count("near_pieces_read") + story.count("near_rows_read")
        assert story.fetched() > 0
        assert (near > 0) == one_machine
        _, tablet = story.tablet()
        assert tablet._remote.held_bytes > 0

    story.run(tell())


def test_many_rows_of_this_machine_are_read_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece in each, here; what is not in memory still comes from backups."""
    monkeypatch.setattr(remote_rows, "TURN_BYTES", 1)
    monkeypatch.setattr(NearRows.take, "__defaults__", (1,))
    turns = 0
    later = NearRows.take_in_turns

    async def counted(self: NearRows, *given: Any) -> Any:
        nonlocal turns
        async for found in later(self, *given):
            turns += 1
            yield found

    monkeypatch.setattr(NearRows, "take_in_turns", counted)
    story = Story(7, NEVER_S, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        await story.lose_owner()
        keys = [key for segment in story.remote() for key in story.keys_of(segment)]
        for some in (keys[::3], keys[1::3], keys[2::3]):
            many = await table.get_many(some, timeout=20.0)
            assert many["value"].to_pylist() == [story.values[key] for key in some]
        assert turns > 0

    story.run(tell())


def test_a_lost_replica_of_rows_that_stay_elsewhere_is_made_anew() -> None:
    """There is no memory for the rows: what a dead backup held is fetched for it, and let go of."""
    story = Story(6, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        for name in story.cluster.tservers:
            story.world.server(name).cleaner.limit_bytes = 30_000
        await story.lose_owner(restart=False)  # or it had room for the tablet, which would follow
        await asyncio.sleep(3.0)
        remote = story.remote()
        assert len(remote) >= 2
        lost = story.holders(remote[0])[0]
        story.world.crash(lost, restart=False)
        _, tablet = story.tablet()
        await story.world.wait_until(  # between two looks of the usual pace all could be over
            lambda: tablet.report().shortage is not None, 60.0, "it is missed", poll_s=2e-4
        )
        shortage = tablet.report().shortage
        assert shortage is not None
        assert shortage.size_bytes > 0
        await story.world.wait_until(
            lambda: tablet.report().shortage is None, 60.0, "all replicas are there again"
        )
        assert story.cluster.is_whole(1, 2)
        assert remote[0] in story.remote()
        await story.check_all(table)

    story.run(tell())


def test_without_memory_rows_stay_elsewhere_and_are_read_all_the_same() -> None:
    """Rows that do not fit are fetched on demand; once there is room they are loaded."""
    story = Story(5, 0.0, segments("disk", "disk"))

    async def tell() -> None:
        table = await story.begin()
        for name in story.cluster.tservers:
            story.world.server(name).cleaner.limit_bytes = 30_000
        await story.lose_owner(restart=False)  # or it had room for the tablet, which would follow
        await asyncio.sleep(3.0)
        assert len(story.remote()) >= 2
        assert "no memory" in (await story.database.status())["tablets"][0]["problem"]
        await story.check_all(table)
        assert len(story.remote()) >= 2
        story.world.server(story.tablet()[0]).cleaner.limit_bytes = 30_000_000
        await story.world.wait_until(lambda: not story.remote(), 30.0, "all rows are back")
        assert story.tablet()[1].report().problem == ""
        await story.check_all(table)

    story.run(tell())
