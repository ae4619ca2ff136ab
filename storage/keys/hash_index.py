"""The hash index of a tablet: 64-bit key hash → position of the key's newest row (design §6).

The index knows hashes only. An entry is the pair (hash, position), so that keys whose hashes
collide stand beside each other; who asks compares keys on the rows themselves, over `candidates`. A
**position** is ``slot << 32 | row``: a segment's place in the tablet's memory, and a row of it.

Open addressing over one NumPy array (layout in `kernels.api`): 16 bytes a slot at a load of at most
`MAX_LOAD`, hence at most 32 bytes an entry, of which 28 or less are in use.

It grows along with what is written, a little with each row, so that no write waits for a whole
table, and in place, so that memory is touched for the first time once only. The **home** of an
entry, where probing for it begins, is its hash's share of the slots: homes rise with the hashes,
and with the number of slots. So once the table has become longer, entries move to their new homes
from the end on: those whose home among the ``base`` former slots is below the **border** are still
there, all others where the longer table has them. At every moment it is one table, whatever the
border: probing, inserting and removing need to know homes only. While it does not grow, base and
border are the number of slots.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stelae.core.memory import GrowingMemory
from stelae.storage.kernels.api import (
    EMPTY,
    I64,
    INDEX_WORDS,
    U64,
    Kernels,
    check_capacity,
    make_ready,
)
from stelae.storage.kernels.default import default_kernels

ROW_MASK = (1 << 32) - 1
SLOT_SHIFT = 32
"""A position is ``slot << SLOT_SHIFT | row``, a slot being a segment's place in memory."""
MAX_LOAD = 0.75
BUILD_LOAD = 0.66
GROWTH = 1.3
GROW_FROM_LOAD = 0.65
SLOTS_PER_ROW = math.ceil(1.1 * GROWTH / (MAX_LOAD - GROW_FROM_LOAD))
"""New ones made ready and old ones emptied, for each row that comes while it grows: done before the
load is `MAX_LOAD`."""
SLOTS_AT_ONCE = 4096  # fewer are not worth a call
_SLOT_BYTES = 8 * INDEX_WORDS
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


def slots_for(entries: int) -> int:
    """How many an index is built with."""
    return max(MIN_CAPACITY, math.ceil(entries / BUILD_LOAD))


class HashIndex:
    """See the module. Not thread-safe: it belongs to the event loop of its tablet server."""

    __slots__ = (
        "_base",
        "_border",
        "_capacity",
        "_count",
        "_given",
        "_grow_from",
        "_memory",
        "_owed",
        "_ready",
        "_slots",
        "_target",
        "_view",
    )

    def __init__(self, kernels: Kernels | None = None, capacity: int = MIN_CAPACITY) -> None:
        """An empty index. ``kernels`` is for tests and simulation; numba's by default."""
        check_capacity(capacity)
        self._given = kernels
        self._count = 0
        self._memory = GrowingMemory(capacity * _SLOT_BYTES)
        self._slots = np.frombuffer(self._memory.view(), np.uint64, capacity * INDEX_WORDS)
        make_ready(self._slots)
        self._base = self._border = capacity
        self._grow_from = 0
        self._target = 0  # slots of the longer table, while it grows
        self._ready = 0  # of these, so many are in place
        self._owed = 0  # slots that growing is behind by
        self._use(capacity)
        self._settled()

    @staticmethod
    def build(hashes: U64, positions: I64, kernels: Kernels | None = None) -> HashIndex:
        """An index of these entries, e.g. the winners of a merge.

        Entries in the order of their hashes, as a merge gives them, take about 5 ns each; in any
        other order about 40 ns.
        """
        index = HashIndex.with_room(len(hashes), kernels)
        index._count = len(hashes)
        index._kernels.table_insert(
            index._slots, _hashes(hashes), _positions(positions, len(hashes))
        )
        return index

    # ---- filled by a merge ------------------------------------------------------------------

    @staticmethod
    def with_room(entries: int, kernels: Kernels | None = None) -> HashIndex:
        """An empty one with room for so many entries, to be filled through `slots`."""
        return HashIndex(kernels, slots_for(entries))

    @property
    def slots(self) -> U64:
        """The table itself; whoever fills it says so (`filled`), and lets go of it."""
        return self._slots

    def filled(self, entries: int) -> None:
        """So many are in it now."""
        self._count = entries

    def entries(self) -> tuple[U64, I64]:
        """All hashes and positions, in the order of the table."""
        hashes, positions = np.empty(self._count, np.uint64), np.empty(self._count, np.int64)
        self._kernels.merge_entries(self._slots, hashes, positions)
        return hashes, positions

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._memory.size_bytes

    @property
    def _kernels(self) -> Kernels:
        if self._given is None:
            self._given = default_kernels()
        return self._given

    # ---- reading ----------------------------------------------------------------------------

    def find(self, hashes: U64) -> I64:
        """The position of the first entry with each hash, or -1."""
        found = np.empty(len(hashes), np.int64)
        self._kernels.table_find(self._slots, self._base, self._border, _hashes(hashes), found)
        return found

    def find_one(self, key_hash: int) -> int:
        """The position of the first entry with this hash, or -1. Plain Python: under 1 µs."""
        view, capacity = self._view, self._capacity
        s = self._home(key_hash)
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
        s = self._home(key_hash)
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
        self._kernels.table_plan(self._slots, self._base, self._border, _hashes(hashes), prior)
        return prior

    def _home(self, key_hash: int) -> int:
        home = (key_hash >> 32) * self._base >> 32
        return home if home < self._border else (key_hash >> 32) * self._capacity >> 32

    # ---- writing ----------------------------------------------------------------------------

    def replace(self, hashes: U64, old: I64, new: I64) -> None:
        """Row by row, in order, put ``(hash, new)`` in the place of ``(hash, old)``.

        ``old == -1`` inserts, ``new == -1`` removes, both: nothing. Growing comes first, so that
        nothing is half done when memory runs out.

        Raises:
            AssertionError: there is no entry (hash, old); the index and the rows differ.
        """
        old, new = _positions(old, len(hashes)), _positions(new, len(hashes))
        hashes = _hashes(hashes)
        self._reserve(int(np.count_nonzero((old == NONE) & (new != NONE))))
        gained, failed = self._kernels.table_replace(
            self._slots, self._base, self._border, hashes, old, new
        )
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
        if old == NONE and self._count >= self._grow_from:
            self._reserve(1)
        wanted = EMPTY if old == NONE else old
        view, capacity = self._view, self._capacity
        s = self._home(key_hash)
        while (position := view[2 * s + 1]) != EMPTY:
            if position == wanted and view[2 * s] == key_hash:
                break
            s = s + 1 if s + 1 < capacity else 0
        if position != wanted:
            raise AssertionError(f"no index entry ({key_hash}, {old})")
        view[2 * s] = key_hash
        view[2 * s + 1] = new
        self._count += old == NONE

    # ---- growing ----------------------------------------------------------------------------

    def _reserve(self, more: int) -> None:
        """Have room for ``more`` entries, and go on with growing, or begin to."""
        needed = self._count + more
        if needed <= self._grow_from:
            return
        while needed > self._base * MAX_LOAD:  # many rows at once: it cannot be put off
            if not self._target:
                self._begin_growth(math.ceil(needed / MAX_LOAD))
            self._grow(self._base + self._target)
        if needed <= self._grow_from:
            return
        if not self._target:
            self._begin_growth(0)
        self._owed += more * SLOTS_PER_ROW
        if self._owed >= SLOTS_AT_ONCE:
            owed, self._owed = self._owed, 0
            self._grow(owed)

    def _begin_growth(self, capacity_min: int) -> None:
        target = max(math.ceil(self._capacity * GROWTH), capacity_min)
        check_capacity(target)
        del self._slots, self._view  # memory that is seen cannot grow
        try:
            self._memory.grow(target * _SLOT_BYTES)
        finally:
            self._use(self._capacity)
        self._target, self._ready = target, self._capacity

    def _grow(self, slots: int) -> None:
        """Make so many new slots ready, or empty so many former ones, or some of both."""
        if self._ready < self._target:
            ready = min(self._target, self._ready + slots)
            slots -= ready - self._ready
            part = self._memory.view()[self._ready * _SLOT_BYTES : ready * _SLOT_BYTES]
            make_ready(np.frombuffer(part, np.uint64))
            self._ready = ready
            if ready == self._target:
                self._lengthen()
        if self._ready == self._target and slots:
            self._move_border(max(0, self._border - slots))

    def _lengthen(self) -> None:
        """The new slots are the table's too; only what probing took past the former end moves."""
        self._use(self._target)
        self._kernels.table_settle(self._slots, self._base, self._border, 0, 0)

    def _move_border(self, border: int) -> None:
        """Entries from about here on go to their homes in the longer table."""
        view = self._view
        while border and view[2 * border - 1] != EMPTY:
            border -= 1
        self._kernels.table_settle(self._slots, self._base, border, border, self._border)
        self._border = border
        if not border:
            self._settled()

    def _use(self, capacity: int) -> None:
        self._slots = np.frombuffer(self._memory.view(), np.uint64, capacity * INDEX_WORDS)
        self._view = self._slots.data
        self._capacity = capacity

    def _settled(self) -> None:
        """Every entry's home is that of its hash among all slots."""
        self._base = self._border = self._capacity
        self._grow_from = int(self._capacity * GROW_FROM_LOAD)
        self._target = self._ready = self._owed = 0


def _hashes(hashes: U64) -> U64:
    return normal(hashes, np.uint64)  # type: ignore[return-value]


def _positions(positions: I64, rows: int) -> I64:
    if len(positions) != rows:
        raise AssertionError(f"{len(positions)} positions for {rows} hashes")
    return normal(positions, np.int64)  # type: ignore[return-value]
