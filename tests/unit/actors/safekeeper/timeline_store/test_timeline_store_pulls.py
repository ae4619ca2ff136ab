"""A timeline is pulled from another safekeeper: what counts, what is refused, what goes on."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.core.errors import CopyOver, CorruptData, InvalidArgument, StaleTerm, TabletNotReady
from stelae.core.ids import OpId, TabletId
from tests.unit.actors.safekeeper.timeline_store.stored_timelines import (
    TABLET,
    copied,
    donor_of,
    filled,
    wal_files,
)
from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    OTHER,
    THIRD,
    World,
    entry,
    members,
    run,
)


def test_a_pull_goes_on_where_an_earlier_attempt_ended() -> None:
    """Files that are whole are not copied again."""

    async def body(world: World) -> None:
        source = await donor_of(world, 20)
        first = await world.store.pulls.begin(source.snapshot, members(2))
        assert first is not None
        file = first.missing[0][0]
        await world.store.pulls.write(first, file, 0, await source.read(file, 0, 1 << 20))
        attempt = await world.store.pulls.begin(source.snapshot, members(3))
        assert attempt is not None
        assert file.name in attempt.held
        with pytest.raises(TabletNotReady):
            await world.store.pulls.finish(first)
        await copied(world, source, attempt)
        timeline = await world.store.pulls.finish(attempt)
        assert timeline is not None
        assert timeline.position == source.snapshot.position
        await timeline.append([entry(1, 21)])

    run(body)


def test_a_copy_that_is_not_what_was_promised_does_not_count() -> None:
    """Each file is checked against the manifest, and all of them against its position."""

    async def body(world: World) -> None:
        await filled(world, 4, committed=2)
        source = await donor_of(world, 20)
        manifest = source.snapshot
        attempt = await world.store.pulls.begin(manifest, members(2))
        assert attempt is not None
        file = manifest.files[0]
        data = bytearray(await source.read(file, 0, 1 << 20))
        data[50] ^= 1
        with pytest.raises(CorruptData):
            await world.store.pulls.write(attempt, file, 0, data)
        with pytest.raises(InvalidArgument, match="lacks"):
            await world.store.pulls.finish(attempt)
        await world.store.pulls.abort(attempt)
        farther = msgspec.structs.replace(manifest, last=OpId(1, 21))
        attempt = await world.store.pulls.begin(farther, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        with pytest.raises(CorruptData, match="ends at"):
            await world.store.pulls.finish(attempt)
        assert world.timeline(TABLET).last == OpId(1, 4)
        assert len({path.rpartition("/")[0] for path in world.disk.paths()}) == 2

    run(body)


def test_a_deletion_takes_what_was_being_pulled_along() -> None:
    """No copy that was half here comes to count after it, and none of its files stay."""

    async def body(world: World) -> None:
        await filled(world, 4, committed=2)
        source = await donor_of(world, 20)
        attempt = await world.store.pulls.begin(source.snapshot, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        assert wal_files(world, 2)
        assert await world.store.delete(TABLET, members(9, OTHER, THIRD))
        assert not wal_files(world, 1)
        assert not wal_files(world, 2)
        with pytest.raises(TabletNotReady):
            await world.store.pulls.finish(attempt)

    run(body)


def test_a_timeline_that_turned_out_to_be_damaged_is_not_replaced_by_a_copy() -> None:
    """Nobody knows what it had acknowledged: that the copy is ahead was decided before."""

    async def body(world: World) -> None:
        timeline = await filled(world, 4, committed=2)
        source = await donor_of(world, 20)
        attempt = await world.store.pulls.begin(source.snapshot, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        timeline.fail(CorruptData("a file of it", 0, "is damaged"))
        with pytest.raises(CorruptData, match="is damaged"):
            await world.store.pulls.finish(attempt)
        assert world.store.timelines[TABLET] is timeline

    run(body)


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    """Nothing of it reaches the disk."""

    async def body(world: World) -> None:
        manifest = (await donor_of(world, 5)).snapshot
        file = manifest.files[0]
        for wrong in (
            {"base_lsn": 9},
            {"last": OpId(2, 5)},
            {"files": (msgspec.structs.replace(file, name="../control"),)},
            {"files": (file, file)},
            {"files": (msgspec.structs.replace(file, size_bytes=0),)},
            {"tablet_id": TabletId("a/b")},
        ):
            with pytest.raises(InvalidArgument):
                await world.store.pulls.begin(
                    msgspec.structs.replace(manifest, **wrong), members(2)
                )
        with pytest.raises(InvalidArgument, match="no member"):
            await world.store.pulls.begin(manifest, members(2, OTHER, THIRD))
        with pytest.raises(StaleTerm):
            await world.store.pulls.begin(manifest, members(1))
        assert not world.disk.paths()

    run(body)


@pytest.mark.parametrize("seed", range(12))
def test_appends_that_race_with_a_pull_are_kept_or_refused(seed: int) -> None:
    """Whatever was acknowledged before the copy counts is in the log afterwards."""

    async def body(world: World) -> None:
        timeline = await filled(world, 4, committed=2)
        source = await donor_of(world, 8)
        attempt = await world.store.pulls.begin(source.snapshot, members(2))
        assert attempt is not None
        await copied(world, source, attempt)
        acknowledged = 4

        async def append() -> None:
            nonlocal acknowledged
            for lsn in range(5, 30):
                try:
                    acknowledged = await timeline.append([entry(1, lsn, 100)])
                except TabletNotReady:
                    return
                await asyncio.sleep(world.rng.random() * 0.001)

        async def finish() -> None:
            await asyncio.sleep(world.rng.random() * 0.02)
            await world.store.pulls.finish(attempt)

        await asyncio.gather(append(), finish())
        now = world.timeline(TABLET)
        assert now.flush_lsn >= acknowledged
        await world.start()
        assert world.timeline(TABLET).flush_lsn >= acknowledged

    run(body, seed)


def test_a_cut_ends_the_snapshots_of_before() -> None:
    """Else the copy could mix two histories."""

    async def body(world: World) -> None:
        timeline = await filled(world)
        held = await world.store.hold_snapshot(TABLET)
        await timeline.append([entry(1, 13)])
        file = held.snapshot.files[-1]
        assert len(await held.read(file, 0, 1 << 20)) == file.size_bytes, "appends do not matter"
        await timeline.save(cut_from=11)
        with pytest.raises(CopyOver):
            await held.read(file, 0, 10)
        held.release()
        with pytest.raises(CopyOver):
            await held.read(file, 0, 10)

    run(body)
