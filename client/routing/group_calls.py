"""How a client repeats a call on a tablet with ``replicas(n)``: at its leader, or at any replica.

A call goes to the leader that is known. A replica that says who leads is believed at once, each
hint once; whatever else goes wrong starts a search among all replicas (`LeaderSearch`), which finds
the next leader as soon as there is one. A leader that takes long to answer is not given up for
that, but another one may be found meanwhile to lead: then the same request goes there. Writes carry
a request id, so they are done once, whoever answers; the rest are reads.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from stelae.client.routing.attempts import (
    ATTEMPT_TIMEOUT_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Attempt,
)
from stelae.client.routing.group_route import GroupRoute, Target
from stelae.client.routing.leader_search import MOMENT_S
from stelae.client.routing.locations import TableCache
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    DataLost,
    DeadlineExpired,
    InvalidArgument,
    NoSpace,
    NotLeader,
    OutcomeUnknown,
    OutOfMemory,
    Overloaded,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    StelaeError,
    TooStale,
)
from stelae.core.ids import Address
from stelae.core.runtime import Runtime

T = TypeVar("T")

SUSPECT_S = 0.5
"""A leader that has not answered for so long may be one no more: others are asked meanwhile."""
LONGEST_SUSPECT_S = 4.0
READ_TIMEOUT_S = 2.0
"""Of one attempt of a read that any replica may answer."""


class NoGroup(Exception):
    """The table has a tablet of another durability in its place by now."""

    def __init__(self, tried: StelaeError | None) -> None:
        super().__init__(tried)
        self.tried = tried


class GroupCall(Generic[T]):
    """One call on one tablet, and what its attempts have met. See `on_tablet`."""

    def __init__(
        self,
        runtime: Runtime,
        cache: TableCache,
        number: int,
        what: str,
        attempt: Attempt[T],
        timeout_s: float,
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._number = number
        route = cache.group(number)
        assert route is not None, "the replicas of a group are called"
        self._route = route
        self._what = what
        self._attempt = attempt
        self._deadline = runtime.clock.monotonic() + timeout_s
        self._last: StelaeError | None = None
        self._unknown: OutcomeUnknown | None = None
        self._backoff = Backoff(runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._has_failed = False
        """Whether an attempt at a leader has failed, other than by a hint that was followed."""
        self._followed: dict[Address, None] = {}
        """Hints, since a leader was last looked for."""
        self._by_address: dict[Address, None] = {}
        """Addresses whose server was not known by its UUID, and has refused the call."""

    def _look(self) -> GroupRoute:
        """Its replicas as they are known now. Raises `NoGroup`."""
        route = self._cache.group(self._number)
        if route is None:
            raise NoGroup(self._unknown or self._last)
        self._route = route
        return route

    def _left_s(self) -> float:
        """Raises what the call ends with at its deadline."""
        left_s = self._deadline - self._runtime.clock.monotonic()
        if left_s <= MOMENT_S:
            raise self._at_deadline() from self._last
        return left_s

    def _at_deadline(self) -> StelaeError:
        last, route = self._last, self._route
        if isinstance(last, TooStale | DataLost):
            return last
        if self._unknown is not None:
            return self._unknown
        if isinstance(last, RetryLater) and route.leader is not None:
            return last
        said = "; ".join(route.answers.values()) or str(last or "")
        waits_for = route.location.problem or f"a leader of tablet {route.tablet_id}"
        what = self._cache.named(self._what)
        return DeadlineExpired(what, f"{waits_for}: {said}" if said else waits_for)

    # ---- at the leader ----------------------------------------------------------------------

    async def at_leader(self, tried: StelaeError | None) -> T:
        """Carry the attempt out at the leader, through changes of leader, until the deadline.

        ``tried``: how an attempt at the leader that is known has ended already. Raises `NoGroup`.
        """
        if tried is not None:
            self._met(tried, self._route, self._route.leader)
        while True:
            left_s = self._left_s()
            route = self._look()
            leader = route.leader
            if leader is None:
                await self._find_leader(route, left_s)
                continue
            try:
                return await self._watched(route, leader, min(left_s, ATTEMPT_TIMEOUT_S))
            except StelaeError as error:
                if self._met(error, route, leader):
                    continue
            if route.leader is not None or self._has_failed:  # else another is looked for at once
                await self._backoff.pause(self._runtime.clock, self._deadline)
            self._has_failed = True

    def _met(self, error: StelaeError, route: GroupRoute, at: Target | None) -> bool:
        """Take in how an attempt ended; whether to make the next one at once.

        Raises:
            StelaeError: ``error``, if repeating does not help, or the unknown outcome of before.
        """
        if isinstance(error, NotLeader):
            self._last = error
            hint = Address(error.leader)
            if hint and hint not in self._followed and (at is None or hint != at.address):
                self._followed[hint] = None
                route.lead(hint)
                return True
        elif isinstance(error, OutOfMemory | NoSpace):
            if self._unknown is not None:
                raise self._unknown from error
            raise error
        elif isinstance(error, OutcomeUnknown):
            self._unknown = error
        elif isinstance(error, InvalidArgument) and self._is_first_of_address(at):
            # Only an address was known, so the call named no server. A server of another kind may
            # have the address by now, and it refuses what it does not know.
            self._last = error
        elif isinstance(error, SchemaChanged) or not isinstance(error, RetryElsewhere | RetryLater):
            raise error
        else:
            self._last = error
        if at is not None and not isinstance(error, Overloaded):
            route.doubt(at)
        return False

    def _is_first_of_address(self, at: Target | None) -> bool:
        """Whether an attempt was made by an address alone, and this one not before."""
        if at is None or at.server is not None or at.address in self._by_address:
            return False
        self._by_address[at.address] = None
        return True

    async def _find_leader(self, route: GroupRoute, left_s: float) -> None:
        self._followed.clear()
        try:
            async with asyncio.timeout(left_s):
                await route.find_leader(self._runtime, self._cache.refresh)
        except TimeoutError:
            return  # the deadline, which tells what was waited for

    async def _watched(self, route: GroupRoute, leader: Target, limit_s: float) -> T:
        """One attempt, given up (`OutcomeUnknown`) once another replica has proved to lead."""
        if limit_s <= SUSPECT_S:
            return await self._attempt(leader.where, leader.server, limit_s)
        loop = asyncio.get_running_loop()
        watches: list[asyncio.Task[None]] = []
        given_up = asyncio.timeout(None)
        timer = loop.call_later(
            SUSPECT_S,
            lambda: watches.append(loop.create_task(self._suspect(route, leader, given_up))),
        )
        try:
            async with given_up:
                return await self._attempt(leader.where, leader.server, limit_s)
        except TimeoutError:
            if not given_up.expired():
                raise
            raise OutcomeUnknown(leader.address, self._what, limit_s) from None
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()

    async def _suspect(self, route: GroupRoute, leader: Target, given_up: asyncio.Timeout) -> None:
        """Look for another leader while the attempt at this one lasts."""
        backoff = Backoff(self._runtime.rng, SUSPECT_S, LONGEST_SUSPECT_S)
        while True:
            try:
                await route.find_leader(self._runtime, self._cache.refresh)
            except StelaeError:
                # The attempt may succeed all the same, and tells by itself if it does not.
                self._runtime.metrics.count("leader_searches_failed")
            found = route.leader
            if found is not None and found.address != leader.address:
                given_up.reschedule(asyncio.get_running_loop().time())
                return
            await backoff.pause(self._runtime.clock)

    # ---- at any replica ---------------------------------------------------------------------

    async def anywhere(self, tried: StelaeError | None) -> T:
        """Carry a read out that any replica may answer: each once a round, until the deadline."""
        clock = self._runtime.clock
        if tried is not None:
            self._missed(tried, self._route)
        while True:
            self._left_s()
            route = self._look()
            near = self._runtime.peers.is_near
            for target in route.readers(self._runtime.rng, clock.monotonic(), near):
                limit_s = min(self._left_s(), READ_TIMEOUT_S)
                try:
                    return await self._attempt(target.where, target.server, limit_s)
                except SchemaChanged:
                    raise
                except (RetryElsewhere, RetryLater, OutcomeUnknown, DataLost) as error:
                    route.shun(target, clock.monotonic())
                    self._missed(error, route)
            await self._backoff.pause(clock, self._deadline)
            try:
                async with asyncio.timeout(max(self._deadline - clock.monotonic(), 0.0)):
                    await self._cache.refresh()
            except (RetryLater, OutcomeUnknown, TimeoutError):
                # The replicas may answer all the same; the deadline tells what they said.
                self._runtime.metrics.count("locations_not_refreshed")

    def _missed(self, error: StelaeError, route: GroupRoute) -> None:
        """A replica could not answer; that one is too stale is the most telling."""
        if isinstance(error, NotLeader) and error.leader:
            route.lead(Address(error.leader))
        elif isinstance(error, OutcomeUnknown):
            self._unknown = error
        if not isinstance(self._last, TooStale) and not isinstance(error, OutcomeUnknown):
            self._last = error
