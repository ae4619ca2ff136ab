"""A cluster that other processes reach: its origins over TCP and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from stelae.core.records.tokens import Role
from stelae.database.origins import ClusterOrigin, HttpOrigin
from tests.front.http_world import World
from tests.served import Served, served


class Doors:
    """Two origins of one cluster."""

    def __init__(self, here: Served, url: str, token: str) -> None:
        self.here = here
        self.tcp = ClusterOrigin(here.link)
        self.http = HttpOrigin(url, token)


@contextmanager
def doors(root: Path, **options: Any) -> Iterator[Doors]:
    """A cluster with an HTTP front, in threads of this process; ``options`` are the cluster's."""
    with served(root, **options) as here:
        world = World(here.cluster)
        config = uvicorn.Config(world.app, host="127.0.0.1", port=0, log_level="error")
        server = uvicorn.Server(config)

        async def serve() -> asyncio.Task[None]:
            serving = asyncio.create_task(server.serve())
            async with asyncio.timeout(60):
                while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                    await asyncio.sleep(0.01)
            return serving

        async def stop() -> None:
            server.should_exit = True
            await serving

        serving = here.run(serve())
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield Doors(here, f"http://127.0.0.1:{port}", world.tokens[Role.ADMIN])
        finally:
            here.run(stop())
