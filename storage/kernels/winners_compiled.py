"""The kernels of `stelae.storage.keys.winners` in numba: compiled once, kept in its disk cache.

As in `stelae.storage.kernels.compiled` each has one signature, with read-only inputs. Rows are
pairs of words as in an index's table, hash and position, with `TOMBSTONE_BIT` in those of
tombstones.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from stelae.storage.kernels.api import I64, U8, U64, Bools
from stelae.storage.kernels.compiled import (
    _BOOL_OUT,
    _I64_IN,
    _I64_OUT,
    _PLACE,
    _ROW,
    _TOMBSTONE,
    _U8_IN,
    _U64_IN,
    _U64_OUT,
    _1,
    _32,
    _equal_keys,
    _kernel,
    _version,
)

U32_OUT = types.uint32[::1]
_NONE = np.uint32(0)


@_kernel(types.void, _U64_IN, types.uint64, _I64_OUT)
def count_parts(hashes: U64, shift: np.uint64, counts: I64) -> None:
    """Add to ``counts`` how many rows have which upper bits."""
    for i in range(len(hashes)):
        counts[hashes[i] >> shift] += 1


@_kernel(types.void, _U64_IN, _U8_IN, types.int64, types.uint64, _I64_OUT, _U64_OUT)
def deal_rows(hashes: U64, kinds: U8, slot: int, shift: np.uint64, cursor: I64, out: U64) -> None:
    """Put a segment's rows to those with the same upper bits, behind the ones that are there."""
    no_tombstones = len(kinds) == 0
    for i in range(len(hashes)):
        part = hashes[i] >> shift
        at = cursor[part]
        cursor[part] = at + 1
        position = np.uint64(slot) << _32 | np.uint64(i)
        if not no_tombstones and kinds[i] != 0:
            position |= _TOMBSTONE
        out[2 * at] = hashes[i]
        out[2 * at + 1] = position


@_kernel(
    types.void,
    _U64_IN, _I64_IN, _U64_IN, _I64_IN, _U64_IN, _I64_IN, _U8_IN, U32_OUT, _BOOL_OUT,
)  # fmt: skip
def find_winners(
    rows: U64,
    bases: I64,
    firsts: U64,
    places: I64,
    versions: U64,
    key_offsets: I64,
    key_data: U8,
    table: NDArray[np.uint32],
    live: Bools,
) -> None:
    """Mark of these rows those that were beaten, and tombstones. ``table`` has a power of two of
    slots, more than there are rows; what is in it does not matter."""
    by_hash = len(key_offsets) == 0
    mask = np.uint64(len(table) - 1)
    table[:] = _NONE
    for j in range(len(rows) // 2):
        h, position = rows[2 * j], rows[2 * j + 1]
        slot, row = np.int64((position & _PLACE) >> _32), np.int64(position & _ROW)
        mine = bases[slot] + row
        if position & _TOMBSTONE != np.uint64(0):
            live[mine] = False
        s = h & mask
        while True:
            entry = table[s]
            if entry == _NONE:
                table[s] = np.uint32(j + 1)
                break
            k = np.int64(entry) - 1
            if rows[2 * k] == h:
                place = rows[2 * k + 1] & _PLACE
                other, its_row = np.int64(place >> _32), np.int64(place & _ROW)
                its = bases[other] + its_row
                if by_hash or _equal_keys(key_offsets, key_data, mine, its):
                    known = _version(firsts, places, versions, other, its_row)
                    if _version(firsts, places, versions, slot, row) > known:
                        table[s] = np.uint32(j + 1)
                        live[its] = False
                    else:
                        live[mine] = False
                    break
            s = (s + _1) & mask
