"""A simulated disk: durable bytes, and an ordered list of what is not durable yet.

There are two kinds of crash. If a process ends, the system's cache stays: the next process reads
everything that was written, synced or not. A loss of power decides for every pending operation on
its own, independently for every file, whether it is kept, dropped, or torn: cut at a byte, or kept
in some of its 512-byte sectors only; also for what processes before the last one left pending.
Names that were being made or removed appear or not. A failed ``sync`` may have lost any of what it
covered, and a later one says nothing of it ("Can Applications Recover from fsync Failures?", ATC
2020), so a server must stop. Handles die with the process that opened them.

The model is at least as harsh as ext4 on a disk that honours flushes; it never corrupts bytes that
a successful ``sync`` covered, except through `SimDisk.corrupt`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Sequence

from stelae.core.rpc import Blob
from stelae.core.runtime import NearFile, Space
from stelae.simulation.world.content import Content, Pending, apply
from stelae.simulation.world.options import Options
from stelae.simulation.world.process import Process

SECTOR_BYTES = 512
SLOW_SYNC_PROBABILITY = 0.5
ROOM_BYTES = 1 << 40
"""Bytes that a disk without a capacity says that it has, and has left while it is not full."""


class InjectedDiskError(OSError):
    """An error that the world made, not the server: the server may stop because of it."""


_Names = tuple[tuple[str, Content | None], ...]
"""Names that change together or not at all; None removes a name."""


class SimDisk:
    """The disk of one node; it outlives processes. Faults are switched here."""

    def __init__(self, rng: random.Random, options: Options, note: Callable[[str], None]) -> None:
        self._rng = rng
        self._options = options
        self._note = note
        self._files: dict[str, Content] = {}
        self._named: dict[str, Content] = {}
        self._unnamed: list[_Names] = []
        self.full = False
        """While set, whatever needs space fails, with `refusal`."""
        self.refusal = errno.ENOSPC
        self.capacity_bytes: int | None = None
        """Of all files together; what needs more fails with ENOSPC. None: there is room for all."""
        self.slowness = 1.0
        """Factor on every latency."""
        self.fail_next_sync = self.fail_syncs = False
        """The next sync fails with EIO, once; or every one while it is set."""
        self.on_sync: Callable[[float], None] | None = None
        """Called once, when a sync begins, with its latency in seconds: to crash in its midst."""
        self.syncs_in_flight = 0
        self.name = ""
        self.boots = 0  # of its machine, as far as that loses what is not synced

    # ---- for the world and tests --------------------------------------------------------------

    def crash(self, *, power_lost: bool = False) -> None:
        """Lose power, or only the process: decide the fate of everything not yet durable.

        If only the process ends, the next one reads all that was written; what was not synced is
        not durable for that, and a later loss of power may yet take it.

        Args:
            power_lost: it was the power, for certain.
        """
        keep_all = self._rng.random() < self._options.keep_unsynced_rate and not power_lost
        drop_all = self._rng.random() < 0.3
        self.on_sync, self.fail_next_sync = None, False
        self.syncs_in_flight = 0
        if not keep_all:
            self.lose_power(drop_all=drop_all)
            return
        for content in self._files.values():
            if content.sync_failed:  # `LocalFile` has dropped it from the cache
                content.forget_cache()

    def lose_power(self, *, drop_all: bool = False) -> None:
        """Take back what is not durable: all of it, or as chance will have it."""
        self.boots += 1
        for names in self._unnamed:
            if not drop_all and self._rng.random() < 0.5:
                _name(self._named, names)
        self._unnamed.clear()
        for path, content in self._named.items():
            for operation in content.pending:
                if not drop_all:
                    self._settle(path, content, operation)
            content.live = bytearray(content.durable)
            content.pending.clear()
            content.synced = 0
            content.allocated = len(content.live)
            content.sync_failed = False
        self._files = dict(self._named)

    def lose(self) -> None:
        """Lose everything: the next process finds an empty disk."""
        self.crash()
        self._files.clear()
        self._named.clear()
        self._unnamed.clear()

    def heal(self) -> None:
        """End all faults of this disk."""
        self.full = False
        self.slowness = 1.0
        self.fail_next_sync = self.fail_syncs = False
        self.on_sync = None

    def corrupt(self, path: str, offset: int, flip: int = 0x01) -> None:
        """Flip bits of one durable byte, as a decaying disk does."""
        content = self._files[path]
        content.live[offset] ^= flip
        content.durable[offset] ^= flip

    def cut(self, path: str, size_bytes: int) -> None:
        """Lose the durable end of a file, as a file system does that was repaired."""
        content = self._files[path]
        del content.live[size_bytes:], content.durable[size_bytes:]

    def make_unreadable(self, path: str) -> None:
        """Let every later reading of a file fail with EIO, as that of a bad sector does."""
        self._files[path].unreadable = True

    def check_readable(self, content: Content, path: str) -> None:
        if content.unreadable:
            self._note(f"disk cannot read {path}")
            raise InjectedDiskError(errno.EIO, "Input/output error", path)

    def paths(self) -> list[str]:
        return sorted(self._files)

    def durable(self, path: str) -> bytes:
        """What a crash would certainly leave of a file; nothing, if its name is not durable yet."""
        content = self._named.get(path)
        return b"" if content is None else bytes(content.durable)

    def _settle(self, path: str, content: Content, operation: Pending) -> None:
        """Keep, drop or tear one pending operation of a crashed disk."""
        fate = self._rng.random()
        if fate < 0.35:
            apply(content.durable, operation)
        elif fate < 0.6 or operation.data is None or not operation.data:
            return
        elif fate < 0.8:
            cut = self._rng.randrange(len(operation.data))
            torn = bytearray(operation.data[:cut])
            if torn and self._rng.random() < self._options.flip_rate:
                torn[self._rng.randrange(cut)] ^= 1 << self._rng.randrange(8)
            self._note(f"disk tears {path} at {operation.offset}+{cut} of {len(operation.data)}")
            apply(content.durable, Pending(operation.offset, bytes(torn)))
        else:
            self._note(f"disk keeps some sectors of {path} at {operation.offset}")
            start, end = operation.offset, operation.offset + len(operation.data)
            sector = start - start % SECTOR_BYTES
            while sector < end:
                first, last = max(sector, start), min(sector + SECTOR_BYTES, end)
                if self._rng.random() < 0.5:
                    piece = operation.data[first - start : last - start]
                    apply(content.durable, Pending(first, piece))
                sector += SECTOR_BYTES

    # ---- for views ----------------------------------------------------------------------------

    def latency(self, least_s: float, mean_s: float) -> float:
        return (least_s + self._rng.expovariate(1.0 / mean_s)) * self.slowness

    def check_space(self, content: Content, end: int) -> None:
        if end <= content.allocated:
            return
        full = self.full
        if self.capacity_bytes is not None and not full:
            others = [c.allocated for c in self._files.values() if c is not content]
            full = sum(others) + end > self.capacity_bytes
        if full:
            self._note("disk is full")
            raise InjectedDiskError(self.refusal, os.strerror(self.refusal))

    @property
    def space(self) -> Space:
        total = ROOM_BYTES if self.capacity_bytes is None else self.capacity_bytes
        if self.full:
            return Space(0, total)
        if self.capacity_bytes is None:
            return Space(ROOM_BYTES, total)
        used = sum([content.allocated for content in self._files.values()])
        return Space(max(0, total - used), total)

    def find(self, path: str) -> Content | None:
        return self._files.get(path)

    def is_unnamed(self, path: str) -> bool:
        return any(changed == path for names in self._unnamed for changed, _ in names)

    def begin_names(self, *names: tuple[str, Content | None]) -> None:
        """Change names, together (None removes one); they are durable after `finish_names`."""
        _name(self._files, names)
        self._unnamed.append(names)

    def finish_names(self) -> None:
        for names in self._unnamed:
            _name(self._named, names)
        self._unnamed.clear()

    async def sync(self, content: Content, path: str) -> None:
        mark = content.synced + len(content.pending)
        latency_s = self.latency(self._options.sync_min_s, self._options.sync_mean_s)
        if self.on_sync is not None:
            hook, self.on_sync = self.on_sync, None
            hook(latency_s)
        failing, self.fail_next_sync = self.fail_next_sync or self.fail_syncs, False
        self.syncs_in_flight += 1
        cancelled = await self._pause_through(latency_s)
        self.syncs_in_flight -= 1
        if not failing:
            content.sync_to(mark)
            if cancelled is not None:
                raise cancelled
            return
        covered = content.pending[: max(0, mark - content.synced)]
        for operation in covered:  # clean pages now, whether they were written or not
            if self._rng.random() < 0.5:
                apply(content.durable, operation)
        del content.pending[: len(covered)]
        content.synced += len(covered)
        content.sync_failed = True
        self._note(f"disk fails the sync of {path}")
        raise InjectedDiskError(errno.EIO, f"Input/output error: {path}")

    def sync_at_once(self, content: Content) -> bool:
        """Now and then a disk is quick; whatever is to befall a sync befalls a slow one."""
        failing = self.fail_next_sync or self.fail_syncs or self.on_sync is not None
        if self.slowness > 1.0 or failing or self._rng.random() < SLOW_SYNC_PROBABILITY:
            return False
        content.sync_to(content.synced + len(content.pending))
        return True

    async def pause(self, least_s: float, mean_s: float) -> None:
        await asyncio.sleep(self.latency(least_s, mean_s))

    async def settle_names(self, latency_s: float, process: Process) -> None:
        """What a sync of the folder does; it goes on though its caller is cancelled."""
        cancelled = await self._pause_through(latency_s)
        process.check()
        self.finish_names()
        if cancelled is not None:
            raise cancelled

    @property
    def is_settled(self) -> bool:
        """Whether a loss of power now would take nothing back."""
        return not self._unnamed and not any([c.pending for c in self._named.values()])

    async def settle_all(self, latency_s: float, process: Process) -> None:
        """What a sync of the whole file system does."""
        await asyncio.sleep(latency_s)
        process.check()
        self.finish_names()
        for content in self._named.values():
            content.sync_to(content.synced + len(content.pending))

    @staticmethod
    async def _pause_through(duration_s: float) -> asyncio.CancelledError | None:
        """As long as it takes, cancelled or not. Returns the cancellation, if there was one."""
        loop = asyncio.get_running_loop()
        end_s, cancelled = loop.time() + duration_s, None
        while True:
            try:
                await asyncio.sleep(end_s - loop.time())
            except asyncio.CancelledError as error:
                cancelled = error
            else:
                return cancelled


def _name(content_by_path: dict[str, Content], names: _Names) -> None:
    for path, content in names:
        if content is None:
            content_by_path.pop(path, None)
        else:
            content_by_path[path] = content


def _check_path(path: str) -> str:
    assert all(part not in ("", ".", "..") for part in path.split("/")), f"bad path {path!r}"
    assert not path.endswith(".tmp"), f"{path!r}: the real disk keeps such names for itself"
    return path


class SimFile:
    """An open file of one process."""

    def __init__(self, disk: SimDisk, process: Process, content: Content, path: str) -> None:
        self._disk = disk
        self._process = process
        self._content = content
        self._path = path
        self._closed = False

    def _check(self) -> None:
        self._process.check()
        if self._closed:
            raise ValueError(f"{self._path} is closed")

    @property
    def size(self) -> int:
        self._check()
        return len(self._content.live)

    def write_at(self, offset: int, *buffers: Blob) -> None:
        self._check()
        data = b"".join(memoryview(buffer).cast("B") for buffer in buffers)
        self._disk.check_space(self._content, offset + len(data))
        if data:
            self._content.apply(Pending(offset, data))

    def read_at(self, offset: int, length: int) -> bytes:
        self._check()
        self._disk.check_readable(self._content, self._path)
        return bytes(self._content.live[offset : offset + length])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read_at(offset, buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)

    async def sync(self) -> None:
        self._check()
        await self._disk.sync(self._content, self._path)
        self._process.check()

    def sync_at_once(self) -> bool:
        self._check()
        return self._disk.sync_at_once(self._content)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.check_space(self._content, size)
        self._content.apply(Pending(size, None))

    def preallocate(self, size: int) -> None:
        self._check()
        self._disk.check_space(self._content, size)
        if size > len(self._content.live):
            self._content.apply(Pending(size, None))

    @property
    def space(self) -> Space:
        self._check()
        return self._disk.space

    @property
    def place(self) -> str:
        self._check()
        return f"{self._disk.name}:{self._path}"

    def close(self) -> None:
        self._closed = True


class SimDiskView:
    """A `Disk` for one process; it stops working when the process ends."""

    def __init__(
        self,
        disk: SimDisk,
        process: Process,
        options: Options,
        near: Callable[[str], NearFile | None] = lambda place: None,
    ) -> None:
        self._disk = disk
        self._process = process
        self._options = options
        self._near = near
        self.boot = f"boot {disk.boots}"

    async def _settle_names(self) -> None:
        """Wait until the names changed so far are durable, as after a sync of the folder."""
        latency_s = self._disk.latency(self._options.sync_min_s, self._options.sync_mean_s)
        await self._disk.settle_names(latency_s, self._process)

    async def settle(self) -> None:
        self._process.check()
        if self._disk.is_settled:
            return
        latency_s = self._disk.latency(self._options.sync_min_s, self._options.sync_mean_s)
        await self._disk.settle_all(latency_s, self._process)

    async def open(self, path: str) -> SimFile:
        _check_path(path)
        self._process.check()
        content = self._disk.find(path)
        if content is None:
            content = Content()
            self._disk.check_space(content, 1)
            self._disk.begin_names((path, content))
            await self._settle_names()
        elif self._disk.is_unnamed(path):  # another task is making it right now
            await self._settle_names()
        return SimFile(self._disk, self._process, content, path)

    def open_near(self, place: str) -> NearFile | None:
        self._process.check()
        return self._near(place)

    async def read(self, path: str) -> bytes:
        _check_path(path)
        self._process.check()
        await self._disk.pause(0.0, self._options.read_mean_s)
        self._process.check()
        content = self._disk.find(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        self._disk.check_readable(content, path)
        return bytes(content.live)

    async def read_into(self, path: str, buffer: memoryview) -> int:
        data = (await self.read(path))[: buffer.nbytes]
        buffer[: len(data)] = data
        return len(data)

    async def replace(self, path: str, data: bytes) -> None:
        _check_path(path)
        self._process.check()
        content = Content()
        self._disk.check_space(content, max(1, len(data)))
        content.apply(Pending(0, bytes(data)))
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._disk.sync(content, path)
        except asyncio.CancelledError as error:
            cancelled = error  # a replacement that has begun is carried through
        self._process.check()
        self._disk.begin_names((path, content))
        await self._settle_names()
        if cancelled is not None:
            raise cancelled

    async def write(self, path: str, data: Blob, *, named: bool = True) -> None:
        _check_path(path)
        self._process.check()
        content = self._disk.find(path)
        if content is None:
            content = Content()
            self._disk.check_space(content, 1)
            self._disk.begin_names((path, content))
        file = SimFile(self._disk, self._process, content, path)
        file.truncate(0)
        file.write_at(0, data)
        await file.sync()
        if named:
            await self._settle_names()

    async def sync_folder(self, folder: str) -> None:
        _check_path(folder)
        self._process.check()
        await self._settle_names()

    async def list(self, folder: str) -> list[str]:
        self._process.check()
        await self._disk.pause(0.0, self._options.read_mean_s)
        self._process.check()
        prefix = f"{_check_path(folder)}/" if folder not in ("", ".") else ""
        inside = (path[len(prefix) :] for path in self._disk.paths() if path.startswith(prefix))
        return sorted(name for name in inside if "/" not in name)

    async def remove(self, path: str) -> None:
        _check_path(path)
        self._process.check()
        if self._disk.find(path) is not None:
            self._disk.begin_names((path, None))
            await self._settle_names()

    async def folders(self, folder: str) -> Sequence[str]:
        self._process.check()
        await self._disk.pause(0.0, self._options.read_mean_s)
        self._process.check()
        prefix = f"{_check_path(folder)}/" if folder not in ("", ".") else ""
        inside = (path[len(prefix) :] for path in self._disk.paths() if path.startswith(prefix))
        return sorted({name.split("/")[0]: None for name in inside if "/" in name})

    async def move(self, source: str, target: str) -> bool:
        self._process.check()
        moved = self._inside(source)
        if not moved:
            return False
        if self._inside(target) or self._disk.find(target) is not None:
            raise FileExistsError(errno.EEXIST, "the target of a move holds a file", target)
        new = ((target + path[len(source) :], self._disk.find(path)) for path in moved)
        self._disk.begin_names(*((path, None) for path in moved), *new)
        await self._settle_names()
        return True

    async def remove_folder(self, folder: str) -> None:
        self._process.check()
        removed = self._inside(folder)
        for path in removed:
            self._disk.begin_names((path, None))
        if removed:
            await self._settle_names()

    def _inside(self, folder: str) -> Sequence[str]:
        """The paths of all files in a folder, at any depth."""
        prefix = f"{_check_path(folder)}/"
        return [path for path in self._disk.paths() if path.startswith(prefix)]
