"""How what a server holds stands to what the catalog says: made once, used until either changes.

The leader looks at everything many times a second and answers every heartbeat; with thousands of
tablets that is cheap only because servers about which nothing has changed cost nothing. Pure.

A server that holds a tablet the catalog does not know is left alone with it: deleted and replaced
records stay for ever, so an unknown tablet belongs to another cluster, or to nobody who may decide.

Source: seed Kudu multi-master, appendix A (only what replicated state says is deleted is deleted).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Seen, Standing
from stelae.core.ids import TabletId
from stelae.core.messages.indexes import IndexletProgress, IndexletReport
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ServerInfo, TabletRecord, TabletState
from stelae.core.schema.indexes import IndexletId, IndexletState

MAX_FREED = 256
"""Deleted tablets named in one heartbeat reply; the next names the rest."""
HAD = (TabletProgress.PREPARED, TabletProgress.SERVING)


def standing_of(catalog: Catalog, seen: Seen) -> Standing:
    """The standing of a run whose picture is exact."""
    made_from = (catalog.applied, seen.picture.version)
    if seen.standing is None or seen.standing.made_from != made_from:
        seen.standing = _make(catalog, seen, made_from)
    return seen.standing


def _make(catalog: Catalog, seen: Seen, made_from: tuple[int, int]) -> Standing:
    server, reports = seen.server, seen.picture.reports
    closes: list[tuple[TabletId, int]] = []
    serve: list[tuple[TabletId, int]] = []
    may_have_lease = True
    for report in reports.values():
        if report.group is not None:
            continue  # of a replica: `stelae.coordinator.decide_groups`
        tablet = catalog.tablets.get(report.tablet_id)
        if tablet is None:
            continue
        if not is_its_own(tablet, server, report):
            closes.append((report.tablet_id, report.term))
            if report.progress in HAD and not tablet.state.is_gone:
                may_have_lease = False
        elif (
            report.progress is TabletProgress.PREPARED
            and tablet.state is TabletState.RUNNING
            and tablet.term == report.term
        ):
            serve.append((tablet.tablet_id, tablet.term))
    closed_indexlets = tuple(
        (report.indexlet_id, report.term)
        for report in seen.picture.indexlets.values()
        if not _is_its_indexlet(catalog, server, report)
    )
    if any(
        seen.picture.indexlets[indexlet_id].progress is not IndexletProgress.CLOSED
        for indexlet_id, _ in closed_indexlets
    ):
        may_have_lease = False
    unsettled = tuple(
        tablet.tablet_id
        for tablet in catalog.owned_by(server.uuid, server.incarnation)
        if not _is_settled(tablet, reports.get(tablet.tablet_id))
    )
    held: Iterable[TabletId] = itertools.chain(reports, seen.picture.logs)
    return Standing(
        made_from,
        unsettled,
        tuple(closes),
        tuple(serve),
        to_drop(catalog, held),
        may_have_lease,
        closed_indexlets,
        tuple(indexlets_to_serve(catalog, seen)),
    )


def indexlets_to_serve(catalog: Catalog, seen: Seen) -> Iterable[tuple[IndexletId, int]]:
    """Those of a server that are complete, and wait for the word that they may answer."""
    for report in seen.picture.indexlets.values():
        record = catalog.indexes.indexlets.get(report.indexlet_id)
        if (
            record is not None
            and report.progress is IndexletProgress.COMPLETE
            and record.state is IndexletState.SERVING
            and record.term == report.term
        ):
            yield report.indexlet_id, report.term


def _is_its_indexlet(catalog: Catalog, server: ServerInfo, report: IndexletReport) -> bool:
    """Whether the catalog says that this server has this indexlet in this term. One that the
    catalog does not know, or lets go, was dropped, or replaced: who is told of one, is told after.
    """
    record = catalog.indexes.indexlets.get(report.indexlet_id)
    if record is None or record.state is IndexletState.CLOSING:
        return False
    if report.term != record.term:
        return report.term > record.term
    return (record.owner, record.owner_incarnation) == (server.uuid, server.incarnation)


def knows_less(tablet: TabletRecord, report: TabletReport) -> bool:
    """Whether a tablet's owner knows an older configuration of its timeline than the catalog."""
    timeline = tablet.timeline
    return timeline is not None and report.timeline_generation < timeline.generation


def has_all_rows(report: TabletReport) -> bool:
    """Whether an owner has opened a tablet, and has all of its rows in memory."""
    return report.progress in HAD and not report.remote_bytes


def _is_settled(tablet: TabletRecord, report: TabletReport | None) -> bool:
    """It runs, and its owner says that it serves it, and where its log is, and what it inherits is
    needed still."""
    return (
        report is not None
        and not (report.is_whole and tablet.inherits is not None)
        and tablet.state is TabletState.RUNNING
        and report.progress is TabletProgress.SERVING
        and report.term == tablet.term
        and not knows_less(tablet, report)
        and not report.unreached
    )


def is_its_own(tablet: TabletRecord, server: ServerInfo, report: TabletReport) -> bool:
    """Whether the catalog says that this server holds this tablet in this term (or is about to)."""
    if tablet.state.is_gone:
        return False
    if report.term != tablet.term:
        return report.term > tablet.term
    return (tablet.owner, tablet.owner_incarnation) == (server.uuid, server.incarnation)


def to_drop(catalog: Catalog, held: Iterable[TabletId]) -> tuple[TabletId, ...]:
    """Of the tablets held, those that the catalog knows to be deleted or replaced. A split one's
    log stays while a part of it needs that; its owner hears of it by `Standing.closes`."""
    known = (catalog.tablets.get(tablet_id) for tablet_id in held)
    gone = (t.tablet_id for t in known if t is not None and t.state.is_gone)
    gone = (tablet_id for tablet_id in gone if not catalog.heirs.is_needed(tablet_id))
    return tuple(itertools.islice(gone, MAX_FREED))
