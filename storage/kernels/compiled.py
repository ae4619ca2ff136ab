"""The kernels in numba: compiled once, kept in numba's disk cache, run without the GIL.

Each has one explicit signature whose inputs are read-only arrays: writable ones convert to it, so
that Arrow's (read-only) and NumPy's buffers share one compiled form and nothing is ever
compiled during a call. All of them are loaded by importing this module. What each does is told in
`stelae.storage.kernels.api`, and in plain Python in `stelae.storage.kernels.reference`.

All arithmetic is on uint64: numba turns mixed int64 and uint64 into float64.

Sources: XXH64 (Y. Collet, xxHash specification 0.2.0); linear probing with backward shift (Knuth,
The Art of Computer Programming 3, §6.4, algorithm R); range reduction (Lemire, "Fast random integer
generation in an interval", 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stelae.storage.kernels.api import EMPTY, FOREIGN, I32, I64, TOMBSTONE_BIT, U8, U64, Bools

ir = cgutils.ir  # type: ignore[attr-defined]  # numba's own way to LLVM
_F = TypeVar("_F", bound=Callable[..., Any])


def _input(kind: Any) -> Any:
    return types.Array(kind, 1, "C", readonly=True)


def _kernel(result: Any, *arguments: Any) -> Callable[[_F], _F]:
    return cast(Callable[[_F], _F], numba.njit(result(*arguments), cache=True, nogil=True))


_inline = cast(Callable[[_F], _F], numba.njit(inline="always"))

_U64_IN, _I64_IN = _input(types.uint64), _input(types.int64)
_I32_IN, _U8_IN = _input(types.int32), _input(types.uint8)
_U64_OUT, _I64_OUT = types.uint64[::1], types.int64[::1]
_BOOL_IN = _input(types.boolean)
_U8_OUT, _BOOL_OUT = types.uint8[::1], types.boolean[::1]

_FREE = np.uint64(EMPTY)
_TOMBSTONE = np.uint64(TOMBSTONE_BIT)
_PLACE = np.uint64(TOMBSTONE_BIT - 1)
_ROW = np.uint64(0xFFFFFFFF)
_FOREIGN = np.uint8(FOREIGN)
_0, _1, _2, _4, _8, _32 = (np.uint64(n) for n in (0, 1, 2, 4, 8, 32))

_AHEAD = 12
"""Rows between asking for a slot's memory and using it."""

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


# ---- hashes and keys --------------------------------------------------------------------------


@_kernel(types.void, _U64_IN, types.uint64, _U64_OUT)
def mix_values(values: U64, seed: np.uint64, out: U64) -> None:
    for i in range(len(values)):
        x = values[i] + seed
        x = (x ^ (x >> np.uint64(30))) * _MIX1
        x = (x ^ (x >> np.uint64(27))) * _MIX2
        out[i] = x ^ (x >> np.uint64(31))


@_inline
def _rotate(x: Any, bits: Any) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@_inline
def _round(state: Any, lane: Any) -> Any:
    mixed = state + lane * _P2
    return _rotate(mixed, 31) * _P1


@_inline
def _word(data: Any, at: Any) -> Any:
    """Eight little-endian bytes; LLVM makes one load of it."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@_inline
def _half_word(data: Any, at: Any) -> Any:
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
    )


@_kernel(types.void, _I32_IN, _U8_IN, types.uint64, _U64_OUT)
def hash_bytes(offsets: I32, data: U8, seed: np.uint64, out: U64) -> None:
    for i in range(len(out)):
        at, end = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        length = end - at
        if end - at >= _32:
            s1, s2, s3, s4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while end - at >= _32:
                s1 = _round(s1, _word(data, at))
                s2 = _round(s2, _word(data, at + _8))
                s3 = _round(s3, _word(data, at + np.uint64(16)))
                s4 = _round(s4, _word(data, at + np.uint64(24)))
                at += _32
            h = _rotate(s1, 1) + _rotate(s2, 7) + _rotate(s3, 12) + _rotate(s4, 18)
            h = (h ^ _round(_0, s1)) * _P1 + _P4
            h = (h ^ _round(_0, s2)) * _P1 + _P4
            h = (h ^ _round(_0, s3)) * _P1 + _P4
            h = (h ^ _round(_0, s4)) * _P1 + _P4
        else:
            h = seed + _P5
        h += length
        while end - at >= _8:
            h ^= _round(_0, _word(data, at))
            h = _rotate(h, 27) * _P1 + _P4
            at += _8
        if end - at >= _4:
            h ^= _half_word(data, at) * _P1
            h = _rotate(h, 23) * _P2 + _P3
            at += _4
        while at < end:
            h ^= np.uint64(data[at]) * _P5
            h = _rotate(h, 11) * _P1
            at += _1
        h = (h ^ (h >> np.uint64(33))) * _P2
        h = (h ^ (h >> np.uint64(29))) * _P3
        out[i] = h ^ (h >> np.uint64(32))


@_kernel(types.void, _U64_IN, _I64_OUT, _U8_OUT)
def put_fixed(values: U64, cursor: I64, out: U8) -> None:
    for i in range(len(values)):
        x, at = values[i], cursor[i]
        for k in range(8):
            out[at + k] = np.uint8((x >> np.uint64(8 * k)) & np.uint64(0xFF))
        cursor[i] = at + 8


@_kernel(types.void, _I32_IN, _U8_IN, types.boolean, _I64_OUT, _U8_OUT)
def put_variable(offsets: I32, data: U8, prefix: bool, cursor: I64, out: U8) -> None:
    for i in range(len(cursor)):
        start, end, at = offsets[i], offsets[i + 1], cursor[i]
        if prefix:
            length = np.uint64(end - start)
            for k in range(4):
                out[at + k] = np.uint8((length >> np.uint64(8 * k)) & np.uint64(0xFF))
            at += 4
        for k in range(start, end):
            out[at] = data[k]
            at += 1
        cursor[i] = at


@cast(Callable[[_F], Any], intrinsic)
def _prefetch(_context: Any, array: Any, place: Any) -> Any:
    """Ask the processor for the line of ``array[place]``, which must be within the array.

    Tables are far larger than caches, and a probe mostly waits for memory: asking some rows
    ahead lets the waits overlap.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        read, keep, is_data = word(0), word(3), word(1)
        builder.call(function, [address, read, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, place), generate


# ---- the index's table ------------------------------------------------------------------------


@_inline
def _home(h: Any, capacity: Any) -> Any:
    return ((h >> _32) * capacity) >> _32


@_inline
def _begin(h: Any, base: Any, border: Any, capacity: Any) -> Any:
    home = _home(h, base)
    return home if home < border else _home(h, capacity)


@_kernel(types.void, _U64_IN, types.int64, types.int64, _U64_IN, _I64_OUT)
def table_find(slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
    capacity, low, edge = np.uint64(len(slots) // 2), np.uint64(base), np.uint64(border)
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            _prefetch(slots, _begin(hashes[i + _AHEAD], low, edge, capacity) * _2)
        h = hashes[i]
        s = _begin(h, low, edge, capacity)
        while slots[s * _2 + _1] != _FREE and slots[s * _2] != h:
            s += _1
            if s == capacity:
                s = _0
        out[i] = np.int64(slots[s * _2 + _1])


@_kernel(types.void, _U64_IN, types.int64, types.int64, _U64_IN, _I64_OUT)
def table_plan(slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
    capacity, low, edge = np.uint64(len(slots) // 2), np.uint64(base), np.uint64(border)
    rows = len(hashes)
    width = np.uint64(2 * rows + 1)
    last = np.full(2 * rows + 1, -1, np.int64)  # the last row with each hash of this batch
    for i in range(rows):
        if i + _AHEAD < rows:
            _prefetch(slots, _begin(hashes[i + _AHEAD], low, edge, capacity) * _2)
        h = hashes[i]
        b = _home(h, width)
        while last[b] != -1 and hashes[last[b]] != h:
            b += _1
            if b == width:
                b = _0
        if last[b] != -1:
            out[i] = -(last[b] + 2)
        else:
            s = _begin(h, low, edge, capacity)
            while slots[s * _2 + _1] != _FREE and slots[s * _2] != h:
                s += _1
                if s == capacity:
                    s = _0
            out[i] = np.int64(slots[s * _2 + _1])
        last[b] = i


@_inline
def _insert(slots: Any, capacity: Any, begin: Any, h: Any, position: Any) -> None:
    s = begin
    while slots[s * _2 + _1] != _FREE:
        s += _1
        if s == capacity:
            s = _0
    slots[s * _2] = h
    slots[s * _2 + _1] = position


@_kernel(types.void, _U64_OUT, _U64_IN, _I64_IN)
def table_insert(slots: U64, hashes: U64, positions: I64) -> None:
    capacity = np.uint64(len(slots) // 2)
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            _prefetch(slots, _home(hashes[i + _AHEAD], capacity) * _2)
        h = hashes[i]
        _insert(slots, capacity, _home(h, capacity), h, np.uint64(positions[i]))


@_kernel(types.void, _U64_OUT, _U64_IN, types.int64, _BOOL_IN)
def table_insert_live(slots: U64, hashes: U64, slot: int, live: Bools) -> None:
    capacity = np.uint64(len(slots) // 2)
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            _prefetch(slots, _home(hashes[i + _AHEAD], capacity) * _2)
        if live[i]:
            position = np.uint64(slot) << _32 | np.uint64(i)
            _insert(slots, capacity, _home(hashes[i], capacity), hashes[i], position)


@_kernel(types.void, _U64_OUT, types.int64, types.int64, types.int64, types.int64)
def table_settle(slots: U64, base: int, border: int, first: int, end: int) -> None:
    capacity, low, edge = np.uint64(len(slots) // 2), np.uint64(base), np.uint64(border)
    # Where the first goes past all that is in the way, each goes at once; otherwise all come out
    # first, for they might take each other's place.
    last = np.uint64(end)
    while last < capacity and slots[last * _2 + _1] != _FREE:
        last += _1
    at_once = last < capacity and first * (len(slots) // 2) // base > np.int64(last)
    taken = np.empty(0 if at_once else len(slots), np.uint64)
    count = 0
    s = np.uint64(first)
    for i in range(len(slots) // 2):
        h, position = slots[s * _2], slots[s * _2 + _1]
        if position != _FREE:
            slots[s * _2] = _FREE
            slots[s * _2 + _1] = _FREE
            if at_once:
                _insert(slots, capacity, _begin(h, low, edge, capacity), h, position)
            else:
                taken[2 * count] = h
                taken[2 * count + 1] = position
                count += 1
        elif first + i >= end:
            break
        s += _1
        if s == capacity:
            s = _0
    for i in range(count):
        h = taken[2 * i]
        _insert(slots, capacity, _begin(h, low, edge, capacity), h, taken[2 * i + 1])


@_inline
def _remove(slots: Any, base: Any, border: Any, capacity: Any, hole: Any) -> None:
    """Free a slot, and move back what was displaced past it, so that probes still end at a hole."""
    s = hole
    while True:
        s += _1
        if s == capacity:
            s = _0
        if slots[s * _2 + _1] == _FREE:
            break
        home = _begin(slots[s * _2], base, border, capacity)
        from_home = s - home if s >= home else s + capacity - home
        from_hole = s - hole if s >= hole else s + capacity - hole
        if from_home >= from_hole:
            slots[hole * _2] = slots[s * _2]
            slots[hole * _2 + _1] = slots[s * _2 + _1]
            hole = s
    slots[hole * _2] = _FREE
    slots[hole * _2 + _1] = _FREE


@_kernel(
    types.UniTuple(types.int64, 2),
    _U64_OUT, types.int64, types.int64, _U64_IN, _I64_IN, _I64_IN,
)  # fmt: skip
def table_replace(
    slots: U64, base: int, border: int, hashes: U64, old: I64, new: I64
) -> tuple[int, int]:
    capacity, low, edge = np.uint64(len(slots) // 2), np.uint64(base), np.uint64(border)
    gained = 0
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            _prefetch(slots, _begin(hashes[i + _AHEAD], low, edge, capacity) * _2)
        h = hashes[i]
        s = _begin(h, low, edge, capacity)
        if old[i] == -1:
            if new[i] != -1:
                _insert(slots, capacity, s, h, np.uint64(new[i]))
                gained += 1
            continue
        place = np.uint64(old[i])
        while slots[s * _2 + _1] != _FREE and (slots[s * _2 + _1] != place or slots[s * _2] != h):
            s += _1
            if s == capacity:
                s = _0
        if slots[s * _2 + _1] == _FREE:
            return gained, i
        if new[i] != -1:
            slots[s * _2 + _1] = np.uint64(new[i])
        else:
            _remove(slots, low, edge, capacity, s)
            gained -= 1
    return gained, -1


# ---- merging into an index's table --------------------------------------------------------------


@_inline
def _equal_keys(key_offsets: Any, key_data: Any, a: Any, b: Any) -> Any:
    """Whether two rows have one key: eight bytes at a time, then the rest."""
    at_a, at_b = np.uint64(key_offsets[a]), np.uint64(key_offsets[b])
    end = np.uint64(key_offsets[a + 1])
    same = end - at_a == np.uint64(key_offsets[b + 1]) - at_b
    while same and end - at_a >= _8:
        same = _word(key_data, at_a) == _word(key_data, at_b)
        at_a += _8
        at_b += _8
    while same and at_a < end:
        same = key_data[at_a] == key_data[at_b]
        at_a += _1
        at_b += _1
    return same


@_inline
def _version(firsts: Any, places: Any, versions: Any, slot: Any, row: Any) -> Any:
    place = places[slot]
    if place < 0:
        return firsts[slot] + np.uint64(row)
    return versions[place + row]


@_kernel(
    types.int64,
    _U64_OUT, _U64_IN, _U8_IN, types.int64,
    _I64_IN, _U64_IN, _I64_IN, _U64_IN, _I64_IN, _U8_IN, _BOOL_OUT,
)  # fmt: skip
def merge_segment(
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
    capacity = np.uint64(len(table) // 2)
    by_hash = len(key_offsets) == 0
    no_tombstones = len(kinds) == 0
    base = bases[slot]
    gained = 0
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            _prefetch(table, _home(hashes[i + _AHEAD], capacity) * _2)
        h = hashes[i]
        mine = np.uint64(slot) << _32 | np.uint64(i)
        if not no_tombstones and kinds[i] != 0:
            live[base + i] = False
            if kinds[i] == _FOREIGN:
                continue
            mine |= _TOMBSTONE
        s = _home(h, capacity)
        while True:
            place = table[s * _2 + _1]
            if place == _FREE:
                table[s * _2] = h
                table[s * _2 + _1] = mine
                gained += 1
                break
            if table[s * _2] == h:
                place &= _PLACE
                other, row = np.int64(place >> _32), np.int64(place & _ROW)
                if by_hash or _equal_keys(key_offsets, key_data, base + i, bases[other] + row):
                    known = _version(firsts, places, versions, other, row)
                    if _version(firsts, places, versions, slot, i) > known:
                        table[s * _2 + _1] = mine
                        live[bases[other] + row] = False
                    else:
                        live[base + i] = False
                    break
            s += _1
            if s == capacity:
                s = _0
    return gained


@_kernel(types.void, _U64_IN, _U64_OUT)
def merge_rehash(table: U64, out: U64) -> None:
    capacity = np.uint64(len(out) // 2)
    for t in range(len(table) // 2):
        if table[2 * t + 1] != _FREE:
            h = table[2 * t]
            _insert(out, capacity, _home(h, capacity), h, table[2 * t + 1])


@_kernel(types.int64, _U64_OUT)
def merge_bury(table: U64) -> int:
    capacity = np.uint64(len(table) // 2)
    count = 0
    for t in range(len(table) // 2):
        # What moves back into the place was not looked at yet, or was and is none.
        while table[2 * t + 1] != _FREE and table[2 * t + 1] & _TOMBSTONE != _0:
            _remove(table, capacity, capacity, capacity, np.uint64(t))
            count += 1
    return count


@_kernel(types.void, _U64_IN, _U64_OUT, _I64_OUT)
def merge_entries(table: U64, hashes: U64, positions: I64) -> None:
    count = 0
    for t in range(len(table) // 2):
        if table[2 * t + 1] != _FREE:
            hashes[count] = table[2 * t]
            positions[count] = np.int64(table[2 * t + 1])
            count += 1
