"""Whether the masters answer, asked for by anybody, as ``/healthz`` needs no token.

Invariants: one question to the masters is under way, however many requests want its answer; an
answer, good or bad, holds for `FRESH_S`. So the masters get at most two questions a second from a
replica, and what ``/healthz`` says turns at most ``FRESH_S + ASK_TIMEOUT_S`` after the masters did.
The time is that of the database's runtime.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from stelae.client.database import AsyncDatabase
from stelae.core.errors import StelaeError

logger = logging.getLogger(__name__)

FRESH_S = 0.5
"""How long an answer holds."""
ASK_TIMEOUT_S = 1.0
"""Masters that leave a question unanswered so long are unhealthy."""


class Health:
    """See the module. Lives in one event loop."""

    def __init__(self, database: Callable[[], Awaitable[AsyncDatabase]]) -> None:
        self._database = database
        self._asking: asyncio.Task[None] | None = None
        self._found: StelaeError | None = None
        self._found_at = -math.inf

    async def check(self) -> StelaeError | None:
        """What keeps the masters from answering; None: they answer."""
        database = await self._database()
        if database.runtime.clock.monotonic() >= self._found_at + FRESH_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(database), name="health")
            # Whoever goes away ends nothing that others wait for.
            await asyncio.shield(self._asking)
        return self._found

    async def _ask(self, database: AsyncDatabase) -> None:
        try:
            await database.tables(timeout=ASK_TIMEOUT_S)
        except StelaeError as error:
            logger.warning("unhealthy: %s", error)
            self._found = error
        else:
            self._found = None
        self._found_at = database.runtime.clock.monotonic()

    async def close(self) -> None:
        """End the question that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
