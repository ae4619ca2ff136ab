"""A whole cluster on a loop in a thread of its own, as blocking callers and tasks find it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
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
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = local_cluster(root, **options)
    try:
        here = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        try:
            yield Served(here, loop)
        finally:
            leave = context.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(leave, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
