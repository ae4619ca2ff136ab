"""Where a tablet's successor has room: which servers have memory for its rows. Pure.

For a while a tablet and its successor are in memory both. A server that was filled by one would
refuse what clients write to all of its tablets, so rows are copied only where memory for all of
them is free now, beside a reserve (`COPIED_SHARE_MAX`) and beside what other successors there have
still to get. Dead rows count as free: the cleaner drops them when it needs the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.placement.assignment import Load, choose_roomy
from stelae.coordinator.placement.tablet_sizes import live_bytes
from stelae.core.errors import NotEnoughServers
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import ServerInfo, TabletRecord
from stelae.storage.rows.cleaning import COPIED_SHARE_MAX

NO_LIMIT = 1 << 62


class NoMemory(Exception):
    """There is nowhere to put the rows; the text says what is missing, and what helps."""


def holders_of(tablet: TabletRecord) -> tuple[ServerUuid, ...]:
    """Its owner, or all members of its group."""
    if tablet.configuration is None:
        return (tablet.owner,)
    return tuple([peer.uuid for peer in tablet.configuration.peers])


class SuccessorRooms:
    """What is free at each server, for one look; each choice counts for the next."""

    def __init__(
        self,
        catalog: Catalog,
        loads: Sequence[Load],
        report_of: Callable[[TabletRecord], TabletReport | None],
    ) -> None:
        """``report_of``: what the owner, or leader, of a tablet says of it."""
        self._loads = loads
        self._free = {load.server.uuid: _free_bytes(load) for load in loads}
        by_uuid = {load.server.uuid: load for load in loads}
        for successor in catalog.successors():
            source = report_of(catalog.tablets[successor.succeeds])
            for uuid in holders_of(successor) if source is not None else ():
                load = by_uuid.get(uuid)
                if load is not None and source is not None:
                    here = load.reports.get(successor.tablet_id)
                    has = 0 if here is None else live_bytes(here)
                    self._free[uuid] -= max(0, live_bytes(source) - has)

    def choose(
        self,
        tablet: TabletRecord,
        table: str,
        size_bytes: int,
        count: int,
        beside: Mapping[ServerUuid, int],
        avoid: Mapping[ServerUuid, float],
    ) -> tuple[ServerInfo, ...]:
        """So many servers for the rows of a tablet's successor. ``beside``, ``avoid``: as in
        `choose_roomy`.

        Raises:
            NotEnoughServers: there are too few, whatever memory they have.
            NoMemory: too few have so much.
        """
        if len(self._loads) < count:
            raise NotEnoughServers("a tablet", count, "tservers", len(self._loads))
        rooms = {uuid: free for uuid, free in self._free.items() if free >= size_bytes}
        chosen = choose_roomy(rooms, self._loads, count, beside, avoid)
        if not chosen:
            raise NoMemory(self._what_lacks(tablet, table, size_bytes, count, len(rooms)))
        for server in chosen:
            self._free[server.uuid] -= size_bytes
        return chosen

    def _what_lacks(
        self, tablet: TabletRecord, table: str, size_bytes: int, count: int, found: int
    ) -> str:
        most = max(self._loads, key=lambda load: self._free[load.server.uuid])
        has = max(0, self._free[most.server.uuid])
        where = "a server" if count == 1 else f"each of {count} servers"
        who = "no server has them free"
        if found:
            who = f"only {found} {'has' if found == 1 else 'have'} them free"
        return (
            f"tablet {tablet.tablet_id} (number {tablet.number} of table {table!r}) needs "
            f"{size_bytes} bytes of memory at {where}, for its rows once more, and {who} (most, "
            f"{has}, has {most.server.name}): add tservers, or give them more memory"
        )


def _free_bytes(load: Load) -> int:
    """Of a server's memory, beside the reserve and what lives there, or is about to be loaded."""
    if not load.memory_limit_bytes:
        return NO_LIMIT
    dead = sum([each.memory_bytes - live_bytes(each) for each in load.reports.values()])
    return int(COPIED_SHARE_MAX * load.memory_limit_bytes) - (load.memory_bytes - dead)
