"""What goes from the quarantine by itself: old deletions of a tablet, and the oldest if need be."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.tserver.tablet_store.quarantine_limits import KEPT_OF_A_TABLET
from stelae.core.errors import NoSpace
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    World,
    flush,
    members,
    metadata,
    run,
    snapshot,
    stored,
    table,
)

LAST = OpId(1, 5)


async def full_tablet(world: World, tablet: str, size_bytes: int = 5000) -> None:
    """A ready one with an image of so many bytes."""
    await world.store.create(TabletId(tablet), table(), members())
    images = {"image": bytes(size_bytes)}
    await flush(world.store, TabletId(tablet), images, snapshot(LAST, images))


async def deleted(world: World, tablet: str, *, forever: bool = False, known: bool = True) -> None:
    await full_tablet(world, tablet)
    await world.store.tombstone(TabletId(tablet), LAST if known else None, forever=forever)


async def copied(world: World, tablet: str, size_bytes: int = 5000, *, voter: bool = True) -> None:
    """A copy from another server is made here."""
    data = bytes(size_bytes)
    files = [stored("image", data)]
    source = metadata(tablet, 3)
    if not voter:
        source = type(source)(source.group_id, source.term_and_vote, members(voter=False))
    attempt = await world.copies.begin_copy(TabletId(tablet), table(), source, files)
    await world.copies.write_copied(attempt, files[0], data)
    given = snapshot(OpId(2, 9), {"image": data})
    await world.copies.finish_copy(attempt, given, source)


async def listed(world: World) -> list[str]:
    return [entry.tablet_id for entry in await world.store.quarantine_list()]


def leave_room(world: World, size_bytes: int) -> None:
    used = sum(len(world.disk.durable(path)) for path in world.disk.paths())
    world.disk.capacity_bytes = used + size_bytes


def test_of_a_tablet_only_the_newest_deletions_are_kept() -> None:
    """A replica that comes and goes does not fill the disk with what it was."""

    async def body(world: World) -> None:
        await deleted(world, "t1")
        await deleted(world, "t2")
        for _ in range(4):
            await copied(world, "t1")
            await world.store.tombstone(TabletId("t1"), OpId(2, 9))
        assert await listed(world) == ["t1"] * KEPT_OF_A_TABLET + ["t2"]
        superblock = world.store.superblock(TabletId("t1"))
        assert superblock is not None
        newest = (await world.store.quarantine_list(TabletId("t1")))[-1]
        assert superblock.quarantine == newest.folder
        assert not (await world.start()).repairs

    run(body)


def test_a_copy_onto_a_replica_needs_its_room_only_once() -> None:
    """What the copy replaces lies in the quarantine, and goes where both do not fit."""

    async def body(world: World) -> None:
        await deleted(world, "t1")
        leave_room(world, 4000)
        await copied(world, "t1")
        assert await listed(world) == []
        superblock = world.store.superblock(TabletId("t1"))
        assert superblock is not None
        assert superblock.state is DataState.READY

    run(body)


def test_a_flush_on_a_full_disk_takes_what_was_deleted_first() -> None:
    """One after the other, as many as it needs; of dropped tables last."""

    async def body(world: World) -> None:
        await deleted(world, "dropped", forever=True)
        await deleted(world, "second")
        await deleted(world, "after")
        await full_tablet(world, "t1", 10)
        leave_room(world, 1000)
        await world.store.write_image(TabletId("t1"), "small", bytes(4000))
        assert await listed(world) == ["after", "dropped"]
        await world.store.write_image(TabletId("t1"), "large", bytes(12_000))
        assert await listed(world) == []
        with pytest.raises(NoSpace):
            await world.store.write_image(TabletId("t1"), "larger", bytes(90_000))

    run(body)


def test_after_a_restart_earlier_deletions_count_as_older() -> None:
    """What is deleted in this run goes after that."""

    async def body(world: World) -> None:
        await deleted(world, "z")
        await world.start()
        await deleted(world, "a")
        await full_tablet(world, "t1", 10)
        leave_room(world, 1000)
        await world.store.write_image(TabletId("t1"), "small", bytes(4000))
        assert await listed(world) == ["a"]

    run(body)


def test_what_is_left_of_a_damaged_replica_is_not_taken() -> None:
    """Nobody knows what it had acknowledged; only an operator or its age removes it, or a copy
    that takes its place."""

    async def body(world: World) -> None:
        await deleted(world, "t1", known=False)
        await full_tablet(world, "t2")
        world.disk.corrupt("tablet-meta/t2", 30)
        await world.start()
        await world.store.tombstone(TabletId("t2"), None)
        await full_tablet(world, "t3", 10)
        leave_room(world, 1000)
        with pytest.raises(NoSpace):
            await world.store.write_image(TabletId("t3"), "image-2", bytes(4000))
        assert await listed(world) == ["t1", "t2"]
        await copied(world, "t1", voter=False)
        assert await listed(world) == ["t2"]

    run(body)


def test_a_deletion_does_not_make_room_of_what_it_moves_away() -> None:
    """A quarantine that is being filled is nobody's room; another tablet's is."""

    async def body(world: World) -> None:
        await full_tablet(world, "t1")
        leave_room(world, 0)
        with pytest.raises(NoSpace):
            await world.store.tombstone(TabletId("t1"), LAST)
        world.disk.capacity_bytes = None
        await deleted(world, "t2")
        leave_room(world, 0)
        await world.store.tombstone(TabletId("t1"), LAST)
        assert await listed(world) == ["t1"]
        (entry,) = await world.store.quarantine_list()
        assert entry.size_bytes > 5000

    run(body)


def test_two_who_need_room_at_once_take_no_more_than_they_need() -> None:
    """Who waited for another's purge tries again before it purges; nobody waits for nobody."""

    async def body(world: World) -> None:
        for tablet in ("q1", "q2", "q3"):
            await deleted(world, tablet)
        await full_tablet(world, "t1", 10)
        await full_tablet(world, "t2", 10)
        leave_room(world, 1000)
        await asyncio.gather(
            world.store.write_image(TabletId("t1"), "small", bytes(2500)),
            world.store.write_image(TabletId("t2"), "small", bytes(2500)),
        )
        assert await listed(world) == ["q2", "q3"]

    run(body)
