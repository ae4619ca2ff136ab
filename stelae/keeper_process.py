"""The detached keeper of a cluster as other processes see it: started, found, and ended.

It is a process of its own (`stelae.keeper`), so that a cluster outlives whoever had it launched: a
shell, or the kernel of a notebook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
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
            return _follow(lines, process, folder, progress)
        except BaseException:
            _cancel(process)
            raise


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
    _, alive = psutil.wait_procs([keeper], DOWN_TIMEOUT_S)
    for process in alive:
        process.kill()
    _, left = psutil.wait_procs(below, LEFT_TIMEOUT_S)
    for process in left:
        process.kill()
    _, left = psutil.wait_procs([*alive, *left], LEFT_TIMEOUT_S)
    if left:
        names = ", ".join(f"{process.pid}" for process in left)
        raise AlreadyRunning(f"processes of the cluster do not end: {names}")
