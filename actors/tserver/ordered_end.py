"""A process that somebody ends by order, and whom it tells.

What it was opening then is not what it died of: the leader master has to know that before the
process has ended (`stelae.coordinator.backoff.owners`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from stelae.core.runtime import Clock

ENDS_FOR_S = 60.0
"""Who was told that its process ends soon, and still runs after that, is to go on."""


class OrderedEnd:
    """Whether this process may be ended by order at any moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = -math.inf
        self._is_known = asyncio.Event()

    def begin(self) -> None:
        """Somebody ends this process soon."""
        self._until = self._clock.monotonic() + ENDS_FOR_S
        self._is_known.clear()

    @property
    def is_near(self) -> bool:
        """What heartbeats say."""
        return self._clock.monotonic() < self._until

    def known(self) -> None:
        """The leader master has answered a heartbeat that says so."""
        self._is_known.set()

    async def wait_known(self, timeout_s: float) -> None:
        """Wait until the leader master knows. Without one the process ends all the same."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._is_known.wait()
