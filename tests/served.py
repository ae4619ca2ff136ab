"""A whole cluster on a loop in a thread of its own, as blocking callers and tasks find it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.database.api import Database
from stelae.recovery.spark_link import ClusterLink
from stelae.runtime.client import client_runtime
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster


class Served:
    """A cluster on a loop in a thread of its own, as tasks find it."""

    def __init__(self, cluster: LocalCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self._loop = loop
        self.link = ClusterLink(
            CLUSTER, cluster.master_addresses, SECRET, cluster.settings, cluster.tls
        )

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A blocking client of its own."""
        loop = Loop()

        async def connect() -> AsyncDatabase:
            runtime = client_runtime(CLUSTER, SECRET, tls=self.link.tls)
            return AsyncDatabase(runtime, self.link.masters, self.link.settings)

        found = Database(loop, loop.run(connect()), CLUSTER)
        found.link = self.link
        with found:
            yield found


@contextmanager
def served(root: Path, **options: Any) -> Iterator[Served]:
    started: Future[tuple[LocalCluster, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with local_cluster(root, **options) as cluster:
            leave = asyncio.Event()
            started.set_result((cluster, asyncio.get_running_loop(), leave))
            await leave.wait()

    def run() -> None:
        try:
            asyncio.run(serve())  # which ends the tasks that are left before it closes its loop
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(run)
        here, loop, leave = started.result(60)
        try:
            yield Served(here, loop)
        finally:
            loop.call_soon_threadsafe(leave.set)
            ended.result(60)
