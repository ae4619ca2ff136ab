"""Keeping a replica's tokens those of the masters' catalog.

A request with a known token is checked against a list that is at most about `FRESH_S` old, so that
is how long a revoked token lives on; one with an unknown token has the list asked for anew first,
so a new token is good everywhere at once. Whoever comes with a list of twice that age waits for the
question under way, unless the masters left one unanswered a moment ago. While no master answers,
what is known holds: tables are read and written without masters, too. Bound: one question at a
time, a few a second, whatever comes in.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from stelae.client.database import AsyncDatabase
from stelae.core.errors import StelaeError
from stelae.serve.bodies.problems import NotAuthenticated
from stelae.serve.gateway.tokens import Principal, TokenVerifier

logger = logging.getLogger(__name__)

FRESH_S = 1.0
AGAIN_S = 0.2
"""Between two questions, whoever wants them."""
ASK_TIMEOUT_S = 0.5
SILENT_S = 1.0
"""So long an unanswered question tells that masters are silent. Nobody waits for those."""


class TokenFollower:
    """Asks for tokens when requests come; a replica at rest asks nothing."""

    def __init__(
        self,
        verifier: TokenVerifier,
        database: Callable[[], Awaitable[AsyncDatabase]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verifier = verifier
        self._database = database
        self._monotonic = monotonic
        self._asked_at = -math.inf
        self._known_at = -math.inf
        self._asking: asyncio.Task[None] | None = None
        self._unanswered_at = -math.inf

    async def verify(self, token: str) -> Principal:
        """Who has this token. Raises `NotAuthenticated`."""
        came = self._monotonic()
        if came > self._known_at + FRESH_S:
            is_silent = came <= self._unanswered_at + SILENT_S
            if came > self._asked_at + AGAIN_S:
                self._ask()
            if self._asking and came > self._known_at + 2 * FRESH_S and not is_silent:
                await asyncio.shield(self._asking)
        while True:
            known_at = self._known_at
            try:
                return self._verifier.verify(token)
            except NotAuthenticated:
                if known_at >= came:  # it was not there when its owner says that it was
                    raise
            await asyncio.shield(self._ask())
            if self._known_at == known_at:  # no master answers
                return self._verifier.verify(token)

    def _ask(self) -> asyncio.Task[None]:
        """The question that is under way, or a new one, not too soon after the last."""
        if self._asking is None or self._asking.done():
            pause_s = max(self._asked_at + AGAIN_S - self._monotonic(), 0.0)
            self._asked_at = self._monotonic() + pause_s
            self._asking = asyncio.get_running_loop().create_task(self._refresh(pause_s))
        return self._asking

    async def _refresh(self, pause_s: float) -> None:
        if pause_s:
            await asyncio.sleep(pause_s)
        began = self._monotonic()
        try:
            database = await self._database()
            found = await database.access_tokens(self._verifier.generation, timeout=ASK_TIMEOUT_S)
        except StelaeError as error:
            self._unanswered_at = self._monotonic()
            logger.warning("tokens cannot be asked for, those known hold: %s", error)
            return
        if found.tokens is not None:
            self._verifier.follow(found.tokens)
        self._known_at = began
