"""An operator's turn to change a cluster's servers: taken, kept while it lasts, and ended.

It is kept by a task beside whatever the operator does. When the masters do not answer for a while,
nobody is sure of anything: the operator waits, and goes on if the turn is still its own.
"""

from __future__ import annotations

import contextlib
import logging

from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater, StelaeError
from stelae.core.records.turns import END_TURN, KEEP_S, SURE_S, TAKE_TURN, EndTurn, TakeTurn, Turn
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0
POLL_S = 0.1


class OperatorTurn:
    """One turn. `begin` it, ask `sure` before each step, `end` it."""

    def __init__(
        self, runtime: Runtime, masters: MastersClient, session: Session, who: str, what: str
    ) -> None:
        self._runtime = runtime
        self._masters = masters
        self._session = session
        self._tasks = Tasks()
        self._holder = f"{runtime.rng.getrandbits(64):016x}"
        self._who, self._what = who, what
        self._turn: Turn | None = None
        self._sure_until = float("-inf")
        self._lost: AlreadyRunning | None = None

    @property
    def is_sure(self) -> bool:
        """Whether nobody else can have it just now."""
        return self._lost is None and self._runtime.clock.monotonic() < self._sure_until

    async def begin(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Raises AlreadyRunning: somebody else has it; the text says who."""
        try:
            await self._take(timeout_s)
        except InvalidArgument as error:
            # The masters are of a version without turns, and are to be started anew with this one.
            # It is as it was with them then: each looks before every step if it was asked last.
            logger.warning("the masters know of no turns: %s", error)
            self._sure_until = float("inf")
            return
        self._tasks.spawn(self._keep(), "turn")

    async def _take(self, timeout_s: float) -> None:
        sent = self._runtime.clock.monotonic()
        number = 0 if self._turn is None else self._turn.number
        with self._session.request() as request:
            order = TakeTurn(request, self._holder, self._who, self._what, number)
            reply = await self._masters.call(TAKE_TURN, order, timeout_s=timeout_s)
        turn = reply.turn
        if turn.holder != self._holder or (number and turn.number != number):
            raise AlreadyRunning(f"{turn.who} has taken over ({turn.what})")
        self._turn, self._sure_until = turn, sent + SURE_S

    async def _keep(self) -> None:
        """Say so again and again, until it is somebody else's."""
        while True:
            await self._runtime.clock.sleep(KEEP_S)
            try:
                await self._take(CALL_TIMEOUT_S)
            except AlreadyRunning as error:
                self._lost = error
                return
            except StelaeError as error:
                logger.info("the turn to change the cluster was not kept: %s", error)

    async def sure(self, timeout_s: float) -> None:
        """Wait until it is sure whose turn it is.

        Raises:
            AlreadyRunning: it is another's by now.
            RetryLater: the masters do not say.
        """
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        while not self.is_sure:
            if self._lost is not None:
                raise self._lost
            if clock.monotonic() >= deadline:
                raise RetryLater(
                    f"the masters have not said for {timeout_s:g} s whose turn it is to change "
                    "this cluster; apply again, which goes on where this was"
                )
            await clock.sleep(POLL_S)

    async def end(self) -> None:
        """Let it go. If nobody hears that, it ends by itself."""
        await self._tasks.close()
        turn, self._turn, self._sure_until = self._turn, None, float("-inf")
        if turn is None or self._lost is not None:
            return
        with contextlib.suppress(StelaeError), self._session.request() as request:
            order = EndTurn(request, turn.number)
            await self._masters.call(END_TURN, order, timeout_s=END_TIMEOUT_S)


class TurnCalls:
    """The part of `AsyncDatabase` that is about turns."""

    runtime: Runtime
    _masters: MastersClient
    _session: Session

    def turn(self, who: str, what: str) -> OperatorTurn:
        """A turn that is not taken yet."""
        return OperatorTurn(self.runtime, self._masters, self._session, who, what)
