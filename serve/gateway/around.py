"""What is around a cluster and its masters do not know, for the front's answers: kept for a moment.

Servers that an operator stopped, machines that are away, and the spread that the spec asks for.
Who knows them may be slow or away (`ClusterSpecs.around`): an answer never waits for longer than
`ASK_S`, and one ask is under way at a time, however long it takes. What was told last stands until
then, with its age, and for `OLDEST_S` at most. Trouble on the way is shown, and never raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from math import isfinite
from typing import Any

from stelae.client.check.nodes import spread_warnings
from stelae.core.errors import StelaeError

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Ask = Callable[[], Awaitable[Document]]
KEPT_S = 5.0
"""Seconds for which an answer is good."""
ASK_S = 2.0
OLDEST_S = 30.0
_NOTHING: Document = {"stopped": [], "away": None, "spread": None}
_NOBODY: Document = {"since": {}, "servers": []}


class Around:
    """What was told last. One of a front; ``ask`` is None where nobody knows."""

    def __init__(self, ask: Ask | None, now: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._now = now
        self._told: Document = _NOTHING
        self._told_at = float("-inf")
        """When it was asked for."""
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Nobody waits any longer for what is asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

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
        if self._ask is None:
            return _NOTHING
        begins = self._asking is None and self._now() - self._asked_at >= KEPT_S
        if begins:
            self._asked_at = self._now()
            self._asking = asyncio.create_task(self._put(self._ask))
        if self._asking is not None and (begins or self._is_old()):
            left_s = ASK_S - (self._now() - self._asked_at)
            await asyncio.wait({self._asking}, timeout=max(0.0, left_s))
        return self._known()

    async def _put(self, ask: Ask) -> None:
        """Ask once, and keep what is told, or what has kept it from being told."""
        begun_at = self._now()
        try:
            self._told = await ask()
        except Exception as error:  # whatever it was: it is told, and the masters' answer stands
            text = str(error) or type(error).__name__
            if not isinstance(error, StelaeError):
                logger.warning("it is not known what is around: %s", text, exc_info=True)
            self._told = {**self._told, "stopped": [], "away": {**_NOBODY, "problem": text}}
        finally:
            self._asking = None
        self._told_at, self._asked_at = begun_at, self._now()

    def _is_old(self) -> bool:
        """Whether it is older than it may be where all goes well."""
        return self._now() - self._told_at >= KEPT_S + ASK_S

    def _known(self) -> Document:
        """What was told last, with its age if that is not as usual; nothing that is very old."""
        if not self._is_old():
            return self._told
        age_s = self._now() - self._told_at
        if age_s <= OLDEST_S:
            problem = f"what is said of it is {age_s:.0f} s old, and Ray does not answer now"
            return {**self._told, "away": {**(self._told["away"] or _NOBODY), "problem": problem}}
        since = f"for {age_s:.0f} s" if isfinite(age_s) else "yet"
        away = {**_NOBODY, "problem": f"Ray has not answered {since}"}
        return {**self._told, "stopped": [], "away": away}
