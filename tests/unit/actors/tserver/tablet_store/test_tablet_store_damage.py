"""Damaged files of tablets: each is noticed, and stops its own tablet only."""

from __future__ import annotations

import msgspec
import pytest

from stelae.actors.tserver.tablet_store.startup import RepairKind
from stelae.core.errors import CorruptData, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from tests.unit.actors.tserver.tablet_store.stored_tablets import (
    IMAGES,
    TABLET,
    WANTED,
    begun,
    contents,
    ready,
    tombstone,
)
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    ME,
    Crash,
    When,
    World,
    entry,
    members,
    metadata,
    run,
    table,
)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("tablet-meta/t1", "flip"),
        ("tablet-meta/t1", "remove"),
        ("consensus-meta/t1", "flip"),
        ("consensus-meta/t1", "remove"),
        ("data/t1/one", "cut"),
        ("data/t1/one", "remove"),
        ("tablet-meta/t1", "unreadable"),
        ("consensus-meta/t1", "unreadable"),
    ],
)
def test_a_damaged_tablet_fails_alone_is_left_as_it_is_and_can_be_replaced(
    path: str, change: str
) -> None:
    """The report names the file; the way back is a tombstone without a vote, and a copy."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.create(TabletId("t2"), table(), members())
        if change == "remove":
            await world.stepped.remove(path)
        elif change == "flip":
            world.disk.corrupt(path, 30)
        elif change == "unreadable":
            world.disk.make_unreadable(path)
        else:
            (await world.stepped.open(path)).truncate(3)
        before = {name: world.disk.durable(name) for name in world.disk.paths()}
        loaded = await world.start()
        assert list(loaded.superblocks) == ["t2"]
        assert loaded.failed[TABLET].args[0] == path
        assert {name: world.disk.durable(name) for name in world.disk.paths()} == before
        for refused in (
            world.store.create(TABLET, table(), members()),
            begun(world),
            world.store.pin(TABLET),
        ):
            with pytest.raises(TabletNotReady, match="failed"):
                await refused
        after = await world.store.tombstone(TABLET, OpId(3, 9))
        assert after is not None
        assert (after.state, after.tombstone) == (DataState.DELETED, None)
        assert len(await world.store.quarantine_list(TABLET)) == 1
        loaded = await world.start()
        assert (loaded.failed, loaded.repairs) == ({}, [])
        source = msgspec.structs.replace(metadata(TABLET, 9), configuration=members(voter=False))
        await world.copies.begin_copy(TABLET, table(), source, [])

    run(body)


def test_a_failed_tablets_deletion_survives_a_crash_at_any_step() -> None:
    """Afterwards it is still failed, or a tombstone that does not vote: never ready and blank."""

    def crashing_at(step: int, when: When, path: str) -> bool:
        async def body(world: World) -> bool:
            await ready(world)
            world.disk.corrupt(path, 30)
            await world.start()
            world.stepped.crash_at = (world.stepped.steps + step, when)
            try:
                await world.store.tombstone(TABLET, None, forever=True)
                cut_short = False
            except Crash:
                cut_short = True
            loaded = await world.start()
            superblock = loaded.superblocks.get(TABLET)
            if superblock is None:
                assert TABLET in loaded.failed
                if path.startswith("consensus-meta"):
                    before = await world.store.files.read_superblock(TABLET)
                    assert before is not None
                    assert before.state is DataState.READY, "what was committed is carried on"
                await world.store.tombstone(TABLET, None, forever=True)
                superblock = (await world.start()).superblocks[TABLET]
            assert superblock.state is DataState.DELETED
            assert (superblock.tombstone, superblock.forever) == (None, True)
            assert contents(world, "data/") == contents(world, "wals/") == []
            assert not (await world.start()).repairs
            return cut_short

        return run(body, seed=(step, when, path))

    for path in ("tablet-meta/t1", "consensus-meta/t1"):
        for when in When:
            step = 0
            while crashing_at(step, when, path):
                step += 1
            assert step > 4


def test_a_log_or_a_term_without_a_superblock_is_a_lost_superblock() -> None:
    """Nothing of what a replica has promised is ever removed as an orphan."""

    async def body(world: World) -> None:
        await world.store.files.replace_consensus(metadata("t1", 2, ME))
        await world.store.files.write_log(TabletId("t2"), [entry(1, 1)])
        await world.stepped.replace("data/t3/image", b"x")
        paths = world.disk.paths()
        loaded = await world.start()
        assert sorted(loaded.failed) == ["t1", "t2", "t3"]
        assert all(error.args[0].startswith("tablet-meta/") for error in loaded.failed.values())
        assert world.disk.paths() == paths

    run(body)


def test_a_tombstone_that_votes_is_nothing_without_its_term_and_vote() -> None:
    """Lost consensus metadata are renewed only of a tombstone that never votes."""

    async def body(world: World) -> None:
        await tombstone(world)
        await world.stepped.remove("consensus-meta/t1")
        assert list((await world.start()).failed) == [TABLET]
        after = await world.store.tombstone(TABLET, None)
        assert after is not None
        assert after.tombstone is None
        await world.stepped.remove("consensus-meta/t1")
        loaded = await world.start()
        assert [repair.kind for repair in loaded.repairs] == [RepairKind.METADATA_RENEWED]

    run(body)


def test_orphan_images_are_removed_at_the_start() -> None:
    """An image that no flush made count is garbage, and one that does is kept."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.write_image(TABLET, "three", b"never named")
        loaded = await world.start()
        assert [repair.kind for repair in loaded.repairs] == [RepairKind.ORPHANS_REMOVED]
        assert contents(world, "data/") == ["data/t1/one", "data/t1/two"]

    run(body)


@pytest.mark.parametrize("change", ["flip", "unreadable"])
def test_a_rotten_image_is_noticed_when_it_is_read(change: str) -> None:
    """Sizes are looked at in the start, contents when they are needed; a bad sector is damage."""

    async def body(world: World) -> None:
        await ready(world)
        if change == "flip":
            world.disk.corrupt("data/t1/one", 3)
        else:
            world.disk.make_unreadable("data/t1/one")
        await world.start()
        with pytest.raises(CorruptData, match="data/t1/one"):
            await world.store.read_image(TABLET, WANTED[0])
        assert await world.store.read_image(TABLET, WANTED[1]) == IMAGES["two"]

    run(body)
