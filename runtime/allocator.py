"""Which allocator a server's process uses, so that memory that was freed goes back to the system.

Bulk writes bring buffers of megabytes that live for seconds: what comes in, what sealing joins,
images on their way to shared memory. Arrow's own allocator keeps such memory for its next use, each
thread for itself, and glibc learns to do so (its threshold for mapping grows with what is freed):
after a load a tablet server held as much free memory as rows. With a fixed threshold, large buffers
are mapped when they are made and unmapped when they are let go, for about 0.1 ms per MiB.

Source: mallopt(3), M_MMAP_THRESHOLD, M_TRIM_THRESHOLD; design §6 (memory).
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

MAPPED_BYTES = 1 << 20
"""Buffers from this size on are mapped one by one."""
TRIM_BYTES = 8 << 20
"""So much freed memory at the end of a heap goes back to the system."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_freed_memory_back() -> None:
    """Set this process's allocators up; before it allocates much.

    Raises:
        AssertionError: glibc does not take the settings.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return  # musl, which maps large buffers one by one as it is
    for setting, value in ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES)):
        assert mallopt(setting, value) == 1, f"mallopt({setting}, {value}) was refused"
