"""The hash index of a tablet: 64-bit key hash → position of the key's newest row (design §6).

The index knows hashes only. An entry is the pair (hash, position), so that keys whose hashes
collide stand beside each other; who asks compares keys on the rows themselves, over `candidates`. A
**position** is ``slot << 32 | row``: a segment's place in the tablet's memory, and a row of it.

Open addressing over one NumPy array (layout in `kernel_api`): 16 bytes a slot at a load of at most
`MAX_LOAD`, growing by `GROWTH`, hence at most 28 bytes an entry. Growing runs through both tables
in order and takes about 10 ns an entry.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stelae.storage.kernel_api import (
    EMPTY,
    I64,
    INDEX_WORDS,
    U64,
    Kernels,
    default_kernels,
    empty_table,
)

MAX_LOAD = 0.75
BUILD_LOAD = 0.66
GROWTH = 1.3
MIN_CAPACITY = 16
NONE = -1


def normal(array: NDArray[np.generic], kind: type[np.generic]) -> NDArray[np.generic]:
    """The array as kernels take it: one dimension, contiguous, aligned, of this type."""
    flags = array.flags
    if array.dtype == kind and flags.c_contiguous and flags.aligned:
        return array
    if array.dtype != kind and not np.can_cast(array.dtype, kind, "safe"):
        raise AssertionError(f"array of {array.dtype} where {kind.__name__} is needed")
    return np.require(array, kind, ["C", "A"])


class HashIndex:
    """See the module. Not thread-safe: it belongs to the event loop of its tablet server."""

    __slots__ = ("_capacity", "_count", "_given", "_slots", "_view")

    def __init__(self, kernels: Kernels | None = None) -> None:
        """An empty index. ``kernels`` is for tests and simulation; numba's by default."""
        self._given = kernels
        self._count = 0
        self._adopt(empty_table(MIN_CAPACITY, INDEX_WORDS))

    @staticmethod
    def build(hashes: U64, positions: I64, kernels: Kernels | None = None) -> HashIndex:
        """An index of these entries, e.g. the winners of a merge.

        Entries in the order of their hashes, as a merge gives them, take about 5 ns each; in any
        other order about 40 ns.
        """
        index = HashIndex(kernels)
        index._count = len(hashes)
        capacity = max(MIN_CAPACITY, math.ceil(len(hashes) / BUILD_LOAD))
        index._adopt(empty_table(capacity, INDEX_WORDS))
        index._kernels.table_insert(
            index._slots, _hashes(hashes), _positions(positions, len(hashes))
        )
        return index

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._slots.nbytes

    @property
    def _kernels(self) -> Kernels:
        if self._given is None:
            self._given = default_kernels()
        return self._given

    # ---- reading ----------------------------------------------------------------------------

    def find(self, hashes: U64) -> I64:
        """The position of the first entry with each hash, or -1."""
        found = np.empty(len(hashes), np.int64)
        self._kernels.table_find(self._slots, _hashes(hashes), found)
        return found

    def find_one(self, key_hash: int) -> int:
        """The position of the first entry with this hash, or -1. Plain Python: under 1 µs."""
        view, capacity = self._view, self._capacity
        s = (key_hash >> 32) * capacity >> 32
        while (position := view[2 * s + 1]) != EMPTY:
            if view[2 * s] == key_hash:
                return position
            s += 1
            if s == capacity:
                s = 0
        return NONE

    def candidates(self, key_hash: int) -> list[int]:
        """The positions of all entries with this hash: more than one where keys collide."""
        view, capacity = self._view, self._capacity
        found = []
        s = (key_hash >> 32) * capacity >> 32
        while (position := view[2 * s + 1]) != EMPTY:
            if view[2 * s] == key_hash:
                found.append(position)
            s = s + 1 if s + 1 < capacity else 0
        return found

    def plan(self, hashes: U64) -> I64:
        """What stands before each row of a batch that is to be written in order.

        For row i: ``-(j + 2)`` if j < i is the last earlier row of the batch with the same hash;
        otherwise the position of the first entry with that hash, or -1. Where hashes do not
        identify keys, the caller has yet to compare them.
        """
        prior = np.empty(len(hashes), np.int64)
        self._kernels.table_plan(self._slots, _hashes(hashes), prior)
        return prior

    # ---- writing ----------------------------------------------------------------------------

    def replace(self, hashes: U64, old: I64, new: I64) -> None:
        """Row by row, in order, put ``(hash, new)`` in the place of ``(hash, old)``.

        ``old == -1`` inserts, ``new == -1`` removes, both: nothing. Growing comes first, so that
        nothing is half done when memory runs out.

        Raises:
            AssertionError: there is no entry (hash, old); the index and the rows differ.
        """
        old, new = _positions(old, len(hashes)), _positions(new, len(hashes))
        self._reserve(int(np.count_nonzero((old == NONE) & (new != NONE))))
        gained, failed = self._kernels.table_replace(self._slots, _hashes(hashes), old, new)
        self._count += int(gained)
        if failed >= 0:
            raise AssertionError(f"no index entry ({int(hashes[failed])}, {int(old[failed])})")

    def replace_one(self, key_hash: int, old: int, new: int) -> None:
        """`replace` of one row. Moving an entry and inserting are plain Python, about 1 µs."""
        if old == NONE and new == NONE:
            return
        if new == NONE:
            self.replace(np.array([key_hash], np.uint64), np.array([old]), np.array([new]))
            return
        if old == NONE:
            self._reserve(1)
        wanted = EMPTY if old == NONE else old
        view, capacity = self._view, self._capacity
        s = (key_hash >> 32) * capacity >> 32
        while (position := view[2 * s + 1]) != EMPTY:
            if position == wanted and view[2 * s] == key_hash:
                break
            s = s + 1 if s + 1 < capacity else 0
        if position != wanted:
            raise AssertionError(f"no index entry ({key_hash}, {old})")
        view[2 * s] = key_hash
        view[2 * s + 1] = new
        self._count += old == NONE

    def _reserve(self, more: int) -> None:
        needed = self._count + more
        if needed <= self._capacity * MAX_LOAD:
            return
        capacity = max(math.ceil(self._capacity * GROWTH), math.ceil(needed / MAX_LOAD))
        larger = empty_table(capacity, INDEX_WORDS)
        self._kernels.table_rehash(self._slots, larger)
        self._adopt(larger)

    def _adopt(self, slots: U64) -> None:
        self._slots = slots
        self._view = slots.data
        self._capacity = len(slots) // INDEX_WORDS


def _hashes(hashes: U64) -> U64:
    return normal(hashes, np.uint64)  # type: ignore[return-value]


def _positions(positions: I64, rows: int) -> I64:
    if len(positions) != rows:
        raise AssertionError(f"{len(positions)} positions for {rows} hashes")
    return normal(positions, np.int64)  # type: ignore[return-value]
