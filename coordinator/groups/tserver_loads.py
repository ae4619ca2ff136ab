"""What live tservers have to carry, for those who choose among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.groups.health import is_marked
from stelae.coordinator.liveness.liveness import Seen
from stelae.coordinator.placement.assignment import Load, count_loads
from stelae.coordinator.placement.tablet_sizes import TabletSizes


def tserver_loads(
    catalog: Catalog, live: Iterable[Seen], sizes: TabletSizes | None = None
) -> list[Load]:
    """The loads of live tservers, by the catalog and their last heartbeats, ordered by UUID.

    Those that are to be left, or are in maintenance, are not among them: they get nothing new.
    ``sizes``: of tablets that are not served, of which some are promised to these servers.
    """
    loads = {
        seen.server.uuid: Load(
            seen.server,
            memory_bytes=seen.heartbeat.memory_bytes,
            memory_limit_bytes=seen.heartbeat.memory_limit_bytes,
            live_bytes=seen.heartbeat.live_bytes,
            reports=seen.reports,
        )
        for seen in sorted(live, key=lambda seen: seen.server.uuid)
        if not is_marked(catalog.mark(seen.server.uuid))
    }
    count_loads(loads, catalog)
    if sizes is not None:
        reports = {uuid: load.reports for uuid, load in loads.items()}
        coming = sizes.coming_bytes(catalog.opening_tablets(), reports)
        for uuid, load in loads.items():
            remote_bytes = sum([report.remote_bytes for report in load.reports.values()])
            load.coming_bytes = remote_bytes + coming.get(uuid, 0)
    return list(loads.values())
