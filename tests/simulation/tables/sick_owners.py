"""Tablet servers that masters hear, and that cannot open some tablets. Stories plant them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.server import TabletServer
from stelae.core.errors import DiskFailed
from stelae.core.messages.servers import OpenTablet
from stelae.core.rpc import Call

IsSick = Callable[[str, str], bool]
"""Whether a server (by its name) cannot open a tablet."""


@contextmanager
def sick_owners(is_sick: IsSick) -> Iterator[dict[tuple[str, str, int], None]]:
    """Have openings fail where ``is_sick`` says so. Yields those that failed, in order: server,
    tablet, term."""
    failed: dict[tuple[str, str, int], None] = {}
    opens = TabletServer._on_open

    async def fails(self: TabletServer, call: Call[OpenTablet]) -> Any:
        reply = await opens(self, call)
        tablet_id = call.body.tablet.tablet_id
        if is_sick(self._name, tablet_id):
            failed[self._name, tablet_id, call.body.tablet.term] = None
            self._tablets[tablet_id]._on_fenced(DiskFailed(self._name, "read", "planted"))
        return reply

    with patch.object(TabletServer, "_on_open", fails):
        yield failed
