"""Room to send in: a bound on the bytes queued, and a fair line of those who wait for room.

Invariants: whoever came first is let in first; what was let in fits the bound, unless it is alone
and larger than the bound itself (else it could never be sent).
"""

from __future__ import annotations

import asyncio
from collections import deque

from stelae.core.errors import Overloaded


class Room:
    """Counts the bytes accepted for sending and not yet given to the transport."""

    def __init__(self, what: str, limit_bytes: int, waiting_max: int) -> None:
        self.queued_bytes = 0
        self._what = what
        self._limit_bytes = limit_bytes
        self._waiting_max = waiting_max
        self._granted_bytes = 0  # to those let in who have not run yet
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed = False

    def has(self, size: int) -> bool:
        """Whether ``size`` bytes may be sent now, without overtaking anyone who waits."""
        return not self._waiters and self._fits(size)

    @property
    def full(self) -> bool:
        return self.queued_bytes > self._limit_bytes

    @property
    def half_empty(self) -> bool:
        return self.queued_bytes <= self._limit_bytes // 2

    def _fits(self, size: int) -> bool:
        taken = self.queued_bytes + self._granted_bytes
        return taken == 0 or taken + size <= self._limit_bytes

    async def wait(self, size: int, timeout_s: float) -> None:
        """Wait for one's turn; the caller then sends before it awaits anything else.

        Returns too when the connection ends. Raises Overloaded; nothing was sent then.
        """
        if len(self._waiters) >= self._waiting_max:
            raise Overloaded(f"the line of calls waiting for {self._what}", self._waiting_max)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, waiter)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if entry in self._waiters:
                self._waiters.remove(entry)
            else:
                self._give_back(size)
            self.let_in()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Overloaded(f"the queue of bytes for {self._what}", self._limit_bytes) from None
        # Nobody is let in here: the caller counts its bytes as queued only now.
        self._give_back(size)

    def _give_back(self, size: int) -> None:
        if not self._closed:
            self._granted_bytes -= size

    def let_in(self) -> None:
        """Wake those for whom there is room."""
        while self._waiters and self._fits(self._waiters[0][0]):
            size, waiter = self._waiters.popleft()
            self._granted_bytes += size
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Wake all: the connection has ended."""
        self._closed = True
        self.queued_bytes = self._granted_bytes = 0
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
