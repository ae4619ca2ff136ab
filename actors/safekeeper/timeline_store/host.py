"""What pulls and eviction need of the store that they work for: the seam to its timelines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from stelae.actors.safekeeper.timeline_store.files import TimelineFiles
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.core.ids import TabletId
from stelae.core.records.timelines import SafekeeperId
from stelae.storage.files.timeline_control import TimelineControl

T = TypeVar("T")


class TimelineHost(Protocol):
    """The timelines of one safekeeper, as a change of one of them sees them."""

    name: str
    """The safekeeper's name in messages."""
    safekeeper: SafekeeperId
    files: TimelineFiles

    def lock(self, tablet_id: TabletId) -> asyncio.Lock:
        """The lock held during each change of the timeline, existing or not."""
        ...

    def residence(self, tablet_id: TabletId) -> asyncio.Lock:
        """The lock held while the WAL moves to or from the blobs; taken before `lock`."""
        ...

    def control(self, tablet_id: TabletId) -> TimelineControl:
        """The content of the control file; that of an unknown timeline if there is none.

        Raises CorruptData.
        """
        ...

    def next_incarnation(self, tablet_id: TabletId) -> int:
        """Return the number of a WAL folder that nobody else uses."""
        ...

    def make_log(self, control: TimelineControl) -> TimelineLog:
        """Return a log, still without content, of the incarnation that ``control`` names."""
        ...

    async def replace(self, control: TimelineControl) -> None:
        """Replace the control file of a timeline, existing or not; its lock is held."""
        ...

    async def carried(self, tablet_id: TabletId, work: Coroutine[Any, Any, T], name: str) -> T:
        """Carry a change through, also if its caller is cancelled."""
        ...
