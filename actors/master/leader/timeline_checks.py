"""What safekeepers have of timelines and should not: broken members, and what is left over.

A safekeeper says how many of its timelines have failed; only then is it asked which. What has been
so for a while gives way to another member (`stelae.coordinator.timelines.safekeepers`), as if its
safekeeper were gone. Kept in memory only: a new leader begins to count anew. Design §10.

The scrub of a safekeeper removes what it should not hold, by the store's word. Everything that it
holds is listed first, and then compared with the store: a record that is read
later than the list can only be newer, so nothing is taken for garbage that has become wanted since.
Each removal goes under the generation that proves it, and the safekeeper refuses it if it knows of
a higher one.

Implements seed 004 (``PUT …/safekeepers/:node_id/scrub``); design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from stelae.actors.master.leader.migration_ports import MasterPorts, SafekeeperPorts
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.timelines.safekeepers import Held, decide_scrub
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import TimelinePresence
from stelae.core.messages.timelines import ScrubReply
from stelae.core.records.configurations import TimelineId, TimelineRecord
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


CALL_TIMEOUT_S = 5.0


async def scrub(catalog: Catalog, ports: MasterPorts, safekeeper: SafekeeperId) -> ScrubReply:
    """Remove what is proven garbage. Raises StelaeError: the safekeeper or the store does not
    answer."""
    pages = ports.safekeepers.timelines(safekeeper, timeout_s=CALL_TIMEOUT_S)
    listed = [one async for one in pages]
    held: list[Held] = []
    records: dict[TimelineId, TimelineRecord] = {}
    unknown: list[TabletId] = []
    for one in listed:
        tablet = catalog.tablets.get(one.tablet_id)
        timeline = None if tablet is None else TimelineId(tablet.table_id, tablet.tablet_id)
        stored = None
        if timeline is not None:
            stored = await ports.store.get(timeline, timeout_s=CALL_TIMEOUT_S)
        if timeline is None or stored is None:
            unknown.append(one.tablet_id)
            continue
        records[timeline] = stored.record
        held.append(Held(timeline, one.generation))
    removed: list[TimelineId] = []
    problems: dict[TabletId, str] = {}
    for order in decide_scrub(safekeeper, held, records):
        try:
            await ports.exclude(
                order.safekeeper,
                order.timeline,
                order.configuration,
                forever=order.forever,
                timeout_s=CALL_TIMEOUT_S,
            )
        except StelaeError as error:
            problems[order.timeline.tablet_id] = str(error)
        else:
            removed.append(order.timeline)
    return ScrubReply(len(listed), tuple(removed), tuple(unknown), problems)
