"""Pages of shared memory that others have touched are mapped without a fault for each."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from unittest.mock import patch

import pytest

from stelae.runtime import mapped_ahead
from stelae.runtime.mapped_ahead import MappedAhead, map_resident

PAGES = 4096
SIZE = PAGES * mmap.PAGESIZE


class Shared:
    """Memory whose first half another process has written to."""

    def __init__(self) -> None:
        descriptor = os.memfd_create("shared")
        os.ftruncate(descriptor, SIZE)
        other = os.fork()
        if not other:
            written = mmap.mmap(descriptor, SIZE)
            for place in range(0, SIZE // 2, mmap.PAGESIZE):
                written[place] = 1
            os._exit(0)
        assert os.waitpid(other, 0)[1] == 0
        self.descriptor = descriptor
        self.memory = mmap.mmap(descriptor, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def taken_bytes(self) -> int:
        return os.fstat(self.descriptor).st_blocks * 512


def faults_of_writing(shared: Shared) -> int:
    """To what lies there already."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for place in range(0, SIZE // 2, mmap.PAGESIZE):
        shared.memory[place] = 2
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_lies_there_is_mapped_and_nothing_is_taken() -> None:
    """Pages that nobody has touched stay with the system."""
    shared = Shared()
    taken = shared.taken_bytes
    mapped = map_resident(shared.address, SIZE)
    if not mapped:
        pytest.skip("this kernel does not map ahead")
    assert mapped == SIZE // 2
    assert shared.taken_bytes == taken
    assert faults_of_writing(shared) < PAGES // 20
    assert faults_of_writing(Shared()) >= PAGES // 4, "there was nothing to be won"


def test_what_is_not_mapped_here_is_no_matter() -> None:
    """Past the end of a mapping there may be nothing at all."""
    assert map_resident(1 << 20, 16 << 20) == 0
    assert map_resident(Shared().address, 100) == 0


def test_the_window_moves_with_the_objects() -> None:
    """Each page once, while objects follow each other; anew where they begin elsewhere."""
    asked: list[tuple[int, int]] = []
    with patch.object(mapped_ahead, "map_resident", lambda *what: asked.append(what)):
        ahead = MappedAhead(100)
        ahead.put(1000, 10)
        for place in range(1010, 1200, 10):
            ahead.put(place, 10)
        assert asked[0] == (1010, 100)
        covered = [start for start, _ in asked[1:]]
        assert covered == [start + size for start, size in asked[:-1]], "gaps, or some twice"
        assert len(asked) <= 6
        ahead.put(50, 10)
        assert asked[-1] == (60, 100)
