"""Sorted runs of index entries, which never change, and merging them.

Each entry of a run has a **writer** (a tablet in one epoch, by its number in its indexlet) and a
sequence, whose lowest bit says that the entry was taken out. Of the same entry in several runs that
of the greatest stamp counts, so runs may be merged in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.storage.indexes.keys import entries_of
from stelae.storage.kernels.api import I32, I64, U8, U64
from stelae.storage.kernels.index_api import U32, IndexKernels
from stelae.storage.keys.codec import binary_parts

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
    order = _order(entries, kernels)
    if order is not None:
        entries, writers, sequences = (
            entries.take(pa.array(order)),
            writers[order],
            sequences[order],
        )
    return _merged(entries, [len(entries)], writers, sequences, epochs, kernels)


def sorted_alike(entries: pa.BinaryArray, writer: int, sequence: int, kernels: IndexKernels) -> Run:
    """`sorted_run` of entries which all have one stamp, that is cheaper."""
    order = _order(entries, kernels)
    if order is not None:
        entries = entries.take(pa.array(order))
    count, kept = len(entries), np.empty(len(entries), np.int64)
    offsets, data = binary_parts(entries)
    bounds, epochs = np.array([0, count], np.int64), np.zeros(1, np.uint64)
    writers, stamps = np.zeros(count, np.uint32), np.zeros(count, np.uint64)
    left = kernels.merge_entries(offsets, data, bounds, writers, stamps, epochs, kept)
    return run_alike(
        entries if left == count else entries.take(pa.array(kept[:left])), writer, sequence
    )


def run_alike(entries: pa.BinaryArray, writer: int, sequence: int) -> Run:
    """A run of entries that are in order, each once, and have one stamp."""
    count = len(entries)
    stamps = np.full(count, writer, np.uint32), np.full(count, sequence, np.uint64)
    return Run(*binary_parts(entries), *stamps, count if sequence & REMOVED else 0)


def _order(entries: pa.BinaryArray, kernels: IndexKernels) -> I64 | None:
    """That sorts entries, equal ones as they come; None: they are in order."""
    offsets, data = binary_parts(entries)
    heads, skip = np.empty(len(entries), np.uint64), np.zeros(1, np.int64)
    if kernels.take_heads(offsets, data, heads, skip):
        return None
    order = np.argsort(heads)
    kernels.sort_ties(offsets, data, heads, int(skip[0]), order)
    return order


def merged(runs: Sequence[Run], epochs: U64, kernels: IndexKernels) -> Run:
    """All runs as one. May run off the loop; `entries` of all must fit into one array."""
    if len(runs) == 1:
        return runs[0]
    entries = pa.concat_arrays([run.entries() for run in runs])
    writers = np.concatenate([run.writers for run in runs])
    sequences = np.concatenate([run.sequences for run in runs])
    return _merged(entries, [run.length for run in runs], writers, sequences, epochs, kernels)


def _merged(
    entries: pa.BinaryArray,
    lengths: Sequence[int],
    writers: U32,
    sequences: U64,
    epochs: U64,
    kernels: IndexKernels,
) -> Run:
    """One run of those that lie one behind the other."""
    kept: I64 = np.empty(len(entries), np.int64)
    bounds = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    offsets, data = binary_parts(entries)
    count = kernels.merge_entries(offsets, data, bounds, writers, sequences, epochs, kept)
    if len(lengths) == 1 and count == len(entries):
        return run_of(entries, writers, sequences)
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
