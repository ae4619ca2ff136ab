"""How a Spark task reaches a cluster: over the cluster's own TCP, from a plain Python process.

Nothing of the data goes through Spark: a task connects to backups and tservers itself. What it
needs for that travels in the task's closure. Knows neither Spark nor Ray. Implements design §9
(the Spark engine) and §12 (`stelae.spark`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import uvloop

from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from stelae.runtime.client import client_runtime
from stelae.runtime.real import RealRuntime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterLink:
    """Where a cluster's masters are, and the secret that opens its ports. Never shows the secret.

    Whoever can pickle a closure for this Spark session can use it; guard the session as the data.
    """

    cluster: str
    masters: tuple[Address, ...]
    secret: bytes = field(repr=False)
    settings: Settings
    tls: PeerTls = OFF
    """Of the cluster's connections."""


class Run(Protocol):
    """Runs one coroutine on a task's event loop, to its end."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def connected(link: ClusterLink) -> Iterator[tuple[RealRuntime, Run]]:
    """A client's runtime, and what runs coroutines on its loop; closed at the end of the block.

    A task of its own connects in a few milliseconds, so nothing is kept between tasks: there is
    no state that a reused Python worker could carry from one session or cluster to the next.
    """
    with _runner() as run:

        async def open_runtime() -> RealRuntime:
            return client_runtime(link.cluster, link.secret, tls=link.tls)

        runtime = run(open_runtime())
        try:
            yield runtime, run
        finally:
            run(runtime.close())


@contextmanager
def _runner() -> Iterator[Run]:
    """A loop in this thread; in one of its own where this thread has a loop that runs, as that of a
    notebook."""
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with runner:
            yield runner.run
        return
    with ThreadPoolExecutor(1, "stelae") as thread:

        def run(work: Coroutine[Any, Any, T]) -> T:
            return thread.submit(runner.run, work).result()

        try:
            yield run
        finally:
            thread.submit(runner.close).result()
