"""How tablets with segments leave a tserver that is to be retired: which goes next. Pure.

How they go, and which cannot, is said in `stelae.coordinator.moves.departures`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Seen
from stelae.coordinator.moves.departures import Departure, able_to_leave, departure, is_bound
from stelae.core.ids import TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord
from stelae.core.schema.own_tables import is_own_table

TABLES_NAMED = 5


def leave(
    catalog: Catalog, live: Iterable[Seen], staying: Container[TabletId] = ()
) -> Departure | None:
    """The next tablet to leave a retiring server. ``live``: tservers. ``staying``: tablets that
    their servers do not close just now."""
    if not catalog.marks:
        return None
    for seen in live:
        if catalog.mark(seen.server.uuid).retiring:
            for tablet, _ in able_to_leave(catalog, seen, staying):
                return departure(seen, tablet, f"{seen.server.name} is to be retired")
    return None


def owned_that_count(catalog: Catalog, seen: Seen | None, has_home: bool) -> list[TabletRecord]:
    """The tablets that a tserver owns and has to be rid of before it may be stopped for good.

    Where no other server could take them, tablets of Stelae's own tables do not count: the lines of
    the audit log are in the gateways' files, and its rows on backups.
    """
    if seen is None:
        return []
    owned = catalog.owned_by(seen.server.uuid, seen.server.incarnation)
    tables = catalog.tables
    return [t for t in owned if has_home or not is_own_table(tables[t.table_id].name)]


def what_stays(catalog: Catalog, seen: Seen | None, has_home: bool) -> tuple[int, str]:
    """Of the tablets that a tserver owns: how many cannot leave it, and what keeps it from being
    stopped just now (empty: nothing does)."""
    if seen is None:
        return 0, ""
    owned = owned_that_count(catalog, seen, has_home)
    bound = [tablet for tablet in owned if is_bound(catalog, tablet)]
    if bound:
        names = dict.fromkeys(catalog.tables[tablet.table_id].name for tablet in bound)
        named = ", ".join(list(names)[:TABLES_NAMED]) + (" …" if len(names) > TABLES_NAMED else "")
        return len(bound), (
            f"{len(bound)} of its tablets have their rows in its memory only (tables {named}, "
            "with segments()): copy or delete these tables"
        )
    if not owned:
        return 0, ""
    if not has_home:
        return 0, "there is no other live tserver that its tablets could go to"
    short = [t for t in owned if _is_short(seen.reports.get(t.tablet_id))]
    if short:
        return 0, f"{len(short)} of its tablets have segments that lack replicas on backups"
    return 0, ""


def _is_short(report: TabletReport | None) -> bool:
    return report is not None and report.under_replicated > 0
