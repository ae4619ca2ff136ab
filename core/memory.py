"""New memory, asked of the kernel in large pieces before it is filled.

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
