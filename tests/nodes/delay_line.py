"""A line between two network interfaces that delays frames and loses some: ``tc netem`` in Python.

    python -m tests.nodes.delay_line INNER OUTER DELAY_S LOSS SEED

Makes two tap interfaces and carries frames between them. Each frame arrives ``DELAY_S`` seconds
later, in order, or with probability ``LOSS`` not at all. The kernels of containers and small
virtual machines often lack netem. The interfaces vanish with this process. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
FRAME_BYTES_MAX = 1 << 16
WAITING_BYTES_MAX = 64 << 20
"""Bytes on their way in one direction. What comes beyond that is lost, as in a full queue."""
READY = "ready"
"""The line on standard output that says that both interfaces are there."""
BURST = 64
"""Frames read from an interface before those that are due are written."""


def open_tap(name: str) -> int:
    """Make a tap interface, and return its file, which never blocks."""
    opened = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(opened, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return opened


@dataclass(slots=True)
class Direction:
    """Frames from one interface to the other."""

    source: int
    target: int
    delay_s: float
    loss: float
    rng: random.Random
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    waiting_bytes: int = 0

    def take(self, now: float) -> None:
        """Read what has come."""
        for _ in range(BURST):
            try:
                frame = os.read(self.source, FRAME_BYTES_MAX)
            except OSError:  # nothing has come, or the interface is down
                return
            if self.rng.random() < self.loss or self.waiting_bytes > WAITING_BYTES_MAX:
                continue
            self.waiting.append((now + self.delay_s, frame))
            self.waiting_bytes += len(frame)

    def give(self, now: float) -> None:
        """Write what is due. An interface that is down loses it."""
        while self.waiting and self.waiting[0][0] <= now:
            frame = self.waiting.popleft()[1]
            self.waiting_bytes -= len(frame)
            try:
                os.write(self.target, frame)
            except OSError:
                continue

    def wait_s(self, now: float) -> float | None:
        """Seconds until a frame is due; None: there is none."""
        return max(0.0, self.waiting[0][0] - now) if self.waiting else None


def carry(directions: list[Direction]) -> None:
    """Carry frames until this process is ended."""
    poll = select.epoll()
    for each in directions:
        poll.register(each.source, select.EPOLLIN)
    while True:
        now = time.monotonic()
        waits = [wait_s for each in directions if (wait_s := each.wait_s(now)) is not None]
        poll.poll(min(waits, default=None))
        for each in directions:
            now = time.monotonic()
            each.take(now)
            each.give(now)


def main() -> None:
    inner, outer, delay_s, loss, seed = sys.argv[1:]
    first, second = open_tap(inner), open_tap(outer)
    print(READY, flush=True)
    rng = random.Random(int(seed))
    carry(
        [
            Direction(first, second, float(delay_s), float(loss), rng),
            Direction(second, first, float(delay_s), float(loss), rng),
        ]
    )


if __name__ == "__main__":
    main()
