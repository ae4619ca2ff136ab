"""Who waits for a tablet's log, and what ended it: the same for every durability.

Invariants: `committed_index` only grows once writes are waited for; whoever waits is answered when
it gets there, by the deadline, or when the log fails, whatever comes first; a log fails once, and
nothing is acknowledged from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from stelae.core.deadlines import Deadlines
from stelae.core.errors import StelaeError


class LogWaits:
    """What logs have in common. All methods run on the event loop."""

    def __init__(self, on_failed: Callable[[StelaeError], None]) -> None:
        self.committed_index = 0
        """All entries up to here count."""
        self._on_failed = on_failed
        self._failure: StelaeError | None = None
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        # A timer of its own for each write would cost as much as writing it down.
        self._deadlines: Deadlines | None = None
        self._expiring: dict[int, asyncio.Future[None]] = {}
        self._waits = 0
        self._observers: list[asyncio.Future[None]] = []

    async def wait_committed(self, index: int, timeout_s: float) -> None:
        """Wait until the entry ``index`` and everything before it count.

        Raises:
            TimeoutError: they do not in time.
            StaleTerm: the log was fenced (or whatever else ended it).
        """
        if index <= self.committed_index:
            return
        self.check_alive()
        loop = asyncio.get_running_loop()
        if self._deadlines is None:
            self._deadlines = Deadlines(loop, self._expire)
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append((index, waiter))
        self._waits += 1
        number = self._waits
        self._expiring[number] = waiter
        bucket = self._deadlines.add(number, loop.time() + timeout_s)
        try:
            await waiter
        finally:
            self._deadlines.remove(number, bucket)
            del self._expiring[number]

    def _expire(self, number: int) -> None:
        waiter = self._expiring.get(number)
        if waiter is not None and not waiter.done():
            waiter.set_exception(TimeoutError())

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until the log has got so far that ``holds()``. Raises what ended it."""
        while not holds():
            self.check_alive()
            observer = asyncio.get_running_loop().create_future()
            self._observers.append(observer)
            await observer

    def _answer(self) -> None:
        """Answer all who waited for what is committed by now; have the others look again."""
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.committed_index:
            _, waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._wake_observers()

    def _wake_observers(self) -> None:
        observers, self._observers = self._observers, []
        for observer in observers:
            if not observer.done():
                observer.set_result(None)

    @property
    def has_failed(self) -> bool:
        """Whether something has ended the log: nothing is begun any more."""
        return self._failure is not None

    def check_alive(self) -> None:
        """Raise what ended the log, if something did."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: StelaeError) -> None:
        """Another server owns the tablet, or this one gives it up: nothing is acknowledged any
        more."""
        if self._failure is not None:
            return
        self._failure = error
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        if self._deadlines is not None:
            self._deadlines.close()
        self._wake_observers()
        self._on_failed(error)
