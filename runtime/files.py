"""`LocalDisk`: a server's data directory on a local file system.

Invariants: a name is durable when `open` or `replace` returns (the folder is synced); a file's
content is durable when `sync` returns; after a sync failed, every later one of that file fails too,
as the kernel may have dropped the pages it could not write. One process uses a directory at a time.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.core.rpc import Blob
from stelae.core.runtime import Space
from stelae.runtime.near_files import CachedFile, open_near, place_of
from stelae.runtime.processes import boot_id
from stelae.runtime.sync_pace import SyncPace
from stelae.runtime.tcp.frames import byte_view

T = TypeVar("T")

LOCK_FILE = "instance.lock"
TEMPORARY_SUFFIX = ".tmp"
_BUFFERS_PER_WRITE = 512  # below the kernel's IOV_MAX of 1024
_libc = ctypes.CDLL(None, use_errno=True)


class LocalFile:
    """See `stelae.core.runtime.File`. Made by `LocalDisk.open`."""

    def __init__(self, descriptor: int, path: str, *, pace: SyncPace | None) -> None:
        """``pace``: when to sync in a thread; without one never."""
        self._descriptor = descriptor
        self._path = path
        self._size = os.fstat(descriptor).st_size
        self._pace = pace
        self._unsynced_bytes = 0
        self._sync_failed: OSError | None = None

    @property
    def size(self) -> int:
        return self._size

    def write_at(self, offset: int, *buffers: Blob) -> None:
        assert offset >= 0, f"{self._path}: offset {offset}"
        if len(buffers) == 1 and type(buffers[0]) is bytes:
            written = os.pwrite(self._descriptor, buffers[0], offset)  # all, in nearly every case
            self._unsynced_bytes += written
            self._size = max(self._size, offset + written)
            if written == len(buffers[0]):
                return
            offset, buffers = offset + written, (buffers[0][written:],)
        views = [view for view in map(byte_view, buffers) if view.nbytes]
        while views:
            written = os.pwritev(self._descriptor, views[:_BUFFERS_PER_WRITE], offset)
            if written == 0:
                raise OSError(errno.EIO, "the kernel wrote nothing", self._path)
            self._unsynced_bytes += written
            offset += written
            self._size = max(self._size, offset)
            views = _after(views, written)

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._descriptor, length - got, offset + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return _fill(self._descriptor, offset, buffer)

    async def sync(self) -> None:
        if not self.sync_at_once():
            size_bytes, self._unsynced_bytes = self._unsynced_bytes, 0
            taken_s = await _in_thread(self._sync_now)
            if self._pace is not None:
                self._pace.measured(taken_s, size_bytes)

    def sync_at_once(self) -> bool:
        pace = self._pace
        if pace is not None and not pace.is_quick(self._unsynced_bytes):
            return False
        size_bytes, self._unsynced_bytes = self._unsynced_bytes, 0
        taken_s = self._sync_now()
        if pace is not None:
            pace.measured(taken_s, size_bytes)
        return True

    def _sync_now(self) -> float:
        """Returns how long it took."""
        if self._sync_failed is not None:
            raise OSError(errno.EIO, f"an earlier sync failed: {self._sync_failed}", self._path)
        start = time.perf_counter()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._sync_failed = error
            # The pages are clean now, and not on the disk: the next process would read them from
            # the cache, and no later sync would write them.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            # Even for lack of space: what was written may be gone from the cache and from the disk,
            # so this is no failure after which it could be tried again.
            text = f"the sync failed: {error.strerror}"
            raise OSError(errno.EIO, text, self._path) from error
        return time.perf_counter() - start

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def preallocate(self, size: int) -> None:
        if size > self._size:
            os.posix_fallocate(self._descriptor, self._size, size - self._size)
            self._size = size

    @property
    def space(self) -> Space:
        found = os.fstatvfs(self._descriptor)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    @property
    def place(self) -> str:
        return place_of(self._descriptor, self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _after(views: list[memoryview], written: int) -> list[memoryview]:
    """What remains of ``views`` after their first ``written`` bytes."""
    for index, view in enumerate(views):
        if written < view.nbytes:
            return [view[written:], *views[index + 1 :]]
        written -= view.nbytes
    return []


class LocalDisk:
    """See `stelae.core.runtime.Disk`. Takes the lock of ``root``, which it makes if absent.

    Files left over from a `replace` that a crash interrupted are removed. ``sync_in_thread``: work
    on the disk leaves the loop free, but for syncs that are quick (`stelae.runtime.sync_pace`).

    Raises:
        AlreadyRunning: another process uses ``root``.
    """

    def __init__(self, root: str | os.PathLike[str], *, sync_in_thread: bool = False) -> None:
        self._root = Path(root).absolute()
        self._sync_in_thread = sync_in_thread
        self._pace: SyncPace | None = None
        """Of the file opened last."""
        _make_folders(self._root)
        self._lock = _take_lock(self._root)
        for leftover in sorted(self._root.rglob(f"*{TEMPORARY_SUFFIX}")):
            leftover.unlink()

    @property
    def root(self) -> Path:
        return self._root

    @property
    def boot(self) -> str:
        return boot_id()

    async def settle(self) -> None:
        await _in_thread(lambda: _sync_file_system(self._root))

    async def open(self, path: str) -> LocalFile:
        full = self._full(path)
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = os.open(full, flags)
        except FileNotFoundError:
            await self._run(lambda: _create(full))
            descriptor = os.open(full, flags)
        if self._sync_in_thread:
            self._pace = SyncPace(like=self._pace)
        return LocalFile(descriptor, str(full), pace=self._pace)

    def open_near(self, place: str) -> CachedFile | None:
        return open_near(place)

    async def read(self, path: str) -> bytes:
        return await self._run(self._full(path).read_bytes)

    async def read_into(self, path: str, buffer: memoryview) -> int:
        full = self._full(path)
        return await self._run(lambda: _read_into(full, buffer))

    async def replace(self, path: str, data: bytes) -> None:
        full = self._full(path)
        await self._run(lambda: _replace(full, data))

    async def write(self, path: str, data: Blob, *, named: bool = True) -> None:
        full = self._full(path)
        await self._run(lambda: _write(full, data, named=named))

    async def sync_folder(self, folder: str) -> None:
        full = self._full(folder)
        with suppress(FileNotFoundError):
            await self._run(lambda: _sync_folder(full))

    async def list(self, folder: str) -> list[str]:
        full = self._full(folder) if folder not in ("", ".") else self._root
        try:
            with os.scandir(full) as entries:
                names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = full == self._root
        return sorted(
            name
            for name in names
            if not name.endswith(TEMPORARY_SUFFIX) and not (own and name == LOCK_FILE)
        )

    async def remove(self, path: str) -> None:
        full = self._full(path)
        await self._run(lambda: _remove(full))  # of a large file it takes milliseconds

    async def folders(self, folder: str) -> Sequence[str]:
        full = self._full(folder) if folder not in ("", ".") else self._root
        return await self._run(lambda: _folders(full))

    async def move(self, source: str, target: str) -> bool:
        old, new = self._full(source), self._full(target)
        return await self._run(lambda: _move(old, new))

    async def remove_folder(self, folder: str) -> None:
        full = self._full(folder)
        if not full.is_dir():
            return
        await self._run(lambda: _remove_folder(full))

    def close(self) -> None:
        """Give up the directory's lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _full(self, path: str) -> Path:
        parts = path.split("/")
        # Parts of paths are ids that came over the network: an assert could be compiled away.
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise InvalidArgument(f"bad path {path!r} of a file on disk")
        assert not path.endswith(TEMPORARY_SUFFIX), (
            f"{path!r}: names in {TEMPORARY_SUFFIX} are ours"
        )
        assert self._lock >= 0, "the disk is closed"
        return self._root.joinpath(*parts)

    async def _run(self, work: Callable[[], T]) -> T:
        return await _in_thread(work) if self._sync_in_thread else work()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run it in a thread. Who is cancelled meanwhile still waits: a thread cannot be stopped, and
    must not go on changing files beside whoever comes next."""
    thread = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cancelled = error  # and is raised below, whatever comes of the work
    if cancelled is not None:
        thread.exception()  # seen by nobody else, as who waited for it is gone
        raise cancelled
    return thread.result()


def _fill(descriptor: int, offset: int, buffer: memoryview) -> int:
    got = 0
    while got < buffer.nbytes:
        found = os.preadv(descriptor, [buffer[got:]], offset + got)
        if found == 0:
            break
        got += found
    return got


def _read_into(full: Path, buffer: memoryview) -> int:
    with _opened(full, os.O_RDONLY) as descriptor:
        return _fill(descriptor, 0, buffer)


def _write(full: Path, data: Blob, *, named: bool) -> None:
    _make_folders(full.parent)
    with _opened(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        view = byte_view(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    if named:
        _sync_folder(full.parent)


def _replace(full: Path, data: bytes) -> None:
    _make_folders(full.parent)
    temporary = full.with_name(full.name + TEMPORARY_SUFFIX)
    try:
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        os.rename(temporary, full)
    except OSError:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(full.parent)


def _create(full: Path) -> None:
    _make_folders(full.parent)
    with _opened(full, os.O_RDWR | os.O_CREAT):
        pass
    _sync_folder(full.parent)


def _remove(full: Path) -> None:
    with suppress(FileNotFoundError):
        full.unlink()
        _sync_folder(full.parent)


def _remove_folder(full: Path) -> None:
    shutil.rmtree(full)
    _sync_folder(full.parent)


def _folders(full: Path) -> list[str]:
    try:
        with os.scandir(full) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if _holds_a_file(full / name))


def _move(old: Path, new: Path) -> bool:
    if not _holds_a_file(old):
        return False
    if new.is_file() or _holds_a_file(new):
        raise FileExistsError(errno.EEXIST, "the target of a move holds a file", str(new))
    if new.is_dir():  # left over, and without a file at any depth
        shutil.rmtree(new)
    _make_folders(new.parent)
    os.rename(old, new)
    # The new name first: if only the other were durable, a crash could leave neither.
    _sync_folder(new.parent)
    if old.parent != new.parent:
        _sync_folder(old.parent)
    return True


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def _sync_file_system(folder: Path) -> None:
    """syncfs(2), which Python lacks: one call for any number of files, and for all their names."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        if _libc.syncfs(descriptor) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(folder))


def _make_folders(folder: Path) -> None:
    """Make ``folder`` and its parents where absent, each durably named in its parent."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _sync_folder(folder.parent)


def _holds_a_file(folder: Path) -> bool:
    """True if a file lies in ``folder`` or below."""
    return any(
        not name.endswith(TEMPORARY_SUFFIX) for _, _, files in os.walk(folder) for name in files
    )


def _take_lock(root: Path) -> int:
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise AlreadyRunning(
            f"another process (pid {holder or 'unknown'}) uses data_dir {root}; "
            "stop it, or give this server another data_dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
