"""Timelines as the catalog sees them: on which safekeepers they begin, and where those are. Pure.

- The registry is filled by heartbeats: whoever has no id is given the next one, in the catalog
  first. A safekeeper that lost its disk is another server, with another id.
- A safekeeper is its UUID, which is on its disk. A name says only where a disk is. So only a disk
  that is new to the catalog shows that the former disk of its name is lost. A known disk under
  another name shows nothing about the disk that had the name before: the two may have changed
  places.
- A tablet's record names the safekeepers of its log; what a driver of migrations tells of them is
  taken if it is newer than what is there.

Implements seed 004 ("API": registration, ``/notify-safekeepers``); design §10.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.timelines.safekeepers import Fleet, Safekeeper, choose_initial
from stelae.core.errors import InvalidArgument, NotEnoughServers, TooFewServers
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.timelines import SetSafekeeperStatus
from stelae.core.places import Place
from stelae.core.records.configurations import FIRST_GENERATION, TimelineId, TimelineRecord
from stelae.core.records.records import SafekeeperRecord, ServerInfo, TabletRecord
from stelae.core.records.timelines import (
    SafekeeperId,
    SafekeeperPlace,
    SafekeeperStatus,
    TimelineConfiguration,
    TimelineSource,
)
from stelae.core.schema.durability import Durability, Wal


def timeline_of(tablet: TabletRecord) -> TimelineId:
    """The seed's tenant and timeline."""
    return TimelineId(tablet.table_id, tablet.tablet_id)


# ---- the registry -----------------------------------------------------------------------------


def draft_register(catalog: Catalog, server: ServerInfo) -> CatalogBatch | None:
    """Return the entry that registers the safekeeper; None if its record is there as it is.

    A new disk gets a new id, and becomes the successor of the safekeepers of its name.
    """
    registry = catalog.timelines
    known_id, name, node = registry.id_of(server.uuid), server.name, server.process.node
    if known_id is None:
        record = SafekeeperRecord(registry.next_id, server.uuid, name, node)
        lost = [r for r in registry.safekeepers.values() if r.name == name and r.successor is None]
        replaced = (_changed(each, successor=record.safekeeper_id) for each in lost)
        return CatalogBatch(safekeepers=(record, *replaced))
    known = registry.safekeepers[known_id]
    if (known.name, known.node) == (name, node):
        return None
    # It has been started since from its disk, which is not lost.
    return CatalogBatch(safekeepers=(_changed(known, name=name, node=node, successor=None),))


def _changed(known: SafekeeperRecord, **changes: object) -> SafekeeperRecord:
    return msgspec.structs.replace(known, generation=known.generation + 1, **changes)


def draft_status(catalog: Catalog, order: SetSafekeeperStatus) -> CatalogBatch | None:
    """What operators say of a safekeeper from now on; None if this very request was carried out.

    The request is kept also where nothing changes: a late copy of it would change what was said
    since. Raises InvalidArgument: there is no such safekeeper; StaleRequest.
    """
    if catalog.result_of(order.request) is not None:
        return None
    known = known_safekeeper(catalog, order.safekeeper_id)
    # Also where nothing changes: an order before this one may be in the log, and not applied yet.
    return CatalogBatch(safekeepers=(_changed(known, status=order.status),), request=order.request)


def known_safekeeper(catalog: Catalog, safekeeper: SafekeeperId) -> SafekeeperRecord:
    """Its record. Raises InvalidArgument."""
    known = catalog.timelines.safekeepers.get(safekeeper)
    if known is None:
        raise InvalidArgument(f"there is no safekeeper {safekeeper}")
    return known


def fleet_of(catalog: Catalog, liveness: Liveness, now: float) -> Fleet:
    """All safekeepers, as whoever chooses among them sees them.

    One whose disk is lost, and whose successor lives, counts as gone for good, even if it is heard
    still: that is what is left of its process. Racks are not in the registry: until this master has
    heard of a safekeeper, its node stands for its rack.
    """
    fleet: dict[SafekeeperId, Safekeeper] = {}
    registry = catalog.timelines.safekeepers
    for number, record in sorted(registry.items()):
        seen, status = liveness.live_server(record.uuid, now), record.status
        if any(liveness.live_server(s.uuid, now) for s in _successors(registry, record)):
            status = SafekeeperStatus.DECOMMISSIONED
        newest = liveness.newest(record.uuid)
        place = Place(record.node) if newest is None else newest.server.place
        heard_s = now - liveness.missed_s(record.uuid, now)
        is_ready = seen is not None and seen.server.safekeeper_id == number
        if seen is not None and not is_ready:
            heard_s = float("-inf")  # it has not taken its id up yet
        fleet[number] = Safekeeper(number, place.node, status, heard_s, place.rack)
    return fleet


def _successors(
    registry: Mapping[SafekeeperId, SafekeeperRecord], record: SafekeeperRecord
) -> Iterator[SafekeeperRecord]:
    """Its successor, the successor of that one, and so on; ends, as each has a higher id."""
    while record.successor is not None:
        record = registry[record.successor]
        yield record


# ---- where timelines are ----------------------------------------------------------------------


def place_of(
    catalog: Catalog, liveness: Liveness, safekeeper: SafekeeperId
) -> SafekeeperPlace | None:
    """Where it is, or was when it was heard of last; None: this master never heard of it."""
    record = catalog.timelines.safekeepers.get(safekeeper)
    seen = None if record is None else liveness.newest(record.uuid)
    if record is None or seen is None:
        return None
    return SafekeeperPlace(safekeeper, record.uuid, seen.server.address)


def where_is(
    catalog: Catalog, liveness: Liveness, safekeeper: SafekeeperId, now: float
) -> tuple[ServerUuid, Address] | None:
    """Where to call it; None while it does not live: a call would only end in its time."""
    record = catalog.timelines.safekeepers.get(safekeeper)
    seen = None if record is None else liveness.live_server(record.uuid, now)
    return None if seen is None else (seen.server.uuid, seen.server.address)


def source_of(catalog: Catalog, liveness: Liveness, tablet: TabletRecord) -> TimelineSource | None:
    """What a tablet's owner has to know of its timeline; None if it has none."""
    configuration = tablet.timeline
    if configuration is None:
        return None
    places = (place_of(catalog, liveness, member) for member in configuration.members)
    known = tuple(place for place in places if place is not None)
    return TimelineSource(tablet.table_id, tablet.tablet_id, configuration, known)


def count_members(tablets: Iterable[TabletRecord]) -> dict[SafekeeperId, int]:
    """Of how many timelines each safekeeper is a member, by the catalog."""
    load: dict[SafekeeperId, int] = {}
    for tablet in tablets:
        for member in tablet.timeline.members if tablet.timeline is not None else ():
            load[member] = load.get(member, 0) + 1
    return load


def first_timelines(
    catalog: Catalog,
    fleet: Fleet,
    durability: Durability,
    tablets: int,
    *,
    what: str,
    now: float,
    silence_s: float,
    knows_all: bool = False,
    avoid: Sequence[Container[ServerUuid]] = (),
) -> tuple[TimelineConfiguration, ...]:
    """Safekeepers for the logs of so many new tablets; nothing for tables without timelines.

    ``knows_all``: whoever runs has registered by now. ``avoid``: by tablet, the safekeepers without
    which its log could not be made; they are chosen last. Empty: none is known.

    Raises:
        TooFewServers: there are fewer than each of them needs, and no more will come by themselves.
        NotEnoughServers: fewer are active, and heard of, than each of them needs.
    """
    if not isinstance(durability, Wal):
        return ()
    stays = [s for s in fleet.values() if s.status is not SafekeeperStatus.DECOMMISSIONED]
    if knows_all and len(stays) < durability.count:
        raise TooFewServers(what, durability.count, "safekeepers", len(stays))
    load = count_members(catalog.live_tablets())
    chosen: list[TimelineConfiguration] = []
    registry = catalog.timelines.safekeepers
    for number in range(tablets):
        failed = avoid[number] if avoid else ()
        last = [one for one in fleet if registry[one].uuid in failed]
        try:
            members = choose_initial(fleet, durability.count, load, now, silence_s, last)
        except (NotEnoughServers, TooFewServers) as error:  # more may come at any moment
            found = error.args[3]
            raise NotEnoughServers(what, durability.count, "safekeepers", found) from None
        for member in members:
            load[member] = load.get(member, 0) + 1
        chosen.append(TimelineConfiguration(FIRST_GENERATION, members))
    return tuple(chosen)


# ---- what a driver of migrations tells --------------------------------------------------------


def draft_notified(catalog: Catalog, record: TimelineRecord) -> CatalogBatch | None:
    """The tablet with the configuration that it has by the store; None if that is not news, or the
    tablet is gone (then nobody is to hear of its timeline)."""
    tablet = catalog.tablets.get(record.timeline.tablet_id)
    if tablet is None or tablet.state.is_gone or record.deleted:
        return None
    known = tablet.timeline
    if known is not None and known.generation >= record.generation:
        return None
    told = msgspec.structs.replace(
        tablet, timeline=record.configuration, generation=tablet.generation + 1
    )
    return CatalogBatch(tablets=(told,))
