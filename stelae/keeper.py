"""The process that holds a cluster for `stelae up`, when the cluster has a Ray of its own.

A Ray that a process starts ends with that process, so somebody has to stay: `hold`. Detached it is
``python -m stelae.keeper FD``: the spec comes as JSON on standard input, progress goes as
lines of JSON to the descriptor ``FD``, which is closed when the cluster is up (or is not going to
be), and everything else goes to ``keeper.log`` in the data_dir. SIGTERM takes the cluster down, in
order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, StelaeError, decode_error, encode_error

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase

LOG_FILE = "keeper.log"
MODULE = "stelae.keeper"
DOWN_TIMEOUT_S = 60.0
LEFT_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 30.0

Progress = Callable[[str], None]
logger = logging.getLogger(__name__)


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


def hold(spec: ClusterSpec, progress: Progress, is_up: Callable[[Up], None]) -> None:
    """Launch a cluster, and stay until SIGTERM or Ctrl-C; then take it down.

    Raises:
        StelaeError: it does not come up, or not down.
        KeyboardInterrupt: interrupted before it was up; nothing is left running.
    """
    from stelae.cluster import launch

    with interrupted_by_sigterm():
        database = launch(spec, progress=progress)
        wait_http(database, progress)
    stop = threading.Event()
    try:
        for each in (signal.SIGTERM, signal.SIGINT):  # after Ray, which sets its own
            signal.signal(each, lambda *_: stop.set())
        is_up(_entered(database))
        while not stop.wait(3600.0):
            pass
        progress("taking the cluster down")
    finally:
        database.close()


def wait_http(database: LaunchedDatabase, progress: Progress) -> str:
    """Wait for the HTTP front of a launched cluster; return its URL, empty if it has none.

    Raises what kept it from starting; the cluster is down then.
    """
    if database.spec.serve is None:
        return ""
    progress("waiting for the HTTP front")
    try:
        return database.http.wait()
    except BaseException:
        database.http.cancel()
        database.close()
        raise


def _entered(database: LaunchedDatabase) -> Up:
    """Write into ``cluster.json`` who holds the cluster."""
    from stelae.deploy import cluster_state

    state, pid = database.state, os.getpid()
    cluster_state.change(state.folder, lambda known: replace(known, keeper_pid=pid))
    return Up(state.cluster, state.data_dir, database.http.url, pid)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what runs inside as Ctrl-C does: in order. A second one changes nothing: it
    would end the cleaning up that the first one has begun."""
    is_ending = False

    def interrupt(*_: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except SystemExit as error:  # what Ray makes of SIGTERM while it is connected
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGTERM, before)


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


def main() -> int:
    """The detached keeper. Exit code 0 when the cluster was taken down in order."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with open(int(sys.argv[1]), "w", encoding="utf-8", buffering=1) as channel:

        def tell(**message: Any) -> None:
            with contextlib.suppress(BrokenPipeError, ValueError):  # nobody listens any more
                channel.write(json.dumps(message) + "\n")

        def progress(text: str) -> None:
            logger.info("%s", text)
            tell(progress=text)

        def is_up(up: Up) -> None:
            logger.info("cluster %s is up; data_dir %s, pid %d", up.cluster, up.data_dir, up.pid)
            tell(up=vars(up))
            channel.close()

        began = time.monotonic()
        try:
            hold(load_spec(json.load(sys.stdin)), progress, is_up)
        except StelaeError as error:
            logger.error("%s", error)
            tell(error=encode_error(error).hex())
            return 1
        except KeyboardInterrupt:
            logger.info("interrupted before the cluster was up")
            return 1
    logger.info("the cluster is down after %.0f s", time.monotonic() - began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
