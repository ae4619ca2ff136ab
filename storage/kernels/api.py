"""What the kernels are: the functions that `kernels` (numba) and `kernels.reference` both give.

Everything that loops over rows goes through a `Kernels`: the index, the merge and key hashing take
one as a parameter, so that property tests hold the two against each other, and a process that never
sees a batch never imports numba (`stelae.storage.kernels.default` does it on the first use).

Shared layout of the **table** of the hash index (design §6): a flat uint64 array, two words a
slot, ``hash`` and ``position``; a free slot has `EMPTY` as its position. The home of a hash among
``capacity`` slots is ``(hash >> 32) * capacity >> 32``: it rises with the hash, so that any
capacity will do and tables are grown and built by running through memory in order. Probing is
linear, and removing shifts back, so that there are no gravestones and no decay. A merge fills such
a table: while it does, positions of tombstones are in it, with `TOMBSTONE_BIT`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stelae.core.memory import populate

U8: TypeAlias = NDArray[np.uint8]
U64: TypeAlias = NDArray[np.uint64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

EMPTY = (1 << 64) - 1
"""Position word of a free slot: -1 as int64."""
TOMBSTONE_BIT = 1 << 63
"""Set in a position word, during a merge, when the newest row of the key is a tombstone."""
FOREIGN = 2
"""Kind of a row that a merge passes over: it is another tablet's
(`stelae.storage.segments.shares`)."""
MAX_CAPACITY = 1 << 32
INDEX_WORDS = 2


class Kernels(Protocol):
    """Arrays are one-dimensional, contiguous and aligned; inputs may be read-only.

    Arguments named ``out`` (and ``cursor``, ``slots``, ``table``, ``live``) are written to.
    """

    def mix_values(self, values: U64, seed: np.uint64, out: U64) -> None:
        """`stelae.storage.keys.codec.mix` of each value."""

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
        """What stands before each row: see `stelae.storage.keys.hash_index.HashIndex.plan`."""

    def table_insert(self, slots: U64, hashes: U64, positions: I64) -> None:
        """Insert entries into a table that does not grow, for which there must be room, without
        looking for equal ones."""

    def table_insert_live(self, slots: U64, hashes: U64, slot: int, live: Bools) -> None:
        """The same of the rows of the segment in ``slot`` that are marked."""

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
        kinds: U8,
        slot: int,
        bases: I64,
        firsts: U64,
        places: I64,
        versions: U64,
        key_offsets: I64,
        key_data: U8,
        live: Bools,
    ) -> int:
        """Put a segment's rows into a merge's table; the highest version of each key stays.

        ``bases[s]`` is the number of rows in slots before ``s``. Versions of slot ``s`` begin at
        ``versions[places[s]]``, or rise by one from ``firsts[s]`` if that place is -1. ``kinds`` is
        empty where no row is a tombstone, ``key_offsets``, over the rows of all slots, where hashes
        identify keys. Rows of all slots that were beaten are marked in ``live``, and rows of kind
        `FOREIGN`, which are passed over. Returns the number of keys gained.
        """

    def merge_rehash(self, table: U64, out: U64) -> None:
        """Move all entries into another empty table."""

    def merge_bury(self, table: U64) -> int:
        """Take tombstones out; how many they were."""

    def merge_entries(self, table: U64, hashes: U64, positions: I64) -> None:
        """List the entries in table order."""


def check_capacity(capacity: int) -> None:
    """Raises AssertionError: no table has so many slots."""
    if capacity > MAX_CAPACITY:
        raise AssertionError(f"hash table of {capacity} slots; the limit is {MAX_CAPACITY}")


def make_ready(part: U64) -> None:
    """Have a part of a table in place, without entries."""
    populate(part.data)
    part.fill(EMPTY)
