"""The simulated `Runtime`: what one server or client sees of the world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from stelae.core.runtime import ProcessIdentity
from stelae.simulation.world.disk import SimDiskView
from stelae.simulation.world.loop import SimLoop
from stelae.simulation.world.network import SimPeers
from stelae.simulation.world.objects import SimObjects
from stelae.simulation.world.process import Process

T = TypeVar("T")
P = ParamSpec("P")

EPOCH_S = 1_700_000_000.0
"""When every world begins, on clocks that people read."""


class SimClock:
    """A clock that runs a little wrong."""

    def __init__(self, loop: SimLoop, process: Process, drift: float, skew_s: float) -> None:
        self._loop = loop
        self._process = process
        self._rate = 1.0 + drift
        self._skew_s = skew_s

    def now(self) -> float:
        return EPOCH_S + self._skew_s + self._loop.time() * self._rate

    def monotonic(self) -> float:
        return self._loop.time() * self._rate

    async def sleep(self, duration_s: float) -> None:
        self._process.check()
        await asyncio.sleep(duration_s / self._rate)


class SimMetrics:
    """Counts in a dict, keyed ``name`` or ``name{tag=value,...}``; for tests to read."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.observations: dict[str, int] = {}

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        key = _key(name, tags)
        self.counts[key] = self.counts.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **tags: str) -> None:
        self.gauges[_key(name, tags)] = value

    def observe(self, name: str, value: float, **tags: str) -> None:
        key = _key(name, tags)
        self.observations[key] = self.observations.get(key, 0) + 1


def _key(name: str, tags: dict[str, str]) -> str:
    if not tags:
        return name
    return name + "{" + ",".join(f"{tag}={tags[tag]}" for tag in sorted(tags)) + "}"


class SimRuntime:
    """The `Runtime` of one process; it stops working when the process ends."""

    def __init__(
        self,
        *,
        process: Process,
        clock: SimClock,
        rng: random.Random,
        secrets: random.Random,
        peers: SimPeers,
        disk: SimDiskView,
        objects: SimObjects,
        metrics: SimMetrics,
        identity: ProcessIdentity,
        offload_latency: Callable[[], float],
        process_gone: Callable[[str, ProcessIdentity], bool],
        rack: str = "",
    ) -> None:
        self._process = process
        self._offload_latency = offload_latency
        self._process_gone = process_gone
        self.clock = clock
        self.rng = rng
        self.secrets = secrets
        self.peers = peers
        self.disk = disk
        self.objects = objects
        self.metrics = metrics
        self.identity = identity
        self.rack = rack

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._process.check()
        await asyncio.sleep(self._offload_latency())
        return fn(*args, **kwargs)

    def process_gone(self, node: str, pid: int, started: float) -> bool:
        return self._process_gone(self.identity.node, ProcessIdentity(node, pid, started))
