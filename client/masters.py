"""Calls to whichever master leads: tries the last known leader, follows hints, waits out elections.

Used by servers, clients and recovery jobs alike. Only calls that are idempotent or carry a request
id may go through here: after `OutcomeUnknown` they are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from stelae.core.errors import (
    InvalidArgument,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
    TooStale,
    Unavailable,
)
from stelae.core.ids import Address
from stelae.core.rpc import Method
from stelae.core.runtime import Runtime

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

ATTEMPT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 1.0
"""Of one attempt of a read that any master may answer."""
PAUSE_S = 0.03


class MastersClient:
    """The masters, seen as one server that is sometimes slow."""

    def __init__(self, runtime: Runtime, masters: Sequence[Address]) -> None:
        if not masters:
            raise InvalidArgument("no master addresses given")
        self._runtime = runtime
        self._masters = list(masters)
        self._leader = 0
        self._reader = 0

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._masters)

    def update(self, masters: Sequence[Address]) -> None:
        """Take new addresses (a restarted master listens elsewhere)."""
        if masters and list(masters) != self._masters:
            self._masters = list(masters)
            self._leader = 0

    async def call(self, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call the leader, within ``timeout_s`` in all.

        Raises:
            Rejected, StaleTerm, …: what the leader answered.
            RetryLater: what the leader answered last; surely no attempt was carried out.
            NoQuorum: no leader was found in time.
            OutcomeUnknown: the deadline passed with an attempt whose answer was lost.
        """
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        maybe_done: OutcomeUnknown | None = None
        refused: RetryLater | None = None
        followed = False
        while True:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise maybe_done or refused or NoQuorum(", ".join(self._masters))
            address = self._masters[self._leader % len(self._masters)]
            try:
                reply = await self._runtime.peers.call(
                    address, method, request, timeout_s=min(left_s, ATTEMPT_TIMEOUT_S)
                )
                return reply.body
            except NotLeader as error:
                # One hint at once; those who then name each other wait for their election.
                followed = self._follow(error.leader) and not followed
                if not followed:
                    await clock.sleep(PAUSE_S)
            except OutcomeUnknown as error:
                maybe_done = error
                self._leader += 1
            except Unavailable:
                self._leader += 1
                await clock.sleep(PAUSE_S)
            except RetryLater as error:
                refused = error
                await clock.sleep(PAUSE_S)

    async def call_any(self, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """Ask any master for what need not be the newest, each time another one first.

        Only reads with a ``max_staleness_s``: they are repeated at will.

        Raises:
            Rejected: what a master answered.
            TooStale: none had a state as new as was asked for, in time.
            RetryLater, OutcomeUnknown: none could be asked in time.
        """
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        self._reader += 1
        tried = 0
        last: StelaeError | None = None
        while True:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise last or NoQuorum(", ".join(self._masters))
            address = self._masters[(self._reader + tried) % len(self._masters)]
            tried += 1
            try:
                reply = await self._runtime.peers.call(
                    address, method, request, timeout_s=min(left_s, READ_TIMEOUT_S)
                )
                return reply.body
            except (RetryElsewhere, RetryLater, OutcomeUnknown) as error:
                last = last if isinstance(last, TooStale) else error
            if tried % len(self._masters) == 0:
                await clock.sleep(PAUSE_S)

    def _follow(self, hint: str) -> bool:
        """Turn to the leader named, or to the next master; true if there was a usable hint."""
        if hint and Address(hint) in self._masters:
            self._leader = self._masters.index(Address(hint))
            return True
        self._leader += 1
        return False
