"""Sorted runs of index entries, which never change, and merging them.

Each entry of a run has a **writer** (a tablet in one epoch, by its number in its indexlet) and a
sequence, whose lowest bit says that the entry was taken out. Of the same entry in several runs that
of the greatest stamp counts, so runs may be merged in any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.storage.index_kernel_api import U32, IndexKernels
from stelae.storage.index_keys import entries_of
from stelae.storage.kernel_api import I32, I64, U8, U64
from stelae.storage.keys import binary_parts

REMOVED = 1
"""The bit of a sequence that says so."""


class Run(NamedTuple):
    """Entries in ascending order, each once."""

    offsets: I32
    data: U8
    writers: U32
    sequences: U64
    """Shifted by one, with `REMOVED`."""
    removed_count: int = 0
    """Of a whole run: so many of its entries were taken out."""

    @property
    def length(self) -> int:
        return len(self.writers)

    @property
    def data_bytes(self) -> int:
        """Of the entries themselves."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def nbytes(self) -> int:
        arrays = (self.offsets, self.writers, self.sequences)
        return self.data_bytes + sum([array.nbytes for array in arrays])

    def entry(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def find(self, entry: bytes, kernels: IndexKernels) -> int:
        """The place of the first entry that is not below."""
        return int(kernels.find_entry(self.offsets, self.data, np.frombuffer(entry, np.uint8)))

    def part(self, begin: int, end: int) -> Run:
        """Some of its entries, nothing copied."""
        offsets = self.offsets[begin : end + 1]
        return Run(offsets, self.data, self.writers[begin:end], self.sequences[begin:end])

    def entries(self) -> pa.BinaryArray:
        """As an Arrow array, nothing copied."""
        return entries_of(self.offsets, self.data)


def run_of(entries: pa.BinaryArray, writers: U32, sequences: U64) -> Run:
    """A run of entries that are in order."""
    removed = int(np.count_nonzero(sequences & np.uint64(REMOVED)))
    return Run(*binary_parts(entries), writers, sequences, removed)


def sorted_run(
    entries: pa.BinaryArray,
    writers: U32,
    sequences: U64,
    epochs: U64,
    kernels: IndexKernels,
) -> Run:
    """A run of entries in any order, perhaps some more than once. ``epochs``: of all writers."""
    offsets, data = binary_parts(entries)
    order, spare = np.empty((2, len(entries)), np.int64)
    kernels.sort_entries(offsets, data, order, spare)
    entries = entries.take(pa.array(order))
    return _kept(entries, len(entries), writers[order], sequences[order], epochs, kernels)


def merged(runs: Sequence[Run], epochs: U64, kernels: IndexKernels) -> Run:
    """All runs as one. May run off the loop; `entries` of all must fit into one array."""
    waiting = [(run.length, i, run) for i, run in enumerate(runs)]
    heapq.heapify(waiting)
    while len(waiting) > 1:
        _, i, first = heapq.heappop(waiting)
        second = heapq.heappop(waiting)[2]
        both = _merged(first, second, epochs, kernels)
        heapq.heappush(waiting, (both.length, i, both))
    return waiting[0][2]


def _merged(first: Run, second: Run, epochs: U64, kernels: IndexKernels) -> Run:
    entries = pa.concat_arrays([first.entries(), second.entries()])
    writers = np.concatenate((first.writers, second.writers))
    sequences = np.concatenate((first.sequences, second.sequences))
    return _kept(entries, first.length, writers, sequences, epochs, kernels)


def _kept(
    entries: pa.BinaryArray,
    middle: int,
    writers: U32,
    sequences: U64,
    epochs: U64,
    kernels: IndexKernels,
) -> Run:
    """One run of the two that end at ``middle`` and at the end."""
    kept: I64 = np.empty(len(entries), np.int64)
    offsets, data = binary_parts(entries)
    count = kernels.merge_entries(offsets, data, middle, writers, sequences, epochs, kept)
    order = kept[:count]
    return run_of(entries.take(pa.array(order)), writers[order], sequences[order])


def chosen(run: Run, wanted: NDArray[np.bool_]) -> Run:
    """The entries that are wanted."""
    if wanted.all():
        return run
    entries = run.entries().filter(pa.array(wanted))
    return run_of(entries, run.writers[wanted], run.sequences[wanted])


def compacted(
    runs: Sequence[Run],
    epochs: U64,
    wanted: Callable[[Run], NDArray[np.bool_]],
    kernels: IndexKernels,
) -> Run:
    """What is wanted of some runs, as one. May run off the loop."""
    whole = merged(runs, epochs, kernels)
    return chosen(whole, wanted(whole))
