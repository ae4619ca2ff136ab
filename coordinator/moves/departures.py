"""How a tablet that one server owns leaves it by plan: what all who want that share. Pure.

It is closed where it is, and then recovered elsewhere from its backups, as after a crash; but one
at a time, and only while every segment has all its replicas: so there is a short pause for its
clients, and nothing else. Each step follows from the catalog and the reports alone, so a new leader
master goes on with it. The closed tablet cannot be opened again in its term, so nobody serves it
until the next owner has all of it.

Rows of tables with ``segments()`` are in one server's memory and nowhere else: their tablets stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Seen
from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ServerInfo, TabletRecord, TabletState
from stelae.core.schema.durability import media_of

REST = 9.0
"""Once a tablet's rows have followed, the others are let alone for so many times as long as it has
paused: so some tablet pauses for a tenth of the time at most."""
GENTLE_BYTES_PER_S = float(64 << 20)
"""So fast the rows of a tablet follow that nobody waits for: as fast as it goes, writers wait for
disks and processors. A gigabyte takes 16 s then; in eight tablets, each of which pauses for 0.1 s,
23 s with all rests."""
CLOSE_S = 30.0
"""Time for which one server is told to close a tablet before another tablet has its turn."""
UNCLOSED_PAUSE_S = 60.0
LONGEST_UNCLOSED_PAUSE_S = 1800.0
"""Pauses before a tablet is told to be closed again that was not closed in time."""
LONGEST_REST_S = 30.0
"""What asks for more was a failure, and not the plan. So long are rows waited for, too."""


@dataclass(frozen=True, slots=True)
class Close:
    """Tell a tserver to forget a tablet of this or a lower term."""

    server: ServerInfo
    tablet_id: TabletId
    term: int


@dataclass(frozen=True, slots=True)
class Departure:
    """A tablet that is to leave its server."""

    close: Close
    reason: str
    target: ServerUuid | None = None
    """Where it is to go; None: where there is least to do."""
    is_gentle: bool = True
    """Nobody waits for it: its rows follow slowly."""


@dataclass(frozen=True, slots=True)
class _Unclosed:
    """A tablet that its server did not close in time."""

    times: int
    until: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A tablet that is served elsewhere, while its rows follow."""

    tablet: TabletRecord
    served_at: float
    pause_s: float


@dataclass(slots=True)
class Departures:
    """What is under way, and how long it took. Only in memory: a new leader master waits a little
    longer for what it finds closed, chooses anew where it goes, and begins the pace anew."""

    last: Departure | None = None
    """Told to be closed, and not served again yet."""
    short_since: dict[ServerUuid, float] = field(default_factory=dict)
    """Servers that lack memory; kept by `stelae.coordinator.moves.relief`."""
    _began: float = 0.0
    _told_since: float = 0.0
    """Since when the order to close it has been given at every look."""
    _unclosed: dict[TabletId, _Unclosed] = field(default_factory=dict)
    _arrival: Arrival | None = None
    _rests_until: float = 0.0

    def look(
        self,
        catalog: Catalog,
        report_of: Callable[[TabletRecord], TabletReport | None],
        now: float,
    ) -> None:
        """See whether the last one is served elsewhere, and has its rows there.

        ``report_of``: what the live owner of a tablet says of it.
        """
        if self.last is not None:
            tablet = catalog.tablets[self.last.close.tablet_id]
            is_back = tablet.state is TabletState.RUNNING and tablet.term > self.last.close.term
            if is_back or tablet.state.is_gone:
                self._arrival = Arrival(tablet, now, now - self._began)
                self._unclosed.pop(tablet.tablet_id, None)
                self.last = None
        if self._arrival is not None:
            self._look_at(self._arrival, catalog, report_of, now)

    def _look_at(
        self,
        arrival: Arrival,
        catalog: Catalog,
        report_of: Callable[[TabletRecord], TabletReport | None],
        now: float,
    ) -> None:
        """Begin the rest once all rows are there, or will not be for long."""
        tablet = catalog.tablets[arrival.tablet.tablet_id]
        report = report_of(tablet)
        loaded_s = 0.0
        if not tablet.state.is_gone and tablet.term == arrival.tablet.term:
            is_loaded = report is not None and not report.remote_bytes
            loaded_s = report.loaded_s if report is not None else 0.0
            if not is_loaded and now < arrival.served_at + LONGEST_REST_S:
                return
        rest_s = min(REST * arrival.pause_s, LONGEST_REST_S)
        self._rests_until = arrival.served_at + loaded_s + rest_s
        self._arrival = None

    def begin(self, departure: Departure, now: float) -> None:
        """This one is told to be closed."""
        self.last, self._began, self._told_since = departure, now, now

    def hold(self, now: float) -> None:
        """The order is not given at this look, as a tablet is being recovered."""
        self._told_since = now

    def is_late(self, now: float) -> bool:
        """Whether the one that was told to be closed should be by now."""
        return self.last is not None and now >= self._told_since + CLOSE_S

    def give_up(self, now: float) -> None:
        """Its server does not close it. One sick server must not keep all others from moving."""
        if self.last is None:
            return
        tablet_id = self.last.close.tablet_id
        known = self._unclosed.get(tablet_id)
        times = 0 if known is None else known.times
        pause_s = doubled_s(UNCLOSED_PAUSE_S, times, LONGEST_UNCLOSED_PAUSE_S)
        self._unclosed[tablet_id] = _Unclosed(times + 1, now + pause_s)
        self.last = None

    def staying(self, now: float) -> dict[TabletId, None]:
        """Tablets that are not told to be closed just now."""
        if self._unclosed:
            old = now - LONGEST_UNCLOSED_PAUSE_S
            self._unclosed = {i: each for i, each in self._unclosed.items() if each.until > old}
        return {i: None for i, each in self._unclosed.items() if now < each.until}

    def is_rested(self, now: float) -> bool:
        """Whether the next one may go, for all those who wait for their rows."""
        return self._arrival is None and now >= self._rests_until

    def load_rate(self, tablet: TabletRecord) -> float:
        """In bytes a second, how fast rows of a tablet that is recovered may follow; 0: as fast as
        it goes."""
        last = self.last
        if last is None or not last.is_gentle or last.close.tablet_id != tablet.tablet_id:
            return 0.0
        return GENTLE_BYTES_PER_S if tablet.term == last.close.term + 1 else 0.0

    def of(self, tablet: TabletRecord) -> Departure | None:
        """The one that closes a tablet in its present term."""
        last = self.last
        if last is None or (last.close.tablet_id, last.close.term) != (
            tablet.tablet_id,
            tablet.term,
        ):
            return None
        return last


def is_bound(catalog: Catalog, tablet: TabletRecord) -> bool:
    """Whether its rows are in its owner's memory only."""
    return not media_of(catalog.tables[tablet.table_id].durability_of(tablet))


def may_leave(catalog: Catalog, tablet: TabletRecord, report: TabletReport | None) -> bool:
    """Whether all of it is sure to arrive elsewhere. ``report``: its owner's."""
    if tablet.state is not TabletState.RUNNING or is_bound(catalog, tablet):
        return False
    return (
        report is not None
        and report.term == tablet.term
        and report.progress is TabletProgress.SERVING
        and not report.under_replicated
    )


def able_to_leave(
    catalog: Catalog, seen: Seen, staying: Container[TabletId] = ()
) -> Iterator[tuple[TabletRecord, TabletReport]]:
    """The tablets that a live tserver owns and can do without; none while it has not told all.

    ``staying``: see `Departures.staying`.
    """
    if not seen.picture.is_exact:
        return
    for tablet in catalog.owned_by(seen.server.uuid, seen.server.incarnation):
        report = seen.reports.get(tablet.tablet_id)
        if tablet.tablet_id in staying:
            continue
        if report is not None and may_leave(catalog, tablet, report):
            yield tablet, report


def departure(
    seen: Seen, tablet: TabletRecord, reason: str, target: ServerUuid | None = None
) -> Departure:
    """That of a tablet from the server that was seen to serve it."""
    return Departure(Close(seen.server, tablet.tablet_id, tablet.term), reason, target)
