"""The simulated disk: what survives a crash, and what fails on the way."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stelae.runtime.conformance import DISK_RULES, DiskRule
from stelae.simulation import Options, ProcessEnded, SimLoop
from stelae.simulation.world.disk import InjectedDiskError, SimDisk, SimDiskView
from tests.simulation.world.loops import make_loop

LOSSY = Options(keep_unsynced_rate=0.0)
Body = Callable[[SimLoop, SimDisk, SimDiskView], Awaitable[Any]]


def on_disk(body: Body, seed: int | str = 1, options: Options = LOSSY) -> Any:
    """Run ``body`` with a fresh disk."""
    loop = make_loop(random.Random(seed))
    disk = SimDisk(random.Random(f"{seed}/disk"), options, lambda text: None)

    async def main() -> Any:
        return await body(loop, disk, SimDiskView(disk, loop.new_process("n", 1), options))

    return loop.run(main(), 1e6)


async def after_crash(loop: SimLoop, disk: SimDisk) -> SimDiskView:
    """Crash, and see the disk with the eyes of the next process."""
    disk.crash()
    return SimDiskView(disk, loop.new_process("n", 2), LOSSY)


@pytest.mark.parametrize("rule", DISK_RULES, ids=lambda rule: rule.__name__)
def test_the_simulated_disk_keeps_every_rule_of_disks(rule: DiskRule) -> None:
    """Servers meet the same disk here and on real files."""
    for seed in range(3):
        on_disk(lambda loop, disk, view: rule(view), seed)


def test_synced_bytes_always_survive_a_crash() -> None:
    """Whatever a sync covered is there in every seed; later writes may add to it."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        file = await view.open("folder/log")
        file.write_at(0, b"abc", memoryview(b"def"))
        await file.sync()
        file.write_at(6, b"tail")
        fresh = await after_crash(loop, disk)
        data = await fresh.read("folder/log")
        assert data[:6] == b"abcdef"
        return data

    assert len({on_disk(body, seed) for seed in range(40)}) > 3


def test_unsynced_writes_are_kept_dropped_and_torn() -> None:
    """Over many seeds every fate occurs: all, nothing, cut at a byte, some sectors only."""
    new = bytes(range(1, 251)) * 12  # 3000 bytes, none of them zero

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        file = await view.open("f")
        file.write_at(0, bytes(3000))
        await file.sync()
        file.write_at(0, new)
        fresh = await after_crash(loop, disk)
        return await fresh.read("f")

    fates = set()
    for seed in range(80):
        data = on_disk(body, seed)
        kept = [data[i : i + 512] == new[i : i + 512] for i in range(0, 3000, 512)]
        if all(kept):
            fates.add("kept")
        elif not any(data):
            fates.add("dropped")
        elif kept == sorted(kept, reverse=True):
            fates.add("prefix")
        else:
            fates.add("sectors")
    assert fates == {"kept", "dropped", "prefix", "sectors"}


def test_files_lose_their_writes_independently() -> None:
    """The newer write of one file may survive while the older one of another does not."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> list[bytes]:
        files = [await view.open(name) for name in "ab"]
        for file in files:
            file.write_at(0, b"x")
        fresh = await after_crash(loop, disk)
        return [await fresh.read(name) for name in "ab"]

    seen = {tuple(on_disk(body, seed)) for seed in range(60)}
    assert seen == {(b"", b""), (b"x", b""), (b"", b"x"), (b"x", b"x")}


def test_a_killed_process_alone_loses_nothing_that_it_wrote() -> None:
    """With the kernel alive, unsynced writes are still there."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        (await view.open("f")).write_at(0, b"written")
        return await (await after_crash(loop, disk)).read("f")

    assert {on_disk(body, seed, Options()) for seed in range(10)} == {b"written"}


def test_a_write_during_a_sync_is_not_covered_by_it() -> None:
    """Only what was written before the sync began is durable after it."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        file = await view.open("f")
        file.write_at(0, b"one")
        syncing = loop.create_task(file.sync())
        disk.on_sync = lambda latency_s: file.write_at(3, b"two")
        await syncing
        return disk.durable("f")

    assert on_disk(body) == b"one"


def test_overlapping_syncs_agree() -> None:
    """Two syncs in flight make each prefix durable once, whichever ends first."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        file = await view.open("f")
        tasks = []
        for number in range(20):
            file.write_at(number, b"x")
            tasks.append(loop.create_task(file.sync()))
            await view.list("")
        for task in tasks:
            await task
        return disk.durable("f")

    assert {on_disk(body, seed) for seed in range(10)} == {b"x" * 20}


def test_replace_is_atomic() -> None:
    """A crash in the midst of a replace leaves the old content or the new, whole."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        await view.replace("meta", b"old")
        task = loop.create_task(view.replace("meta", b"new content"))
        while not task.done() and random.Random(loop.time()).random() < 0.8:
            await view.list("")
        disk.crash()
        task.cancel()
        return bytes(disk.durable("meta"))

    options = LOSSY.but(sync_mean_s=0.001, read_mean_s=0.0005)
    assert {on_disk(body, seed, options) for seed in range(40)} == {b"old", b"new content"}


def test_a_folder_moves_as_a_whole_or_not_at_all() -> None:
    """A crash in the midst of a move leaves all files under the old name or all under the new."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> tuple[str, ...]:
        for name in ("a", "b", "deep/c"):
            await view.replace(f"old/{name}", name.encode())
        task = loop.create_task(view.move("old", "new"))
        await view.list("")
        disk.crash()
        task.cancel()
        return tuple(disk.paths())

    options = LOSSY.but(sync_min_s=10.0)
    assert {on_disk(body, seed, options) for seed in range(30)} == {
        ("old/a", "old/b", "old/deep/c"),
        ("new/a", "new/b", "new/deep/c"),
    }


def test_a_move_is_durable_once_it_returns_and_a_removal_of_a_folder_too() -> None:
    """Neither comes back after a crash."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> tuple[str, ...]:
        for name in ("moved/a", "removed/b", "removed/deep/c"):
            await view.replace(name, b"x")
        assert await view.move("moved", "here")
        await view.remove_folder("removed")
        await after_crash(loop, disk)
        return tuple(disk.paths())

    assert {on_disk(body, seed) for seed in range(20)} == {("here/a",)}


def test_names_are_durable_once_open_and_remove_return() -> None:
    """A file made or removed stays so after a crash."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> list[str]:
        (await view.open("here")).close()
        await view.open("gone")
        await view.remove("gone")
        await view.remove("never there")
        fresh = await after_crash(loop, disk)
        with pytest.raises(FileNotFoundError):
            await fresh.read("gone")
        return await fresh.list("")

    assert {tuple(on_disk(body, seed)) for seed in range(20)} == {("here",)}


def test_a_name_being_made_may_vanish() -> None:
    """Before open returns, a crash may leave the file or not."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> tuple[str, ...]:
        task = loop.create_task(view.open("f"))
        await view.list("")
        disk.crash()
        task.cancel()
        return tuple(disk.paths())

    options = LOSSY.but(sync_min_s=10.0)
    assert {on_disk(body, seed, options) for seed in range(30)} == {(), ("f",)}


def test_a_failed_sync_may_lose_what_it_covered_and_the_next_does_not_tell() -> None:
    """After EIO a later sync succeeds without making the lost writes durable."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        file = await view.open("f")
        file.write_at(0, b"x")
        disk.fail_next_sync = True
        with pytest.raises(InjectedDiskError) as caught:
            await file.sync()
        assert caught.value.errno == errno.EIO
        await file.sync()
        assert file.read_at(0, 1) == b"x"
        return disk.durable("f")

    assert {on_disk(body, seed) for seed in range(20)} == {b"", b"x"}


def test_a_full_disk_refuses_what_needs_space_only() -> None:
    """ENOSPC comes from growing a file, never from writing where space is reserved."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> None:
        file = await view.open("f")
        file.preallocate(100)
        assert file.size == 100
        disk.full = True
        file.write_at(0, b"fits")
        attempts: list[Callable[[], None]] = [
            lambda: file.write_at(99, b"xx"),
            lambda: file.preallocate(101),
            lambda: file.truncate(200),
        ]
        for attempt in attempts:
            with pytest.raises(InjectedDiskError) as caught:
                attempt()
            assert caught.value.errno == errno.ENOSPC
        for making in (view.open("new"), view.replace("f", bytes(300))):
            with pytest.raises(InjectedDiskError):
                await making
        assert file.read_at(0, 4) == b"fits"

    on_disk(body)


def test_handles_die_with_their_process() -> None:
    """A finally block of a dead process can neither write nor read."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> None:
        process = loop.new_process("other", 1)
        file = await SimDiskView(disk, process, LOSSY).open("f")
        loop.kill(process)
        for attempt in (lambda: file.write_at(0, b"x"), lambda: file.read_at(0, 1)):
            with pytest.raises(ProcessEnded):
                attempt()
        with pytest.raises(ProcessEnded):
            await file.sync()
        file = await view.open("f")
        file.close()
        with pytest.raises(ValueError, match="closed"):
            file.write_at(0, b"x")

    on_disk(body)


def test_a_lost_disk_is_empty() -> None:
    """Nothing is left, synced or not."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> list[str]:
        await view.replace("f", b"x")
        disk.lose()
        return await view.list("")

    assert on_disk(body) == []


def test_folders_list_their_own_files_sorted() -> None:
    """Names come sorted, without those of folders within; bad paths are refused."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> None:
        for path in ("wal/2", "wal/1", "wal/deep/3", "other"):
            await view.open(path)
        assert await view.list("wal") == ["1", "2"]
        assert await view.list("none") == []
        for path in ("/etc", "../x", "a//b", "", "x.tmp"):
            with pytest.raises(AssertionError, match=r"bad path|keeps such names"):
                await view.open(path)

    on_disk(body)


def test_corruption_flips_a_durable_byte() -> None:
    """Bit rot is there after a restart too, for checks of checksums."""

    async def body(loop: SimLoop, disk: SimDisk, view: SimDiskView) -> bytes:
        await view.replace("f", b"\x00\x00")
        disk.corrupt("f", 1, 0x80)
        return await (await after_crash(loop, disk)).read("f")

    assert on_disk(body) == b"\x00\x80"
