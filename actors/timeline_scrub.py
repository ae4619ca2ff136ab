"""The scrub of a safekeeper: what it holds and should not, by the store's word, is removed there.

Everything that it holds is listed first, and then compared with the store: a record that is read
later than the list can only be newer, so nothing is taken for garbage that has become wanted since.
Each removal goes under the generation that proves it, and the safekeeper refuses it if it knows of
a higher one.

Implements seed 004 (``PUT …/safekeepers/:node_id/scrub``); design §10.
"""

from __future__ import annotations

from stelae.actors.migration_runner import MigrationPorts
from stelae.coordinator.catalog import Catalog
from stelae.coordinator.liveness import Liveness
from stelae.coordinator.safekeepers import Held, decide_scrub
from stelae.coordinator.timeline_placement import where_is
from stelae.core.configurations import TimelineId, TimelineRecord
from stelae.core.errors import StelaeError, Unavailable
from stelae.core.ids import TabletId
from stelae.core.runtime import Runtime
from stelae.core.safekeeper_calls import LIST_TIMELINES, HeldTimeline, ListTimelines
from stelae.core.timeline_messages import ScrubReply
from stelae.core.timelines import SafekeeperId

CALL_TIMEOUT_S = 5.0


async def scrub(
    runtime: Runtime,
    catalog: Catalog,
    liveness: Liveness,
    ports: MigrationPorts,
    safekeeper: SafekeeperId,
) -> ScrubReply:
    """Remove what is proven garbage. Raises StelaeError: the safekeeper or the store does not
    answer."""
    listed = await _list(runtime, catalog, liveness, safekeeper)
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
    runtime.metrics.count("timelines_scrubbed", len(removed))
    return ScrubReply(len(listed), tuple(removed), tuple(unknown), problems)


async def _list(
    runtime: Runtime, catalog: Catalog, liveness: Liveness, safekeeper: SafekeeperId
) -> list[HeldTimeline]:
    place = where_is(catalog, liveness, safekeeper)
    if place is None:
        raise Unavailable(f"safekeeper {safekeeper}", "it was not heard yet")
    found: list[HeldTimeline] = []
    while True:
        after = found[-1].tablet_id if found else TabletId("")
        reply = await runtime.peers.call(
            place[0],
            LIST_TIMELINES,
            ListTimelines(after),
            timeout_s=CALL_TIMEOUT_S,
            destination=place[1],
        )
        found += reply.body.timelines
        if not reply.body.more or not reply.body.timelines:
            return found
