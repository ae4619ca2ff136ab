"""Which replica of a tablet with ``replicas(n)`` to call: its leader, or any of them.

All that is known here are hints: a wrong one costs a call that is refused. What replicas say counts
more than what the masters say, who hear of a new leader by heartbeats. Changed on the client's loop
alone; any thread may read.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from stelae.client.routing.leader_search import LeaderSearch
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.catalog import TabletLocation
from stelae.core.runtime import Runtime

SHUNNED_S = 2.0
"""So long a replica that did not answer a read is asked after all others."""


@dataclass(frozen=True, slots=True)
class Target:
    """One replica. ``where`` is the tablet's location with the replica's address."""

    where: TabletLocation
    server: ServerUuid | None
    """None: only its address is known."""

    @property
    def address(self) -> Address:
        return self.where.address


class GroupRoute:
    """The replicas of one tablet, as this client knows them."""

    def __init__(self, location: TabletLocation) -> None:
        self.leader: Target | None = None
        """As far as is known."""
        self.is_gone = False
        """The table has another tablet in its place by now."""
        self.answers: dict[Address, str] = {}
        """What replicas said last when they were asked who leads."""
        self._shunned: dict[Address, float] = {}
        self._turns: Iterator[int] | None = None
        self._search: asyncio.Task[None] | None = None
        self.take(location)
        if location.address:
            self.lead(location.address)

    def take(self, location: TabletLocation) -> None:
        """Believe the masters as to who has replicas. Who leads the replicas know better."""
        self.location = location
        servers: dict[Address, ServerUuid] = {}
        voters: dict[Address, None] = {}
        for replica in location.replicas:
            if replica.address:
                servers[replica.address] = replica.uuid
                if replica.voter:
                    voters[replica.address] = None
        listed = {replica.uuid for replica in location.replicas}
        configuration = location.tablet.configuration
        for peer in configuration.peers if configuration is not None else ():
            if peer.uuid not in listed and peer.address:
                servers.setdefault(peer.address, peer.uuid)
        self._servers = servers
        self._voters = tuple(voters)
        self._shunned = {a: until for a, until in self._shunned.items() if a in servers}
        if self.leader is not None:
            self.leader = self.target(self.leader.address)

    @property
    def tablet_id(self) -> TabletId:
        return self.location.tablet.tablet_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Of all replicas, those that do not vote included."""
        return tuple(self._servers)

    def target(self, address: Address) -> Target:
        where = msgspec.structs.replace(self.location, address=address)
        return Target(where, self._servers.get(address))

    # ---- the leader -------------------------------------------------------------------------

    def lead(self, address: Address) -> None:
        """A replica said so, or proved it."""
        if self.leader is None or self.leader.address != address:
            self.leader = self.target(address)

    def doubt(self, target: Target) -> None:
        """It may lead no more; nothing happens if another one is known to lead by now."""
        if self.leader is not None and self.leader.address == target.address:
            self.leader = None

    async def find_leader(self, runtime: Runtime, refresh: Callable[[], Awaitable[None]]) -> None:
        """Ask all replicas until one proves that it leads, for a bounded time.

        Whoever comes meanwhile shares the search. ``refresh`` asks the masters anew.

        Raises:
            TableNotFound: the table was deleted.
        """
        # One that has just ended may not be forgotten yet; to wait for that is not to wait at all.
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(LeaderSearch(runtime, self, refresh).run())
            self._search.add_done_callback(self._searched)
        await asyncio.shield(self._search)

    def _searched(self, task: asyncio.Task[None]) -> None:
        if self._search is task:
            self._search = None
        if not task.cancelled():
            task.exception()  # every waiter has it; nobody waiting is no reason to complain

    # ---- reads that any replica may answer --------------------------------------------------

    def readers(
        self, rng: random.Random, now: float, is_near: Callable[[Address], bool]
    ) -> list[Target]:
        """All that may answer: those on this machine (``is_near``) first, each time another one of
        them; those that did not answer lately, and a leader that is no known member, come last."""
        if self._turns is None:
            self._turns = itertools.count(rng.randrange(1 << 16))
        voters, turn = self._voters, next(self._turns)
        first = turn % len(voters) if voters else 0
        order = [*voters[first:], *voters[:first]]
        order.sort(key=lambda a: (self._shunned.get(a, now) > now, not is_near(a)))
        found = [self.target(address) for address in order]
        leader = self.leader
        if leader is not None and leader.address not in voters:
            found.append(leader)
        return found

    def shun(self, target: Target, now: float) -> None:
        """It did not answer a read: ask others first for a while."""
        self._shunned[target.address] = now + SHUNNED_S
