"""Which process this is, whether another one of the same node is surely gone, and its memory.

A node is named by its host name, boot id and pid namespace: only where all three agree does a pid
mean the same process. Within them, the start time tells a reused pid apart.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from stelae.core.runtime import ProcessIdentity

_DEAD_STATES = ("X", "x")
_ZOMBIE = "Z"
_PR_SET_THP_DISABLE = 41  # of <linux/prctl.h>
_LEAST_PRIORITY = 19
_GC_THRESHOLDS = (20_000, 20, 20)
T = TypeVar("T")


def calm_collector() -> None:
    """Leave what a server is made of out of garbage collections: they would stall its loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def boot_id() -> str:
    """Of the machine, since it was started last."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def node_name() -> str:
    """A name equal for two processes only if each can see the other's pid."""
    boot = boot_id()
    namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _stat(pid: int) -> list[str]:
    """Fields 3 and later of ``/proc/<pid>/stat``; the second may hold blanks and parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _started(stat: list[str]) -> float:
    """Seconds from boot to the process's start; exact to the clock tick."""
    return int(stat[19]) / os.sysconf("SC_CLK_TCK")


def this_process(node: str = "") -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(node or node_name(), pid, _started(_stat(pid)))


def process_gone(here: ProcessIdentity, node: str, pid: int, started: float) -> bool:
    """See `stelae.core.runtime.Runtime.process_gone`."""
    if node != here.node or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists, but is another user's
    try:
        stat = _stat(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # hidden from us (hidepid), or it ended just now: ask again
    if _started(stat) != started:
        return True
    threads = int(stat[17])
    # The first thread may end before the others: then it is a zombie, and they still run.
    return stat[0] in _DEAD_STATES or (stat[0] == _ZOMBIE and threads <= 1)


def use_small_pages() -> bool:
    """Have this process's memory come in ordinary pages; false if the kernel would not.

    NumPy and Arrow ask for transparent huge pages wherever they may. The kernel then clears 2 MiB
    at the first touch of each, and in a virtual machine, whose free memory its host has taken
    back, waits for the host 512 times: measured 2.6 s a GB, against 0.5 s in pages of 4 KiB. A
    recovery, which takes up as much new memory as the dead server had, would wait for nothing else.
    Databases turn them off for that reason (Redis: ``disable-thp``).
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return int(prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)) == 0


async def in_modest_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own that takes only the CPU which others leave.

    Linux keeps a thread's niceness for itself: the process's other threads stay as they are, and
    nobody needs the right to raise it again.
    """
    done: Future[T] = Future()

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_PRIORITY)
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="modest", daemon=True).start()
    return await asyncio.wrap_future(done)
