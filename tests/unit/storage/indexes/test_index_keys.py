"""Entries of an index: their order is that of values and keys, and they give the key back."""

from __future__ import annotations

import datetime
import decimal
import functools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.schema.alter import with_index
from stelae.core.schema.indexes import IndexId, in_range, prefix_end
from stelae.core.schema.schema import TableSchema, is_plain_type
from stelae.core.schema.values import to_wire
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.kernels import index_reference as index_kernels_reference

TEXT = st.text(st.sampled_from("\0\1ab\uffff\U0001f600"), max_size=5) | st.text(max_size=4)
BYTES = st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 255]), max_size=5).map(bytes)


def ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    """All of a width, and often its ends and what is around zero."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    ends = [low, low + 1, 0, 1, high - 1, high, *([-1] if signed else [])]
    return st.sampled_from(ends) | st.integers(low, high)


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    """Of this type, and no others."""
    most = 10**precision - 1
    context = decimal.Context(prec=precision)
    return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-scale, context))


DATES = st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): ints(8, signed=True),
    pa.int16(): ints(16, signed=True),
    pa.int32(): ints(32, signed=True),
    pa.int64(): ints(64, signed=True),
    pa.uint8(): ints(8, signed=False),
    pa.uint16(): ints(16, signed=False),
    pa.uint32(): ints(32, signed=False),
    pa.uint64(): ints(64, signed=False),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.binary(): BYTES,
    pa.date32(): DATES,
    pa.date64(): DATES,
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ns", "UTC"): ints(64, signed=True),
    pa.decimal128(10, 2): decimals(10, 2),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}
KEY_TYPES = [k for k in VALUES if not (pa.types.is_decimal(k) or pa.types.is_floating(k))]


def codec_of(kind: pa.DataType, key: pa.DataType, **given: Any) -> tuple[EntryCodec, TableSchema]:
    """Of an index of one column, in a table with a key of two."""
    fields = [
        pa.field("k", key, False),
        pa.field("value", kind),
        pa.field("tail", pa.string(), False),
    ]
    schema = TableSchema.of(pa.schema(fields), ["k", "tail"])
    schema = with_index(schema, "value", IndexId("i"), "t")
    return EntryCodec(schema, schema.indexes[0], **given), schema


def batch_of(schema: TableSchema, rows: list[tuple[Any, Any, str]]) -> pa.RecordBatch:
    """Rows of (value, key, tail)."""
    arrays = [
        pa.array([key for _, key, _ in rows], schema.arrow.field("k").type),
        pa.array([value for value, _, _ in rows], schema.arrow.field("value").type),
        pa.array([tail for _, _, tail in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def rank(value: Any) -> tuple[int, Any]:
    """By which values are sorted: null, then all others, NaN last."""
    if value is None:
        return 0, 0
    if isinstance(value, str):
        return 1, value.encode()
    if isinstance(value, float | np.floating) and math.isnan(value):
        return 2, 0
    return 1, value


def order(one: Any, other: Any) -> int:
    """Below, equal, or above."""
    return int(one > other) - int(one < other)


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_the_order_of_entries_is_that_of_value_and_key(kind: pa.DataType, data: Any) -> None:
    """For every type, nulls first, then by value, then by each part of the key."""
    key = data.draw(st.sampled_from(KEY_TYPES))
    row = st.tuples(st.none() | VALUES[kind], VALUES[key], TEXT)
    rows = data.draw(st.lists(row, min_size=2, max_size=12))
    codec, schema = codec_of(kind, key)
    entries = codec.encode_batch(batch_of(schema, rows)).to_pylist()
    for one, entry in zip(rows, entries, strict=True):
        for other, other_entry in zip(rows, entries, strict=True):
            wanted = order([rank(part) for part in one], [rank(part) for part in other])
            assert order(entry, other_entry) == wanted, (one, other)


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_one_entry_and_many_are_the_same_and_give_the_key_back(
    kind: pa.DataType, data: Any
) -> None:
    """Plain Python, kernels and their reference agree; slices too; keys come back."""
    key = data.draw(st.sampled_from(KEY_TYPES))
    row = st.tuples(st.none() | VALUES[kind], VALUES[key], TEXT)
    rows = data.draw(st.lists(row, min_size=1, max_size=12))
    codec, schema = codec_of(kind, key)
    plain, _ = codec_of(kind, key, kernels=index_kernels_reference)
    batch = batch_of(schema, rows)
    entries = codec.encode_batch(batch)
    assert entries.equals(plain.encode_batch(batch))
    cut = data.draw(st.integers(0, len(rows)))
    assert codec.encode_batch(batch.slice(cut)).to_pylist() == entries.to_pylist()[cut:]
    keys = codec.keys_of(entries)
    assert keys.equals(batch.select(["k", "tail"]))
    assert keys.equals(plain.keys_of(entries))
    for (value, key_value, tail), entry in zip(rows, entries.to_pylist(), strict=True):
        wire = (to_wire(key_value, key, "k"), tail)
        assert codec.key_of(entry) == wire
        if is_plain_type(kind):
            assert codec.encode_one(to_wire(value, kind, "value"), wire) == entry


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_a_range_of_a_value_holds_its_entries_and_no_others(kind: pa.DataType, data: Any) -> None:
    """From a value's prefix to its end are the entries of that value; None finds nulls."""
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=8))
    codec, schema = codec_of(kind, pa.int64())
    rows = [(value, n, "x") for n, value in enumerate(values)]
    entries = codec.encode_batch(batch_of(schema, rows)).to_pylist()
    for value in values:
        prefix = codec.prefix_of(value)
        for other, entry in zip(values, entries, strict=True):
            is_inside = in_range(entry, prefix, prefix_end(prefix))
            assert is_inside == (rank(value) == rank(other)), (value, other)
            assert is_inside == entry.startswith(prefix)
            assert codec.value_end(entry) == len(codec.prefix_of(other))


def test_zeros_and_nans_of_floats_are_one_value_each() -> None:
    """Minus zero is found as zero, and NaN as NaN, whatever its bits."""
    codec, schema = codec_of(pa.float64(), pa.int64())
    strange = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    rows = [(v, 1, "x") for v in (0.0, -0.0, math.nan, *strange.tolist())]
    zero, minus, *nans = codec.encode_batch(batch_of(schema, rows)).to_pylist()
    assert zero == minus == codec.encode_one(-0.0, (1, "x"))
    assert nans == [codec.encode_one(-math.nan, (1, "x"))] * len(nans)


def test_a_value_that_is_none_of_the_column_is_refused() -> None:
    """The message names the column."""
    for kind, value in ((pa.int8(), 300), (pa.string(), 3), (pa.decimal128(4, 2), "x")):
        codec, _ = codec_of(kind, pa.int64())
        with pytest.raises(InvalidArgument, match="value"):
            codec.prefix_of(value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=2), st.integers(0, 255), st.text(max_size=2), BYTES, st.integers(0, 8))
def test_what_is_no_entry_is_refused_one_by_one_and_many_at_once(
    value: str, key: int, tail: str, other: bytes, kept: int
) -> None:
    """Both ways read an entry, agree on what is one, and raise nothing but CorruptData."""
    codec, _ = codec_of(pa.string(), pa.uint8())

    def outcome(read: Any) -> Any:
        try:
            return read()
        except (CorruptData, UnicodeDecodeError):
            return None

    def read_both(content: bytes) -> list[Any]:
        one = outcome(lambda: codec.key_of(content))
        many = outcome(lambda: codec.keys_of(pa.array([content], pa.binary())).to_pylist())
        return [one, many and [(row["k"], row["tail"]) for row in many]]

    whole = codec.encode_one(value, (key, tail))
    assert read_both(whole) == [(key, tail), [(key, tail)]]
    for damaged in (other, whole[:kept] + other):
        one, many = read_both(damaged)
        assert many == (one and [one])


def test_sorting_by_python_is_sorting_by_bytes() -> None:
    """The comparison that the tests above rely on is a total order."""
    values = [None, -1.0, 0.0, math.nan, math.inf]
    assert sorted(values, key=functools.cmp_to_key(lambda a, b: order(rank(a), rank(b))))[0] is None
