"""The numba kernels equal their plain-Python reference, bit for bit."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.storage.kernels import api as kernel_api
from stelae.storage.kernels import compiled as kernels
from stelae.storage.kernels import reference as kernels_reference
from stelae.storage.kernels.api import EMPTY, FOREIGN, INDEX_WORDS, U64, Kernels

U64_VALUES = st.integers(0, 2**64 - 1)
# Few upper bits: long runs of displaced entries, equal homes, runs over the end of the table.
CROWDED = st.integers(0, 7).map(lambda n: n << 61) | st.just(2**64 - 1) | st.integers(0, 3)
NAMES = [name for name in vars(Kernels) if not name.startswith("_")]


def u64(values: list[int]) -> Any:
    """The values as kernels get them from Arrow: read-only."""
    array = np.array(values, np.uint64)
    array.flags.writeable = False
    return array


def empty_table(capacity: int) -> U64:
    return np.full(capacity * INDEX_WORDS, EMPTY, np.uint64)


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_a_reference_with_the_same_parameters(name: str) -> None:
    """Each function of the protocol is in both modules, with the protocol's parameters."""
    expected = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
    compiled = getattr(kernels, name)
    assert list(inspect.signature(compiled.py_func).parameters) == expected
    assert list(inspect.signature(getattr(kernels_reference, name)).parameters) == expected
    assert len(compiled.signatures) == 1


def test_read_only_and_writable_inputs_share_one_compiled_form() -> None:
    """A call with writable inputs gives the same result and compiles nothing new."""
    out = np.empty((2, 3), np.uint64)
    kernels.mix_values(u64([1, 2, 3]), np.uint64(5), out[0])
    kernels.mix_values(np.array([1, 2, 3], np.uint64), np.uint64(5), out[1])
    assert (out[0] == out[1]).all()
    assert len(kernels.mix_values.signatures) == 1  # type: ignore[attr-defined]


@settings(deadline=None, derandomize=True)
@given(st.lists(U64_VALUES, max_size=20), U64_VALUES)
def test_mixing_equals_the_reference(values: list[int], seed: int) -> None:
    """`mix_values` of both modules agree for all 64-bit values and seeds."""
    out = np.empty((2, len(values)), np.uint64)
    kernels.mix_values(u64(values), np.uint64(seed), out[0])
    kernels_reference.mix_values(u64(values), np.uint64(seed), out[1])
    assert (out[0] == out[1]).all()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=100), max_size=8), U64_VALUES, st.binary(max_size=9))
def test_byte_hashes_are_xxh64_at_every_length_and_alignment(
    values: list[bytes], seed: int, before: bytes
) -> None:
    """The compiled hash equals the xxhash library's, wherever the bytes start."""
    data = np.frombuffer(before + b"".join(values), np.uint8)
    offsets = np.cumsum([len(before), *map(len, values)], dtype=np.int32)
    out = np.empty(len(values), np.uint64)
    kernels.hash_bytes(offsets, data, np.uint64(seed), out)
    assert out.tolist() == [xxhash.xxh64_intdigest(value, seed) for value in values]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(U64_VALUES, st.binary(max_size=20)), max_size=8), st.booleans())
def test_encoding_equals_the_reference(rows: list[tuple[int, bytes]], prefix: bool) -> None:
    """`put_fixed` and `put_variable` of both modules write the same bytes and move alike."""
    values = u64([value for value, _content in rows])
    contents = [content for _value, content in rows]
    data = np.frombuffer(b"".join(contents), np.uint8)
    offsets = np.cumsum([0, *map(len, contents)], dtype=np.int32)
    results = []
    for module in (kernels, kernels_reference):
        size = [8 + len(content) + 4 * prefix for content in contents]
        cursor = np.cumsum([0, *size], dtype=np.int64)[:-1].copy()
        out = np.zeros(sum(size), np.uint8)
        module.put_fixed(values, cursor, out)
        module.put_variable(offsets, data, prefix, cursor, out)
        results.append((cursor.tolist(), out.tobytes()))
    assert results[0] == results[1]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(CROWDED, st.sampled_from("irm")), max_size=40),
    st.integers(30, 50),
    st.integers(0, 30),
)
def test_tables_equal_the_reference_after_any_changes(
    steps: list[tuple[int, str]], capacity: int, border: int
) -> None:
    """Insert, move, remove, find, plan and settle leave the same words in both tables."""
    present: dict[int, list[int]] = {}
    hashes, old, new = [], [], []
    for i, (key_hash, what) in enumerate(steps):
        places = present.setdefault(key_hash, [])
        if what == "i" and sum(map(len, present.values())) < 25:
            old.append(-1)
            new.append(i)
            places.append(i)
        elif what != "i" and places:
            old.append(places.pop(i % len(places)))
            new.append(i if what == "m" else -1)
            if what == "m":
                places.append(i)
        else:
            continue
        hashes.append(key_hash)
    tables, answers = [], []
    for module in (kernels, kernels_reference):
        slots = empty_table(2 * capacity)
        homes = (capacity, border)  # it is growing, and half of it has moved
        changes = u64(hashes), np.array(old, "i8"), np.array(new, "i8")
        result = module.table_replace(slots, *homes, *changes)
        assert result == (sum(map(len, present.values())), -1)
        out = np.zeros((2, len(hashes)), np.int64)
        module.table_find(slots, *homes, u64(hashes), out[0])
        module.table_plan(slots, *homes, u64(hashes), out[1])
        larger = slots.copy()
        module.table_settle(larger, capacity, 0, 0, border)
        module.table_insert(larger, u64([3, 2**64 - 1]), np.array([100, 101]))
        tables.append(np.concatenate([slots, larger]))
        answers.append(out)
    assert (tables[0] == tables[1]).all()
    assert (answers[0] == answers[1]).all()


@pytest.mark.parametrize("module", [kernels, kernels_reference])
def test_replacing_an_entry_that_is_not_there_names_the_row(module: Any) -> None:
    """`table_replace` stops at the first row whose entry is missing, and says which."""
    slots = empty_table(16)
    changes = u64([5, 5, 5]), np.array([-1, 8, 7]), np.array([7, 9, 9])
    result = module.table_replace(slots, 16, 16, *changes)
    assert result == (1, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(CROWDED, st.integers(1, 30), st.integers(0, FOREIGN), st.binary(max_size=2)),
        max_size=30,
    ),
    st.booleans(),
)
def test_merging_equals_the_reference(
    rows: list[tuple[int, int, int, bytes]], by_hash: bool
) -> None:
    """The merge table and the winners are the same words in both modules."""
    hashes, versions = u64([row[0] for row in rows]), u64([row[1] for row in rows])
    kinds = np.array([row[2] for row in rows], np.uint8)
    bases = np.array([0, len(rows), 2 * len(rows)])
    keys = [row[3] for row in rows] * 2
    offsets = np.cumsum([0, *map(len, keys)], dtype=np.int64)
    if by_hash:
        keys, offsets = [], offsets[:0]
    data = np.frombuffer(b"".join(keys), np.uint8)
    firsts, places, listed = u64([5, 0]), np.array([-1, 0]), versions
    results = []
    for module in (kernels, kernels_reference):
        table = empty_table(2 * len(rows) + 3)
        live = np.ones(2 * len(rows), np.bool_)
        count = 0
        for slot, ops in ((1, kinds), (0, kinds[:0])):
            count += module.merge_segment(
                table, hashes, ops, slot, bases, firsts, places, listed, offsets, data, live
            )
        larger = empty_table(3 * len(rows) + 5)
        module.merge_rehash(table, larger)
        buried = module.merge_bury(larger)
        entries = np.zeros(count - buried, np.uint64), np.zeros(count - buried, np.int64)
        module.merge_entries(larger, *entries)
        results.append((count, buried, table, larger, *entries, live))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_burying_leaves_every_other_entry_where_it_is_found(size: int) -> None:
    """Tombstones at a table's end and beginning, where probing wraps around, leave no entry behind
    a hole."""
    generator = np.random.default_rng(size)
    for module in (kernels, kernels_reference):
        table = empty_table(size)
        count = size * 2 // 3
        hashes = generator.integers(0, 2**64, count, np.uint64) | u64([0xF << 60])
        positions = np.arange(count)
        dead = generator.random(count) < 0.4
        module.table_insert(table, hashes, positions)
        words = table[1::2]
        taken = np.flatnonzero(words != EMPTY)
        words[taken] |= dead[words[taken].astype(np.int64)].astype(np.uint64) << u64([63])
        assert module.merge_bury(table) == dead.sum()
        found = np.zeros(count, np.int64)
        module.table_find(table, size, size, hashes, found)
        assert np.array_equal(found, np.where(dead, -1, positions))


def test_free_slots_have_the_tombstone_bit() -> None:
    """Whoever looks for tombstones has to know free slots from them."""
    assert kernel_api.EMPTY & kernel_api.TOMBSTONE_BIT
