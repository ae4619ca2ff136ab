"""Which tablets lack segments of their logs, by the catalog and their owners' reports. Pure.

What operators make of it: `stelae.coordinator.ddl.losses`. Source: design §13 (when the promise
does not hold, the cluster says which data is missing).
"""

from __future__ import annotations

from collections.abc import Iterable

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.core.messages.servers import TabletReport
from stelae.core.records.losses import SegmentFacts
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import media_of


def waiting_tablets(catalog: Catalog, liveness: Liveness) -> list[TabletRecord]:
    """Tablets that are being recovered from backups, or from these and a timeline, or are served
    and lack segments, by table and number. Parts of a split one may lack what they inherit: each
    gives it up for itself."""
    found = [
        tablet
        for tablet in catalog.opening_tablets()
        if tablet.state is TabletState.RECOVERING and media_count(catalog, tablet)
    ]
    held = (i for seen in liveness.newest_runs() for i, r in seen.reports.items() if r.lacks)
    served = (catalog.tablets[i] for i in dict.fromkeys(held) if i in catalog.tablets)
    found += [
        tablet
        for tablet in served
        if tablet.state is TabletState.RUNNING and lacks_of(liveness, tablet)
    ]
    return sorted(found, key=lambda t: (t.table_id, t.number, t.tablet_id))


def lacks_of(liveness: Liveness, tablet: TabletRecord) -> tuple[SegmentFacts, ...]:
    """What its owner has found nowhere, in this term."""
    report = _report_of(liveness, tablet)
    return () if report is None else report.lacks


def _report_of(liveness: Liveness, tablet: TabletRecord) -> TabletReport | None:
    seen = liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    report = None if seen is None else seen.reports.get(tablet.tablet_id)
    return None if report is None or report.term != tablet.term else report


def would_lose_more(liveness: Liveness, tablets: Iterable[TabletRecord]) -> str:
    """Which of these has segments in its owner's memory and nowhere else just now, which it would
    lose if it were recovered; empty: none."""
    for tablet in tablets:
        report = _report_of(liveness, tablet)
        if tablet.state is TabletState.RUNNING and report is not None and report.in_memory_only:
            count = report.in_memory_only
            return f"{count} segments of tablet {tablet.tablet_id} are in its server's memory only"
    return ""


def media_count(catalog: Catalog, tablet: TabletRecord) -> int:
    """How many replicas its segments have."""
    return len(media_of(catalog.tables[tablet.table_id].durability_of(tablet)))
