"""Damaged files of a safekeeper's timelines: each is noticed, and stops its own timeline only."""

from __future__ import annotations

import pytest

from stelae.actors.safekeeper.reopening import reopen
from stelae.actors.safekeeper.timeline_store.startup import may_pass
from stelae.core.errors import CorruptData, TabletTombstoned
from stelae.core.ids import OpId, TabletId
from stelae.core.records.timelines import AcceptorState, ProposerId
from tests.unit.actors.safekeeper.timeline_store.stored_timelines import TABLET, filled, wal_files
from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    OTHER,
    THIRD,
    World,
    entry,
    members,
    run,
)


def test_damage_below_the_commit_stops_that_timeline_and_no_other() -> None:
    """What was committed is not silently cut off; the error names file and offset."""

    async def body(world: World) -> None:
        await filled(world)
        other = await world.store.create(TabletId("t2"), members(1))
        await other.save(AcceptorState(members(1), term=1))
        await other.append([entry(1, 1)])
        path = wal_files(world)[0]
        world.disk.corrupt(path, 200)
        loaded = await world.start()
        with pytest.raises(CorruptData) as caught:
            world.timeline(TABLET)
        assert caught.value.args[0] == path
        assert 0 < caught.value.args[1] <= 200
        assert list(loaded.failed) == [TABLET]
        assert await world.timeline("t2").append([entry(1, 2)]) == 2
        with pytest.raises(CorruptData):
            await world.store.create(TABLET, members(2))
        assert wal_files(world), "it is left as it is"

    run(body)


def test_a_missing_end_below_the_commit_is_corruption() -> None:
    """A file that is gone, or cut between records, is no end of a log that had committed more."""

    async def body(world: World) -> None:
        await filled(world, committed=12)
        await world.stepped.remove(wal_files(world)[-1])
        loaded = await world.start()
        assert "12 was committed" in str(loaded.failed[TABLET])

    run(body)


def test_a_torn_record_above_the_commit_is_the_end() -> None:
    """An append of which nobody was told ends there, and the log goes on from it."""

    async def body(world: World) -> None:
        timeline = await filled(world, 1, committed=0)
        log = await timeline.resident()
        assert log._newest is not None
        log._newest._file.write_at(log.index.files[-1].end, b"StRe half of a record")
        await log._newest.sync()
        loaded = await world.start()
        assert not loaded.failed
        again = world.timeline(TABLET)
        assert again.last == OpId(1, 1)
        await again.append([entry(1, 2)])
        await world.start()
        assert world.timeline(TABLET).last == OpId(1, 2)

    run(body)


def test_damage_of_what_was_proven_durable_is_corruption_also_above_the_commit() -> None:
    """It was acknowledged, even if the commit is not known here yet."""

    async def body(world: World) -> None:
        await filled(world, 4, committed=0)
        path = wal_files(world)[-1]
        world.disk.corrupt(path, 150)
        loaded = await world.start()
        assert "durable" in str(loaded.failed[TABLET])

    run(body)


def test_a_damaged_control_file_is_not_taken_for_none() -> None:
    """Who forgets its votes could give others; only dropping the table for good helps."""

    async def body(world: World) -> None:
        await filled(world)
        world.disk.corrupt(f"timelines/{TABLET}", 30)
        loaded = await world.start()
        assert TABLET in loaded.failed
        with pytest.raises(CorruptData):
            await world.store.delete(TABLET, members(9, OTHER, THIRD))
        await world.store.delete(TABLET, None)
        with pytest.raises(TabletTombstoned):
            world.timeline(TABLET)
        assert not wal_files(world)

    run(body)


def test_a_disk_that_fails_at_the_start_stops_that_timeline_until_it_is_loaded_again() -> None:
    """A later try may do better than one that the disk refused. What can be read after a failed
    sync may be on the disk or not: it is written anew before it counts."""

    async def body(world: World) -> None:
        timeline = await filled(world, 3, committed=0)
        log = await timeline.resident()
        assert log._newest is not None
        log._newest._file.write_at(log.index.files[-1].end, b"StRe half of a record")
        await log._newest.sync()
        path = wal_files(world)[-1]
        world.disk.fail_next_sync = True
        error = (await world.start()).failed[TABLET]
        assert may_pass(error)
        with pytest.raises(CorruptData):
            world.timeline(TABLET)
        world.disk.fail_next_sync = True
        with pytest.raises(CorruptData):
            await reopen(world.store, TABLET)
        assert may_pass(world.store.failed[TABLET])
        assert await reopen(world.store, TABLET)
        assert not await reopen(world.store, TABLET), "that is done already"
        content = world.disk.find(path)
        assert content is not None
        assert content.durable == content.live
        assert b"half of a record" not in content.live
        again = world.timeline(TABLET)
        assert again.last == OpId(1, 3)
        assert again.acceptor.voted_for == ProposerId("p")
        await again.append([entry(1, 4)])
        assert not (await world.start()).failed
        assert world.timeline(TABLET).last == OpId(1, 4)

    run(body)


def test_damage_that_a_later_look_finds_is_not_looked_at_again() -> None:
    """Once the disk gives back what lies there, and that is damaged, no further try helps."""

    async def body(world: World) -> None:
        await filled(world)
        world.disk.fail_next_sync = True
        assert may_pass((await world.start()).failed[TABLET])
        world.disk.corrupt(wal_files(world)[0], 200)
        with pytest.raises(CorruptData):
            await reopen(world.store, TABLET)
        assert not may_pass(world.store.failed[TABLET])
        assert not await reopen(world.store, TABLET)

    run(body)


def test_a_wal_without_a_control_file_is_corruption() -> None:
    """Control files are made first: somebody took it away, and term and vote with it."""

    async def body(world: World) -> None:
        await filled(world)
        await world.stepped.remove(f"timelines/{TABLET}")
        assert TABLET in (await world.start()).failed

    run(body)


def test_damage_found_while_reading_stops_the_timeline() -> None:
    """Nothing is served, and nothing acknowledged, of a log that is damaged."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        world.disk.corrupt(wal_files(world)[0], 200)
        with pytest.raises(CorruptData):
            await timeline.read(1, 12, 1 << 20)
        with pytest.raises(CorruptData):
            await timeline.append([entry(1, 13)])
        assert told == [TABLET]

    run(body)
