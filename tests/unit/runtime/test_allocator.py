"""Freed memory goes back to the system, whatever was allocated before."""

import subprocess
import sys

PROGRAM = """
import pyarrow as pa
from stelae.runtime.allocator import give_freed_memory_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def filled(size):
    buffer = pa.allocate_buffer(size)
    memoryview(buffer).cast("B")[:] = bytes(size)
    return buffer

if {settings}:
    give_freed_memory_back()
filled(24 << 20)
before = resident()
buffers = [filled(4 << 20) for _ in range(32)]
last = pa.allocate_buffer(512 << 10)
taken = resident() - before
del buffers
print(taken, resident() - before)
"""


def _grown(*, settings: bool) -> tuple[int, int]:
    """What 128 MiB of buffers add to a process: while they are held, and after."""
    program = PROGRAM.format(settings=settings)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    held, left = map(int, done.stdout.split())
    return held, left


def test_large_buffers_go_back_to_the_system_when_they_are_freed() -> None:
    """What a load took for a while is not held for ever, also after larger buffers were freed."""
    held, left = _grown(settings=True)
    assert held > 120 << 20
    assert left < 16 << 20
