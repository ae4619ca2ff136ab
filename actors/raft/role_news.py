"""Who is told of a replica's role, term, leader and readiness, each time something of it is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stelae.actors.raft.types import RoleChange


class RoleNews:
    """Of one replica."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[RoleChange], None]] = []
        self._told: RoleChange | None = None
        self._made_of: tuple[object, ...] = ()
        self._changed = asyncio.Event()  # replaced at each change

    async def wait(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def may_be_new(self, made_of: tuple[object, ...]) -> bool:
        """Whether what a change would be made of differs from the last time; nearly never."""
        is_same = made_of == self._made_of
        self._made_of = made_of
        return not is_same

    def tell(self, change: RoleChange) -> None:
        """Tell the watchers, if it is new."""
        if change == self._told:
            return
        self._told = change
        self.wake()
        for watcher in self.watchers:
            watcher(change)

    def wake(self) -> None:
        """Whoever waits looks again: something is new, or nothing will be any more."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
