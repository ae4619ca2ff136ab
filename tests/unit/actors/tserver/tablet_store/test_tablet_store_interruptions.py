"""Full and failing disks and cancelled callers: no change of a tablet is left half done."""

from __future__ import annotations

import asyncio
import errno

import pytest

from stelae.core.errors import NoSpace, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.storage.files.superblock import NOTHING
from tests.unit.actors.tserver.tablet_store.stored_tablets import (
    IMAGES,
    LAST,
    TABLET,
    WANTED,
    begun,
    contents,
    ready,
    tombstone,
    whole,
)
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    World,
    flush,
    members,
    metadata,
    run,
    snapshot,
    table,
)


def test_a_full_disk_refuses_and_leaves_everything_as_it_was() -> None:
    """NoSpace is for later; what a copy has written can still be given back."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.create(TabletId("t2"), table(), members())
        await world.store.tombstone(TabletId("t2"), NOTHING)
        await world.store.quarantine_purge()
        attempt = await world.copies.begin_copy(TabletId("t2"), table(), metadata("t2", 3), WANTED)
        await world.copies.write_copied(attempt, WANTED[0], IMAGES["one"])
        paths, superblocks = world.disk.paths(), dict(world.store.superblocks)
        world.disk.full = True
        for refused in (
            world.store.write_image(TABLET, "three", b"3"),
            world.copies.write_copied(attempt, WANTED[1], IMAGES["two"]),
            world.store.tombstone(TABLET, OpId(3, 5)),
            world.store.create(TabletId("t3"), table(), members()),
        ):
            with pytest.raises(NoSpace):
                await refused
        assert (world.disk.paths(), world.store.superblocks) == (paths, superblocks)
        with pytest.raises(NoSpace):  # the simulated disk has room for nothing at all, but ...
            await world.copies.abort_copy(attempt)
        assert not contents(world, "data/t2")  # ... a real one has by now
        world.disk.full = False
        await world.store.tombstone(TABLET, OpId(3, 5))
        assert world.tasks._error is None, "a full disk is no reason to stop"

    run(body)


def test_a_deletion_that_a_full_disk_interrupts_is_carried_on_when_asked_again() -> None:
    """After its commit point there is no way back."""

    async def body(world: World) -> None:
        await ready(world)
        steps = 0

        async def fill_after(path: str, data: bytes) -> None:
            nonlocal steps
            steps += 1
            await original(path, data)
            world.disk.full = steps == 2

        original, world.stepped.replace = world.stepped.replace, fill_after  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            await world.store.tombstone(TABLET, OpId(3, 5))
        superblock = world.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.state is DataState.DELETED
        assert contents(world, "data/")
        world.disk.full = False
        await world.store.tombstone(TABLET, OpId(3, 5))
        assert not contents(world, "data/")

    run(body)


def test_a_copy_whose_beginning_a_full_disk_cut_short_leaves_no_attempt_that_could_go_on() -> None:
    """An attempt of before would take images for held that are no longer there."""

    async def body(world: World) -> None:
        await tombstone(world)
        old = await whole(world)
        await world.store.tombstone(TABLET, None)
        replace, steps = world.stepped.replace, 0

        async def fill_after(path: str, data: bytes) -> None:
            nonlocal steps
            steps += 1
            await replace(path, data)
            world.disk.full = steps == 1

        world.stepped.replace = fill_after  # type: ignore[method-assign]
        with pytest.raises(NoSpace):
            await begun(world, term=9)
        world.disk.full = False
        with pytest.raises(TabletNotReady, match="newer attempt"):
            await world.copies.finish_copy(old, snapshot(LAST, IMAGES), metadata(TABLET, 9))
        assert (await begun(world, term=9)).missing == WANTED

    run(body)


def test_a_failed_sync_ends_the_server_even_if_nobody_waits() -> None:
    """After it nothing is known of the disk."""

    async def body(world: World) -> None:
        await ready(world)
        before = world.stepped.steps
        world.disk.fail_next_sync = True
        waiting, steps = asyncio.create_task(world.store.tombstone(TABLET, OpId(3, 5))), 0
        while steps == 0:
            await world.stepped.list("")
            steps = world.stepped.steps - before
        waiting.cancel()
        assert isinstance(await world.tasks.wait_failed(), OSError)

    run(body)


def test_whose_files_a_disk_failed_is_told_once_each_time_nobody_waits() -> None:
    """By the tablet, so that only that one fails; who waits is told by the call."""

    async def body(world: World) -> None:
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        for tablet in ("t1", "t2", "t3"):
            tablet_id = TabletId(tablet)
            await world.store.create(tablet_id, table(), members())
            world.disk.fail_next_sync = True
            waiting = asyncio.create_task(world.store.tombstone(tablet_id, NOTHING))
            if tablet == "t2":
                with pytest.raises(OSError, match="Input/output"):
                    await waiting
                continue
            await world.stepped.list("")
            waiting.cancel()
            while tablet_id not in told:
                await world.stepped.list("")
        assert told == ["t1", "t3"]
        assert world.tasks._error is None

    run(body)


def test_who_lets_go_of_images_is_not_told_of_a_disk_that_fails() -> None:
    """A session of a copy ends as well as it can; the tablet is what failed."""

    async def body(world: World) -> None:
        told: list[TabletId] = []
        world.store.on_failed = lambda tablet_id, error: told.append(tablet_id)
        await ready(world)
        pin = await world.store.pin(TABLET)
        await flush(world.store, TABLET, {"three": b"3"}, snapshot(OpId(3, 6), {"three": b"3"}))

        async def fail(path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

        world.stepped.remove = fail  # type: ignore[method-assign]
        await world.store.unpin(pin)
        assert told == [TABLET]

    run(body)


def test_a_cancelled_caller_does_not_leave_half_a_transition() -> None:
    """The next one finds the tablet as the whole of it has left it."""

    async def body(world: World) -> None:
        await ready(world)
        before = world.stepped.steps
        waiting, steps = asyncio.create_task(world.store.tombstone(TABLET, OpId(3, 5))), 0
        while steps == 0:
            await world.stepped.list("")
            steps = world.stepped.steps - before
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        attempt = await begun(world)
        assert attempt.missing == WANTED
        assert len(await world.store.quarantine_list()) == 1
        assert contents(world, "data/") == []

    run(body)
