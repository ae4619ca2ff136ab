"""Which tablet that one server owns moves by plan: one at a time, of the wishes the first. Pure.

1. the one that was told to be closed, until it is; a server that does not close it for
   `stelae.coordinator.moves.departures.CLOSE_S` keeps it for a pause, and others have their turn;
2. one leaves a server that lacks memory (`stelae.coordinator.moves.relief`): at once;
3. one leaves a server that is to be retired (`stelae.coordinator.moves.leaving`): after a rest, as
others
   write meanwhile;
4. one goes where there is less (`stelae.coordinator.moves.evening`): after a long calm.

None while any tablet is being recovered, for whatever reason. Nothing is recorded but what shows in
the catalog and in reports: an order is repeated until the tablet is closed there, and whatever is
closed is recovered elsewhere, whoever leads then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Run, Seen
from stelae.coordinator.moves.departures import Close, Departure, Departures, may_leave
from stelae.coordinator.moves.evening import even_out
from stelae.coordinator.moves.leaving import leave
from stelae.coordinator.moves.relief import note_short, relieve
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord, TabletState


def planned_closes(
    catalog: Catalog,
    live: Mapping[Run, Seen],
    departures: Departures,
    homes: Callable[[], Sequence[Load]],
    now: float,
    failures: KnownFailures,
    *,
    may_even_out: bool,
) -> list[Close]:
    """The tablet to be closed now, if there is one; noted as told.

    ``live``: tservers. ``homes``: asked for the servers that may get it. ``failures``: where
    tablets failed. ``may_even_out``: it has been calm for as long as operators want, and nothing
    else is to be evened out.
    """
    seen = tuple(live.values())
    departures.look(catalog, partial(_report_of, live), now)
    note_short(seen, departures.short_since, now)
    if any(t.state is TabletState.RECOVERING for t in catalog.opening_tablets()):
        departures.hold(now)
        return []
    if departures.last is not None:
        if not _is_wanted_still(catalog, live, departures.last, homes()):
            departures.last = None
        elif departures.is_late(now):
            departures.give_up(now)
        else:
            return [departures.last.close]
    staying = departures.staying(now)
    found = relieve(catalog, seen, homes, departures.short_since, now, failures, staying)
    if found is None and departures.is_rested(now):
        found = leave(catalog, seen, staying)
    if found is None and may_even_out:
        found = even_out(catalog, seen, homes(), now, failures, staying)
    if found is None or not _has_home(found.target, homes()):
        return []
    departures.begin(found, now)
    return [found.close]


def _report_of(live: Mapping[Run, Seen], tablet: TabletRecord) -> TabletReport | None:
    """What its live owner says of a tablet, in its present term."""
    seen = live.get(Run(tablet.owner, tablet.owner_incarnation))
    report = None if seen is None else seen.reports.get(tablet.tablet_id)
    return report if report is not None and report.term == tablet.term else None


def _is_wanted_still(
    catalog: Catalog, live: Mapping[Run, Seen], last: Departure, homes: Sequence[Load]
) -> bool:
    """Whether the order to close it, which was not heard or carried out yet, is to be repeated."""
    server = last.close.server
    seen = live.get(Run(server.uuid, server.incarnation))
    tablet = catalog.tablets[last.close.tablet_id]
    if seen is None or tablet.term != last.close.term or not _has_home(last.target, homes):
        return False
    return may_leave(catalog, tablet, seen.reports.get(tablet.tablet_id))


def _has_home(target: ServerUuid | None, homes: Sequence[Load]) -> bool:
    """Whether it can go where it is to go; or anywhere."""
    if target is None:
        return bool(homes)
    return any(load.server.uuid == target for load in homes)
