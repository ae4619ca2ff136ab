"""The kernels in plain Python: what `stelae.storage.kernels.compiled` must do, bit for bit.

Slow, obvious, and without numba: property tests compare the two, and a simulated cluster, whose
tablets have few rows, may run on these. What each does is told in `stelae.storage.kernels.api`.
"""

from __future__ import annotations

import numpy as np
import xxhash

from stelae.storage.kernels.api import EMPTY, FOREIGN, I32, I64, TOMBSTONE_BIT, U8, U64, Bools

_MASK = (1 << 64) - 1
_ROW = 0xFFFFFFFF


def mix_values(values: U64, seed: np.uint64, out: U64) -> None:
    for i, value in enumerate(values.tolist()):
        x = (value + int(seed)) & _MASK
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
        out[i] = x ^ x >> 31


def hash_bytes(offsets: I32, data: U8, seed: np.uint64, out: U64) -> None:
    view = data.data
    bounds = offsets.tolist()
    for i in range(len(out)):
        out[i] = xxhash.xxh64_intdigest(bytes(view[bounds[i] : bounds[i + 1]]), int(seed))


def put_fixed(values: U64, cursor: I64, out: U8) -> None:
    for i, value in enumerate(values.tolist()):
        at = int(cursor[i])
        out[at : at + 8] = list(value.to_bytes(8, "little"))
        cursor[i] = at + 8


def put_variable(offsets: I32, data: U8, prefix: bool, cursor: I64, out: U8) -> None:
    for i in range(len(cursor)):
        content = data[int(offsets[i]) : int(offsets[i + 1])].tobytes()
        if prefix:
            content = len(content).to_bytes(4, "little") + content
        at = int(cursor[i])
        out[at : at + len(content)] = list(content)
        cursor[i] = at + len(content)


def _home(h: int, capacity: int) -> int:
    return (h >> 32) * capacity >> 32


def _begin(slots: U64, base: int, border: int, h: int) -> int:
    home = _home(h, base)
    return home if home < border else _home(h, len(slots) // 2)


def table_find(slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
    for i, h in enumerate(hashes.tolist()):
        out[i] = _first(slots, base, border, h)


def _first(slots: U64, base: int, border: int, h: int) -> int:
    s = _begin(slots, base, border, h)
    while slots[2 * s + 1] != EMPTY:
        if slots[2 * s] == h:
            return int(slots[2 * s + 1])
        s = (s + 1) % (len(slots) // 2)
    return -1


def table_plan(slots: U64, base: int, border: int, hashes: U64, out: I64) -> None:
    last: dict[int, int] = {}
    for i, h in enumerate(hashes.tolist()):
        out[i] = -(last[h] + 2) if h in last else _first(slots, base, border, h)
        last[h] = i


def table_insert(slots: U64, hashes: U64, positions: I64) -> None:
    for h, position in zip(hashes.tolist(), positions.tolist(), strict=True):
        _insert(slots, 2, h, (position,))


def table_insert_live(slots: U64, hashes: U64, slot: int, live: Bools) -> None:
    for row in np.flatnonzero(live).tolist():
        _insert(slots, 2, int(hashes[row]), (slot << 32 | row,))


def _insert(slots: U64, words: int, h: int, rest: tuple[int, ...], at: int | None = None) -> None:
    capacity = len(slots) // words
    s = _home(h, capacity) if at is None else at
    while slots[words * s + 1] != EMPTY:
        s = (s + 1) % capacity
    for k, word in enumerate((h, *rest)):
        slots[words * s + k] = word


def table_settle(slots: U64, base: int, border: int, first: int, end: int) -> None:
    capacity = len(slots) // 2
    taken = []
    for i in range(first, first + capacity):
        s = i % capacity
        h, position = slots[2 * s : 2 * s + 2].tolist()
        if position == EMPTY and i >= end:
            break
        if position != EMPTY:
            taken.append((h, position))
            slots[2 * s : 2 * s + 2] = EMPTY
    for h, position in taken:
        _insert(slots, 2, h, (position,), _begin(slots, base, border, h))


def table_replace(
    slots: U64, base: int, border: int, hashes: U64, old: I64, new: I64
) -> tuple[int, int]:
    capacity = len(slots) // 2
    gained = 0
    rows = zip(hashes.tolist(), old.tolist(), new.tolist(), strict=True)
    for i, (h, before, after) in enumerate(rows):
        s = _begin(slots, base, border, h)
        if before == -1:
            if after != -1:
                _insert(slots, 2, h, (after,), s)
                gained += 1
            continue
        while slots[2 * s + 1] != EMPTY and (slots[2 * s], slots[2 * s + 1]) != (h, before):
            s = (s + 1) % capacity
        if slots[2 * s + 1] == EMPTY:
            return gained, i
        if after != -1:
            slots[2 * s + 1] = after
        else:
            _remove(slots, base, border, s)
            gained -= 1
    return gained, -1


def _remove(slots: U64, base: int, border: int, hole: int) -> None:
    capacity = len(slots) // 2
    s = (hole + 1) % capacity
    while slots[2 * s + 1] != EMPTY:
        home = _begin(slots, base, border, int(slots[2 * s]))
        if (s - home) % capacity >= (s - hole) % capacity:
            slots[2 * hole : 2 * hole + 2] = slots[2 * s : 2 * s + 2]
            hole = s
        s = (s + 1) % capacity
    slots[2 * hole : 2 * hole + 2] = EMPTY


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
    def key(flat_row: int) -> bytes:
        if len(key_offsets) == 0:
            return b""
        return key_data[int(key_offsets[flat_row]) : int(key_offsets[flat_row + 1])].tobytes()

    def version(of: int, row: int) -> int:
        place = int(places[of])
        return int(firsts[of]) + row if place < 0 else int(versions[place + row])

    capacity = len(table) // 2
    base = int(bases[slot])
    gained = 0
    for i, h in enumerate(hashes.tolist()):
        if len(kinds) > 0 and kinds[i] == FOREIGN:
            live[base + i] = False
            continue
        is_tombstone = len(kinds) > 0 and bool(kinds[i])
        position = slot << 32 | i | (TOMBSTONE_BIT if is_tombstone else 0)
        live[base + i] &= not is_tombstone
        s, other, row = _home(h, capacity), -1, 0
        while table[2 * s + 1] != EMPTY:
            place = int(table[2 * s + 1]) & (TOMBSTONE_BIT - 1)
            other, row = place >> 32, place & _ROW
            if table[2 * s] == h and key(int(bases[other]) + row) == key(base + i):
                break
            s = (s + 1) % capacity
        if table[2 * s + 1] == EMPTY:
            gained += 1
        elif version(slot, i) > version(other, row):
            live[int(bases[other]) + row] = False
        else:
            live[base + i] = False
            continue
        table[2 * s], table[2 * s + 1] = h, position
    return gained


def merge_rehash(table: U64, out: U64) -> None:
    for h, position in table.reshape(-1, 2).tolist():
        if position != EMPTY:
            _insert(out, 2, h, (position,))


def merge_bury(table: U64) -> int:
    capacity = len(table) // 2
    count = 0
    for s in range(capacity):
        while table[2 * s + 1] != EMPTY and int(table[2 * s + 1]) & TOMBSTONE_BIT:
            _remove(table, capacity, capacity, s)
            count += 1
    return count


def merge_entries(table: U64, hashes: U64, positions: I64) -> None:
    found = [pair for pair in table.reshape(-1, 2).tolist() if pair[1] != EMPTY]
    for i, (h, position) in enumerate(found):
        hashes[i], positions[i] = h, position
