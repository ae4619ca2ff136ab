"""Tablets that end the process of whichever server opens them. Stories plant them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from stelae.actors.tserver.server import TabletServer
from stelae.core.messages.servers import OpenTablet
from stelae.core.rpc import Call
from stelae.simulation.world.world import World

IsDeadly = Callable[[str], bool]
"""Whether a tablet ends its server."""
LIVES_S = 0.002
"""From the answer to the order until the process ends: it has opened nothing yet."""


class Death(NamedTuple):
    """A server that has opened such a tablet."""

    server: str
    tablet: str
    at: float


@contextmanager
def deadly_tablets(world: World, is_deadly: IsDeadly) -> Iterator[list[Death]]:
    """End servers that open what ``is_deadly`` names; they start again. Yields the deaths."""
    deaths: list[Death] = []
    opens = TabletServer._on_open

    async def dies(self: TabletServer, call: Call[OpenTablet]) -> Any:
        reply = await opens(self, call)
        tablet_id = call.body.tablet.tablet_id
        if is_deadly(tablet_id):
            world.loop.call_later(LIVES_S, end, self, tablet_id)
        return reply

    def end(server: TabletServer, tablet_id: str) -> None:
        if world.server(server._name) is server:
            deaths.append(Death(server._name, tablet_id, world.loop.time()))
            world.crash(server._name)

    with patch.object(TabletServer, "_on_open", dies):
        yield deaths


async def until_dead(deaths: list[Death], count: int, limit_s: float) -> None:
    """Wait for so many deaths, or for so long."""
    for _ in range(round(limit_s)):
        if len(deaths) >= count:
            return
        await asyncio.sleep(1.0)
