"""Copies on different nodes, and in different racks: a judge of every choice of a place.

A choice is judged at the moment at which it is made, by what the chooser was given: a copy may be
put on a node, or in a rack, that has one already only if no candidate is on another node, or in
another rack. A look at where copies are cannot tell that from a choice for want of another node
that was cut off at that time.

Judged are replicas of segments, of tablets and of timelines, and copysets; masters never move
(`stelae.simulation.world.machines`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.segments import placement as segment_placement
from stelae.actors.tserver.segments import segment
from stelae.actors.tserver.segments.placement import PlacingLog, candidates_for
from stelae.coordinator.placement import assignment, copysets
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.timelines import safekeepers
from stelae.coordinator.timelines.safekeepers import Safekeeper
from stelae.core.ids import ServerUuid
from stelae.core.places import Place
from stelae.core.records.records import ServerInfo
from stelae.core.records.timelines import SafekeeperId


def require_apart(
    what: str, chosen: Place, others: Sequence[Place], free: Collection[Place]
) -> None:
    """Check one choice.

    Args:
        what: what a place was chosen for.
        chosen: the place of the new copy.
        others: the places of the other copies.
        free: places of all candidates that could have been chosen as well.

    Raises:
        AssertionError: the node, or the rack, has a copy, and another one could have been chosen.
    """
    nodes = [other.node for other in others]
    racks = [other.rack for other in others if other.rack]

    def is_apart(place: Place) -> bool:
        return place.node not in nodes

    def is_far(place: Place) -> bool:
        return is_apart(place) and place.rack not in racks

    better = sorted({place.node for place in free if is_apart(place)})
    assert is_apart(chosen) or not better, (
        f"{what} has two copies on {chosen.node}, and could have one on {', '.join(better)}"
    )
    better = sorted({place.node for place in free if is_far(place)})
    assert is_far(chosen) or not better, (
        f"{what} has two copies in {chosen.rack}, and could have one on {', '.join(better)}"
    )


@contextmanager
def judged() -> Iterator[None]:
    """Judge every choice of a place in the worlds that run meanwhile."""
    with ExitStack() as stack:
        for module, name, judge in (
            (segment, "place", _place),
            (segment_placement, "place", _place),
            (assignment, "_best_member", _best_member),
            (safekeepers, "_pick", _pick),
            (copysets, "_new_groups", _new_groups),
        ):
            stack.enter_context(patch.object(module, name, judge(getattr(module, name))))
        yield


def _place(chooses: Callable[..., Any]) -> Callable[..., Any]:
    def place(
        log: PlacingLog,
        medium: str,
        used: Collection[ServerUuid],
        avoided: Collection[ServerUuid],
        *,
        replicas: int,
    ) -> Any:
        chosen, is_full = chooses(log, medium, used, avoided, replicas=replicas)
        members = log.members
        free = {  # of these none is worse than another, but for its place and its group
            each.uuid: each.place
            for each in candidates_for(log, medium, used)
            if each.uuid not in avoided
            and each.has_room
            and not (each.is_low or each.is_shunned or each.is_retiring)
        }
        if chosen in free and not members.copysets:
            others = [s.place for uuid in sorted(used) if (s := members.find(uuid))]
            require_apart("a segment", free[chosen], others, list(free.values()))
        return chosen, is_full

    return place


def _best_member(chooses: Callable[..., Any]) -> Callable[..., Any]:
    def best_member(
        loads: Sequence[Load],
        members: Sequence[ServerInfo],
        table: Any,
        shunned: Mapping[ServerUuid, float] | None = None,
    ) -> Load | None:
        chosen: Load | None = chooses(loads, members, table, shunned)
        if chosen is not None:
            taken = [member.uuid for member in members]
            servers = [load.server for load in loads if load.server.uuid not in (shunned or {})]
            free = [server.place for server in servers if server.uuid not in taken]
            places = [member.place for member in members]
            require_apart("a tablet", chosen.server.place, places, free)
        return chosen

    return best_member


def _pick(chooses: Callable[..., Any]) -> Callable[..., Any]:
    def pick(
        candidates: Sequence[Safekeeper],
        kept: Collection[Safekeeper],
        count: int,
        load: Mapping[SafekeeperId, int],
        last: Collection[SafekeeperId] = (),
    ) -> list[Safekeeper]:
        chosen: list[Safekeeper] = chooses(candidates, kept, count, load, last)
        taken = [*kept]
        for one in chosen:
            free = [each.place for each in candidates if each not in taken]
            if not last:
                places = [each.place for each in taken]
                require_apart("a timeline", one.place, places, free)
            taken.append(one)
        return chosen

    return pick


def _new_groups(chooses: Callable[..., Any]) -> Callable[..., Any]:
    def new_groups(free: Sequence[ServerInfo], size: int) -> list[tuple[ServerUuid, ...]]:
        groups: list[tuple[ServerUuid, ...]] = chooses(free, size)
        places = {server.uuid: server.place for server in free}
        for group in groups:
            for number, uuid in enumerate(group):
                left = [places[each] for each in places if each not in group[:number]]
                others = [places[each] for each in group[:number]]
                require_apart("a copyset", places[uuid], others, left)
            for uuid in group:
                del places[uuid]
        return groups

    return new_groups
