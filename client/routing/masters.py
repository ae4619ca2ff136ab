"""Calls to whichever master leads: tries the last known leader, follows hints, waits out elections.

Used by servers, clients and recovery jobs alike. Only calls that are idempotent or carry a request
id may go through here: after `OutcomeUnknown` they are repeated.

The set of masters changes while clients live: at first, after a call that met an error, and every
few seconds of use, whichever master has just answered is asked beside the calls who the masters
are now. One that was removed, or that came in place of a lost one, tells as well: the newest set
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from stelae.core.errors import (
    DeadlineExpired,
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
from stelae.core.ids import Address, OpId
from stelae.core.messages.masters import MASTER_INFO, AskMaster, MasterInfo
from stelae.core.rpc import Method, Reply
from stelae.core.runtime import Runtime

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

ATTEMPT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 1.0
"""Of one attempt of a read that any master may answer."""
PAUSE_S = 0.03
MOMENT_S = 1e-6
"""Less time than this is none: a clock may not tell the end of it from its beginning."""
REFRESH_S = 2.0
DOUBT_S = 0.2
"""The same where an error has made it doubtful who the masters are."""


class MastersClient:
    """The masters, seen as one server that is sometimes slow."""

    def __init__(self, runtime: Runtime, masters: Sequence[Address]) -> None:
        if not masters:
            raise InvalidArgument("no master addresses given")
        self._runtime = runtime
        self._masters = list(masters)
        self._leader = 0
        self._reader = 0
        self._asked_at = float("-inf")
        self._known = OpId(0, 0)
        self._is_doubtful = False  # whether these are still the masters

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._masters)

    def update(self, masters: Sequence[Address]) -> None:
        """These are the masters from now on; the leader stays the one to try first."""
        if masters and list(masters) != self._masters:
            leader = self._masters[self._leader % len(self._masters)]
            self._masters = list(masters)
            self._leader = masters.index(leader) if leader in masters else 0

    def _refresh(self, address: Address) -> None:
        """Ask a master that has just answered who the masters are, and wait for nothing."""
        now = self._runtime.clock.monotonic()
        if now - self._asked_at < (DOUBT_S if self._is_doubtful else REFRESH_S):
            return
        sent = self._runtime.peers.post(
            address, MASTER_INFO, AskMaster(), self._told, timeout_s=ATTEMPT_TIMEOUT_S
        )
        if sent:
            self._asked_at, self._is_doubtful = now, False

    def _told(self, answer: Reply[MasterInfo] | StelaeError) -> None:
        if isinstance(answer, StelaeError):
            self._is_doubtful = True  # the next call asks again
            return
        info = answer.body
        if info.members and info.op_id.index >= self._known.index:
            self._known = info.op_id
            self.update([member.address for member in info.members if member.address])

    async def call(self, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call the leader, within ``timeout_s`` in all.

        Raises:
            Rejected, StaleTerm, …: what the leader answered.
            RetryLater: what the leader answered last; surely no attempt was carried out.
            NoQuorum: no leader was found in time.
            DeadlineExpired: there was no time to ask any master.
            OutcomeUnknown: the deadline passed with an attempt whose answer was lost.
        """
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        maybe_done: OutcomeUnknown | None = None
        refused: RetryLater | None = None
        unreached: Unavailable | None = None
        hint, was_asked = Address(""), False
        followed: dict[Address, None] = {}  # hints, since all masters were asked
        while True:
            left_s = deadline - clock.monotonic()
            if left_s < (MOMENT_S if refused is None else PAUSE_S):
                # What was said last tells more than an attempt that has no time to be answered.
                raise (
                    maybe_done or refused or self._at_deadline(method.name, was_asked, unreached)
                )
            was_asked = True
            address = hint or self._masters[self._leader % len(self._masters)]
            hint = Address("")
            try:
                reply = await self._runtime.peers.call(
                    address, method, request, timeout_s=min(left_s, ATTEMPT_TIMEOUT_S)
                )
                self._prefer(address)
                self._refresh(address)
                return reply.body
            except NotLeader as error:
                # A hint at once, but each once a round: it may be old, and a master no more.
                hint = Address(error.leader)
                if not hint or hint in followed:
                    hint = Address("")
                    self._ask_next(followed)
                    self._refresh(address)
                    await clock.sleep(PAUSE_S)
                followed[hint] = None
            except OutcomeUnknown as error:
                maybe_done = error
                self._ask_next(followed)
            except Unavailable as error:
                unreached = error
                self._ask_next(followed)
                await clock.sleep(PAUSE_S)
            except RetryLater as error:
                refused = error
                self._prefer(address)
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
            if left_s < MOMENT_S:
                raise last or self._at_deadline(method.name, tried > 0)
            address = self._masters[(self._reader + tried) % len(self._masters)]
            tried += 1
            try:
                reply = await self._runtime.peers.call(
                    address, method, request, timeout_s=min(left_s, READ_TIMEOUT_S)
                )
                return reply.body
            except (RetryElsewhere, RetryLater, OutcomeUnknown) as error:
                last = last if isinstance(last, TooStale) else error
                self._is_doubtful = True
                if not isinstance(error, OutcomeUnknown | Unavailable):
                    self._refresh(address)
            if tried % len(self._masters) == 0:
                await clock.sleep(PAUSE_S)

    def _at_deadline(
        self, name: str, was_asked: bool, unreached: Unavailable | None = None
    ) -> StelaeError:
        masters = ", ".join(self._masters)
        if was_asked:
            return NoQuorum(masters, "" if unreached is None else str(unreached))
        return DeadlineExpired(name, f"the masters {masters}: it had passed when the call began")

    def _prefer(self, address: Address) -> None:
        """It leads, as far as is known; it may be a master that was added lately."""
        if address not in self._masters:
            self._masters.append(address)
            self._is_doubtful = True
        self._leader = self._masters.index(address)

    def _ask_next(self, followed: dict[Address, None]) -> None:
        self._is_doubtful = True
        self._leader = (self._leader + 1) % len(self._masters)
        if self._leader == 0:
            followed.clear()
