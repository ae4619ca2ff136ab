"""Memory for large reads and merges, used again and again.

The first touch of a page costs more than the copy into it, and several times more in a virtual
machine; a backup that serves a recovery would pay it for each image, and whoever merges for each
tablet. A buffer comes back by itself when the last view of it is gone, wherever that is: in a reply
that went out, on a thread.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np

from stelae.core.memory import populate

_ROUNDING_BYTES = 1 << 20


class BufferPool:
    """Buffers of at least the size asked for. All methods may be called on any thread."""

    def __init__(self, kept_bytes: int) -> None:
        """``kept_bytes``: what may lie here unused; more goes back to the system."""
        self._kept_bytes = kept_bytes
        self._free: deque[mmap.mmap] = deque()

    @property
    def free_bytes(self) -> int:
        """What lies here unused."""
        return sum(len(memory) for memory in tuple(self._free))

    def take(self, size: int) -> memoryview:
        """``size`` bytes, of any content, for as long as this view or one made from it is alive."""
        memory = self._find(size)
        holder = np.frombuffer(memory, np.uint8)
        weakref.finalize(holder, self._give_back, memory).atexit = False
        return holder[:size].data

    def _find(self, size: int) -> mmap.mmap:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was quicker
                break
            if len(memory) >= size:
                return memory
            self._free.appendleft(memory)
        # Not a bytearray, which would write its zeros page by page.
        # Of few sizes, so that one serves for the next that is a little larger.
        rounding = max(_ROUNDING_BYTES, 1 << max(0, size.bit_length() - 3))
        size_bytes = max(1, -(-size // rounding)) * rounding
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        populate(memory)
        return memory

    def clear(self) -> None:
        """Give what lies here unused back to the system."""
        self._free.clear()

    def _give_back(self, memory: mmap.mmap) -> None:
        """Runs where the last view ends, on any thread: a deque's ends are safe for that."""
        if self.free_bytes + len(memory) <= self._kept_bytes:
            self._free.append(memory)
