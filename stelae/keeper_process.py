"""The detached keeper of a cluster as other processes see it: started, found, and ended.

It is a process of its own (`stelae.keeper`), so that a cluster outlives whoever had it launched: a
shell, or the kernel of a notebook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import AlreadyRunning, StelaeError, decode_error

LOG_FILE = "keeper.log"
MODULE = "stelae.keeper"
DOWN_TIMEOUT_S = 60.0
LEFT_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 30.0
POLL_S = 0.05

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Up:
    """A cluster that is up, and how to reach it."""

    cluster: str
    data_dir: str
    http: str
    pid: int
    """Of the keeper; 0 if the cluster lives in a Ray that was there before."""


def start_keeper(spec: ClusterSpec, progress: Progress) -> Up:
    """Start a detached keeper and wait until its cluster is up.

    Raises:
        StelaeError: what kept it from coming up; nothing is left running.
    """
    folder = Path(spec.data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as lines, open(folder / LOG_FILE, "ab") as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                start_new_session=True,
                cwd=folder,
            )
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(json.dumps(spec.document()).encode())
            up = _follow(lines, process, folder, progress)
        except BaseException:
            _cancel(process)
            raise
    # Without a parent that waits for it, a keeper that has ended stays a zombie.
    threading.Thread(target=process.wait, daemon=True, name="stelae keeper").start()
    return up


def _follow(
    lines: IO[str], process: subprocess.Popen[bytes], folder: Path, progress: Progress
) -> Up:
    for line in lines:
        message = json.loads(line)
        if "progress" in message:
            progress(message["progress"])
        elif "error" in message:
            raise decode_error(bytes.fromhex(message["error"]))
        else:
            return Up(**message["up"])
    raise StelaeError(
        f"the keeper ended (exit code {process.wait()}) before the cluster was up; "
        f"see {folder / LOG_FILE}"
    )


def _cancel(process: subprocess.Popen[bytes]) -> None:
    """End a keeper that is still launching."""
    process.terminate()
    try:
        process.wait(CANCEL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_keeper(pid: int) -> bool:
    """Whether a process is a detached keeper."""
    try:
        return MODULE in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False  # it has ended, or is another user's: no keeper of ours


def end_keeper(pid: int) -> None:
    """Have a keeper take its cluster down; wait until it and all that it started have ended.

    Raises:
        AlreadyRunning: processes are left; the text names them.
    """
    try:
        keeper = psutil.Process(pid)
        below = keeper.children(recursive=True)
        keeper.terminate()
    except psutil.NoSuchProcess:
        return
    alive = _wait_ended([keeper], DOWN_TIMEOUT_S)
    for process in alive:
        process.kill()
    left = _wait_ended(below, LEFT_TIMEOUT_S)
    for process in left:
        process.kill()
    left = _wait_ended([*alive, *left], LEFT_TIMEOUT_S)
    if left:
        names = ", ".join(f"{process.pid}" for process in left)
        raise AlreadyRunning(f"processes of the cluster do not end: {names}")


def _wait_ended(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until these processes have ended; return those that have not in time.

    A zombie has ended: its parent may be a kernel of a notebook that never waits for it.
    """
    deadline_s = time.monotonic() + timeout_s
    while left := [process for process in processes if not _has_ended(process)]:
        if time.monotonic() >= deadline_s:
            break
        time.sleep(POLL_S)
    return left


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
