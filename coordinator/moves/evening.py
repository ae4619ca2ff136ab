"""How tablets that one server owns are evened out over servers, where operators want that. Pure.

The same rule as for replicas (`stelae.coordinator.placement.rebalance`): counts of each table,
counts of all, then sizes, each step making them more even, so that the steps come to an end. It has
its turn after a calm in which there was nothing to even out among replicas and leaders, takes one
step, and waits for the next calm: a server that joins is filled slowly, as each step is a pause for
a tablet. A step to a server where the tablet failed is taken only if there is no other, and after
the pause of that failure: the best step is the same each time, and would be taken in vain again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Seen
from stelae.coordinator.moves.departures import Departure, departure, is_bound, may_leave
from stelae.coordinator.moves.relief import room_bytes, size_of
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.coordinator.placement.rebalance import Placed, both, by_failures, next_move
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord


def even_out(
    catalog: Catalog,
    live: Sequence[Seen],
    homes: Sequence[Load],
    now: float,
    failures: KnownFailures,
    staying: Container[TabletId] = (),
) -> Departure | None:
    """The step to take now; None if all is even enough, or some tablet is not at rest.

    ``homes``: servers that may get tablets; all of them, if none is to be left or in maintenance.
    ``failures``: where tablets failed. ``staying``: tablets that are not closed just now.
    """
    by_uuid = {seen.server.uuid: seen for seen in live}
    if len(homes) < len(by_uuid) or not all(seen.picture.is_exact for seen in live):
        return None
    found: dict[TabletId, TabletRecord] = {}
    placed: list[Placed] = []
    for seen in live:
        for tablet in catalog.owned_by(seen.server.uuid, seen.server.incarnation):
            if is_bound(catalog, tablet):
                continue
            report = seen.reports.get(tablet.tablet_id)
            if report is None or not _is_at_rest(catalog, tablet, report):
                return None
            found[tablet.tablet_id] = tablet
            owner = seen.server.uuid
            size_bytes = size_of(report)
            placed.append(Placed(tablet.tablet_id, tablet.table_id, (owner,), owner, size_bytes))
    nodes = {load.server.uuid: load.server.place for load in homes}
    limits = {load.server.uuid: load.memory_limit_bytes for load in homes}

    def may_take(tablet: Placed, target: ServerUuid) -> bool:
        if tablet.tablet_id in staying:
            return False
        return tablet.size_bytes <= room_bytes(by_uuid[target])

    step = None
    for has_not_failed in by_failures([each.tablet_id for each in placed], failures, now):
        step = step or next_move(placed, nodes, limits, may_take=both(may_take, has_not_failed))
    if step is None:
        return None
    tablet_id, move = step
    target = by_uuid[move.target].server.name
    reason = f"{target} has less than {by_uuid[move.source].server.name}"
    return departure(by_uuid[move.source], found[tablet_id], reason, move.target)


def _is_at_rest(catalog: Catalog, tablet: TabletRecord, report: TabletReport) -> bool:
    """It is served, has all of its rows here and on backups, and makes way for no other tablet."""
    is_whole = not report.remote_bytes and tablet.inherits is None
    return may_leave(catalog, tablet, report) and is_whole and report.succession is None
