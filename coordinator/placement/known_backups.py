"""Which backups the cluster counts on, whether they are heard or not. Pure.

The register is filled by heartbeats: the leader master writes a backup into the catalog before it
tells any other server of it, so nothing is ever on a backup that the next leader does not know. It
stays, however long it is silent, until nothing can be on it that is needed:

- it is away, and its last word was that it is to be retired and holds nothing (`is_drained`);
- it has been away for long, is to be retired or has a successor of its name (its disk was lost),
  and everything is at full strength without it;
- an operator says by name that it never returns, when a loss is accepted.

One that comes back after all is registered anew. What was accepted as lost does not change then
(`stelae.coordinator.ddl.losses`).

Source: design §13 (what is missing is said, never guessed); seed 004 (registration).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness, Roster, roster_version
from stelae.coordinator.placement.leaving_backups import is_drained, what_lacks
from stelae.core.errors import InvalidArgument, Overloaded
from stelae.core.ids import ServerUuid
from stelae.core.records.losses import SilentBackup
from stelae.core.records.records import BackupRecord, ServerInfo, ServerKind

MAX_KNOWN = 10_000
"""Backups in the register; each disk that was lost counts until all is whole without it."""


def draft_register(catalog: Catalog, server: ServerInfo, now_wall: float) -> CatalogBatch | None:
    """A backup that was heard, with what lasts of it; None if it is there as it is.

    Raises Overloaded: the register is full.
    """
    known = catalog.backups.known.get(server.uuid)
    if known is None and len(catalog.backups.known) >= MAX_KNOWN:
        raise Overloaded("the register of backups", MAX_KNOWN)
    record = BackupRecord(
        server.uuid,
        server.name,
        # Of a node's name without a placement the rest is another one at each boot.
        server.process.node.partition("/")[0],
        server.media,
        now_wall if known is None else known.registered_at,
    )
    return None if record == known else CatalogBatch(backups=BackupChanges((record,)))


class ToldServers:
    """The list of live servers that others are told: without backups that are not registered."""

    def __init__(self, catalog: Catalog, liveness: Liveness) -> None:
        self._catalog = catalog
        self._liveness = liveness
        self._made_from: tuple[Roster, dict[ServerUuid, BackupRecord]] | None = None
        self._servers: tuple[ServerInfo, ...] = ()
        self._version = 0

    def look(self, now: float) -> tuple[tuple[ServerInfo, ...], int]:
        """The list, and its version. The same object while nothing changes."""
        roster, known = self._liveness.roster(now), self._catalog.backups.known
        made_from = self._made_from
        if made_from is None or made_from[0] is not roster or made_from[1] is not known:
            self._made_from = roster, known
            self._servers, self._version = roster.servers, roster.version
            if any(seen.server.uuid not in known for seen in roster.backups):
                self._servers = tuple(
                    server
                    for server in roster.servers
                    if server.kind is not ServerKind.BACKUP or server.uuid in known
                )
                self._version = roster_version(self._servers)
        return self._servers, self._version


# ---- those that are not heard -----------------------------------------------------------------


def offers(catalog: Catalog, liveness: Liveness, now: float) -> list[tuple[str, ...]]:
    """The media of each backup that there is, heard or not; a disk that was lost is none."""
    of_name = {record.name: record.media for record in catalog.backups.known.values()}
    live = (seen.server for seen in liveness.live(ServerKind.BACKUP, now))
    of_name.update((server.name, server.media) for server in live)
    return list(of_name.values())


def never_heard(catalog: Catalog, liveness: Liveness) -> list[BackupRecord]:
    """Known backups of which this master has not heard anything, by name."""
    known = catalog.backups.known.values()
    return _by_name(
        record
        for record in known
        if liveness.newest(record.uuid) is None and not catalog.mark(record.uuid).replaced
    )


def not_heard_backups(catalog: Catalog, liveness: Liveness, now: float) -> list[BackupRecord]:
    """Those that somebody has to look for, by name: this leader would have heard them by now, they
    are not to be retired, and none of their name is there (their disk was lost then)."""
    if liveness.may_hear(now):
        return []
    live = {seen.server.name for seen in liveness.live(ServerKind.BACKUP, now)}
    return [
        record
        for record in never_heard(catalog, liveness)
        if record.name not in live and not catalog.mark(record.uuid).retiring
    ]


def silent_backups(
    catalog: Catalog, liveness: Liveness, answered: Sequence[ServerUuid], now: float
) -> list[SilentBackup]:
    """Known backups that are not among those that said what they hold, by name."""
    said = {*answered}
    known = (r for r in catalog.backups.known.values() if r.uuid not in said)
    found = []
    for record in _by_name(known):
        seen = liveness.newest(record.uuid)
        is_heard = seen is not None and seen.heard_at >= liveness.lead_since
        found.append(
            SilentBackup(
                record.uuid,
                record.name,
                record.machine,
                liveness.live_server(record.uuid, now) is not None,
                round(now - seen.heard_at, 3) if seen is not None and is_heard else -1.0,
            )
        )
    return found


def _by_name(records: Iterable[BackupRecord]) -> list[BackupRecord]:
    return sorted(records, key=lambda record: (record.name, record.uuid))


def find_gone(
    catalog: Catalog, silent: Sequence[SilentBackup], names: Sequence[str]
) -> list[SilentBackup]:
    """Those of the silent ones that these names and UUIDs mean. What nobody counts on means none.

    Raises:
        InvalidArgument: one of them is there, or it is not clear which is meant.
    """
    found: dict[ServerUuid, SilentBackup] = {}
    for name in names:
        meant = [each for each in silent if name in (each.name, each.uuid) and not each.is_live]
        known = [r for r in catalog.backups.known.values() if name in (r.name, r.uuid)]
        if known and not meant:
            raise InvalidArgument(f"{name} is not gone: it is live")
        if len(meant) > 1:
            uuids = ", ".join(each.uuid for each in meant)
            raise InvalidArgument(f"{len(meant)} backups are called {name!r}: say which: {uuids}")
        found.update((each.uuid, each) for each in meant)
    return list(found.values())


# ---- those that hold nothing that is needed ---------------------------------------------------


def draft_forget(
    catalog: Catalog, liveness: Liveness, now: float, *, gone_after_s: float
) -> CatalogBatch | None:
    """Backups that the cluster does not count on any more; None: all are needed, or may be.

    ``gone_after_s``: for so long one that is away has been missed, and all is whole without it.
    """
    known = catalog.backups.known
    forgotten = []
    has_looked = is_whole = False
    for uuid, record in known.items():
        if liveness.live_server(uuid, now) is not None:
            continue
        if is_drained(catalog.mark(uuid), liveness.newest(uuid)):
            forgotten.append(uuid)
        elif liveness.missed_s(uuid, now) >= gone_after_s and _is_to_go(
            catalog, liveness, record, now
        ):
            if not has_looked:
                has_looked, is_whole = True, not what_lacks(catalog, liveness).tablets
            if is_whole:
                forgotten.append(uuid)
    return CatalogBatch(backups=BackupChanges((), tuple(forgotten))) if forgotten else None


def _is_to_go(catalog: Catalog, liveness: Liveness, record: BackupRecord, now: float) -> bool:
    """Whether somebody wants it away, or another one is in its place."""
    return catalog.mark(record.uuid).retiring or any(
        seen.server.name == record.name for seen in liveness.live(ServerKind.BACKUP, now)
    )
