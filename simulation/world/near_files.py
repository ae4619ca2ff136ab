"""Files of other simulated servers on the same machine, as they are while their servers write.

Whether bytes lie in memory is chance, and whether they are those of before: the frames may be
another's since, or half written at this moment: from some place on, or in a spot, the bytes are
others. The file is what it was when it was opened, whatever has become of its name and its server
since. See `stelae.core.runtime.NearFile`.
"""

from __future__ import annotations

import random

from stelae.simulation.world.content import Content
from stelae.simulation.world.process import Process

CACHED_PROBABILITY = 0.8
UNLIKE_PROBABILITY = 0.2
SPOT_BYTES = 64
"""Of a spot that is unlike amid what is as it was."""


class SimNearFile:
    """See the module."""

    def __init__(self, content: Content, process: Process, rng: random.Random) -> None:
        self._content = content
        self._process = process
        self._rng = rng
        self._closed = False

    def read_cached(self, offset: int, length: int) -> bytes | None:
        self._process.check()
        content = self._content
        if self._closed or content.unreadable or self._rng.random() >= CACHED_PROBABILITY:
            return None
        data = content.live[offset : offset + length]
        if len(data) < length:
            return None
        if data and self._rng.random() < UNLIKE_PROBABILITY:
            first = self._rng.randrange(length) if self._rng.random() < 0.5 else 0
            last = length
            if self._rng.random() < 0.5:  # what has the end that was expected may be another's too
                last = min(length, first + 1 + self._rng.randrange(SPOT_BYTES))
            bit = 1 << self._rng.randrange(7)  # letters stay letters: believed, they are rows
            spot = data[first:last].translate(bytes([byte ^ bit for byte in range(256)]))
            data[first:last] = spot
        return bytes(data)

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        data = self.read_cached(offset, len(buffer))
        if data is not None:
            buffer[:] = data
        return data is not None

    def close(self) -> None:
        self._closed = True
