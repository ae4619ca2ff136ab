"""The process that holds a cluster for `stelae up`, when the cluster has a Ray of its own.

A Ray that a process starts ends with that process, so somebody has to stay: `hold`. Detached it is
``python -m stelae.keeper FD``: the spec comes as JSON on standard input, progress goes as
lines of JSON to the descriptor ``FD``, which is closed when the cluster is up (or is not going to
be), and everything else goes to ``keeper.log`` in the data_dir. SIGTERM takes the cluster down, in
order. Other processes start and end it by `stelae.keeper_process`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import StelaeError, encode_error
from stelae.keeper_process import Progress, Up

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase

logger = logging.getLogger(__name__)


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
