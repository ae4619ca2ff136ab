"""The kernels of secondary indexes in numba: compiled once, kept in numba's disk cache.

As in `stelae.storage.kernels` each has one signature, with read-only inputs. What each does is told
in `stelae.storage.index_kernel_api`, and in plain Python in `index_kernels_reference`.

Entries are compared by their first eight bytes as one number, and only then byte by byte. Sorting
is a merge sort from below (Knuth, The Art of Computer Programming 3, §5.2.4), which is stable and
quick where much is sorted already.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from stelae.storage.index_kernel_api import U32
from stelae.storage.kernel_api import I32, I64, U8, U64
from stelae.storage.kernels import (
    _I32_IN,
    _I64_IN,
    _I64_OUT,
    _U8_IN,
    _U8_OUT,
    _U64_IN,
    _input,
    _kernel,
)

_U32_IN = _input(types.uint32)
_INSERTION = 16
"""Pieces of so many entries are sorted by insertion."""


@_kernel(types.void, _I32_IN, _U8_IN, _I64_OUT)
def text_lengths(offsets: I32, data: U8, out: I64) -> None:
    for i in range(len(out)):
        length = offsets[i + 1] - offsets[i] + 2
        for at in range(offsets[i], offsets[i + 1]):
            if data[at] == 0:
                length += 1
        out[i] += length


@_kernel(types.void, _I32_IN, _U8_IN, _I64_OUT, _U8_OUT)
def put_text(offsets: I32, data: U8, cursor: I64, out: U8) -> None:
    for i in range(len(cursor)):
        to = cursor[i]
        for at in range(offsets[i], offsets[i + 1]):
            out[to] = data[at]
            to += 1
            if data[at] == 0:
                out[to] = 0xFF
                to += 1
        out[to] = 0
        out[to + 1] = 1
        cursor[i] = to + 2


@_kernel(types.void, _U8_IN, types.int64, _I64_OUT, _U8_OUT)
def put_parts(parts: U8, width: int, cursor: I64, out: U8) -> None:
    for i in range(len(cursor)):
        at, begin = cursor[i], i * width
        for j in range(width):
            out[at + j] = parts[begin + j]
        cursor[i] = at + width


@_kernel(types.int64, _U8_IN, _I64_IN, _I64_OUT, _I64_OUT)
def find_text(data: U8, ends: I64, cursor: I64, out: I64) -> int:
    for i in range(len(cursor)):
        at, end = cursor[i], ends[i]
        length = 0
        while True:
            if at >= end or (data[at] == 0 and at + 1 >= end):
                return i
            if data[at] == 0 and data[at + 1] == 1:
                break
            at += 2 if data[at] == 0 and data[at + 1] == 0xFF else 1
            length += 1
        out[i] = length
        cursor[i] = at + 2
    return -1


@_kernel(types.void, _U8_IN, _I64_IN, _I32_IN, _U8_OUT)
def take_text(data: U8, cursor: I64, offsets: I32, out: U8) -> None:
    for i in range(len(cursor)):
        at = cursor[i]
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = data[at]
            at += 2 if data[at] == 0 and data[at + 1] == 0xFF else 1


# ---- order ------------------------------------------------------------------------------------


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _head(offsets: I32, data: U8, i: int) -> np.uint64:
    """The first eight bytes as a number, zeros if there are fewer."""
    begin = offsets[i]
    length = min(8, offsets[i + 1] - begin)
    value = np.uint64(0)
    for j in range(length):
        value = (value << np.uint64(8)) | np.uint64(data[begin + j])
    return value << np.uint64(8 * (8 - length))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _compare(offsets: I32, data: U8, i: int, k: int, same: int) -> int:
    """Below 0, 0 or above 0, as entry i is below, equal to or above entry k, of which the first
    ``same`` bytes are known to be equal."""
    a, b = offsets[i], offsets[k]
    first, second = offsets[i + 1] - a, offsets[k + 1] - b
    for j in range(same, min(first, second)):
        if data[a + j] != data[b + j]:
            return 1 if data[a + j] > data[b + j] else -1
    return int(first - second)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _is_above(offsets: I32, data: U8, heads: U64, i: int, k: int) -> bool:
    if heads[i] != heads[k]:
        return bool(heads[i] > heads[k])
    # Equal heads: equal bytes as far as both go, and zeros for what one has not.
    return bool(_compare(offsets, data, i, k, 0) > 0)


@_kernel(types.void, _I32_IN, _U8_IN, _I64_OUT, _I64_OUT)
def sort_entries(offsets: I32, data: U8, out: I64, spare: I64) -> None:
    count = len(out)
    heads = np.empty(count, np.uint64)
    for i in range(count):
        heads[i] = _head(offsets, data, i)
        out[i] = i
    for begin in range(0, count, _INSERTION):
        for i in range(begin + 1, min(begin + _INSERTION, count)):
            moved = out[i]
            at = i
            while at > begin and _is_above(offsets, data, heads, out[at - 1], moved):
                out[at] = out[at - 1]
                at -= 1
            out[at] = moved
    width = _INSERTION
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            if middle == end or not _is_above(offsets, data, heads, out[middle - 1], out[middle]):
                continue
            length = middle - begin
            for i in range(length):
                spare[i] = out[begin + i]
            a, b, to = 0, middle, begin
            while a < length:
                if b < end and _is_above(offsets, data, heads, spare[a], out[b]):
                    out[to] = out[b]
                    b += 1
                else:
                    out[to] = spare[a]
                    a += 1
                to += 1
        width *= 2


@_kernel(types.int64, _I32_IN, _U8_IN, _U8_IN)
def find_entry(offsets: I32, data: U8, entry: U8) -> int:
    low, high = 0, len(offsets) - 1
    while low < high:
        middle = (low + high) // 2
        begin = offsets[middle]
        length = offsets[middle + 1] - begin
        order = 0
        for j in range(min(length, len(entry))):
            if data[begin + j] != entry[j]:
                order = 1 if data[begin + j] > entry[j] else -1
                break
        if order == 0:
            order = length - len(entry)
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return low


@_kernel(types.int64, _I32_IN, _U8_IN, types.int64, _U32_IN, _U64_IN, _U64_IN, _I64_OUT)
def merge_entries(
    offsets: I32, data: U8, middle: int, writers: U32, sequences: U64, epochs: U64, out: I64
) -> int:
    a, b, end, kept = 0, middle, len(offsets) - 1, 0
    while a < middle or b < end:
        if b == end or (a < middle and _compare(offsets, data, a, b, 0) <= 0):
            i = a
            a += 1
        else:
            i = b
            b += 1
        if kept and _compare(offsets, data, out[kept - 1], i, 0) == 0:
            last = out[kept - 1]
            older, newer = epochs[writers[last]], epochs[writers[i]]
            if newer > older or (newer == older and sequences[i] > sequences[last]):
                out[kept - 1] = i
            continue
        out[kept] = i
        kept += 1
    return kept
