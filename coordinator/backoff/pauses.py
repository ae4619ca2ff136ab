"""What was done, or failed, a moment ago, and is left alone for a while. Pure.

Names of what the coordinator does contain terms and entries, so there are ever new ones: whatever
is over is forgotten, at the latest when as many have come again as were left after the last time.
So this never holds more than twice what truly waits, and a little.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
LEAST = 100
"""So many are no burden."""


class Pauses(Generic[K]):
    """Until when each key is to be left alone."""

    def __init__(self) -> None:
        self._until: dict[K, float] = {}
        self._limit = LEAST

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, key: K, until: float, now: float) -> None:
        """Leave it alone until then, from ``now`` on."""
        self._until[key] = until
        if len(self._until) > self._limit:
            self._until = {k: end for k, end in self._until.items() if end > now}
            self._limit = 2 * len(self._until) + LEAST

    def is_over(self, key: K, now: float) -> bool:
        """Whether it may be done again, or was never paused."""
        return now >= self._until.get(key, now)
