"""What the kernels are: the functions that `kernels` (numba) and `kernels_reference` both give.

Everything that loops over rows goes through a `Kernels`: the index, the merge and key hashing take
one as a parameter, so that property tests hold the two against each other, and a process that never
sees a batch never imports numba (`default_kernels` does it on the first use).

Shared layout of the **table** of the hash index (design §6): a flat uint64 array, two words a
slot, ``hash`` and ``position``; a free slot has `EMPTY` as its position. The home of a hash among
``capacity`` slots is ``(hash >> 32) * capacity >> 32``: it rises with the hash, so that any
capacity will do and tables are grown and built by running through memory in order. Probing is
linear, and removing shifts back, so that there are no gravestones and no decay. The **merge table**
has three words a slot: hash, position with `TOMBSTONE_BIT`, version.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from stelae.core.memory import populate
from stelae.storage.buffers import BufferPool

U8: TypeAlias = NDArray[np.uint8]
U64: TypeAlias = NDArray[np.uint64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

EMPTY = (1 << 64) - 1
"""Position word of a free slot: -1 as int64."""
TOMBSTONE_BIT = 1 << 63
"""Set in a merge table's position word when the newest row of the key is a tombstone."""
MAX_CAPACITY = 1 << 32
INDEX_WORDS = 2
MERGE_WORDS = 3


class Kernels(Protocol):
    """Arrays are one-dimensional, contiguous and aligned; inputs may be read-only.

    Arguments named ``out`` (and ``cursor``, ``slots``, ``table``, ``live``) are written to.
    """

    def mix_values(self, values: U64, seed: np.uint64, out: U64) -> None:
        """`stelae.storage.keys.mix` of each value."""

    def hash_bytes(self, offsets: I32, data: U8, seed: np.uint64, out: U64) -> None:
        """XXH64 of ``data[offsets[i]:offsets[i + 1]]``."""

    def put_fixed(self, values: U64, cursor: I64, out: U8) -> None:
        """Write each value as 8 little-endian bytes at its cursor, and move the cursor on."""

    def put_variable(self, offsets: I32, data: U8, prefix: bool, cursor: I64, out: U8) -> None:
        """Write each byte string, after its length as 4 bytes if ``prefix``; move the cursor on."""

    # Tables of an index: ``base`` and ``border`` say where probing begins (`HashIndex`).

    def table_find(self, slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
        """Position of the first entry with each hash, or -1."""

    def table_plan(self, slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
        """What stands before each row: see `stelae.storage.index.HashIndex.plan`."""

    def table_insert(self, slots: U64, hashes: U64, positions: I64) -> None:
        """Insert entries into a table that does not grow, for which there must be room, without
        looking for equal ones."""

    def table_replace(
        self, slots: U64, base: int, border: int, hashes: U64, old: I64, new: I64
    ) -> tuple[int, int]:
        """See `HashIndex.replace`. Returns entries gained, and the row with no such entry or -1."""

    def table_settle(self, slots: U64, base: int, border: int, first: int, end: int) -> None:
        """Take out what stands from slot ``first`` up to ``end`` and on to the next free slot, and
        put it in anew. Before ``first`` is a free slot, or it is 0."""

    def merge_segment(
        self,
        table: U64,
        hashes: U64,
        versions: U64,
        kinds: U8,
        slot: int,
        bases: I64,
        key_offsets: I64,
        key_data: U8,
    ) -> int:
        """Put a segment's rows into the merge table; the highest version of each key stays.

        ``bases[s]`` is the number of rows in slots before ``s``; ``key_offsets``, over the rows of
        all slots, is empty where hashes identify keys. Returns the number of keys gained.
        """

    def merge_rehash(self, table: U64, out: U64) -> None:
        """Move all entries into a larger empty merge table."""

    def merge_winners(
        self, table: U64, bases: I64, hashes: U64, positions: I64, live: Bools
    ) -> int:
        """List the winners that are not tombstones, in table order, and mark them live.

        Returns their number."""


def default_kernels() -> Kernels:
    """The numba kernels; imports numba (0.3 s, plus compiling when its disk cache is empty)."""
    from stelae.storage import kernels

    return cast(Kernels, kernels)


def check_capacity(capacity: int) -> None:
    """Raises AssertionError: no table has so many slots."""
    if capacity > MAX_CAPACITY:
        raise AssertionError(f"hash table of {capacity} slots; the limit is {MAX_CAPACITY}")


def empty_table(capacity: int, words: int, pool: BufferPool | None = None) -> U64:
    """A table without entries; ``words`` is `INDEX_WORDS` or `MERGE_WORDS`.

    ``pool``: where its memory is taken from, for tables that do not last.
    """
    check_capacity(capacity)
    table: U64 = new_array(capacity * words, np.uint64, pool)
    table.fill(EMPTY)
    return table


def make_ready(part: U64) -> None:
    """Have a part of a table in place, without entries."""
    populate(part.data)
    part.fill(EMPTY)


def new_array(count: int, kind: type[np.generic], pool: BufferPool | None = None) -> Any:
    """An array of ``count`` elements of any content, its pages in place."""
    if pool is not None:
        return np.frombuffer(pool.take(count * np.dtype(kind).itemsize), kind)
    array = np.empty(count, kind)
    if count:
        populate(array.data)
    return array
