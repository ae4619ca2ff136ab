"""When, and by which rule, replicas and leaders are spread over servers: one step at a time. Pure.

Only after so long a calm as operators want, with nothing to heal, no server to be left or in
maintenance, and every tablet led; then one step, and as long a calm again. The steps, of which the
first that there is, is taken:

1. a replica moves off a node or a rack that it shares with others of its tablet, to one that has
fewer of them; 2. a replica moves, so that counts, then sizes, are more even
(`stelae.coordinator.placement.rebalance`); 3. a leadership moves off a server that has too much
load (`stelae.coordinator.placement.leader_loads`); 4. a leadership moves so that counts are more
even, unless load speaks against it; 5. a replica moves, so that the leadership of a busy tablet can
follow it.

A move is a record in the catalog, which the next leader master goes on with; a hand-over is an
order, of which nothing is left in the catalog if it does not come to pass.

The best step is the same each time. So a step to a server where this tablet's replica, or its
leadership, did not arrive is taken only if there is no other, and after the pause of that failure.

Source: Kudu's auto rebalancer; design §8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.groups.group import Replica, group_of
from stelae.coordinator.liveness.liveness import Liveness, Seen
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.doubted import KnownFailures
from stelae.coordinator.placement.leader_loads import Cooling, leaders_load
from stelae.coordinator.placement.rebalance import (
    MayTake,
    Placed,
    both,
    by_failures,
    next_move,
    next_separation,
    next_transfer,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove, ServerKind

Step: TypeAlias = "tuple[TabletId, ReplicaMove] | tuple[TabletId, ServerUuid]"
"""A replica to move, or who is to lead."""


@dataclass(slots=True)
class Calm:
    """Since when every tablet is at rest, or the last step was taken. Only in memory: under a new
    leader master it begins anew."""

    since: float | None = None
    cooling: Cooling = field(default_factory=Cooling)

    def is_over(self, now: float, after_s: float, *, is_calm: bool) -> bool:
        """Whether it is time for a step; the calm then begins anew."""
        if not after_s or not is_calm:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        if now < self.since + after_s:
            return False
        self.since = now
        return True


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is, and what it weighs."""

    tablets: tuple[Placed, ...]
    leaders: dict[TabletId, Replica]
    nodes: dict[ServerUuid, Place]
    """Places of servers that may get something new."""
    rooms: dict[ServerUuid, int]
    """Memory limits of these servers, in bytes."""
    beside: dict[ServerUuid, float]
    """Load of tablets with segments, by server."""
    free_bytes: dict[ServerUuid, int]
    """Memory of these servers that no tablet of any kind needs."""

    def has_room(self, tablet: Placed, target: ServerUuid) -> bool:
        """Whether a server has memory for one more replica (decisions §66)."""
        return tablet.size_bytes <= self.free_bytes[target]


def layout_of(
    catalog: Catalog, liveness: Liveness, now: float, loads: Sequence[Load]
) -> Layout | None:
    """By the catalog and the last reports; None while some tablet has no leader.

    ``loads``: of the servers that may get something new.
    """
    reporters = liveness.reporters(now)
    tablets: list[Placed] = []
    leaders: dict[TabletId, Replica] = {}
    for tablet in catalog.groups():
        group = group_of(tablet, reporters.of.get(tablet.tablet_id, ()))
        if group.leader is None:
            return None
        leaders[tablet.tablet_id] = group.leader
        report = group.leader.report
        tablets.append(
            Placed(
                tablet.tablet_id,
                tablet.table_id,
                group.configuration.voters,
                group.leader.seen.server.uuid,
                report.memory_bytes,
                report.load_per_s,
            )
        )
    return Layout(
        tuple(tablets),
        leaders,
        {load.server.uuid: load.server.place for load in loads},
        {load.server.uuid: load.memory_limit_bytes for load in loads},
        {seen.server.uuid: _owned(seen) for seen in liveness.live(ServerKind.TSERVER, now)},
        {load.server.uuid: load.room_bytes for load in loads},
    )


def _owned(seen: Seen) -> float:
    """The load of the tablets with segments of a server, as far as it is known."""
    return sum(max(0.0, r.load_per_s) for r in seen.reports.values() if r.group is None)


def next_step(
    layout: Layout, cooling: Cooling, now: float, added: KnownFailures, led: KnownFailures
) -> Step | None:
    """The step to take now; None if all is even enough, or not known well enough.

    ``added``: the servers to which a tablet's replica was added in vain. ``led``: those to which
    its leadership was handed over in vain.
    """
    ids = [tablet.tablet_id for tablet in layout.tablets]
    may_hold, may_lead = by_failures(ids, added, now), by_failures(ids, led, now)
    step = None
    for number in range(max(len(may_hold), len(may_lead))):
        hold = may_hold[min(number, len(may_hold) - 1)]
        lead = may_lead[min(number, len(may_lead) - 1)]
        step = step or _step(layout, cooling, now, hold, lead)
    return step


def _step(
    layout: Layout,
    cooling: Cooling,
    now: float,
    may_hold: MayTake,
    may_lead: MayTake,
) -> Step | None:
    """The first step that there is, of those allowed."""
    tablets, nodes, rooms = layout.tablets, layout.nodes, layout.rooms
    # A server that is out of memory would give tablets with segments away for the replica.
    may_hold = both(may_hold, layout.has_room)
    move = next_separation(tablets, nodes, rooms, may_take=may_hold)
    move = move or next_move(tablets, nodes, rooms, may_take=may_hold)
    if move is not None:
        return move
    known = leaders_load(tablets, nodes, layout.beside)
    if known is None:
        return None
    stay = cooling.at(now)
    transfer = known.next_transfer(stay, may_lead)
    if transfer is not None:
        cooling.note(transfer[0], now)
        return transfer
    transfer = next_transfer(tablets, nodes, may_take=both(known.may_take, may_lead))
    if transfer is not None:
        return transfer
    return known.next_move(stay, rooms, may_hold)
