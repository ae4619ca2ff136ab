"""What is around a cluster and its masters do not know, for the front's answers: kept for a moment.

Servers that an operator stopped, machines that are away, and the spread that the spec asks for.
Who knows them may be slow or away (`ClusterSpecs.around`): an answer never waits for longer than
`ASK_S`, and what was told last stands until then. Trouble on the way is shown, and never raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from stelae.client.check.nodes import spread_warnings
from stelae.core.errors import StelaeError

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Ask = Callable[[float], Awaitable[Document]]
KEPT_S = 5.0
"""Seconds for which an answer is good."""
ASK_S = 2.0
_NOTHING: Document = {"stopped": [], "away": None, "spread": None}


class Around:
    """What was told last. One of a front; ``ask`` is None where nobody knows."""

    def __init__(self, ask: Ask | None, now: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._now = now
        self._told: Document = _NOTHING
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def stopped(self) -> Collection[str]:
        """Names of servers that an operator stopped."""
        return list((await self._look())["stopped"])

    async def added(self, status: Mapping[str, Any]) -> Document:
        """A status document with ``stopped``, ``away`` and ``warnings`` in addition."""
        told = await self._look()
        live = {each["id"] for each in status["servers"] if each["state"] == "live"}
        spread = told["spread"]
        warnings = [] if spread is None else spread_warnings(status, has_racks=spread == "rack")
        stopped = [name for name in told["stopped"] if name not in live]
        return {**status, "stopped": stopped, "away": told["away"], "warnings": warnings}

    async def _look(self) -> Document:
        async with self._asking:
            if self._ask is None or self._now() - self._asked_at < KEPT_S:
                return self._told
            self._asked_at = self._now()
            try:
                self._told = await self._ask(ASK_S)
            except (
                Exception
            ) as error:  # whatever it was: it is told, and the masters' answer stands
                text = str(error) or type(error).__name__
                if not isinstance(error, StelaeError):
                    logger.warning("it is not known what is around: %s", text, exc_info=True)
                away = {"since": {}, "servers": [], "problem": text}
                self._told = {**self._told, "away": away}
            return self._told
