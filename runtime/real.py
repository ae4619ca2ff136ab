"""`RealRuntime`: the real world, put together. Objects and metrics here are in-process ones.

`stelae.actors` gives Ray's in their place. Invariant: nothing in here is shared between runtimes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import pyarrow as pa

from stelae.core.errors import Overloaded
from stelae.core.runtime import Disk, Metrics, ObjectHandle, Objects, Peers, ProcessIdentity
from stelae.runtime.processes import process_gone, this_process

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

EXIT_BROKEN_INVARIANT = 70
_OFFLOAD_THREADS = 2
_OFFLOAD_WAITING_MAX = 1024


def end_process_on_broken_invariant(error: BaseException) -> None:
    """An ``on_failure`` for `TcpPeers`: an AssertionError, and nothing else, ends the process.

    Without any clean-up: what is broken must not write, nor answer, anything more.
    """
    if isinstance(error, AssertionError):
        logger.critical("a broken invariant ends this process", exc_info=error)
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(EXIT_BROKEN_INVARIANT)


class RealClock:
    """See `stelae.core.runtime.Clock`."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        # Unlike CLOCK_MONOTONIC it goes on while the machine is suspended: whoever wakes up must
        # not believe in a lease that the others have seen run out.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class LocalObject:
    """Handle of a buffer in `LocalObjects`."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self._size = size

    @property
    def size(self) -> int:
        return self._size


class LocalObjects:
    """See `stelae.core.runtime.Objects`: buffers of this process, alive while their handle is."""

    def __init__(self) -> None:
        self._buffers: dict[int, pa.Buffer] = {}
        self._last = 0

    async def put(self, buffer: pa.Buffer) -> ObjectHandle:
        self._last += 1
        handle = LocalObject(self._last, buffer.size)
        self._buffers[handle.number] = buffer
        weakref.finalize(handle, self._buffers.pop, handle.number, None)
        return handle

    async def move(self, buffer: pa.Buffer) -> tuple[ObjectHandle, pa.Buffer]:
        return await self.put(buffer), buffer

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        assert isinstance(handle, LocalObject), f"{handle!r} is not of this store"
        return self._buffers[handle.number]

    can_share = False

    def share(self, handle: ObjectHandle) -> bytes:
        raise AssertionError("objects of one process are not shared")

    def unshare(self, handle: ObjectHandle) -> None:
        """Nothing was shared."""

    async def fetch(self, token: bytes) -> pa.Buffer:
        raise KeyError("objects of one process are not shared")

    def clear(self) -> None:
        """Lose all buffers, as when the owner of Ray objects dies."""
        self._buffers.clear()


Labels = tuple[tuple[str, str], ...]


class CountingMetrics:
    """See `stelae.core.runtime.Metrics`: sums, last values, and (count, sum) of observations."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, Labels], float] = {}
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.observations: dict[tuple[str, Labels], tuple[int, float]] = {}

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        key = (name, tuple(sorted(tags.items())))
        self.counts[key] = self.counts.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **tags: str) -> None:
        self.gauges[(name, tuple(sorted(tags.items())))] = value

    def observe(self, name: str, value: float, **tags: str) -> None:
        key = (name, tuple(sorted(tags.items())))
        number, total = self.observations.get(key, (0, 0.0))
        self.observations[key] = (number + 1, total + value)


class RealRuntime:
    """See `stelae.core.runtime.Runtime`. The parts with a default may be given instead; ``node`` is
    what its machine is called, if it has a name of its own, and ``rack`` the rack that it is in."""

    def __init__(
        self,
        peers: Peers,
        disk: Disk,
        *,
        objects: Objects | None = None,
        metrics: Metrics | None = None,
        offload_threads: int = _OFFLOAD_THREADS,
        node: str = "",
        rack: str = "",
    ) -> None:
        self._clock = RealClock()
        self._rng = random.Random(int.from_bytes(os.urandom(32)))
        self._secrets = random.SystemRandom()
        self._peers = peers
        self._disk = disk
        self._objects: Objects = LocalObjects() if objects is None else objects
        self._metrics: Metrics = CountingMetrics() if metrics is None else metrics
        self._identity = this_process(node)
        self._rack = rack
        self._threads = ThreadPoolExecutor(offload_threads, thread_name_prefix="offload")
        self._offloaded = 0

    @property
    def clock(self) -> RealClock:
        return self._clock

    @property
    def rng(self) -> random.Random:
        return self._rng

    @property
    def secrets(self) -> random.Random:
        return self._secrets

    @property
    def peers(self) -> Peers:
        return self._peers

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def objects(self) -> Objects:
        return self._objects

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    @property
    def rack(self) -> str:
        return self._rack

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `stelae.core.runtime.Runtime`. Raises Overloaded if too much waits already."""
        if self._offloaded >= _OFFLOAD_WAITING_MAX:
            raise Overloaded("work off the event loop", _OFFLOAD_WAITING_MAX)
        self._offloaded += 1
        try:
            work = functools.partial(fn, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._offloaded -= 1

    def process_gone(self, node: str, pid: int, started: float) -> bool:
        return process_gone(self._identity, node, pid, started)

    async def close(self) -> None:
        """End the peers' connections and the threads. Files and the disk are their owners'."""
        await self._peers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
