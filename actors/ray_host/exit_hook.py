"""What a server's process does last when it is told to end (SIGTERM): it hands over what it leads.

Ray's own handler of the signal belongs to the main thread, where nothing of ours runs: it ends the
interpreter in order. So this is done at the interpreter's exit, in the main thread, while the
server goes on in its event loop's thread: before `atexit`, as by then all thread pools have ended,
and no disk can be synced any more. It is bounded in time; further signals are ignored meanwhile,
which would end it half done. SIGKILL, and all that is like it, knows no farewell: the
groups then elect. Design §8; Raft thesis §3.10.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # before us: pools end after the farewell
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from stelae.core.errors import StelaeError

logger = logging.getLogger(__name__)
FAREWELL_S = 1.5
"""Of a hand-over, at most. Whoever ends processes waits for a few seconds before he kills them."""
SPARE_S = 0.5


def at_exit(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[float], Coroutine[Any, Any, object]],
    timeout_s: float = FAREWELL_S,
) -> Callable[[], None]:
    """Carry out ``work(timeout_s)`` in a loop of another thread when this process ends in order.

    Returns what undoes that.
    """

    is_wanted = True

    def farewell() -> None:
        if not is_wanted:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        coroutine = work(timeout_s)
        try:
            done = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError as error:  # the loop is closed: nothing serves here any more
            coroutine.close()
            logger.info("no farewell: %s", error)
            return
        try:
            done.result(timeout_s + SPARE_S)
        except (TimeoutError, concurrent.futures.CancelledError, StelaeError, OSError) as error:
            logger.info("the farewell was cut short: %r", error)

    def undo() -> None:
        nonlocal is_wanted
        is_wanted = False

    # As thread pools do, which end after this: of several the last one registered is called first.
    threading._register_atexit(farewell)  # type: ignore[attr-defined]
    return undo
