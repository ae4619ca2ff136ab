"""Memory for large reads and merges: who holds a view keeps its bytes; the rest is used again."""

from __future__ import annotations

import mmap

import pyarrow as pa

from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.buffers import BufferPool
from stelae.core.memory import populate

MIB = 1 << 20


def test_a_buffer_is_used_again_only_when_its_last_view_is_gone() -> None:
    """A slice, or an Arrow buffer over it, keeps the memory as well as the view itself."""
    pool = BufferPool(8 * MIB)
    view = pool.take(MIB)
    view[:4] = b"held"
    kept = pa.py_buffer(view[:4])
    del view
    other = pool.take(MIB)
    other[:4] = b"new."
    assert kept.to_pybytes() == b"held"
    assert pool.free_bytes == 0
    del kept
    assert pool.free_bytes == MIB
    again = pool.take(MIB // 2)
    assert pool.free_bytes == 0
    assert bytes(again[:4]) == b"held"
    assert again.nbytes == MIB // 2


def test_a_larger_buffer_than_those_at_hand_is_made_anew() -> None:
    """What is too small stays for others."""
    pool = BufferPool(8 * MIB)
    del (small := {"view": pool.take(MIB)})["view"]
    assert not small
    large = pool.take(3 * MIB - 5)
    assert large.nbytes == 3 * MIB - 5
    assert pool.free_bytes == MIB
    del large
    assert pool.free_bytes == 4 * MIB


def test_a_pool_keeps_no_more_than_it_may() -> None:
    """The rest goes back to the system."""
    pool = BufferPool(2 * MIB)
    views = [pool.take(MIB) for _ in range(4)]
    views.clear()
    assert pool.free_bytes == 2 * MIB


def test_populating_memory_keeps_what_it_holds() -> None:
    """It is advice: small buffers are left alone, and no byte changes."""
    assert not populate(bytearray(100))
    held = bytearray(range(256)) * 4096
    before = bytes(held)
    populate(memoryview(held)[5:-7])
    assert held == before
    fresh = mmap.mmap(-1, 4 * MIB)
    assert populate(memoryview(fresh)[100 : 3 * MIB])
    assert fresh[:] == bytes(4 * MIB)


def test_memory_of_fetches_is_given_back_when_the_last_tablet_is_there() -> None:
    """Until then the next fetch has it."""
    intake = Intake()
    with intake.opening():
        with intake.opening():
            intake.images.take(MIB)
        assert intake.images.free_bytes == MIB
    assert intake.images.free_bytes == 0
