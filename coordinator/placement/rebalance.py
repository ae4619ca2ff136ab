"""Which replica to move, or which leader, so that servers have evenly much to do. Pure.

Greedy, one step at a time: a replica goes from a server that has most of its table to one that has
least, if that makes the table more even by itself; if no table can be made more even, if it makes
the cluster more even and the table no less. So each step makes (unevenness of tables, unevenness
of the cluster) smaller, and the steps come to an end. Leaders likewise, among the voters that are.

Tablets differ in size. Of steps that make counts equally even the one is taken that makes sizes
most even; and once no count can be made more even, a big replica goes from a full server to an
empty one, where that leaves counts as they are, or where a smaller one of the same table can come
back, which is then the next step. What is full is seen by the memory that a server may use.

Before all of that, replicas of one tablet that share a node, or a rack, are separated where that is
possible: each such step leaves fewer pairs together, and no other step brings any together, so that
these come to an end as well.

Source: Kudu's rebalance_algo (two-dimensional greedy) and auto_leader_rebalancer.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.coordinator.placement.doubted import KnownFailures
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove

EVEN_ENOUGH = 0.02
"""Sizes are left alone if no step makes their mean square smaller by this part of what is even:
servers that are a tenth above and below the mean differ by that."""
EXTREMES = 4
"""So many of the fullest servers, and of the emptiest, are compared by size."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one healthy tablet's voters are, and who leads."""

    tablet_id: TabletId
    table_id: TableId
    members: tuple[ServerUuid, ...]
    leader: ServerUuid
    size_bytes: int = 0
    """Of each of its replicas."""
    load_per_s: float = 0.0
    """Of its leader; below 0: not known."""


def anybody(tablet: Placed, target: ServerUuid) -> bool:
    del tablet, target
    return True


MayTake: TypeAlias = Callable[[Placed, ServerUuid], bool]
"""Whether a server may come to hold, or to lead, a tablet."""


def both(one: MayTake, other: MayTake) -> MayTake:
    """What both allow."""
    return lambda tablet, target: one(tablet, target) and other(tablet, target)


def by_failures(
    tablets: Iterable[TabletId], failures: KnownFailures, now: float
) -> tuple[MayTake, ...]:
    """What steps may be taken, in the order in which to look for one: where nothing failed; then to
    a doubted server that is not paused any more; then those that have failed, and are not paused
    any more (decisions §61, §73)."""
    doubted = failures.doubted
    failed = {tablet_id: found for tablet_id in tablets if (found := failures.own(tablet_id))}
    if not failed and not doubted:
        return (anybody,)

    def is_untried(tablet: Placed, target: ServerUuid) -> bool:
        return target not in failed.get(tablet.tablet_id, {})

    def is_not_doubted(tablet: Placed, target: ServerUuid) -> bool:
        return target not in doubted and is_untried(tablet, target)

    def may_go(tablet: Placed, target: ServerUuid) -> bool:
        return failures.may_go(tablet.tablet_id, target, now)

    return is_not_doubted, both(is_untried, may_go), may_go


def next_move(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    rooms: Mapping[ServerUuid, int] | None = None,
    *,
    may_take: MayTake = anybody,
) -> tuple[TabletId, ReplicaMove] | None:
    """The best move of a replica between servers, all of which are live; None if all is even.

    ``nodes``: the place of each server that may hold replicas. ``rooms``: how many bytes each may
    hold; if that is not known of all (or 0), they count as alike. ``may_take``: whether a server
    may come to hold one, beside that. No move puts two replicas of a tablet on one node, or in one
    rack, that were not there before. Followers move before leaders.
    """
    by_table, total = count_each(tablets, nodes, lambda tablet: tablet.members)
    sizes = Sizes(tablets, nodes, rooms or {}, lambda tablet: tablet.members)
    best: tuple[tuple[int, int, float, bool], TabletId, ReplicaMove] | None = None
    for tablet in tablets:
        of_table = by_table[tablet.table_id]
        for source in tablet.members:
            if source not in nodes:
                continue
            for target in nodes:
                gain = (of_table[source] - of_table[target], total[source] - total[target])
                if gain[0] < 2 and (gain[0] != 1 or gain[1] < 2):
                    continue
                if not may_move(tablet, source, target, nodes) or not may_take(tablet, target):
                    continue
                evens = sizes.gain(source, target, tablet.size_bytes)
                rank = (*gain, evens, source != tablet.leader)
                if best is None or rank > best[0]:
                    best = (rank, tablet.tablet_id, ReplicaMove(source, target))
    if best is not None:
        return best[1:]
    return _next_by_size(tablets, nodes, by_table, total, sizes, may_take)


def next_separation(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    rooms: Mapping[ServerUuid, int],
    *,
    may_take: MayTake = anybody,
) -> tuple[TabletId, ReplicaMove] | None:
    """The best move of a replica that shares a node or a rack with others of its tablet to a server
    where it shares less; None if none does, or if there is nowhere to go. Arguments as in
    `next_move`."""
    sizes = Sizes(tablets, nodes, rooms, lambda tablet: tablet.members)
    best: tuple[tuple[tuple[int, int], float, bool], TabletId, ReplicaMove] | None = None
    for tablet in tablets:
        for source, (on_node, in_rack) in _crowded(tablet, nodes):
            others = [nodes[m] for m in tablet.members if m != source and m in nodes]
            for target in nodes:
                left = nodes[target].crowd(others)
                if target in tablet.members or left >= (on_node, in_rack):
                    continue
                if not may_take(tablet, target):
                    continue
                evens = sizes.gain(source, target, tablet.size_bytes)
                gain = on_node - left[0], in_rack - left[1]
                rank = gain, evens, source != tablet.leader
                if best is None or rank > best[0]:
                    best = (rank, tablet.tablet_id, ReplicaMove(source, target))
    return None if best is None else best[1:]


def _crowded(
    tablet: Placed, nodes: Mapping[ServerUuid, Place]
) -> Iterator[tuple[ServerUuid, tuple[int, int]]]:
    """Replicas that share a node or a rack with others of their tablet, and with how many."""
    there = [member for member in tablet.members if member in nodes]
    for member in there:
        crowd = nodes[member].crowd([nodes[other] for other in there if other != member])
        if crowd > (0, 0):
            yield member, crowd


class Sizes:
    """How much each server has, and what is gained by giving some of it to another."""

    def __init__(
        self,
        tablets: Sequence[Placed],
        nodes: Mapping[ServerUuid, Place],
        rooms: Mapping[ServerUuid, int],
        held: Callable[[Placed], Sequence[ServerUuid]],
    ) -> None:
        found = dict.fromkeys(nodes, 0)
        for tablet in tablets:
            for uuid in held(tablet):
                if uuid in found:
                    found[uuid] += tablet.size_bytes
        self._bytes = found
        known = [rooms.get(uuid, 0) for uuid in nodes]
        mean = sum(known) / len(known) if known and min(known) > 0 else 0.0
        self._room = {uuid: rooms[uuid] / mean if mean else 1.0 for uuid in nodes}
        """In rooms of the mean server."""

    def by_fill(self) -> list[ServerUuid]:
        """The fullest first."""
        return sorted(self._bytes, key=lambda uuid: (-self.fill(uuid), uuid))

    def fill(self, uuid: ServerUuid) -> float:
        return self._bytes[uuid] / self._room[uuid]

    def best(self, source: ServerUuid, target: ServerUuid) -> float:
        """How many bytes should go from one to the other."""
        per_byte = 1 / self._room[source] + 1 / self._room[target]
        return (self.fill(source) - self.fill(target)) / per_byte

    def gain(self, source: ServerUuid, target: ServerUuid, size_bytes: int) -> float:
        """By how much the sum of squares gets smaller if that much goes from one to the other."""
        here = size_bytes * (2 * self._bytes[source] - size_bytes) / self._room[source]
        there = size_bytes * (2 * self._bytes[target] + size_bytes) / self._room[target]
        return here - there

    @property
    def least_gain(self) -> float:
        """What is worth a step."""
        mean = sum(self._bytes.values()) / max(1, len(self._bytes))
        return max(1.0, EVEN_ENOUGH * mean * mean)


def _next_by_size(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    by_table: Mapping[TableId, Mapping[ServerUuid, int]],
    total: Mapping[ServerUuid, int],
    sizes: Sizes,
    may_take: MayTake,
) -> tuple[TabletId, ReplicaMove] | None:
    """The best move for sizes alone, where counts are even and shall stay so."""
    servers = sizes.by_fill()
    best: tuple[float, TabletId, ReplicaMove] | None = None
    for source in servers[:EXTREMES]:
        for target in reversed(servers[-EXTREMES:]):
            if sizes.fill(source) <= sizes.fill(target):
                continue
            for tablet, back_bytes in _exchanges(
                tablets, nodes, by_table, total, source, target, sizes.best(source, target)
            ):
                gain = sizes.gain(source, target, tablet.size_bytes - back_bytes)
                is_better = gain >= sizes.least_gain and (best is None or gain > best[0])
                if is_better and may_take(tablet, target):
                    best = (gain, tablet.tablet_id, ReplicaMove(source, target))
    return None if best is None else best[1:]


def _exchanges(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    by_table: Mapping[TableId, Mapping[ServerUuid, int]],
    total: Mapping[ServerUuid, int],
    source: ServerUuid,
    target: ServerUuid,
    wanted_bytes: float,
) -> Iterator[tuple[Placed, int]]:
    """(tablet that goes, bytes that then come back) such that all counts are as even after it.

    What comes back is such that as nearly ``wanted_bytes`` as possible change places.
    """
    coming: dict[TableId, list[int]] = {}
    for tablet in tablets:
        if target in tablet.members and may_move(tablet, target, source, nodes):
            coming.setdefault(tablet.table_id, []).append(tablet.size_bytes)
    for found in coming.values():
        found.sort()
    for tablet in tablets:
        if source not in tablet.members or not may_move(tablet, source, target, nodes):
            continue
        of_table = by_table[tablet.table_id]
        if of_table[source] > of_table[target] and total[source] > total[target]:
            yield tablet, 0  # the difference of one changes sides
            continue
        found = coming.get(tablet.table_id, [])
        place = bisect.bisect_left(found, tablet.size_bytes - wanted_bytes)
        for back_bytes in found[max(0, place - 1) : place + 1]:
            yield tablet, back_bytes


def may_move(
    tablet: Placed, source: ServerUuid, target: ServerUuid, nodes: Mapping[ServerUuid, Place]
) -> bool:
    if target in tablet.members:
        return False
    others = [nodes[m] for m in tablet.members if m != source and m in nodes]
    return nodes[target].crowd(others) <= nodes[source].crowd(others)


def next_transfer(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    *,
    may_take: MayTake = anybody,
) -> tuple[TabletId, ServerUuid] | None:
    """The best leadership to hand over, and to whom; None if leaders are spread evenly.

    Of those that are equally good the one after which the sizes of what is led are most even.
    ``may_take``: whether a server may come to lead a tablet.
    """
    by_table, total = count_each(tablets, nodes, lambda tablet: (tablet.leader,))
    sizes = Sizes(tablets, nodes, {}, lambda tablet: (tablet.leader,))
    best: tuple[tuple[int, int, float], TabletId, ServerUuid] | None = None
    for tablet in tablets:
        of_table = by_table[tablet.table_id]
        source = tablet.leader
        for target in tablet.members:
            if target == source or source not in nodes or target not in nodes:
                continue
            gain = (of_table[source] - of_table[target], total[source] - total[target])
            if gain[0] < 2 and (gain[0] != 1 or gain[1] < 2):
                continue
            if not may_take(tablet, target):
                continue
            rank = (*gain, sizes.gain(source, target, tablet.size_bytes))
            if best is None or rank > best[0]:
                best = (rank, tablet.tablet_id, target)
    return None if best is None else best[1:]


def count_each(
    tablets: Sequence[Placed],
    nodes: Mapping[ServerUuid, Place],
    held: Callable[[Placed], Sequence[ServerUuid]],
) -> tuple[dict[TableId, dict[ServerUuid, int]], dict[ServerUuid, int]]:
    """How many each server has: of each table, and in all."""
    by_table: dict[TableId, dict[ServerUuid, int]] = {}
    total = dict.fromkeys(nodes, 0)
    for tablet in tablets:
        of_table = by_table.setdefault(tablet.table_id, dict.fromkeys(nodes, 0))
        for uuid in held(tablet):
            if uuid in total:
                of_table[uuid] += 1
                total[uuid] += 1
    return by_table, total
