"""Which tablet leaves a tserver that lacks memory, for one that has some. Pure.

A server lacks memory while rows of its recovered tablets cannot come back for want of it, or what
lives takes nearly all of it, so that writes are refused soon. Few servers may have been there when
tablets were given away: the rest follow when others join. A tablet goes only to a server that is
well below its limit with it: between the two marks nothing moves, so nothing flaps.

A server with room at which a tablet failed is left alone by that tablet for a pause, and then comes
after the other servers with room: else the roomiest server would be chosen each time, however often
it fails. Other tablets go there meanwhile.

Whoever lacks memory refuses writes, and fetches rows one by one: so nobody gains by waiting, and
one tablet follows the other. Those of which most is not in memory go first: they cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Seen
from stelae.coordinator.moves.departures import Departure, able_to_leave, departure
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletReport

SHORT = 0.9
"""Of its memory: a server with more than that lacks some. At 0.95 writes are refused."""
ROOMY = 0.8
"""Of its memory: a server that has no more than that with a tablet is given it."""
SHORT_FOR_S = 3.0
"""So long it has to be seen: cleaning frees memory too, and rows that come back are weighed a
little later than they are counted."""


def relieve(
    catalog: Catalog,
    live: Sequence[Seen],
    homes: Callable[[], Sequence[Load]],
    short_since: dict[ServerUuid, float],
    now: float,
    failures: KnownFailures,
    staying: Container[TabletId] = (),
) -> Departure | None:
    """The next tablet to leave a server for want of memory, of the one that lacks most first.

    ``homes``: asked for servers that may get tablets. ``short_since``: as `note_short` keeps it.
    ``failures``: where tablets failed. ``staying``: tablets that are not closed just now.
    """
    short = [seen for seen in live if now >= short_since.get(seen.server.uuid, now) + SHORT_FOR_S]
    if not short:
        return None
    may_get = {load.server.uuid: None for load in homes()}
    rooms = {
        seen.server.uuid: room_bytes(seen)
        for seen in live
        if seen.server.uuid in may_get and seen.picture.is_exact and lacking_bytes(seen) <= 0
    }
    for seen in sorted(short, key=lambda seen: (-lacking_bytes(seen), seen.server.uuid)):
        fitting = [
            _Fitting(*rank, report.remote_bytes, size_of(report), tablet.tablet_id)
            for tablet, report in able_to_leave(catalog, seen, staying)
            if (rank := _best_home(rooms, size_of(report), tablet.tablet_id, failures, now))
        ]
        if fitting:
            best = max(fitting)
            reason = f"{seen.server.name} lacks memory for it"
            gone = departure(seen, catalog.tablets[best.tablet_id], reason, best.target)
            return replace(gone, is_gentle=False)
    return None


class _Fitting(NamedTuple):
    """A tablet and the server where it has room; of several the greatest goes first."""

    before: tuple[float, float]
    """As `KnownFailures.rank` says; the later a pause ends, the less."""
    room_bytes: int
    target: ServerUuid
    remote_bytes: int
    size_bytes: int
    tablet_id: TabletId


def _best_home(
    rooms: Mapping[ServerUuid, int],
    size_bytes: int,
    tablet_id: TabletId,
    failures: KnownFailures,
    now: float,
) -> tuple[tuple[float, float], int, ServerUuid] | None:
    """The roomiest server with room for a tablet at which nothing has failed; else of those that
    are not paused any more the one whose pause ended first; None: there is none."""
    found = [
        (failures.rank(tablet_id, uuid), room_bytes, uuid)
        for uuid, room_bytes in rooms.items()
        if size_bytes <= room_bytes and failures.may_go(tablet_id, uuid, now)
    ]
    return max(found, default=None)


def note_short(live: Iterable[Seen], short_since: dict[ServerUuid, float], now: float) -> None:
    """Keep since when each server lacks memory."""
    short = {s.server.uuid: None for s in live if lacking_bytes(s) > 0}
    for uuid in [uuid for uuid in short_since if uuid not in short]:
        del short_since[uuid]
    for uuid in short:
        short_since.setdefault(uuid, now)


def lacking_bytes(seen: Seen) -> int:
    """How much too much a tserver has, or is to have; 0 or less: nothing."""
    beat = seen.heartbeat
    wanted_bytes = beat.live_bytes
    if beat.lacks_memory:  # then what does not live is not freed either
        wanted_bytes = max(wanted_bytes, beat.memory_bytes + _remote_bytes(seen))
    return wanted_bytes - int(SHORT * beat.memory_limit_bytes) if beat.memory_limit_bytes else 0


def room_bytes(seen: Seen) -> int:
    """How large a tablet it can well be given."""
    beat = seen.heartbeat
    taken_bytes = beat.live_bytes or beat.memory_bytes
    return int(ROOMY * beat.memory_limit_bytes) - taken_bytes - _remote_bytes(seen)


def size_of(report: TabletReport) -> int:
    """Of a tablet, once all of its rows are in memory."""
    return report.memory_bytes + report.remote_bytes


def _remote_bytes(seen: Seen) -> int:
    """Of rows that are to come into its memory yet."""
    return sum(report.remote_bytes for report in seen.reports.values())
