"""How backups are retired: who may take what is there, and when nothing is left. Pure.

The mark is that of tablet servers (`ServerMark`). All who place replicas are told of it and choose
others; owners of logs and safekeepers make what is there anew elsewhere, and let go of it then. A
retiring backup that holds nothing takes nothing any more, and says so, with the generation of the
mark: only that counts as drained. So nobody can put anything there between that word and its end,
and a word from before the mark was taken back says nothing. While the others are too few for some
table, or too full, the mark of one that would help says that it is needed, under another
generation, and it takes what comes. Design §9, §12; decisions §44.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness, Run, Seen, run_of
from stelae.coordinator.liveness.shunned_backups import shunned_backups
from stelae.coordinator.placement.assignment import check_media, count_placed
from stelae.core.errors import InvalidArgument, NotEnoughServers
from stelae.core.ids import ServerUuid
from stelae.core.messages.operators import ServerProgress
from stelae.core.records.records import ServerInfo, ServerKind, ServerMark, TabletState
from stelae.core.schema.durability import Durability, media_of


def retiring_uuids(catalog: Catalog) -> tuple[ServerUuid, ...]:
    """All servers that are to be retired, ascending."""
    return tuple(sorted(uuid for uuid, mark in catalog.marks.items() if mark.retiring))


def needed_uuids(catalog: Catalog) -> tuple[ServerUuid, ...]:
    """Those of them that are needed yet."""
    marks = catalog.marks.items()
    return tuple(sorted(uuid for uuid, mark in marks if mark.retiring and mark.needed))


def staying_backups(
    catalog: Catalog, liveness: Liveness, now: float, but: ServerUuid | None = None
) -> list[ServerInfo]:
    """Live backups that new replicas may go to; ``but`` is left out too."""
    live = [seen.server for seen in liveness.live(ServerKind.BACKUP, now)]
    return [s for s in live if s.uuid != but and not catalog.mark(s.uuid).retiring]


def _roomy_backups(
    catalog: Catalog, liveness: Liveness, now: float, but: ServerMark
) -> list[ServerInfo]:
    """Those that stay and answer tservers, each with its media on which there is room: owners
    choose none that is full, and choose a retiring backup before a shunned one.

    To somebody who is needed a reserve is no room: so it does not come and go with each segment.
    """
    shunned = shunned_backups(liveness, now)
    found = []
    for server in staying_backups(catalog, liveness, now, but=but.uuid):
        if server.uuid in shunned:
            continue
        seen = liveness.newest(server.uuid)
        loads = () if seen is None else seen.heartbeat.media
        full = {m.medium for m in loads if not m.free_segments or (but.needed and m.is_low)}
        media = tuple(medium for medium in server.media if medium not in full)
        found.append(msgspec.structs.replace(server, media=media))
    return found


def who_lacks_backups(catalog: Catalog, backups: Sequence[ServerInfo]) -> str:
    """Which table these backups are too few for; empty: none."""
    for table in catalog.live_tables():
        for durability in _durabilities(table.durability, table.becoming):
            try:
                check_media(f"table {table.name!r}", media_of(durability), backups)
            except NotEnoughServers as error:
                return str(error)
    return ""


def _durabilities(*each: Durability | None) -> Iterable[Durability]:
    return (durability for durability in each if durability is not None)


def check_may_retire(catalog: Catalog, liveness: Liveness, mark: ServerMark, now: float) -> None:
    """Raises InvalidArgument: the other backups are too few for some table's replicas."""
    lacks = _what_lacks(catalog, liveness, mark, now)
    if lacks:
        raise InvalidArgument(f"backup {mark.name} cannot be retired: without it, {lacks}")


def _what_lacks(catalog: Catalog, liveness: Liveness, mark: ServerMark, now: float) -> str:
    """Which table the others are too few for, or too full; empty: none."""
    lacks = who_lacks_backups(catalog, staying_backups(catalog, liveness, now, but=mark.uuid))
    if lacks:
        return lacks
    lacks = who_lacks_backups(catalog, _roomy_backups(catalog, liveness, now, mark))
    which = "with room that answer tservers" if shunned_backups(liveness, now) else "with room"
    return f"{lacks} {which}" if lacks else ""


def draft_needed(catalog: Catalog, liveness: Liveness, now: float) -> CatalogBatch | None:
    """Marks that are to say that their backups are needed, or are so no more; None: all are right.

    All at once that would help some table: owners choose among them, and it is not for long. What
    is said of those that are away is left as it is.
    """
    marks = ((s.server, catalog.mark(s.server.uuid)) for s in liveness.live(ServerKind.BACKUP, now))
    changed = []
    for server, mark in marks:
        if not mark.retiring:
            continue
        roomy = _roomy_backups(catalog, liveness, now, mark)
        if mark.needed != _would_help(catalog, server, roomy):
            now_is = msgspec.structs.replace(mark, needed=not mark.needed)
            changed.append(msgspec.structs.replace(now_is, generation=mark.generation + 1))
    return CatalogBatch(marks=tuple(changed)) if changed else None


def _would_help(catalog: Catalog, backup: ServerInfo, others: Sequence[ServerInfo]) -> bool:
    """Whether with it more replicas of some table's segments find backups than with the others."""
    asked = {
        media_of(durability)
        for table in catalog.live_tables()
        for durability in _durabilities(table.durability, table.becoming)
    }
    return any(
        count_placed(media, others) < count_placed(media, [*others, backup])
        for media in asked
        if not {*media}.isdisjoint(backup.media)
    )


def may_close(mark: ServerMark) -> bool:
    """Whether its backup is to take nothing any more from the moment on that it holds nothing."""
    return mark.retiring and not mark.needed


def is_drained(mark: ServerMark, seen: Seen | None) -> bool:
    """Whether it holds nothing, and takes nothing any more, for as long as the mark stands."""
    if seen is None or not may_close(mark):
        return False
    return seen.heartbeat.closed_for == mark.generation != 0


def backup_progress(
    catalog: Catalog, liveness: Liveness, mark: ServerMark, now: float
) -> ServerProgress:
    """How far a backup is from having nothing left."""
    seen = liveness.newest(mark.uuid)
    if seen is None or not liveness.is_live(run_of(seen), now):
        return _progress_without(catalog, liveness, mark)
    left = 0 if is_drained(mark, seen) else max(1, seen.heartbeat.replicas)
    problem = ""
    if left and mark.retiring:
        problem = _what_lacks(catalog, liveness, mark, now)
    return ServerProgress(mark, True, 0, 0, problem=problem, segments=left)


def _progress_without(catalog: Catalog, liveness: Liveness, mark: ServerMark) -> ServerProgress:
    """Of a backup that is away. What it has is not known: until nobody counts on it any more
    (`stelae.coordinator.placement.known_backups`) that is one segment at least, and all that lack
    replicas without it."""
    if mark.retiring and mark.uuid not in catalog.backups.known:
        return ServerProgress(mark, False, 0, 0)
    lacks = what_lacks(catalog, liveness)
    away = "it is away"
    if liveness.newest(mark.uuid) is None:
        away = "the leader master has not heard it: what it has is not known"
    why = "nothing lacks replicas without it; it is let go of once it was missed for a while"
    if lacks.tablets:
        why = f"without it {lacks.tablets} tablets lack replicas, or wait for segments"
    problem = f"{away}; {why}"
    return ServerProgress(mark, False, 0, 0, problem=problem, segments=max(1, lacks.segments))


class Lacks(NamedTuple):
    """What is not at full strength on the backups that live."""

    segments: int
    """That lack replicas, by those who own their logs."""
    tablets: int
    """That have such segments, or wait for some, or of which nobody has said how they are."""


def what_lacks(catalog: Catalog, liveness: Liveness) -> Lacks:
    """Of all tablets with segments, each in its own log."""
    segments = tablets = 0
    for tablet in catalog.live_tablets():
        if not media_of(catalog.tables[tablet.table_id].durability_of(tablet)):
            continue
        seen = liveness.find(Run(tablet.owner, tablet.owner_incarnation))
        report = None if seen is None else seen.reports.get(tablet.tablet_id)
        if report is None or report.term != tablet.term or tablet.state is not TabletState.RUNNING:
            tablets += 1
            continue
        segments += report.under_replicated
        is_short = report.under_replicated or report.in_memory_only or report.lacks
        tablets += bool(is_short) or tablet.inherits is not None
    return Lacks(segments, tablets)


def not_heard(catalog: Catalog, mark: ServerMark) -> ServerProgress:
    """Of a server that the leader master has not heard (yet): never that it has nothing."""
    problem = "the leader master has not heard it: what it has is not known"
    replicas = catalog.count_replicas(mark.uuid)
    return ServerProgress(mark, False, replicas, 0, problem=problem, segments=1)
