"""Rows fall into the same tablet whether they come alone or in a batch, and ranges are in order."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import InvalidArgument
from stelae.core.schema.partition import (
    HashPartition,
    Partitioning,
    RangePartition,
    hash_and_range,
    hash_partition,
    range_partition,
)
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import rows_to_batch
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.partitioner import Partitioner

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int16(): st.integers(-3, 3) | st.sampled_from([-(2**15), 2**15 - 1]),
    pa.uint64(): st.integers(0, 3) | st.sampled_from([2**63, 2**64 - 1]),
    pa.bool_(): st.booleans(),
    pa.timestamp("ms"): st.integers(-5, 5),
    pa.string(): st.text("aé\ud7ff\uffff\U0001f600", max_size=3),
    pa.binary(): st.binary(max_size=2) | st.sampled_from([b"\x7f", b"\x80", b"\xff\xff"]),
}


def schema_of(*kinds: pa.DataType) -> TableSchema:
    names = [f"k{i}" for i in range(len(kinds))]
    fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return TableSchema.of(pa.schema([*reversed(fields), pa.field("v", pa.float64())]), names)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableSchema, Partitioning, list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    schema = schema_of(*kinds)
    row = st.tuples(*(KINDS[kind] for kind in kinds))
    places = draw(st.permutations(range(len(kinds))))[: draw(st.integers(1, len(kinds)))]
    names = tuple(schema.key[place] for place in places)
    splits = draw(st.lists(row, max_size=9, unique_by=lambda r: tuple(r[p] for p in places)))
    cut = tuple(sorted(tuple(split[place] for place in places) for split in splits))
    by_range = RangePartition(names, cut) if draw(st.booleans()) else None
    by_hash = HashPartition(names, draw(st.integers(1, 9))) if draw(st.booleans()) else None
    return schema, Partitioning(by_hash, by_range), draw(st.lists(row, max_size=15))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 3))
def test_batch_and_single_agree_and_ranges_follow_tuple_order(
    case: tuple[TableSchema, Partitioning, list[tuple[Any, ...]]], cut: int
) -> None:
    """Numbers of a (sliced) batch are those of each key; the range is bisect over the splits."""
    schema, partitioning, rows = case
    partitioner = Partitioner(partitioning, schema)
    batch = rows_to_batch(rows, schema.key_schema).slice(cut)
    numbers = partitioner.tablet_numbers(batch)
    assert numbers.dtype == np.int32
    assert numbers.tolist() == [partitioner.tablet_number(row) for row in rows[cut:]]
    for number, row in zip(numbers.tolist(), rows[cut:], strict=True):
        assert 0 <= number < partitioning.tablet_count == partitioner.tablet_count
        if partitioning.range:
            places = [schema.key.index(name) for name in partitioning.range.columns]
            part = tuple(row[place] for place in places)
            expected = bisect.bisect_right(partitioning.range.splits, part)
            assert number // partitioning.buckets == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 1023), max_size=60))
def test_split_keeps_order_and_loses_nothing(numbers: list[int]) -> None:
    """Each tablet gets its rows in their order, with their places; tablets ascend."""
    batch = pa.record_batch({"row": np.arange(len(numbers)), "text": [str(n) for n in numbers]})
    parts = Partitioner.split(batch, np.array(numbers, np.int32))
    assert list(parts) == sorted(set(numbers))
    for number, (rows, places) in parts.items():
        expected = [row for row, other in enumerate(numbers) if other == number]
        assert rows.column("row").to_pylist() == places.tolist() == expected
        assert set(rows.column("text").to_pylist()) == {str(number)}


def test_a_split_opens_its_range_and_numbers_are_range_times_buckets_plus_bucket() -> None:
    """A key equal to a split is in the range above it; hash buckets count within a range."""
    schema = schema_of(pa.int64(), pa.string())
    by_range = range_partition("k0", [10, 20])
    both = Partitioner(hash_and_range(hash_partition("k1", 4), by_range), schema)
    ranges = Partitioner(by_range, schema)
    buckets = Partitioner(hash_partition("k1", 4), schema)
    for value, expected in ((9, 0), (10, 1), (19, 1), (20, 2)):
        key = (value, f"text {value}")
        assert ranges.tablet_number(key) == expected
        assert both.tablet_number(key) == expected * 4 + buckets.tablet_number(key)


def test_rows_of_one_tablet_spread_over_its_whole_index() -> None:
    """Bucket and index hash are independent: within a bucket the index's homes stay even."""
    schema = schema_of(pa.int64())
    batch = pa.record_batch({"k0": np.arange(128_000)})
    numbers = Partitioner(hash_partition("k0", 4), schema).tablet_numbers(batch)
    counts = np.bincount(numbers, minlength=4)
    assert abs(counts - 32_000).max() < 6 * 32_000**0.5
    hashes = KeyCodec(schema).hash_batch(batch)[numbers == 2]
    homes = np.bincount((hashes >> np.uint64(59)).astype(np.int64), minlength=32)
    assert abs(homes - 1000).max() < 6 * 1000**0.5


def test_tablet_numbers_never_change() -> None:
    """Golden numbers: clients and servers of different ages must agree."""
    numbers = Partitioner(hash_partition("k0", 16), schema_of(pa.int64()))
    texts = Partitioner(hash_partition("k0", 16), schema_of(pa.string()))
    assert [numbers.tablet_number((i,)) for i in range(8)] == [8, 8, 13, 11, 2, 13, 5, 11]
    assert [texts.tablet_number((f"key {i}",)) for i in range(8)] == [13, 13, 6, 12, 4, 0, 2, 4]


def test_unfit_partitionings_and_batches_are_refused() -> None:
    """Columns outside the key, splits of another type, null splits, and null keys are named."""
    schema = schema_of(pa.int64())
    with pytest.raises(InvalidArgument, match="must be key columns"):
        Partitioner(hash_partition("v", 4), schema)
    with pytest.raises(InvalidArgument, match="splits of column 'k0'"):
        Partitioner(range_partition("k0", ["a"]), schema)
    with pytest.raises(InvalidArgument, match="null is no key"):
        Partitioner(range_partition("k0", [None]), schema)
    partitioner = Partitioner(range_partition("k0", [5]), schema)
    with pytest.raises(InvalidArgument, match=r"k0.*1 nulls"):
        partitioner.tablet_numbers(pa.record_batch({"k0": pa.array([1, None])}))
    with pytest.raises(InvalidArgument, match=r"k0.*int64"):
        partitioner.tablet_numbers(pa.record_batch({"k0": pa.array([1], pa.int8())}))
