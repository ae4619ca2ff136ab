"""Bugs planted into the masters' plans for tablets that one server owns: when one leaves its
server, for which other, and when that may begin. Stories find them: see `BUGS`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.coordinator import decide
from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.moves import departures, evening, planned_moves, relief
from stelae.coordinator.moves.departures import able_to_leave, departure, is_bound, may_leave
from stelae.coordinator.placement import rebalance
from stelae.core.messages.servers import TabletProgress, TabletReport
from stelae.core.records.records import ReplicaMove, TabletRecord, TabletState
from tests.simulation.world.planting import planting

ROOM_BYTES = 1 << 40


def _all_at_once() -> Any:
    """Close whatever can leave a retiring server, before any of it is served elsewhere."""

    def hasty(catalog: Catalog, live: Any, *rest: Any, may_even_out: bool) -> list[Any]:
        return [
            departure(seen, tablet, "in a hurry").close
            for seen in live.values()
            if catalog.mark(seen.server.uuid).retiring
            for tablet, _ in able_to_leave(catalog, seen)
        ]

    return patch.object(decide, "planned_closes", hasty)


def _leaves_without_its_replicas() -> Any:
    """Close a tablet of which some segment has one replica, and the rows here, as all there is."""

    def careless(catalog: Catalog, tablet: TabletRecord, report: TabletReport | None) -> bool:
        if report is None or tablet.state is not TabletState.RUNNING or is_bound(catalog, tablet):
            return False
        return report.term == tablet.term and report.progress is TabletProgress.SERVING

    stack = contextlib.ExitStack()
    for module in (departures, planned_moves, evening):
        stack.enter_context(patch.object(module, may_leave.__name__, careless))
    return stack


def _rooms_are_endless() -> Any:
    """Relieve a server at the cost of another that has no room either."""
    return patch.object(relief, "room_bytes", lambda seen: ROOM_BYTES)


def _absent_rows_weigh_nothing() -> Any:
    """Take what a server has in memory for all that it is to have there."""
    return patch.object(relief, "_remote_bytes", lambda seen: 0)


def _evens_out_in_a_hurry() -> Any:
    """Take each step as soon as the one before is done: clients meet pause after pause."""
    planned = planned_moves.planned_closes

    def hasty(*where: Any, may_even_out: bool) -> list[Any]:
        return planned(*where, may_even_out=True)

    return patch.object(decide, "planned_closes", hasty)


def _evens_out_for_ever() -> Any:
    """Go on where all have as many: then one has more than another."""
    next_move = rebalance.next_move

    def restless(placed: Any, nodes: Any, rooms: Any, *, may_take: Any) -> Any:
        step = next_move(placed, nodes, rooms, may_take=may_take)
        counts = {uuid: sum(each.leader == uuid for each in placed) for uuid in nodes}
        least, *_, most = sorted(nodes, key=lambda uuid: (counts[uuid], uuid))
        if step is not None:
            return step
        tablet = next(each for each in placed if each.leader == most)
        return tablet.tablet_id, ReplicaMove(most, least)

    return patch.object(evening, "next_move", restless)


def _next_owner_does_not_wait() -> Any:
    """Think that whoever recovers a tablet whose loss was accepted has never served it."""
    hasty = property(lambda self: self.state is TabletState.RUNNING)
    return patch.object(TabletRecord, "may_be_served", hasty)


def _forgets_where_tablets_failed() -> Any:
    """Choose as if no tablet had failed anywhere, other than just now."""
    return patch.object(FailedOwners, "avoid", lambda self, tablet_id: {})


def _forgets_servers_that_failed() -> Any:
    """Choose as if a server at which one tablet after the other failed were as good as others."""
    return patch.object(FailedOwners, "doubted", lambda self: {})


def _forgets_who_died() -> Any:
    """Take the death of an owner that opened a tablet for one like any other."""
    return patch.object(FailedOwners, "ended", lambda self, server, owned, now: None)


def _suspects_all_at_once() -> Any:
    """Open all tablets that were on their way at a death at the same moment again."""
    ended = FailedOwners.ended

    def each(self: FailedOwners[Any], server: Any, owned: Any, now: float) -> None:
        for pair in owned:
            ended(self, server, [pair], now)

    return patch.object(FailedOwners, "ended", each)


BUGS: dict[str, Callable[[], Any]] = {
    "all_at_once": _all_at_once,
    "leaves_without_its_replicas": _leaves_without_its_replicas,
    "rooms_are_endless": _rooms_are_endless,
    "absent_rows_weigh_nothing": _absent_rows_weigh_nothing,
    "evens_out_in_a_hurry": _evens_out_in_a_hurry,
    "evens_out_for_ever": _evens_out_for_ever,
    "forgets_where_tablets_failed": _forgets_where_tablets_failed,
    "forgets_servers_that_failed": _forgets_servers_that_failed,
    "forgets_who_died": _forgets_who_died,
    "suspects_all_at_once": _suspects_all_at_once,
    "next_owner_does_not_wait": _next_owner_does_not_wait,
}
"""The first two: `tests.simulation.backups.test_retirement`; the last: `test_lost_while_loading`;
those of deaths: `test_deadly_tablets`; the rest: `test_relief`."""

planted = planting(BUGS)
