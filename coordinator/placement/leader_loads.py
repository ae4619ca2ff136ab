"""Which leadership to hand over, or which replica to move, so that servers have evenly much load.

A group's leader answers its writes and nearly all of its reads. So load follows leadership; counts
of leaders are a guess at it, for as long as nobody knows better. Pure rules:

- a server is too hot if its load is `TOO_HOT` above the mean, and by `LEAST_PER_S` at least;
- of it goes the leadership after which the hotter of the two servers is coolest, and only if that
  is cooler by `WORTH` of the mean than the hot one was: each step makes the sum of squares smaller
  by a fixed part, so under a steady load the steps come to an end, and none is taken back;
- if no voter can take any, a replica moves to where its leadership could go next. Only where the
  count of replicas is larger by one at its old place, of the table and in all, and where sizes stay
  as even as they are wanted: so the steps by count and size have nothing to undo;
- under load, a step for the sake of even counts may heat no server by more than half of `TOO_HOT`:
  so there is nothing in it for the first rule to undo. What the first rule did, it does undo where
  loads leave room: that makes nothing worse;
- what was moved for its load stays for `COOL_S`: loads that swing move nothing to and fro.

Where some leader's load is not known, nothing is done until it is. Where there is hardly any load,
counts alone decide (`stelae.coordinator.placement.rebalance`).

Source: Kudu's auto_leader_rebalancer, which goes by counts; Raft thesis §3.10.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stelae.coordinator.placement.rebalance import (
    MayTake,
    Placed,
    Sizes,
    anybody,
    count_each,
    may_move,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.places import Place
from stelae.core.records.records import ReplicaMove

TOO_HOT = 0.25
WORTH = 0.1
LEAST_PER_S = 50.0
"""Calls a second that are worth a step; a server does thousands."""
COOL_S = 300.0
SERVERS_MAX = 4
"""So many of the hottest servers are looked at."""


class Cooling:
    """What was moved for its load, and when. Only in memory: a new leader master may move it once
    more, and no harm is done."""

    def __init__(self) -> None:
        self._at: dict[TabletId, float] = {}

    def note(self, tablet_id: TabletId, now: float) -> None:
        self._at[tablet_id] = now

    def forget(self, tablet_id: TabletId) -> None:
        """It did not move after all, so it has nothing to cool from."""
        self._at.pop(tablet_id, None)

    def at(self, now: float) -> dict[TabletId, None]:
        """The tablets that stay where they are, by now."""
        self._at = {i: moved for i, moved in self._at.items() if now < moved + COOL_S}
        return dict.fromkeys(self._at)


def leaders_load(
    tablets: Sequence[Placed], nodes: Mapping[ServerUuid, Place], beside: Mapping[ServerUuid, float]
) -> LeadersLoad | None:
    """How load is spread; None if it is not known yet.

    ``nodes``: the place of each server that may lead. ``beside``: load of servers that cannot be
    handed over.
    """
    if any(tablet.load_per_s < 0 for tablet in tablets):
        return None
    load = {uuid: beside.get(uuid, 0.0) for uuid in nodes}
    for tablet in tablets:
        if tablet.leader in load:
            load[tablet.leader] += tablet.load_per_s
    return LeadersLoad(tuple(tablets), nodes, load)


@dataclass(frozen=True, slots=True)
class LeadersLoad:
    """The load of each server that may lead."""

    tablets: tuple[Placed, ...]
    nodes: Mapping[ServerUuid, Place]
    load: Mapping[ServerUuid, float]

    @property
    def mean(self) -> float:
        return sum(self.load.values()) / max(1, len(self.load))

    def hot(self) -> list[ServerUuid]:
        """Those that are too hot, the hottest first."""
        limit = self.mean + max(LEAST_PER_S, TOO_HOT * self.mean)
        found = [uuid for uuid in self.load if self.load[uuid] > limit]
        return sorted(found, key=lambda uuid: (-self.load[uuid], uuid))[:SERVERS_MAX]

    def may_take(self, tablet: Placed, target: ServerUuid) -> bool:
        """Whether a server may come to lead a tablet for another reason than load."""
        limit = self.mean + max(LEAST_PER_S, TOO_HOT * self.mean) / 2
        return tablet.load_per_s == 0 or self.load[target] + tablet.load_per_s <= limit

    def next_transfer(
        self, stay: Container[TabletId], may_take: MayTake = anybody
    ) -> tuple[TabletId, ServerUuid] | None:
        """The leadership to hand over, and to whom. ``may_take``: as in `rebalance`."""
        for source in self.hot():
            found = [
                (after, self.load[target], tablet.tablet_id, target)
                for tablet in self._led(source, stay)
                for target in tablet.members
                if (after := self._after(tablet, target)) is not None and may_take(tablet, target)
            ]
            if found:
                return min(found)[2:]
        return None

    def next_move(
        self,
        stay: Container[TabletId],
        rooms: Mapping[ServerUuid, int],
        may_take: MayTake = anybody,
    ) -> tuple[TabletId, ReplicaMove] | None:
        """The replica to move, so that its tablet can be led where it goes. ``may_take``: as in
        `rebalance`."""
        by_table, total = count_each(self.tablets, self.nodes, lambda tablet: tablet.members)
        sizes = Sizes(self.tablets, self.nodes, rooms, lambda tablet: tablet.members)

        def is_free(tablet: Placed, member: ServerUuid, target: ServerUuid) -> bool:
            of_table = by_table[tablet.table_id]
            return (
                member in self.nodes
                and may_move(tablet, member, target, self.nodes)
                and may_take(tablet, target)
                and of_table[member] > of_table[target]
                and total[member] > total[target]
                and sizes.gain(member, target, tablet.size_bytes) > -sizes.least_gain
            )

        for source in self.hot():
            found = list(self._moves(source, stay, is_free))
            if found:
                _, _, tablet_id, member, target = min(found)
                return tablet_id, ReplicaMove(member, target)
        return None

    def _moves(
        self,
        source: ServerUuid,
        stay: Container[TabletId],
        is_free: Callable[[Placed, ServerUuid, ServerUuid], bool],
    ) -> Iterator[tuple[float, bool, TabletId, ServerUuid, ServerUuid]]:
        """Followers go before leaders, which would have to hand over first."""
        for tablet in self._led(source, stay):
            for target in self.load:
                after = self._after(tablet, target)
                if after is None or target in tablet.members:
                    continue
                for member in tablet.members:
                    if is_free(tablet, member, target):
                        leads = member == tablet.leader
                        yield after, leads, tablet.tablet_id, member, target

    def _led(self, source: ServerUuid, stay: Container[TabletId]) -> list[Placed]:
        return [t for t in self.tablets if t.leader == source and t.tablet_id not in stay]

    def _after(self, tablet: Placed, target: ServerUuid) -> float | None:
        """The load of the hotter of two servers if ``target`` led the tablet; None if that is not
        worth it."""
        source = tablet.leader
        if target == source or target not in self.load:
            return None
        left = self.load[source] - tablet.load_per_s
        after = max(left, self.load[target] + tablet.load_per_s)
        worth = max(LEAST_PER_S / 2, WORTH * self.mean)
        return after if after <= self.load[source] - worth else None
