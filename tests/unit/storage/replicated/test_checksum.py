"""Checksums over rows: the same however rows are held, another one whenever a value differs."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import VERSION_COLUMN, TableSchema
from stelae.storage.kernels import reference as kernels_reference
from stelae.storage.kernels.default import default_kernels
from stelae.storage.replicated.checksum import ChecksumSource, row_hashes
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, -1, None]),
    "uint64": (pa.uint64(), [1, (1 << 64) - 1, None]),
    "float16": (pa.float16(), [np.float16(1), np.float16(0.5), None]),
    "float32": (pa.float32(), [1.5, -0.0, None]),
    "float64": (pa.float64(), [1.5, 0.0, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "string": (pa.string(), ["a", "", None]),
    "large": (pa.large_string(), ["a", "", None]),
    "view": (pa.string_view(), ["a", "", None]),
    "binary": (pa.binary(), [b"a", b"", None]),
    "fixed": (pa.binary(11), [b"a" * 11, b"b" * 11, None]),
    "decimal": (pa.decimal128(20, 2), [decimal.Decimal("1.25"), decimal.Decimal("-1"), None]),
    "date": (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(1960, 1, 1), None]),
    "time": (pa.time64("us"), [datetime.time(1), datetime.time(2), None]),
    "stamp": (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1), None, None]),
    "duration": (pa.duration("s"), [datetime.timedelta(1), datetime.timedelta(2), None]),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), (1, 2, 4), None]),
    "list": (pa.list_(pa.int32()), [[1, 2], [2, 1], [1], [], [None], None, [0], [1, 2, 0]]),
    "lists": (pa.large_list(pa.list_(pa.string())), [[["a"], ["b"]], [["a", "b"]], [[]], [], None]),
    "same size": (pa.list_(pa.int8(), 2), [[1, 2], [2, 1], None]),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": None}, None],
    ),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 2)], [], None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
}


def hashes_of(column: pa.Array) -> list[int]:
    schema = TableSchema.of(pa.schema([pa.field("id", pa.int64()), ("c", column.type)]), ["id"])
    count = len(column)
    versions = pa.array(np.ones(count, np.uint64))
    ids = pa.array(np.zeros(count, np.int64))
    batch = pa.RecordBatch.from_arrays([ids, column, versions], ["id", "c", VERSION_COLUMN])
    found = row_hashes(batch, schema, default_kernels()).tolist()
    assert row_hashes(batch, schema, kernels_reference).tolist() == found
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", list(COLUMNS))
def test_every_value_of_every_type_counts(name: str) -> None:
    """Different values have different hashes, null too, and slices those of their rows."""
    kind, values = COLUMNS[name]
    column = pa.array(values, kind)
    hashes = hashes_of(column)
    distinct = {repr(value) for value in column.to_pylist()}
    assert len(set(hashes)) == len(distinct)
    twice = pa.concat_arrays([column, column, column])
    assert hashes_of(twice) == hashes * 3
    assert hashes_of(twice.slice(1, len(column))) == hashes[1:] + hashes[:1]
    if any(value is None for value in values):
        under_null = pa.array([values[0]] * 2, kind)
        masked = pa.concat_arrays([under_null, pa.nulls(1, kind)])
        assert hashes_of(masked)[2] == hashes[values.index(None)]


def test_what_lies_under_a_null_does_not_count() -> None:
    """Bits behind the validity mask differ between replicas, and mean nothing."""
    mask = np.array([False, True])
    for left, right in (
        (np.array([1, 2]), np.array([1, 3])),
        (np.array(["a", "b"], object), np.array(["a", "ccc"], object)),
    ):
        arrays = [pa.array(values, mask=mask) for values in (left, right)]
        if left.dtype != object:
            validity = arrays[0].buffers()[0]
            arrays = [
                pa.Array.from_buffers(pa.int64(), 2, [validity, pa.py_buffer(v)])
                for v in (left, right)
            ]
        assert hashes_of(arrays[0]) == hashes_of(arrays[1])


def test_a_nan_is_a_nan() -> None:
    """Whatever its bits; but zero and minus zero are two values."""
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64)
    hashes = hashes_of(pa.array(bits.view(np.float64)))
    assert hashes[0] == hashes[1]
    zeros = hashes_of(pa.array([0.0, -0.0]))
    assert zeros[0] != zeros[1]


SCHEMA = TableSchema.of(
    pa.schema([("id", pa.int64()), ("a", pa.string()), ("x", pa.float32())]), ["id"]
)


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", None]), st.booleans()), max_size=12
    ),
    cuts=st.sets(st.integers(0, 11)),
)
def test_segments_and_forms_do_not_count(calls: Any, cuts: set[int]) -> None:
    """Rows as tuples or batches, in a head or images, cut anywhere, give one checksum."""
    plain, cut = TabletMemory(SCHEMA, "t"), TabletMemory(SCHEMA, "t")
    plain.new_head(1)
    cut.new_head(1)
    for i, (key, text, as_batch) in enumerate(calls, 1):
        row = (key, text, key / 3)
        plain.execute(WriteOp.UPSERT, [row], None, i)
        arrays = [pa.array([value], f.type) for value, f in zip(row, SCHEMA.arrow, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow)
        cut.execute(WriteOp.UPSERT, batch if as_batch else [row], None, i)
        if i in cuts:
            slot = len(cut.statistics()) - 1
            cut.new_head(i + 1)
            image = Image.open(cut.seal(slot, "t", "t", 1), "image")
            cut.install_sealed(slot, image)
    sums = [ChecksumSource(1, SCHEMA, t.scan_snapshot(), 0).compute() for t in (plain, cut)]
    assert sums[0] == sums[1]
    assert sums[0].row_count == len({key for key, _, _ in calls})


def test_a_version_and_a_column_swapped_count() -> None:
    """The same values in other columns, or written again, are another state."""
    schema = TableSchema.of(
        pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]), ["id"]
    )
    found = []
    for rows in ([(1, 2, 3)], [(1, 3, 2)], [(1, 2, 3), (1, 2, 3)]):
        tablet = TabletMemory(schema, "t")
        tablet.new_head(1)
        for i, row in enumerate(rows, 1):
            tablet.execute(WriteOp.UPSERT, [row], None, i)
        found.append(ChecksumSource(1, schema, tablet.scan_snapshot(), 0).compute().rows)
    assert len(set(found)) == 3
