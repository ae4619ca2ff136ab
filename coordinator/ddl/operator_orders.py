"""What operators' orders about servers and replicas change in the catalog. Pure.

A draft is None if this very request was carried out before. Its entry keeps the request also where
nothing changes: a late copy of it would change what was ordered since.

Source: seed Kudu tablet copy (RetireTabletServer, MoveReplica: built from adding and removing one
member at a time); here they are records, so that a new leader master goes on with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.groups.health import is_marked
from stelae.coordinator.liveness.liveness import Liveness, Run, run_of
from stelae.coordinator.moves.leaving import owned_that_count, what_stays
from stelae.coordinator.placement.leaving_backups import (
    backup_progress,
    check_may_retire,
    not_heard,
)
from stelae.core.errors import InvalidArgument, TabletNotFound
from stelae.core.ids import ServerUuid
from stelae.core.messages.operators import (
    MarkServer,
    MoveProgress,
    MoveReplica,
    RebalancingState,
    ServerProgress,
    SetRebalancing,
)
from stelae.core.records.records import (
    Rebalancing,
    ReplicaMove,
    ServerKind,
    ServerMark,
    TabletRecord,
)

MARKED_KINDS = (ServerKind.TSERVER, ServerKind.BACKUP)


def find_tserver(catalog: Catalog, liveness: Liveness, name: str, now: float) -> ServerMark:
    """What is wanted of the tserver of that name or UUID: see `find_server`."""
    return find_server(catalog, liveness, name, now, (ServerKind.TSERVER,))


def find_server(
    catalog: Catalog,
    liveness: Liveness,
    name: str,
    now: float,
    kinds: Sequence[ServerKind] = MARKED_KINDS,
) -> ServerMark:
    """What is wanted of the server of that name or UUID; one that lives goes before former ones.

    Raises:
        InvalidArgument: there is none, or it is not clear which.
    """
    found: dict[ServerUuid, tuple[bool, str]] = {
        mark.uuid: (False, mark.name)
        for mark in catalog.marks.values()
        if name in _names_of(mark, mark.name) and (mark.kind is None or mark.kind in kinds)
    }
    if ServerKind.BACKUP in kinds:
        registered = catalog.backups.known.values()
        found.update(
            (b.uuid, (False, b.name))
            for b in registered
            if name in _names_of(catalog.mark(b.uuid), b.name)
        )
    for seen in liveness.newest_runs():
        server = seen.server
        if server.kind in kinds and name in _names_of(catalog.mark(server.uuid), server.name):
            found[server.uuid] = (liveness.is_live(run_of(seen), now), server.name)
    live = [uuid for uuid, (is_live, _) in found.items() if is_live]
    meant = live if live else list(found)
    if len(meant) != 1:
        what = " or ".join(kind.value for kind in kinds)
        known = (
            f"no {what}" if not meant else f"{len(meant)} {kinds[0].value}s: name one by its UUID:"
        )
        raise InvalidArgument(f"{name!r} is {known} {', '.join(meant)}".rstrip())
    mark = catalog.mark(meant[0])
    return msgspec.structs.replace(mark, name=found[meant[0]][1])


def _names_of(mark: ServerMark, name: str) -> tuple[str, ...]:
    """By which a server may be meant: one that was replaced only by its UUID."""
    return (mark.uuid,) if mark.replaced else (mark.uuid, name)


def draft_mark(
    catalog: Catalog, liveness: Liveness, order: MarkServer, now: float
) -> CatalogBatch | None:
    """The server's new mark; None if this very request was carried out.

    Raises `InvalidArgument`, `StaleRequest`.
    """
    if catalog.result_of(order.request) is not None:
        return None
    mark = find_server(catalog, liveness, order.server, now)
    kind = _kind_of(catalog, liveness, mark)
    if kind is ServerKind.BACKUP:
        if order.maintenance:
            raise InvalidArgument(f"{mark.name} is a backup: only tservers have maintenance")
        if order.retiring and not mark.retiring:
            check_may_retire(catalog, liveness, mark, now)
    wanted = msgspec.structs.replace(
        mark,
        retiring=mark.retiring if order.retiring is None else order.retiring,
        maintenance=mark.maintenance if order.maintenance is None else order.maintenance,
    )
    # Also where nothing changes: an order before this one may be in the log, and not applied yet.
    # The generation shows that, and this one is drafted again (decisions §85).
    if not wanted.retiring:
        wanted = msgspec.structs.replace(wanted, needed=False)
    changed = msgspec.structs.replace(wanted, generation=mark.generation + 1, kind=kind)
    return CatalogBatch(marks=(changed,), request=order.request)


def _kind_of(catalog: Catalog, liveness: Liveness, mark: ServerMark) -> ServerKind | None:
    """As it says, or as the register or the mark do; None: nobody knows."""
    seen = liveness.newest(mark.uuid)
    if seen is not None:
        return seen.server.kind
    return ServerKind.BACKUP if mark.uuid in catalog.backups.known else mark.kind


def progress_of(catalog: Catalog, liveness: Liveness, name: str, now: float) -> ServerProgress:
    """How far a server is from having nothing left. Raises `InvalidArgument`."""
    mark = find_server(catalog, liveness, name, now)
    kind, seen = _kind_of(catalog, liveness, mark), liveness.newest(mark.uuid)
    if kind is ServerKind.BACKUP:
        return backup_progress(catalog, liveness, mark, now)
    if seen is None and (kind is None or liveness.is_live(Run(mark.uuid, 0), now)):
        return not_heard(catalog, mark)
    is_live = seen is not None and liveness.is_live(run_of(seen), now)
    homes = (each.server.uuid for each in liveness.live(ServerKind.TSERVER, now))
    has_home = any(not is_marked(catalog.mark(u)) for u in homes if u != mark.uuid)
    owned = len(owned_that_count(catalog, seen, has_home))
    bound, problem = what_stays(catalog, seen, has_home)
    replicas = catalog.count_replicas(mark.uuid)
    indexes = catalog.indexes
    indexlets = 0 if seen is None else indexes.count_owned(mark.uuid, seen.server.incarnation)
    if indexlets and not has_home and not problem:
        problem = "there is no other live tserver that its indexlets could go to"
    return ServerProgress(mark, is_live, replicas, owned, bound, problem, indexlets)


def find_group(catalog: Catalog, order: MoveReplica) -> TabletRecord:
    """The tablet to move a replica of. Raises `TabletNotFound`, `InvalidArgument`."""
    tablet = catalog.tablets.get(order.tablet_id)
    if tablet is None:
        raise TabletNotFound(order.tablet_id)
    if not tablet.is_group or tablet.state.is_gone:
        raise InvalidArgument(f"tablet {order.tablet_id} has no replicas to be moved")
    return tablet


def draft_move(
    catalog: Catalog, liveness: Liveness, order: MoveReplica, now: float
) -> CatalogBatch | None:
    """The tablet with its move, or without it, unless it is so already, or the move was done.

    Raises:
        TabletNotFound, InvalidArgument: the text says which of the two servers does not fit.
        StaleRequest: nobody waits for the answer any more.
    """
    if catalog.result_of(order.request) is not None:
        return None
    tablet = find_group(catalog, order)
    wanted = None
    if order.target:
        wanted = _move_wanted(catalog, liveness, tablet, order, now)
    else:
        _check_given_up(catalog, liveness, tablet, order.source)
    if wanted == tablet.move:
        return CatalogBatch(request=order.request)
    moved = msgspec.structs.replace(tablet, move=wanted, generation=tablet.generation + 1)
    return CatalogBatch(tablets=(moved,), request=order.request)


def _move_wanted(
    catalog: Catalog, liveness: Liveness, tablet: TabletRecord, order: MoveReplica, now: float
) -> ReplicaMove | None:
    """The tablet's move from now on: that of the order, or what it has if the order was done.
    Raises InvalidArgument."""
    configuration = tablet.configuration
    assert configuration is not None, "a group has members"
    source = find_tserver(catalog, liveness, order.source, now)
    target = find_tserver(catalog, liveness, order.target, now)
    move = ReplicaMove(source.uuid, target.uuid)
    has_source = configuration.peer(source.uuid) is not None
    has_target = configuration.peer(target.uuid) is not None
    if move == tablet.move or (has_target and not has_source):
        return tablet.move
    if not has_source:
        raise InvalidArgument(f"{source.name} has no replica of tablet {order.tablet_id}")
    if has_target:
        raise InvalidArgument(f"{target.name} has a replica of {order.tablet_id} already")
    if liveness.live_server(target.uuid, now) is None:
        raise InvalidArgument(f"{target.name} is dead")
    if is_marked(target):
        what = "being retired" if target.retiring else "in maintenance"
        raise InvalidArgument(f"{target.name} is {what}: nothing new goes there")
    if tablet.move is not None:
        raise InvalidArgument(f"another replica of {order.tablet_id} is being moved")
    return move


def _check_given_up(
    catalog: Catalog, liveness: Liveness, tablet: TabletRecord, source: str
) -> None:
    """That the tablet's move, if there is one, is from ``source``, which may be long gone: it is
    known by its UUID then, or not named. Raises InvalidArgument: it is of another server's."""
    move = tablet.move
    if move is None:
        return
    if source and source not in _names(catalog, liveness, move.source):
        raise InvalidArgument(f"no replica of tablet {tablet.tablet_id} moves from {source}")


def _names(catalog: Catalog, liveness: Liveness, uuid: ServerUuid) -> tuple[str, ...]:
    """What a server may be called, as far as is known."""
    seen = liveness.newest(uuid)
    return (uuid, catalog.mark(uuid).name, seen.server.name if seen else "")


def move_of(catalog: Catalog, liveness: Liveness, order: MoveReplica) -> MoveProgress:
    """How far an order that was carried out is. Raises `TabletNotFound`, `InvalidArgument`."""
    tablet = find_group(catalog, order)
    assert tablet.configuration is not None, "a group has members"
    has = [
        (peer.name, *_names(catalog, liveness, peer.uuid)) for peer in tablet.configuration.peers
    ]
    if tablet.move is not None:
        has.append(_names(catalog, liveness, tablet.move.target))
    is_there = any(order.target in names for names in has)
    return MoveProgress(tablet, is_given_up=bool(order.target) and not is_there)


def draft_rebalancing(catalog: Catalog, order: SetRebalancing) -> CatalogBatch | None:
    """What is wanted from now on. Raises `InvalidArgument`, `StaleRequest`."""
    if catalog.result_of(order.request) is not None:
        return None
    after_s, known = order.after_s, catalog.rebalancing
    if not (math.isfinite(after_s) and after_s >= 0):
        raise InvalidArgument(f"rebalancing after {after_s} s: a number of seconds, or 0 for never")
    # Also where nothing changes, as for marks (decisions §85).
    wanted = Rebalancing(after_s, known.generation + 1)
    return CatalogBatch(rebalancing=wanted, request=order.request)


def rebalancing_of(catalog: Catalog, default_s: float) -> RebalancingState:
    """What is wanted, and how many replicas move now."""
    moving = sum(tablet.move is not None for tablet in catalog.groups())
    return RebalancingState(catalog.rebalance_after_s(default_s), moving)
