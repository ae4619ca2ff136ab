"""Where indexlets are, and how far: for clients, tablets, and the status document. Pure."""

from __future__ import annotations

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.core.ids import Address, TabletId
from stelae.core.messages.index_catalog import IndexletView, IndexView
from stelae.core.messages.indexes import (
    NOT_IN_PLACE,
    IndexletLocation,
    IndexletLocations,
    IndexletProgress,
    IndexletReport,
)
from stelae.core.records.records import TableRecord
from stelae.core.schema.indexes import IndexletRecord, IndexletState


def locations_of(
    catalog: Catalog, liveness: Liveness, now: float, table: TableRecord, tablet_id: TabletId
) -> IndexletLocations:
    """All indexlets of a table that are found; of the tablet that asks, whether it is in place. It
    is told of those too that are closing."""
    of_indexes = [index.index_id for index in table.schema.indexes]
    if tablet_id:
        of_indexes += catalog.indexes.closing_of(table.table_id)
    found = [
        _location(liveness, now, indexlet)
        for index_id in of_indexes
        for indexlet in catalog.indexes.of_index(index_id)
    ]
    change, number = NOT_IN_PLACE, 0
    tablet = catalog.tablets.get(tablet_id) if tablet_id else None
    if tablet is not None and not tablet.state.is_gone and not tablet.succeeds:
        change = tablet.change
    if tablet is not None:
        number = tablet.number
    return IndexletLocations(table.schema.version, tuple(found), change, number)


def _location(liveness: Liveness, now: float, indexlet: IndexletRecord) -> IndexletLocation:
    view = _view(liveness, now, indexlet)
    problem = "" if indexlet.state is IndexletState.SERVING and view.address else view.problem
    return IndexletLocation(indexlet, Address(view.address), problem)


def views_of(
    catalog: Catalog, liveness: Liveness, now: float, table: TableRecord
) -> tuple[IndexView, ...]:
    """The indexes of a table, oldest first."""
    found = []
    for index in table.schema.indexes:
        views = []
        for indexlet in catalog.indexes.of_index(index.index_id):
            successors = len(catalog.indexes.successors_of(indexlet.indexlet_id))
            views.append(_view(liveness, now, indexlet, successors))
        found.append(IndexView(index.index_id, table.schema.column_of(index), tuple(views)))
    return tuple(found)


def _view(
    liveness: Liveness, now: float, indexlet: IndexletRecord, successors: int = 0
) -> IndexletView:
    run = Run(indexlet.owner, indexlet.owner_incarnation)
    seen = liveness.find(run)
    if seen is None:
        return IndexletView(indexlet, indexlet.owner, "", problem="its server was not heard yet")
    server = seen.server
    if not liveness.is_live(run, now):
        return IndexletView(indexlet, server.name, "", problem=f"{server.name} is dead")
    report = seen.picture.indexlets.get(indexlet.indexlet_id)
    if report is None or report.term != indexlet.term:
        problem = f"{server.name} has not opened it yet"
        return IndexletView(indexlet, server.name, server.address, problem=problem)
    progress, problem = report.progress, report.problem or _waits_for(indexlet, report)
    if indexlet.state is IndexletState.SERVING and progress is IndexletProgress.COMPLETE:
        # Its server's word is older than the catalog's, for which it was waiting.
        progress, problem = IndexletProgress.SERVING, ""
    return IndexletView(
        indexlet,
        server.name,
        server.address,
        progress,
        problem,
        report.entry_count,
        report.memory_bytes,
        report.tablets_filled,
        report.tablets,
        successors,
        report.copied_entries,
    )


def _waits_for(indexlet: IndexletRecord, report: IndexletReport) -> str:
    if indexlet.state is not IndexletState.FILLING or not report.tablets:
        return ""
    return f"{report.tablets_filled} of {report.tablets} tablets have given their entries"
