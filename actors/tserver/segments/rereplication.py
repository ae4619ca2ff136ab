"""What all logs of one server share when they place segment replicas, and make lost ones anew.

How many replicas are on each backup, for placement by load; and turns at sending what is made anew:
a few at a time, at a bounded rate, segments with the fewest replicas left first. Heads, and what is
sealed for the first time, take no turns: writes and recoveries wait for them. Nor does what has
nowhere to go: the fewer replicas a segment has, the more turns it would take from all others. The
rate is spent on what is sent, and on nothing else.

Source: RAMCloud ``BackupSelector``, ``TaskQueue`` (bounded work in flight). The
rate is bounded because a flood of background calls starved writes in RAMCloud.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stelae.core.ids import ServerUuid
from stelae.core.records.losses import Shortage
from stelae.core.runtime import Clock

TURNS = 4
"""Segments that one server sends at a time: as long as backups that do not answer hold up half of
the turns, the rest go on at the bounded rate."""
AFTER_ALL = 1 << 16
"""Replicas left, as it were, of what waits until nothing else does."""


@dataclass(order=True, slots=True)
class _Waiter:
    left: int
    """Replicas that the segment has."""
    number: int
    granted: asyncio.Event = field(compare=False, default_factory=asyncio.Event)
    gone: bool = field(compare=False, default=False)


class ReplicaUpkeep:
    """One server's. All methods run on its event loop."""

    def __init__(self) -> None:
        self.placed: dict[ServerUuid, int] = {}
        """Replicas of all its logs, by backup."""
        self._waiting: list[_Waiter] = []
        self._running = 0
        self._number = 0
        self._free_at_s = 0.0

    def put(self, backup: ServerUuid) -> None:
        """A replica is there from now on."""
        self.placed[backup] = self.placed.get(backup, 0) + 1

    def take(self, backup: ServerUuid) -> None:
        """One is there no more."""
        left = self.placed[backup] - 1
        if left:
            self.placed[backup] = left
        else:
            del self.placed[backup]

    @asynccontextmanager
    async def turn(self, left: int) -> AsyncIterator[None]:
        """Hold a turn at sending a replica of a segment that has ``left`` others."""
        self._number += 1
        waiter = _Waiter(left, self._number)
        heapq.heappush(self._waiting, waiter)
        self._grant()
        try:
            await waiter.granted.wait()
            yield
        finally:
            waiter.gone = True
            if waiter.granted.is_set():
                self._running -= 1
                self._grant()

    async def pace(self, clock: Clock, size_bytes: int, bytes_per_s: float) -> None:
        """Within a turn: wait until so much may be sent, now that there is what to send.

        ``bytes_per_s``: of all turns together; 0: no bound.
        """
        if bytes_per_s <= 0:
            return
        now = clock.monotonic()
        pause_s = self._free_at_s - now
        self._free_at_s = max(now, self._free_at_s) + size_bytes / bytes_per_s
        if pause_s > 0:
            await clock.sleep(pause_s)

    def _grant(self) -> None:
        while self._waiting and self._running < TURNS:
            waiter = heapq.heappop(self._waiting)
            if not waiter.gone:
                self._running += 1
                waiter.granted.set()


class ShortageWatch:
    """How far one log is from having all its replicas, since it last had."""

    def __init__(self) -> None:
        self._segments_at_most = 0
        self._bytes_at_most = 0

    def look(self, segments: int, size_bytes: int, unheld: int = 0) -> Shortage | None:
        """``segments`` of so many bytes lack replicas, ``unheld`` of them all; None: none does."""
        if not segments:
            self._segments_at_most = self._bytes_at_most = 0
            return None
        self._segments_at_most = max(self._segments_at_most, segments)
        self._bytes_at_most = max(self._bytes_at_most, size_bytes)
        most = (self._segments_at_most, self._bytes_at_most)
        return Shortage(segments, size_bytes, *most, unheld)
