"""The kernels of secondary indexes in numba: compiled once, kept in numba's disk cache.

As in `stelae.storage.kernels.compiled` each has one signature, with read-only inputs. What each
does is told in `stelae.storage.kernels.index_api`, and in plain Python in
`kernels.index_reference`.

Entries are compared by eight bytes as one number, their **head**, and only then byte by byte: the
first eight after those that all begin with. Heads are sorted by numpy, whose sort is vectorized;
ties, by a merge sort from below (Knuth, The Art of Computer Programming 3, §5.2.4). Runs are merged
by a tree of losers (there, §5.4.1).
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from stelae.storage.kernels.api import I32, I64, U8, U64
from stelae.storage.kernels.compiled import (
    _I32_IN,
    _I64_IN,
    _I64_OUT,
    _U8_IN,
    _U8_OUT,
    _U64_IN,
    _U64_OUT,
    _input,
    _kernel,
)
from stelae.storage.kernels.index_api import U32

_U32_IN = _input(types.uint32)
_INSERTION = 16
"""So many entries of one head are sorted by insertion."""
_NO_MORE = np.uint64((1 << 64) - 1)


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


@numba.njit(inline="always")
def _head(offsets: I32, data: U8, i: int, skip: int) -> np.uint64:
    """The eight bytes from ``skip`` on as a number, zeros if there are fewer."""
    begin = offsets[i] + skip
    length = offsets[i + 1] - begin
    value = np.uint64(0)
    if length >= 8:
        for j in range(8):  # LLVM makes one load of it
            value = (value << np.uint64(8)) | np.uint64(data[begin + j])
        return value
    for j in range(8):
        byte = np.uint64(data[begin + j]) if j < length else np.uint64(0)
        value = (value << np.uint64(8)) | byte
    return value


@numba.njit(inline="always")
def _compare(offsets: I32, data: U8, i: int, k: int, same: int) -> int:
    """Below 0, 0 or above 0, as entry i is below, equal to or above entry k, of which the first
    ``same`` bytes are known to be equal."""
    first, second = offsets[i + 1] - offsets[i], offsets[k + 1] - offsets[k]
    while same < first and same < second:
        a, b = _head(offsets, data, i, same), _head(offsets, data, k, same)
        if a != b:
            return 1 if a > b else -1
        same += 8
    # Equal as far as both go: what one has beyond that, the other has not.
    return int(first - second)


@numba.njit(inline="always")
def _shared(offsets: I32, data: U8, i: int, k: int, most: int) -> int:
    """With how many equal bytes two entries begin, up to ``most``."""
    a, b = offsets[i], offsets[k]
    most = min(most, offsets[i + 1] - a, offsets[k + 1] - b)
    for j in range(most):
        if data[a + j] != data[b + j]:
            return j
    return most


@_kernel(types.boolean, _I32_IN, _U8_IN, _U64_OUT, _I64_OUT)
def take_heads(offsets: I32, data: U8, out: U64, skip: I64) -> bool:
    count = len(out)
    is_sorted = True
    same = offsets[1] - offsets[0] if count else 0
    for i in range(1, count):
        same = _shared(offsets, data, 0, i, same)
    skip[0] = same
    for i in range(count):
        out[i] = _head(offsets, data, i, same)
        if i and is_sorted:
            # Equal heads: equal bytes as far as both go, and zeros for what one has not.
            is_sorted = out[i - 1] < out[i] or (
                out[i - 1] == out[i] and _compare(offsets, data, i - 1, i, same) <= 0
            )
    return is_sorted


@numba.njit()
def _sort_by_insertion(offsets: I32, data: U8, skip: int, out: I64) -> None:
    for i in range(1, len(out)):
        moved, at = out[i], i
        while at > 0:
            order = _compare(offsets, data, out[at - 1], moved, skip)
            if order < 0 or (order == 0 and out[at - 1] < moved):
                break
            out[at] = out[at - 1]
            at -= 1
        out[at] = moved


@numba.njit(inline="always")
def _is_above(offsets: I32, data: U8, heads: U64, same: int, members: I64, a: int, b: int) -> bool:
    if heads[a] != heads[b]:
        return bool(heads[a] > heads[b])
    order = _compare(offsets, data, members[a], members[b], same)
    return bool(order > 0 or (order == 0 and members[a] > members[b]))


@numba.njit()
def _sort_by_merging(offsets: I32, data: U8, skip: int, out: I64) -> None:
    """Members of one group, by the eight bytes after those that they share."""
    count, members, same = len(out), out.copy(), offsets[out[0] + 1] - offsets[out[0]]
    for i in range(1, count):
        same = _shared(offsets, data, out[0], out[i], same)
    heads, order, spare = np.empty(count, np.uint64), np.arange(count), np.empty(count, np.int64)
    for i in range(count):
        heads[i] = _head(offsets, data, out[i], same)
    width = 1
    while width < count:
        for begin in range(0, count - width, 2 * width):
            middle, end = begin + width, min(begin + 2 * width, count)
            last, first = order[middle - 1], order[middle]
            if not _is_above(offsets, data, heads, same, members, last, first):
                continue
            spare[:width] = order[begin:middle]
            a, b, to = 0, middle, begin
            while a < width:
                if b < end and _is_above(offsets, data, heads, same, members, spare[a], order[b]):
                    order[to] = order[b]
                    b += 1
                else:
                    order[to] = spare[a]
                    a += 1
                to += 1
        width *= 2
    for i in range(count):
        out[i] = members[order[i]]


@_kernel(types.void, _I32_IN, _U8_IN, _U64_IN, types.int64, _I64_OUT)
def sort_ties(offsets: I32, data: U8, heads: U64, skip: int, out: I64) -> None:
    begin, count = 0, len(out)
    while begin < count:
        end, head = begin + 1, heads[out[begin]]
        while end < count and heads[out[end]] == head:
            end += 1
        if end - begin > _INSERTION:
            _sort_by_merging(offsets, data, skip, out[begin:end])
        elif end - begin > 1:
            _sort_by_insertion(offsets, data, skip, out[begin:end])
        begin = end


@numba.njit(inline="always")
def _find(offsets: I32, data: U8, entry: U8, low: int, high: int) -> int:
    """The first place from ``low`` on of an entry that is not below; ``high``: there is none."""
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


@_kernel(types.int64, _I32_IN, _U8_IN, _U8_IN)
def find_entry(offsets: I32, data: U8, entry: U8) -> int:
    return int(_find(offsets, data, entry, 0, len(offsets) - 1))


@_kernel(types.UniTuple(types.int64, 2), _I32_IN, _U8_IN, _U8_IN, _U8_IN)
def find_range(offsets: I32, data: U8, low: U8, high: U8) -> tuple[int, int]:
    count = len(offsets) - 1
    begin = _find(offsets, data, low, 0, count)
    return begin, _find(offsets, data, high, begin, count) if len(high) else count


@numba.njit(inline="always")
def _comes_first(
    offsets: I32, data: U8, heads: U64, cursors: I64, bounds: I64, skip: int, a: int, b: int
) -> bool:
    """Whether the next entry of run a is below that of run b, or equal and a the earlier run."""
    if heads[a] != heads[b]:
        return bool(heads[a] < heads[b])
    if cursors[a] == bounds[a + 1] or cursors[b] == bounds[b + 1]:
        return bool(cursors[a] < bounds[a + 1])
    order = _compare(offsets, data, cursors[a], cursors[b], skip)
    return bool(order < 0 or (order == 0 and a < b))


@_kernel(types.int64, _I32_IN, _U8_IN, _I64_IN, _U32_IN, _U64_IN, _U64_IN, _I64_OUT)
def merge_entries(
    offsets: I32, data: U8, bounds: I64, writers: U32, sequences: U64, epochs: U64, out: I64
) -> int:
    count, runs, kept = len(offsets) - 1, len(bounds) - 1, 0
    cursors, heads = bounds[:-1].copy(), np.full(runs, _NO_MORE)
    skip = offsets[1] - offsets[0] if count else 0
    for run in range(runs):
        if bounds[run] < bounds[run + 1]:  # what its ends share, all between them do
            skip = _shared(offsets, data, 0, bounds[run], skip)
            skip = _shared(offsets, data, 0, bounds[run + 1] - 1, skip)
    for run in range(runs):
        if bounds[run] < bounds[run + 1]:
            heads[run] = _head(offsets, data, cursors[run], skip)
    tree = np.full(runs, -1)  # of each node the run that lost there
    winner, last_head = 0, np.uint64(0)
    for entrant in range(runs - 1 + count):
        run = entrant if entrant < runs else winner
        at = (runs + run) >> 1
        while at > 0:
            if tree[at] < 0:
                break
            if _comes_first(offsets, data, heads, cursors, bounds, skip, tree[at], run):
                tree[at], run = run, tree[at]
            at >>= 1
        if at > 0:
            tree[at] = run
            continue
        winner = run
        i, head = cursors[winner], heads[winner]
        if kept and head == last_head and _compare(offsets, data, out[kept - 1], i, skip) == 0:
            last = out[kept - 1]
            older, newer = epochs[writers[last]], epochs[writers[i]]
            if newer > older or (newer == older and sequences[i] > sequences[last]):
                out[kept - 1] = i
        else:
            out[kept] = i
            kept += 1
        last_head = head
        cursors[winner] += 1
        more = cursors[winner] < bounds[winner + 1]
        heads[winner] = _head(offsets, data, cursors[winner], skip) if more else _NO_MORE
    return kept
