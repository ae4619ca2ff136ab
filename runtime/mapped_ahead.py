"""Pages of shared memory that lie there already, mapped before they are written.

A process that writes to shared memory for the first time takes a fault for each page, also where
the page itself is there, as another process had it before. Mapped ahead, sixteen come at once, and
without a fault of their own: half a gigabyte is copied in 0.12 s instead of 0.27. So after each
object that was put, the pages behind it are mapped: that is where the next one comes to lie,
mostly. Only advice: where the kernel does not know it (before Linux 5.14), or where objects lie
elsewhere, everything works as it did.

Invariant: no memory is taken: what does not lie there yet is left alone.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

import numpy as np

WINDOW_BYTES = 64 << 20
_MADV_POPULATE_READ = 22  # of <linux/mman.h>
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_resident(address: int, size_bytes: int) -> int:
    """Map those pages of a mapping of this process that lie in memory; how many bytes these are."""
    page = mmap.PAGESIZE
    start, count = address & -page, size_bytes // page
    found = np.zeros(count, np.uint8)
    if not count or _libc.mincore(start, count * page, found.ctypes.data) != 0:
        return 0  # there is not so much
    edges = np.flatnonzero(np.diff(found & 1, prepend=0, append=0)).tolist()
    mapped = 0
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        size = (end - first) * page
        if _libc.madvise(start + first * page, size, _MADV_POPULATE_READ) != 0:
            break
        mapped += size
    return mapped


class MappedAhead:
    """What is mapped behind the object that was put last. May be used on any thread."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._lock = threading.Lock()
        self._start = self._end = 0

    def put(self, address: int, size_bytes: int) -> None:
        """An object has come to lie there: have the pages behind it mapped."""
        end = address + size_bytes
        with self._lock:
            is_within = self._start <= address <= self._end
            if is_within and self._end - end >= self._window_bytes // 2:
                return
            begin = max(end, self._end) if is_within else end
            last = end + self._window_bytes
            self._start, self._end = address, last
        map_resident(begin, last - begin)
