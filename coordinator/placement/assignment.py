"""Which tserver gets a tablet: the one with the least to do, so that work and memory spread evenly.

Pure and deterministic: the same loads give the same choice. Tablets still being opened count first,
so that a batch (a new table, a dead server's tablets) is spread over all servers and is opened in
parallel; then tablets of the same table, on the server, in its rack and on its node, so that what
fails together holds little of any table; then those that have fewest tablets in common with the
other members; then all tablets, then memory; the UUID breaks ties. Before all of that come servers
with room for the tablet's rows, and last those where the same tablet has failed. The best of all is
taken, not of two drawn at random as in Kudu: one leader chooses, and counts what it has given.

Members of one tablet are spread over all pairs of servers, so that after a death all others take
part in making copies anew, and in leading. More sets of servers then hold all replicas of some
tablet: where operators ask for copysets (Cidon et al., ATC 2013), pairs are not counted, and the
same servers go on together.

Source: seed Kudu multi-master (a cold tserver cache must not pile tablets up: every master knows
all servers); Kudu's placement policy; RAMCloud, which once chose the same recovery masters again
and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.errors import NotEnoughServers, TooFewServers, TooManyReplicas
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import ServerInfo, ServerKind, TabletRecord, TabletState

FULL = 0.95
"""A server above this part of its memory limit is chosen only if all are."""
NO_LIMIT = 1 << 62
"""Bytes of room at a server that does not say how much memory it may use."""

Avoided: TypeAlias = Callable[[TabletId], Mapping[ServerUuid, float]]
"""The servers where a tablet failed, and until when each is paused."""


@dataclass(slots=True)
class Load:
    """What one live tserver has to carry; `choose_owners` counts on it as it assigns."""

    server: ServerInfo
    opening: int = 0
    """Tablets it is creating or recovering."""
    tablets: int = 0
    """All its tablets, replicas included."""
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    reports: Mapping[TabletId, TabletReport] = field(default_factory=dict)
    """What it says of its tablets."""
    partners: dict[ServerUuid, int] | None = None
    """Tablets with ``replicas(n)`` that it has in common with each other server; None: not to be
    counted."""
    live_bytes: int = 0
    """Of the memory: rows that live, and indexes; 0: not said."""
    coming_bytes: int = 0
    """Rows that are to come into its memory yet, and tablets that are promised to it."""

    @property
    def is_full(self) -> bool:
        return 0 < self.memory_limit_bytes * FULL <= self.memory_bytes

    @property
    def room_bytes(self) -> int:
        """Memory that is free for further tablets. Dead rows count as free: the cleaner drops them
        when it needs the memory."""
        if not self.memory_limit_bytes:
            return NO_LIMIT
        taken_bytes = (self.live_bytes or self.memory_bytes) + self.coming_bytes
        return int(FULL * self.memory_limit_bytes) - taken_bytes


def count_loads(loads: Mapping[ServerUuid, Load], catalog: Catalog) -> None:
    """Add the catalog's tablets to the loads of their owners, or of all their members."""
    for uuid, load in loads.items():
        load.tablets += catalog.count_owned(uuid, load.server.incarnation)
        load.tablets += catalog.count_replicas(uuid)
    if not catalog.backups.copysets.groups:
        _count_partners(loads, catalog)
    for tablet in catalog.groups():
        for coming in tablet.configuration.non_voters if tablet.configuration else ():
            if coming.uuid in loads and tablet.state is TabletState.RUNNING:
                loads[coming.uuid].opening += 1
    for tablet in catalog.opening_tablets():
        if tablet.configuration is not None:
            for peer in tablet.configuration.peers:
                if peer.uuid in loads:
                    loads[peer.uuid].opening += 1
            continue
        owner = loads.get(tablet.owner)
        if owner is not None and owner.server.incarnation == tablet.owner_incarnation:
            owner.opening += 1


def _count_partners(loads: Mapping[ServerUuid, Load], catalog: Catalog) -> None:
    """Note which servers have tablets in common."""
    for load in loads.values():
        load.partners = {}
    for tablet in catalog.groups():
        if tablet.configuration is not None:
            members = [peer.uuid for peer in tablet.configuration.peers]
            _pair([loads[uuid] for uuid in members if uuid in loads], members)


def _pair(loads: Iterable[Load], members: Sequence[ServerUuid]) -> None:
    """Count one more tablet that these have in common with each other member."""
    for load in loads:
        for uuid in members if load.partners is not None else ():
            if load.partners is not None and uuid != load.server.uuid:
                load.partners[uuid] = load.partners.get(uuid, 0) + 1


def beside_of(tablets: Iterable[TabletRecord]) -> dict[ServerUuid, int]:
    """How many of these tablets, or replicas of such, each server has."""
    beside: dict[ServerUuid, int] = {}
    for tablet in tablets:
        peers = tablet.configuration.peers if tablet.configuration is not None else ()
        for uuid in [peer.uuid for peer in peers] or [tablet.owner]:
            beside[uuid] = beside.get(uuid, 0) + 1
    return beside


def choose_owners(
    tablets: Sequence[TabletId],
    loads: Sequence[Load],
    avoid: Mapping[TabletId, Mapping[ServerUuid, float]] | None = None,
    beside: Mapping[ServerUuid, int] | None = None,
    wishes: Mapping[TabletId, ServerUuid] | None = None,
    sizes: Mapping[TabletId, int] | None = None,
) -> dict[TabletId, ServerInfo]:
    """Choose an owner for each tablet of one table, and count it into ``loads``.

    ``avoid`` names the servers where a tablet failed, and until when each is paused: they come
    last, and of them the one first whose pause ends first.
    ``beside``: how many tablets of the same table each server has already. ``wishes``: where a
    tablet is to go, if that server is among them. ``sizes``: bytes of memory that each tablet will
    need; a server without that much room comes after those that have it.

    Raises:
        NotEnoughServers: there is no live tserver.
    """
    if not loads:
        raise NotEnoughServers("a tablet", 1, "tservers", 0)
    table = _TableSpread(loads, beside or {})
    chosen: dict[TabletId, ServerInfo] = {}
    for tablet_id in tablets:
        shunned = avoid.get(tablet_id, {}) if avoid else {}
        wished = wishes.get(tablet_id) if wishes else None
        wanted = [load for load in loads if load.server.uuid == wished]
        size_bytes = sizes.get(tablet_id, 0) if sizes else 0
        load = min(wanted or loads, key=lambda load: _cost(load, shunned, table, size_bytes))
        load.opening += 1
        load.tablets += 1
        load.coming_bytes += size_bytes
        table.add(load.server)
        chosen[tablet_id] = load.server
    return chosen


def choose_members(
    tablets: Sequence[TabletId],
    loads: Sequence[Load],
    count: int,
    beside: Mapping[ServerUuid, int] | None = None,
    avoid: Mapping[TabletId, Mapping[ServerUuid, float]] | None = None,
) -> dict[TabletId, tuple[ServerInfo, ...]]:
    """Choose ``count`` servers for the replicas of each tablet of one table; count them in.

    Of one tablet no two replicas are on one server, and none on a node or in a rack that has one
    already while there is another (`stelae.core.places`); then as in `choose_owners`, with
    ``beside`` as there. Of servers that are alike in that, those come first that have fewest
    tablets in common with the other members. ``avoid``: as in `choose_owners`; these come last,
    also where others share a node.

    Raises:
        NotEnoughServers: there are fewer live tservers than replicas.
    """
    if len(loads) < count:
        raise NotEnoughServers("a tablet", count, "tservers", len(loads))
    table = _TableSpread(loads, beside or {})
    chosen: dict[TabletId, tuple[ServerInfo, ...]] = {}
    for tablet_id in tablets:
        members: dict[ServerUuid, Load] = {}
        shunned = avoid.get(tablet_id, {}) if avoid else {}
        for _ in range(count):
            together = tuple([each.server for each in members.values()])
            load = _best_member(loads, together, table, shunned)
            assert load is not None, "there are at least as many servers as replicas"
            load.opening += 1
            load.tablets += 1
            table.add(load.server)
            members[load.server.uuid] = load
        _pair(members.values(), tuple(members))
        chosen[tablet_id] = tuple([each.server for each in members.values()])
    return chosen


def choose_another(
    members: Sequence[ServerInfo],
    but_not: Container[ServerUuid],
    loads: Sequence[Load],
    beside: Mapping[ServerUuid, int],
) -> Load | None:
    """The best server for one more replica beside those of ``members``; None if there is none."""
    table = _TableSpread(loads, beside)
    free = [load for load in loads if load.server.uuid not in but_not]
    return _best_member(free, members, table)


def choose_roomy(
    rooms: Mapping[ServerUuid, int],
    loads: Sequence[Load],
    count: int,
    beside: Mapping[ServerUuid, int],
    avoid: Mapping[ServerUuid, float] | None = None,
) -> tuple[ServerInfo, ...]:
    """Choose ``count`` servers for one tablet of which rows are there already, for its owner or
    its replicas; count them in.

    ``rooms``: those that have the memory, and how much: no other is taken, or nobody if they are
    too few. Of them those with fewest tablets of the same table come first, as in `choose_members`,
    then those with most room. ``avoid``: as in `choose_owners`.
    """
    table = _TableSpread(loads, beside)
    shunned = avoid or {}
    chosen: dict[ServerUuid, Load] = {}

    def cost(load: Load) -> tuple[Any, ...]:
        server = load.server
        crowd = server.place.crowd([each.server.place for each in chosen.values()])
        room_bytes = rooms[server.uuid]
        return _failed(server.uuid, shunned), crowd, table.cost(server), -room_bytes, server.uuid

    for _ in range(count):
        free = [s for s in loads if s.server.uuid in rooms and s.server.uuid not in chosen]
        best = min(free, key=cost, default=None)
        if best is None:
            return ()
        chosen[best.server.uuid] = best
        table.add(best.server)
    for load in chosen.values():
        load.opening += 1
        load.tablets += 1
    return tuple([load.server for load in chosen.values()])


def _best_member(
    loads: Sequence[Load],
    members: Sequence[ServerInfo],
    table: _TableSpread,
    shunned: Mapping[ServerUuid, float] | None = None,
) -> Load | None:
    """Of the servers that are not among ``members``, the best to have beside them."""
    places = [member.place for member in members]
    taken = {member.uuid: None for member in members}

    def cost(load: Load) -> tuple[Any, ...]:
        failed, *first, tablets, memory_bytes, uuid = _cost(load, shunned or {}, table)
        common = [(load.partners or {}).get(member, 0) for member in taken]
        shared = max(common, default=0), sum(common)
        crowd = load.server.place.crowd(places)
        return (failed, crowd, *first, shared, tablets, memory_bytes, uuid)

    free = [load for load in loads if load.server.uuid not in taken]
    return min(free, key=cost, default=None)


class _TableSpread:
    """Where the tablets of one table are: on which servers, in which racks, on which nodes."""

    def __init__(self, loads: Sequence[Load], beside: Mapping[ServerUuid, int]) -> None:
        self._on_server = dict(beside)
        self._beside: Counter[str] = Counter()
        """Tablets, by node and by rack."""
        self._servers: Counter[str] = Counter()
        for load in loads:
            for unit in load.server.place.units:
                self._beside[unit] += beside.get(load.server.uuid, 0)
                self._servers[unit] += 1

    def add(self, server: ServerInfo) -> None:
        """Count a tablet given to ``server``."""
        self._on_server[server.uuid] = self._on_server.get(server.uuid, 0) + 1
        self._beside.update(server.place.units)

    def cost(self, server: ServerInfo) -> tuple[int, float, float]:
        """Tablets on this server, and for each server of its rack, and of its node."""
        rack, node = (self._beside[unit] / self._servers[unit] for unit in server.place.units)
        return self._on_server.get(server.uuid, 0), rack, node


def _failed(uuid: ServerUuid, shunned: Mapping[ServerUuid, float]) -> tuple[bool, float]:
    """Servers that failed come last, and of them the one first whose pause ends first."""
    return uuid in shunned, shunned.get(uuid, 0.0)


def _cost(
    load: Load, shunned: Mapping[ServerUuid, float], table: _TableSpread, size_bytes: int = 0
) -> tuple[tuple[bool, float], bool, int, tuple[int, float, float], int, int, str]:
    uuid = load.server.uuid
    return (
        _failed(uuid, shunned),
        load.is_full or (size_bytes > 0 and size_bytes > load.room_bytes),
        load.opening,
        table.cost(load.server),
        load.tablets,
        load.memory_bytes,
        uuid,
    )


def check_enough_backups(what: str, media: Sequence[str], offered: Sequence[Sequence[str]]) -> None:
    """Raise `TooManyReplicas` for more replicas on a medium than there are backups that have it.

    ``offered``: the media of each that is known, also of those that are dead or not heard yet.
    """
    for medium in dict.fromkeys(media):
        needed = list(media).count(medium)
        found = sum(medium in each for each in offered)
        if needed > found:
            raise TooManyReplicas(what, needed, medium, found)


def check_enough_tservers(what: str, needed: int, known: Sequence[ServerInfo]) -> None:
    """Raise `TooFewServers` for more replicas than there are tservers, even dead ones."""
    found = sum(server.kind is ServerKind.TSERVER for server in known)
    if needed > found:
        raise TooFewServers(what, needed, "tservers", found)


def check_live_tservers(what: str, needed: int, live: Sequence[ServerInfo]) -> None:
    """Raise `NotEnoughServers` for more replicas than there are live tservers just now."""
    if needed > len(live):
        raise NotEnoughServers(what, needed, "tservers", len(live))


def check_media(what: str, media: Sequence[str], backups: Sequence[ServerInfo]) -> None:
    """See that each medium named has a live backup of its own.

    Raises:
        NotEnoughServers: names the first medium that no backup is left for.
    """
    placed = count_placed(media, backups)
    if placed < len(media):
        medium = next(m for n, m in enumerate(media) if count_placed(media[: n + 1], backups) <= n)
        offering = sum(medium in backup.media for backup in backups)
        needed = max(list(media).count(medium), offering + 1)
        raise NotEnoughServers(what, needed, f"backups with medium {medium!r}", offering)


def count_placed(media: Sequence[str], backups: Sequence[ServerInfo]) -> int:
    """For how many of the media named there is a live backup of its own, at most."""
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

    return sum(place(replica, set()) for replica in range(len(media)))
