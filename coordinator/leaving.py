"""How tablets of tables with segments leave a tserver that is to be retired. Pure.

Such a tablet is closed where it is, and then recovered elsewhere from its backups, as after a
crash, but one at a time and only while every segment has all its replicas: so there is a short
pause for its clients, and nothing else. Each step follows from the catalog and the reports alone,
so a new leader master goes on with it. The closed tablet cannot be opened again in its term, so
nobody serves it until the next owner has all of it.

Rows of tables with ``segments()`` are in one server's memory and nowhere else: their tablets stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stelae.coordinator.catalog import Catalog
from stelae.coordinator.liveness import Seen
from stelae.core.durability import media_of
from stelae.core.ids import TabletId
from stelae.core.messages import TabletProgress, TabletReport
from stelae.core.records import ServerInfo, TabletRecord, TabletState

TABLES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Close:
    """Tell a tserver to forget a tablet of this or a lower term."""

    server: ServerInfo
    tablet_id: TabletId
    term: int


def leave(
    catalog: Catalog, live: Iterable[Seen], homes: Callable[[], Sequence[object]]
) -> list[Close]:
    """The next tablet to leave a retiring server is to be closed; nothing while another tablet is
    being recovered, for whatever reason.

    ``live``: tservers. ``homes``: asked for the servers that may get it.
    """
    if not catalog.marks:
        return []
    leaving = [seen for seen in live if catalog.mark(seen.server.uuid).retiring]
    if not leaving or any(t.state is TabletState.RECOVERING for t in catalog.opening_tablets()):
        return []
    for seen in leaving:
        if not seen.picture.is_exact:
            continue
        for tablet in catalog.owned_by(seen.server.uuid, seen.server.incarnation):
            if _may_leave(catalog, tablet, seen.reports.get(tablet.tablet_id)):
                close = Close(seen.server, tablet.tablet_id, tablet.term)
                return [close] if homes() else []
    return []


def _may_leave(catalog: Catalog, tablet: TabletRecord, report: TabletReport | None) -> bool:
    if tablet.state is not TabletState.RUNNING or _is_bound(catalog, tablet):
        return False
    return (
        report is not None
        and report.term == tablet.term
        and report.progress is TabletProgress.SERVING
        and not report.under_replicated
    )


def _is_bound(catalog: Catalog, tablet: TabletRecord) -> bool:
    """Whether its rows are in its owner's memory only."""
    return not media_of(catalog.tables[tablet.table_id].durability_of(tablet))


def what_stays(catalog: Catalog, seen: Seen | None, has_home: bool) -> tuple[int, str]:
    """Of the tablets that a tserver owns: how many cannot leave it, and what keeps it from being
    stopped just now (empty: nothing does)."""
    if seen is None:
        return 0, ""
    owned = list(catalog.owned_by(seen.server.uuid, seen.server.incarnation))
    bound = [tablet for tablet in owned if _is_bound(catalog, tablet)]
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
