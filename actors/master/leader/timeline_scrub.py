"""The scrub of a safekeeper: what it holds and should not, by the store's word, is removed there.

Everything that it holds is listed first, and then compared with the store: a record that is read
later than the list can only be newer, so nothing is taken for garbage that has become wanted since.
Each removal goes under the generation that proves it, and the safekeeper refuses it if it knows of
a higher one.

Implements seed 004 (``PUT …/safekeepers/:node_id/scrub``); design §10.
"""

from __future__ import annotations

from stelae.actors.master.leader.migration_ports import MasterPorts
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.timelines.safekeepers import Held, decide_scrub
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import ScrubReply
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId

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
