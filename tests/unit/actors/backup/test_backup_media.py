"""A backup's media: frames used again, bounds, large segments, damage, what is written ahead."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import msgspec
import pytest

from stelae.actors.backup import disk_medium as frame_medium
from stelae.actors.backup import frames
from stelae.actors.backup.disk_medium import FrameMedium
from stelae.actors.backup.frames import BLOCK_BYTES, EXTENT_FRAMES
from stelae.actors.backup.replicas import Replica
from stelae.core.errors import CorruptData, NoSpace, StaleTerm, StelaeError
from stelae.simulation import Options
from tests.unit.actors.backup.backup_world import (
    LOG,
    MEDIA,
    SEGMENT,
    SETTINGS,
    Owner,
    Rows,
    make_image,
    run,
)


def test_freed_frames_are_used_again_and_nothing_comes_back() -> None:
    """Freeing is idempotent; a full medium takes new replicas once old ones are freed."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        count = 3  # frames of 8 KiB, with 8 KiB of records each: there is no room for a fourth
        for number in range(count):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + number)
        with pytest.raises(NoSpace):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + count)
        for turn in range(1, 5):
            first = SEGMENT + (turn - 1) * count
            await owner.free(*range(first, first + count))
            await owner.free(*range(first, first + count))
            for number in range(count):
                await owner.write(rows, medium="tiny", segment_id=first + count + number)
        await owner.restart()
        held = [info.segment_id for info in await owner.inventory()]
        assert held == [*range(first + count, first + 2 * count)]

    run(scenario)


def test_a_write_that_the_disk_fails_takes_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thin disk's EIO in the first write of a replica: nobody would ever free its frames."""
    real, failures = FrameMedium._put, 5

    def failing(medium: FrameMedium, replica: Replica, offset: int, views: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EIO, "injected")
        real(medium, replica, offset, views)

    monkeypatch.setattr(FrameMedium, "_put", failing)

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for number in range(5):
            call = owner.seal(make_image(), medium="tiny")
            if number % 2:
                call.close()
                call = owner.write(rows, medium="tiny")
            with pytest.raises(StelaeError):
                await call
        for number in range(3):  # all that there is room for
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + number)

    run(scenario)


def test_a_medium_that_was_made_smaller_keeps_what_it_has_and_takes_no_more_than_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file stays as long as it is, but not all that is free in it is used again."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for number in range(3):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + number)
        smaller = msgspec.structs.replace(MEDIA["tiny"], size_bytes=20_000)  # two frames
        monkeypatch.setitem(MEDIA, "tiny", smaller)
        await owner.restart()
        with pytest.raises(NoSpace):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + 3)
        await owner.free(SEGMENT, SEGMENT + 1)
        await owner.write(rows, medium="tiny", segment_id=SEGMENT + 3)
        with pytest.raises(NoSpace):
            await owner.write(rows, medium="tiny", segment_id=SEGMENT + 4)
        held = [info.segment_id for info in await owner.inventory()]
        assert held == [SEGMENT + 2, SEGMENT + 3]

    run(scenario)


def test_what_is_freed_does_not_wait_for_room_on_the_disk() -> None:
    """The promise that goes before it is kept in memory then, until there is room again."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for number in range(2):
            await owner.write(rows, segment_id=SEGMENT + number)
        disk = owner.world.nodes["b1"].disk
        disk.full = True
        await owner.free(SEGMENT, heads_from=SEGMENT + 2)
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT + 1]
        with pytest.raises(StaleTerm, match=r"^an open replica"):
            await owner.write(rows)
        disk.full = False
        await owner.free(SEGMENT + 1, heads_from=SEGMENT + 2)
        await owner.restart()
        with pytest.raises(StaleTerm, match=r"^an open replica"):
            await owner.write(rows)

    run(scenario)


def test_memory_that_is_full_refuses() -> None:
    """A write past the size of a medium in memory is NoSpace, and the replica is as before."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows, medium="ram")
        end = len(rows.data)
        rows.add(1, pad=1 << 16)
        with pytest.raises(NoSpace):
            await owner.write(rows, end, medium="ram")
        assert await owner.read() == rows.data[:end]
        await owner.free(SEGMENT)
        other = Rows()
        other.add(2, pad=60_000)
        await owner.write(other, medium="ram")

    run(scenario)


def test_jumbo_segments_take_several_frames() -> None:
    """A replica larger than a frame, and one that grows past its frame, are kept whole."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        await owner.write(rows, segment_id=SEGMENT + 1)  # takes the frame next to it
        for value in range(8):
            start = len(rows.data)
            rows.add(value, pad=3000)
            await owner.write(rows, start)
        big = make_image(SEGMENT + 2, rows=3000)
        await owner.seal(big, segment_id=SEGMENT + 2)
        await owner.restart()
        assert await owner.read() == rows.data
        assert await owner.read(offset=4000, length=9000) == rows.data[4000:13000]
        assert await owner.read(SEGMENT + 2) == big

    run(scenario, settings=msgspec.structs.replace(SETTINGS, queue_bytes=1 << 20))


def test_a_decayed_image_is_not_served() -> None:
    """A flipped byte in an image is found by its checksum when it is read."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=100)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(image)
        disk.corrupt("disk/frames", at + len(image) // 3)
        with pytest.raises(CorruptData):
            await owner.read()

    run(scenario)


def test_a_read_past_the_end_of_a_frame_file_is_damage_and_never_fewer_bytes() -> None:
    """As after a repair of the file system. Parts of a replica have no checksum of their own."""

    async def scenario(owner: Owner) -> None:
        image = make_image(rows=100)
        await owner.seal(image)
        disk = owner.world.nodes["b1"].disk
        disk.cut("disk/frames", disk.durable("disk/frames").index(image) + 100)
        assert await owner.read(length=100) == image[:100]
        for offset, length in ((0, 101), (90, 20), (200, 10)):
            with pytest.raises(CorruptData, match="the frame file ends here"):
                await owner.read(offset=offset, length=length)
        server = owner.world.server("b1")
        replica = server._holdings.find(LOG, SEGMENT)
        server._holdings.fill(replica, 90, memoryview(bytearray(10)))
        with pytest.raises(CorruptData, match="the frame file ends here"):
            server._holdings.fill(replica, 90, memoryview(bytearray(11)))

    run(scenario)


def test_a_sync_does_not_cover_what_is_written_while_it_runs() -> None:
    """Bytes that are written again, after a certificate that did not fit, are durable with the
    next sync: a record says before that that its replica has to be checked."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        start, server = len(rows.data), owner.world.server("b1")
        medium, replica = server._media["disk"], server._holdings.find(LOG, SEGMENT)
        await medium.settle()
        assert replica.synced == start
        await medium.write(replica, start, [b"x" * 100])
        begun = asyncio.Event()
        owner.world.nodes["b1"].disk.on_sync = lambda _: begun.set()
        syncing = asyncio.create_task(medium.settle())
        await begun.wait()
        await medium.write(replica, start + 40, [b"y" * 60])
        await syncing
        assert replica.synced == start + 40
        await medium.settle()
        assert replica.synced == start + 100

    run(scenario)


def test_a_decayed_prologue_makes_an_open_replica_lost() -> None:
    """An open replica whose prologue cannot be read is not offered to a recovery."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        disk = owner.world.nodes["b1"].disk
        at = disk.durable("disk/frames").index(rows.data)
        disk.corrupt("disk/frames", at + 80)
        assert await owner.inventory() == ()

    run(scenario)


def test_small_appends_are_written_ahead_of_once_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each first write to a block costs a commit of the file system's journal: zeros go before,
    a good piece at a time, never over what was written, never beyond the frames."""
    written: list[tuple[int, int]] = []
    real = FrameMedium._write_ahead

    def noted(self: FrameMedium, replica: Replica) -> None:
        before = replica.written
        real(self, replica)
        written.append((before, replica.ready))
        assert replica.ready <= len(replica.frames) * self.layout.frame_bytes

    monkeypatch.setattr(FrameMedium, "_write_ahead", noted)
    monkeypatch.setattr(frame_medium, "AHEAD_BYTES", 1000)

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        await owner.write(rows)
        for value in range(20):
            start = len(rows.data)
            rows.add(value)
            await owner.write(rows, start)
        assert 2 <= len(written) <= 1 + len(rows.data) // 1000
        for (start, ready), (following, _) in itertools.pairwise(written):
            assert ready == start + 1000
            assert following > ready
        content = owner.world.nodes["b1"].disk.durable("disk/frames")
        at = content.index(rows.data)
        end, ready = at + len(rows.data), at + written[-1][1]
        assert content[end:ready] == bytes(ready - end)

    run(scenario)


def test_a_frame_file_of_another_server_is_refused() -> None:
    """A backup that lost its instance file does not take over the frames of who it was."""

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows())
        node = owner.world.nodes["b1"]
        node.auto_restart = False
        owner.world.crash("b1")
        del node.disk._files["instance"], node.disk._named["instance"]
        owner.world.restart("b1")
        await owner.world.wait_ready()

    with pytest.raises(Exception, match="belongs to"):
        run(scenario)


@pytest.mark.parametrize("kept", [0.0, 1.0], ids=["the power went", "its process ended"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_superblock_that_decayed_is_known_from_the_other_place(place: int, kept: float) -> None:
    """Both know every extent, also the newest: the backup starts with all that it had, and writes
    the decayed one again, so that the other may decay later."""

    async def scenario(owner: Owner) -> None:
        rows = Rows()
        for number in range(EXTENT_FRAMES + 2):
            await owner.write(rows, segment_id=SEGMENT + number)
        disk = owner.world.nodes["b1"].disk
        for decayed in (place, 1 - place, place):
            at = decayed * BLOCK_BYTES
            disk.corrupt("disk/frames", at + 20)
            block = disk.durable("disk/frames")[at : at + BLOCK_BYTES]
            assert frames.newest_superblock(block) is None, "what decayed is no padding"
            await owner.restart()
            held = [info.segment_id for info in await owner.inventory()]
            assert held[: EXTENT_FRAMES + 2] == [*range(SEGMENT, SEGMENT + EXTENT_FRAMES + 2)]
            await owner.write(rows, segment_id=SEGMENT + 1000 + len(held))  # with a sync

    run(scenario, options=Options(keep_unsynced_rate=kept))


DISK_BYTES = 40 * 16384
"""Of a file system: room for about so many frames, and their records."""


async def fill(owner: Owner) -> int:
    """Write segments until there is no room; how many."""
    for number in itertools.count():
        try:
            await owner.write(Rows(), segment_id=SEGMENT + number)
        except NoSpace:
            return number
    raise AssertionError("a count has no end")


def test_a_medium_without_a_size_leaves_room_to_others_on_its_disk() -> None:
    """It grows by what is left, however little an extent then has; a share of the file system is
    for other files. Once that is all, the medium is full until something is freed."""

    async def scenario(owner: Owner) -> None:
        disk, rows = owner.world.nodes["b1"].disk, Rows()
        disk.capacity_bytes = DISK_BYTES
        count = await fill(owner)
        medium = owner.world.server("b1")._media["disk"]
        assert count > 2 * EXTENT_FRAMES + 2, "the last extent has as many frames as fit"
        assert 0 <= disk.space.free_bytes - DISK_BYTES // frame_medium.KEPT_OF_DISK < 16384
        assert medium.free_bytes == 0
        assert medium.capacity_bytes == DISK_BYTES
        await owner.free(SEGMENT)
        await owner.write(rows, segment_id=SEGMENT + count)
        disk.capacity_bytes = 2 * DISK_BYTES
        await owner.write(rows, segment_id=SEGMENT + count + 1)
        await owner.restart()
        assert len(await owner.inventory()) == count + 1

    run(scenario)


def test_small_extents_do_not_use_up_what_a_superblock_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once half of the places are used a file grows by all that there is; and once all are used,
    room on the disk is no room of the medium."""
    monkeypatch.setattr(frames, "EXTENTS_MAX", 4)

    async def scenario(owner: Owner) -> None:
        disk = owner.world.nodes["b1"].disk
        disk.capacity_bytes = DISK_BYTES
        await fill(owner)
        medium = owner.world.server("b1")._media["disk"]
        assert len(medium.layout.extents) == 4
        assert medium.layout.extents[-1] > 1, "not one frame of the reserve alone"
        assert 0 <= disk.space.free_bytes - DISK_BYTES // frame_medium.KEPT_OF_DISK < 16384
        disk.capacity_bytes = 2 * DISK_BYTES
        assert medium.free_bytes == 0
        with pytest.raises(NoSpace):
            await owner.write(Rows(), segment_id=SEGMENT + 1000)
        await owner.free(SEGMENT)
        await owner.write(Rows(), segment_id=SEGMENT + 1000)

    run(scenario)


def test_no_medium_takes_the_whole_reserve_of_its_disk() -> None:
    """Of the last sixteenth each takes a frame when it needs one: a segment that holds deletes
    needs frames of several backups, which may have one disk."""

    async def scenario(owner: Owner) -> None:
        disk, rows = owner.world.nodes["b1"].disk, Rows()
        disk.capacity_bytes = DISK_BYTES
        reserve_bytes = DISK_BYTES // 16 + DISK_BYTES // frame_medium.KEPT_OF_DISK
        number = 0
        while disk.space.free_bytes >= reserve_bytes + 16384:
            await owner.write(rows, segment_id=SEGMENT + number)
            number += 1
        medium = owner.world.server("b1")._media["disk"]
        while len(medium.allocator):
            await owner.write(rows, segment_id=SEGMENT + number)
            number += 1
        await owner.write(rows, segment_id=SEGMENT + number)
        assert medium.is_low, "the answer says so, before any heartbeat"
        await owner.write(rows, segment_id=SEGMENT + number + 1, medium="flash")

    run(scenario)
