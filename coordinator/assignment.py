"""Which tserver gets a tablet: the one with the least to do, so that work and memory spread evenly.

Pure and deterministic: the same loads give the same choice. Tablets still being opened count first,
so that a batch (a new table, a dead server's tablets) is spread over all servers and is opened in
parallel; then all tablets, then memory; the UUID breaks ties.

Source: seed Kudu multi-master (a cold tserver cache must not pile tablets up: every master knows
all servers); RAMCloud P-15 (always the same recovery masters were picked).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stelae.core.errors import NotEnoughServers
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.records import ServerInfo, TabletRecord, TabletState

FULL = 0.95
"""A server above this part of its memory limit is chosen only if all are."""


@dataclass(slots=True)
class Load:
    """What one live tserver has to carry; `choose_owners` counts on it as it assigns."""

    server: ServerInfo
    opening: int = 0
    """Tablets it is creating or recovering."""
    tablets: int = 0
    """All its tablets."""
    memory_bytes: int = 0
    memory_limit_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return 0 < self.memory_limit_bytes * FULL <= self.memory_bytes


def count_loads(loads: Mapping[ServerUuid, Load], tablets: Iterable[TabletRecord]) -> None:
    """Add the catalog's tablets to the loads of their owners."""
    for tablet in tablets:
        load = loads.get(tablet.owner)
        if load is None or load.server.incarnation != tablet.owner_incarnation:
            continue
        load.tablets += 1
        if tablet.state is not TabletState.RUNNING:
            load.opening += 1


def choose_owners(
    tablets: Sequence[TabletId],
    loads: Sequence[Load],
    avoid: Mapping[TabletId, ServerUuid] | None = None,
) -> dict[TabletId, ServerInfo]:
    """Choose an owner for each tablet, and count it into ``loads``.

    ``avoid`` names the server where a tablet failed last; it gets it again only if it is alone.

    Raises:
        NotEnoughServers: there is no live tserver.
    """
    if not loads:
        raise NotEnoughServers("a tablet", 1, "tservers", 0)
    chosen: dict[TabletId, ServerInfo] = {}
    for tablet_id in tablets:
        shunned = avoid.get(tablet_id) if avoid else None
        load = min(loads, key=lambda load: _cost(load, shunned))
        load.opening += 1
        load.tablets += 1
        chosen[tablet_id] = load.server
    return chosen


def _cost(load: Load, shunned: ServerUuid | None) -> tuple[bool, bool, int, int, int, str]:
    uuid = load.server.uuid
    return uuid == shunned, load.is_full, load.opening, load.tablets, load.memory_bytes, uuid


def check_media(what: str, media: Sequence[str], backups: Sequence[ServerInfo]) -> None:
    """See that each medium named has a live backup of its own.

    Raises:
        NotEnoughServers: names the first medium that no backup is left for.
    """
    holder: dict[ServerUuid, int] = {}

    def place(replica: int, tried: set[ServerUuid]) -> bool:
        """Find a backup for one replica, moving others if need be (Kuhn's matching)."""
        for backup in backups:
            if media[replica] not in backup.media or backup.uuid in tried:
                continue
            tried.add(backup.uuid)
            if backup.uuid not in holder or place(holder[backup.uuid], tried):
                holder[backup.uuid] = replica
                return True
        return False

    for replica, medium in enumerate(media):
        if not place(replica, set()):
            offering = sum(medium in backup.media for backup in backups)
            needed = max(list(media).count(medium), offering + 1)
            raise NotEnoughServers(what, needed, f"backups with medium {medium!r}", offering)
