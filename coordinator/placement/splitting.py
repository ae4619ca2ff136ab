"""How a tablet that is too large for one server to bring back is split at its recovery. Pure.

- A tablet that is RECOVERING, whose log is at hand whole, and that is above a limit, or larger than
  the memory of any server, gives way to its parts: one catalog entry. It is REPLACED; each part is
  RECOVERING in the next term, at an owner of its own, with a share of the rows
  (`stelae.core.schema.shares`), and **inherits** the log as it ends there.
- From then on each part is an ordinary tablet: it is recovered from its own log and from what it
  inherits (`stelae.recovery.inherited`), as often as it takes.
- Once backups have all of its rows in its own log, its owner says that it is whole, and it inherits
  no more: one catalog entry (`stelae.coordinator.decide`). When the last part is whole,
  the split tablet's log is freed.

A part is not split again before it is whole. Source: RAMCloud, `Recovery::splitTablets`;
`docs/decisions.md`, §41.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.placement.assignment import FULL, Load, beside_of, choose_owners
from stelae.core.config.settings import Settings
from stelae.core.ids import ServerUuid, TabletId, make_uuid
from stelae.core.records.records import (
    Inheritance,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.schema.durability import Segments
from stelae.core.schema.shares import may_be_cut, number_of, place_of, share_of

PARTS_MAX = 64


def parts_wanted(
    catalog: Catalog,
    tablet: TabletRecord,
    settings: Settings,
    *,
    size_bytes: int,
    row_count: int,
    loads: Sequence[Load],
) -> int:
    """Into how many parts a tablet is to be split; 1: it stays as it is.

    ``size_bytes`` of its log; ``row_count``, as its former owner has told (0: nobody knows);
    ``loads`` of the servers that can take parts.
    """
    table = catalog.tables[tablet.table_id]
    # (Without summaries each part would have all of the log in memory before it is served.)
    if not settings.split_above_bytes or not settings.metadata_first:
        return 1
    if not _may_be_split(catalog, table, tablet):
        return 1
    servers = sum(1 for load in loads if not load.is_full)
    limits = (settings.split_above_bytes, _memory_bytes(loads))
    wanted = max(-(-size_bytes // limit) for limit in limits if limit)
    if settings.split_above_rows:
        wanted = max(wanted, -(-row_count // settings.split_above_rows))
    parts = 1
    while parts < wanted and 2 * parts <= min(servers, PARTS_MAX):
        parts *= 2
    while parts > 1 and not may_be_cut(tablet.number, parts, table.partitioning.tablet_count):
        parts //= 2
    live = catalog.live_count + parts
    return parts if live <= settings.tablets_max else 1


def _memory_bytes(loads: Sequence[Load]) -> int:
    """Of the server with most of it; 0: nobody knows. What is used just now does not count: it has
    dead rows, which are cleaned when others need the room."""
    if not all(load.memory_limit_bytes for load in loads):
        return 0
    return max((int(FULL * load.memory_limit_bytes) for load in loads), default=0)


def _may_be_split(catalog: Catalog, table: TableRecord, tablet: TabletRecord) -> bool:
    return (
        tablet.state is TabletState.RECOVERING
        and tablet.inherits is None
        and tablet.kept is None
        and not tablet.succeeds
        and table.state is TableState.RUNNING
        and isinstance(table.durability_of(tablet), Segments)
        and catalog.successor_of(tablet.tablet_id) is None
    )


def draft_split(
    catalog: Catalog,
    tablet: TabletRecord,
    parts: int,
    inherits: Inheritance,
    loads: Sequence[Load],
    rng: random.Random,
    avoid: Mapping[ServerUuid, float],
    size_bytes: int,
) -> CatalogBatch | None:
    """The parts in the tablet's place. None: it is not as it was any more.

    ``avoid``: where the tablet failed, so that its parts go there last. ``size_bytes``: of its rows
    in memory, of which each part has its share; 0: not known.

    Raises:
        NotEnoughServers: there is no live tserver.
    """
    table = catalog.tables[tablet.table_id]
    if catalog.tablets[tablet.tablet_id] != tablet or not _may_be_split(catalog, table, tablet):
        return None
    count = table.partitioning.tablet_count
    place, share = place_of(tablet.number, count), share_of(tablet.number, count)
    ids = [TabletId(make_uuid(rng)) for _ in range(parts)]
    others = [t for t in catalog.tablets_of(tablet.table_id) if t.tablet_id != tablet.tablet_id]
    failed, sizes = dict.fromkeys(ids, avoid), dict.fromkeys(ids, size_bytes // parts)
    owners = choose_owners(ids, loads, failed, beside_of(others), sizes=sizes)
    children = [
        TabletRecord(
            tablet_id=tablet_id,
            table_id=tablet.table_id,
            number=number_of(place, part, count),
            state=TabletState.RECOVERING,
            term=inherits.term,
            owner=owners[tablet_id].uuid,
            owner_incarnation=owners[tablet_id].incarnation,
            valid_segment=tablet.valid_segment,
            valid_epoch=tablet.valid_epoch,
            change=tablet.change,
            inherits=inherits,
        )
        for tablet_id, part in zip(ids, share.cut(parts), strict=True)
    ]
    gone = msgspec.structs.replace(
        tablet,
        state=TabletState.REPLACED,
        replaced_by=ids[0],
        generation=tablet.generation + 1,
    )
    return CatalogBatch(tablets=(gone, *children))
