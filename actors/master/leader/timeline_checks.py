"""Which members of timelines are there, and do nothing any more: a disk failed below them.

A safekeeper says how many of its timelines have failed; only then is it asked which. What has been
so for a while gives way to another member (`stelae.coordinator.timelines.safekeepers`), as if its
safekeeper were gone. Kept in memory only: a new leader begins to count anew. Design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from stelae.actors.master.leader.safekeeper_ports import SafekeeperPorts
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.errors import StelaeError
from stelae.core.messages.safekeepers import TimelinePresence
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId
from stelae.core.runtime import Runtime

LOOK_TIMEOUT_S = 2.0


class BrokenTimelines:
    """What one leader master has seen of failed timelines, and since when."""

    def __init__(self, runtime: Runtime, catalog: Catalog, safekeepers: SafekeeperPorts) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._safekeepers = safekeepers
        self._since: dict[SafekeeperId, dict[TimelineId, float]] = {}

    async def look(self, safekeepers: Iterable[SafekeeperId]) -> None:
        """Ask all of these at once. Of one that does not answer nothing new is known."""
        asked = list(safekeepers)
        self._since = {number: self._since.get(number, {}) for number in asked}
        await asyncio.gather(*(self._look_at(number) for number in asked))
        count = sum(len(failed) for failed in self._since.values())
        self._runtime.metrics.gauge("timelines_broken", count)

    async def _look_at(self, safekeeper: SafekeeperId) -> None:
        failed: list[TimelineId] = []
        try:
            pong = await self._safekeepers.look(safekeeper, timeout_s=LOOK_TIMEOUT_S)
            if pong.failed:
                pages = self._safekeepers.timelines(safekeeper, timeout_s=LOOK_TIMEOUT_S)
                async for held in pages:
                    tablet = self._catalog.tablets.get(held.tablet_id)
                    if held.presence is TimelinePresence.FAILED and tablet is not None:
                        failed.append(TimelineId(tablet.table_id, tablet.tablet_id))
        except StelaeError:
            self._runtime.metrics.count("safekeeper_looks_failed")
            return
        now, known = self._runtime.clock.monotonic(), self._since[safekeeper]
        self._since[safekeeper] = {timeline: known.get(timeline, now) for timeline in failed}

    def count(self, safekeeper: SafekeeperId) -> int:
        """How many of a safekeeper's timelines do nothing any more."""
        return len(self._since.get(safekeeper, ()))

    def lasting(self, grace_s: float) -> Mapping[TimelineId, tuple[SafekeeperId, ...]]:
        """Those that have been so for so long, by timeline."""
        limit = self._runtime.clock.monotonic() - grace_s
        found: dict[TimelineId, tuple[SafekeeperId, ...]] = {}
        for safekeeper, failed in sorted(self._since.items()):
            for timeline, since in failed.items():
                if since <= limit:
                    found[timeline] = (*found.get(timeline, ()), safekeeper)
        return found
