"""Who is told of a replica's role, term, leader and readiness, each time something of it is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stelae.actors.replica_types import RoleChange


class RoleNews:
    """Of one replica."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[RoleChange], None]] = []
        self._told: RoleChange | None = None
        self._changed = asyncio.Event()  # replaced at each change

    async def wait(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def tell(self, change: RoleChange) -> None:
        """Tell the watchers, if it is new."""
        if change == self._told:
            return
        self._told = change
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for watcher in self.watchers:
            watcher(change)
