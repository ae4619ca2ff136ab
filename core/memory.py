"""New memory, asked of the kernel in large pieces before it is filled; and memory that grows.

A page that is touched for the first time costs a fault of its own; asked for ahead, many come in
one call, for about half the time. Only advice: where the kernel knows no such call (before Linux
5.14), everything works as it did.
"""

from __future__ import annotations

import ctypes
import mmap

from stelae.core.rpc import Blob

POPULATE_BYTES_MIN = 256 * 1024
_MADV_POPULATE_WRITE = 23  # of <linux/mman.h>; keeps what the pages hold
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def populate(buffer: Blob) -> bool:
    """Have all pages of a writable buffer in place; false if there is no need, or no way."""
    view = memoryview(buffer)
    if view.nbytes < POPULATE_BYTES_MIN:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B")))
    start = address & -mmap.PAGESIZE
    return int(_madvise(start, address + view.nbytes - start, _MADV_POPULATE_WRITE)) == 0


class GrowingMemory:
    """Memory that keeps its pages when it grows: the kernel moves them to other addresses."""

    __slots__ = ("_memory",)

    def __init__(self, size_bytes: int) -> None:
        """Of no content yet, nor in place."""
        self._memory = _mapped(size_bytes)

    @property
    def size_bytes(self) -> int:
        return len(self._memory)

    def view(self) -> memoryview:
        """All of it. While a view is alive, it cannot grow."""
        return memoryview(self._memory)

    def grow(self, size_bytes: int) -> None:
        """Have at least this size; what is there stays. Raises BufferError: a view is alive."""
        size_bytes = _whole_pages(size_bytes)
        try:
            self._memory.resize(size_bytes)
        except SystemError:  # a kernel without mremap
            larger = _mapped(size_bytes)
            larger[: len(self._memory)] = self._memory[:]
            self._memory = larger


def _mapped(size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, _whole_pages(size_bytes), flags=flags)


def _whole_pages(size_bytes: int) -> int:
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
