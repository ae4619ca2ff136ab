"""Who holds a cluster or a server's folder: locks on files, which end with their process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path

from stelae.core.errors import AlreadyRunning
from stelae.core.forks import forget_in_children
from stelae.runtime.files import LOCK_FILE as SERVER_LOCK_FILE

LOCK_FILE = "launch.lock"
END_TIMEOUT_S = 15.0
POLL_S = 0.02
ORPHANS_END_S = 30.0
"""Within this time servers usually end by themselves whose Ray ended with a killed driver."""


class LaunchLock:
    """Held by the process that launches a cluster, from before it looks until it is down; never by
    a child that it forks, which may outlive it.

    Raises:
        AlreadyRunning: another process holds it; the text names its pid.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.is_of_parent = False
        """Whether this process was forked from the one that holds it."""
        if not _try_lock(self._descriptor):
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            self.release()
            raise AlreadyRunning(
                f"data_dir {folder} is in use by process {holder or 'unknown'}, which runs the "
                "cluster; connect to it (stelae.connect), change it (`stelae apply`), take it down "
                "(`stelae down`, or close() in that process), or give this one another data_dir"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`. An inherited descriptor would keep the lock."""
        self.is_of_parent = True
        self.release()

    def release(self) -> None:
        """Let go; again is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_holder(folder: str | Path) -> int:
    """Pid of the process that holds a cluster's launch lock; 0 if nobody does."""
    return _holder(Path(folder) / LOCK_FILE)


def server_holder(folder: Path) -> int:
    """Pid of the server that runs on this folder; 0 if none does."""
    return _holder(folder / SERVER_LOCK_FILE)


def _holder(file: Path) -> int:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if _try_lock(descriptor):
            return 0
        return int(os.pread(descriptor, 32, 0).decode() or 0)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Whether a server runs on this folder."""
    try:
        descriptor = os.open(folder / SERVER_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def wait_ended(folders: Iterable[Path], timeout_s: float = END_TIMEOUT_S) -> list[str]:
    """Wait until no server runs on these folders; the names of those that still do."""
    deadline = time.monotonic() + timeout_s
    left = list(folders)
    while left := [folder for folder in left if is_locked(folder)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return [folder.name for folder in left]
