"""Wire values and batches: both ways into a table agree, and refuse what would lose something."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import ColumnNotFound, InvalidArgument, TooLarge
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import (
    batch_to_rows,
    check_batch,
    from_wire,
    rows_to_batch,
    to_wire,
)

UTC = dt.UTC
DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 250_000)

ACCEPTED = [
    (5, pa.int8(), 5),
    (np.int32(-5), pa.int64(), -5),
    (np.uint64(2**64 - 1), pa.uint64(), 2**64 - 1),
    (True, pa.bool_(), True),
    (np.bool_(False), pa.bool_(), False),
    (2, pa.float64(), 2.0),
    (0.1, pa.float32(), float(np.float32(0.1))),
    (np.float32(0.5), pa.float64(), 0.5),
    (math.inf, pa.float32(), math.inf),
    ("é", pa.string(), "é"),
    (np.str_("x"), pa.string(), "x"),
    (bytearray(b"\0x"), pa.binary(), b"\0x"),
    (DAY, pa.date32(), 19782),
    (dt.date(1969, 12, 31), pa.date32(), -1),
    ("2024-02-29", pa.date32(), 19782),
    (dt.datetime(2024, 2, 29), pa.date64(), 19782 * 86_400_000),
    (np.datetime64("2024-02-29"), pa.date32(), 19782),
    (7, pa.date32(), 7),
    (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), pa.timestamp("us"), -1),
    (NOON, pa.timestamp("ms"), 1709208000250),
    (NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), 1709208000250000),
    (
        NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))),
        pa.timestamp("ms", "Europe/Berlin"),
        1709208000250 - 7_200_000,
    ),
    (NOON, pa.timestamp("ns", "UTC"), 1709208000250000000),
    ("2024-02-29T12:00:00.25", pa.timestamp("ms"), 1709208000250),
    (pd.Timestamp("2024-02-29 12:00:00.250000001"), pa.timestamp("ns"), 1709208000250000001),
    (np.datetime64("2024-02-29T12:00"), pa.timestamp("s"), 1709208000),
    (123, pa.timestamp("us"), 123),
    (None, pa.int64(), None),
    (pd.NaT, pa.timestamp("us"), None),
    (np.datetime64("NaT"), pa.timestamp("us"), None),
    (pd.NA, pa.string(), None),
]
REFUSED = [
    (128, pa.int8()),
    (-1, pa.uint64()),
    (1.0, pa.int64()),
    (True, pa.int64()),
    ("5", pa.int64()),
    (1, pa.bool_()),
    (1e300, pa.float32()),
    (2**53 + 1, pa.float64()),
    (10**400, pa.float64()),
    (True, pa.float64()),
    (b"x", pa.string()),
    ("\ud800", pa.string()),
    ("x", pa.binary()),
    (NOON, pa.date32()),
    (1, pa.date64()),
    ("yesterday", pa.date32()),
    (2**31, pa.date32()),
    (NOON, pa.timestamp("s")),
    (NOON.replace(tzinfo=UTC), pa.timestamp("us")),
    (DAY, pa.timestamp("us")),
    (np.datetime64("2024-02-29T12:00:00.5"), pa.timestamp("s")),
    (2**63, pa.timestamp("us")),
    (dt.datetime(9999, 1, 1), pa.timestamp("ns")),
    (1.5, pa.timestamp("us")),
    ([1], pa.list_(pa.int64())),
    (np.arange(2), pa.timestamp("us")),
]


@pytest.mark.parametrize(("value", "kind", "wire"), ACCEPTED, ids=repr)
def test_values_become_wire_values_that_arrow_stores_unchanged(
    value: Any, kind: pa.DataType, wire: Any
) -> None:
    """Each accepted value has its wire value, which passes through a batch and is its own."""
    got = to_wire(value, kind, "column 'c'")
    assert (got, type(got)) == (wire, type(wire))
    assert to_wire(got, kind, "again") == got
    batch = rows_to_batch([(got,)], pa.schema([pa.field("c", kind)]))
    assert batch_to_rows(batch) == [(wire,)]


@pytest.mark.parametrize(("value", "kind"), REFUSED, ids=repr)
def test_values_that_do_not_fit_are_refused_by_name(value: Any, kind: pa.DataType) -> None:
    """What would be rounded, cut, wrapped or guessed is an InvalidArgument naming its place."""
    with pytest.raises(InvalidArgument, match="column 'c'"):
        to_wire(value, kind, "column 'c'")


@pytest.mark.parametrize(
    ("wire", "kind", "value"),
    [
        (19782, pa.date32(), DAY),
        (19782 * 86_400_000, pa.date64(), DAY),
        (1709208000250, pa.timestamp("ms"), NOON),
        (1709208000250, pa.timestamp("ms", "UTC"), NOON.replace(tzinfo=UTC)),
        (2**62, pa.timestamp("s"), np.datetime64(2**62, "s")),
        (10**7, pa.date32(), np.datetime64(10**7, "D")),
        (5, pa.int8(), 5),
        (None, pa.date32(), None),
    ],
)
def test_users_get_dates_and_times(wire: Any, kind: pa.DataType, value: Any) -> None:
    """`from_wire` gives Python's dates and datetimes, NumPy's beyond Python's range."""
    got = from_wire(wire, kind)
    assert got == value
    assert type(got) is type(value)


PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.date64(): st.integers(-9, 9).map(lambda day: day * 86_400_000),
    pa.timestamp("ns", "Asia/Tokyo"): st.integers(-(2**63), 2**63 - 1),
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 3))
def test_rows_and_batches_are_two_forms_of_the_same(data: st.DataObject, cut: int) -> None:
    """Rows of wire values survive a batch of their schema, nulls and slices included."""
    kinds = data.draw(st.lists(st.sampled_from(list(PLAIN)), min_size=1, max_size=4))
    schema = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)])
    row = st.tuples(*(st.none() | PLAIN[kind] for kind in kinds))
    rows = data.draw(st.lists(row, max_size=10))
    batch = rows_to_batch(rows, schema)
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch_to_rows(batch.slice(cut)) == rows[cut:]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, "a"), (2,)], "each row has 2 values: id, name"),
        ([(1, "a", 2)], "each row has 2 values"),
        ([(None, "a")], "column 'id' has nulls"),
        ([("x", "a")], r"column 'id' \(int64\)"),
        ([(2**63, "a")], r"column 'id' \(int64\)"),
        ([(1, 5)], r"column 'name' \(string\)"),
    ],
)
def test_rows_that_do_not_fit_the_schema_are_refused(rows: Any, message: str) -> None:
    """Wrong lengths, types, ranges and nulls in rows from the wire name the column."""
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
    with pytest.raises(InvalidArgument, match=message):
        rows_to_batch(rows, schema)


TABLE = TableSchema.of(
    pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("id", pa.int32()),
            pa.field("delay", pa.float32()),
            pa.field("day", pa.date32()),
            pa.field("must", pa.int8(), nullable=False),
        ]
    ),
    ["id"],
)


def test_a_batch_is_ordered_cast_and_completed() -> None:
    """Columns in another order, chunked, as dictionaries and wider types become the table's."""
    data = pa.table(
        {
            "must": pa.chunked_array([[1], [2, 3]]),
            "id": pa.chunked_array([[1, 2], [3]]),
            "name": pa.array(["a", None, "a"], pa.large_string()).dictionary_encode(),
            "delay": pa.array([0.5, math.nan, None]),
        }
    )
    batch = check_batch(data, TABLE, validate=True)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema == TABLE.arrow
    assert batch.column("name").to_pylist() == ["a", None, "a"]
    assert batch.column("id").to_pylist() == [1, 2, 3]
    assert math.isnan(batch.column("delay")[1].as_py())
    assert batch.column("day").null_count == 3


def test_only_the_columns_asked_for_are_checked_and_returned() -> None:
    """``columns`` gives part of the table, in its order; others of the table are left out."""
    data = pa.record_batch({"name": ["a"], "id": [1], "delay": ["not looked at"]})
    batch = check_batch(data, TABLE, columns=["id", "name"])
    assert batch.schema.names == ["id", "name"]
    assert not batch.schema.field("id").nullable
    assert batch_to_rows(batch) == [(1, "a")]


GOOD: dict[str, Any] = {"id": pa.array([1]), "must": pa.array([1])}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", pa.array([None], pa.int64())),
        ("id", pa.array([2**31])),
        ("id", pa.array([1.5])),
        ("id", pa.array(["1"])),
        ("id", pa.array([True])),
        ("must", pa.array([None], pa.int8())),
        ("name", pa.array([b"x"])),
        ("name", pa.array([5])),
        ("delay", pa.array([1e300])),
        ("delay", pa.array([2**24 + 1])),
        ("delay", pa.array(["0.5"])),
        ("day", pa.array([NOON])),
        ("day", pa.array([NOON.replace(tzinfo=UTC)])),
        ("day", pa.array([[1]])),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(name: str, values: pa.Array) -> None:
    """Nulls where none may be, and casts that would lose or guess, name the column."""
    with pytest.raises(InvalidArgument, match=f"column '{name}'"):
        check_batch(pa.record_batch({**GOOD, name: values}), TABLE)


def test_casts_that_lose_nothing_are_made() -> None:
    """Midnights become dates, whole floats integers, an empty (null) column any type."""
    midnight = pa.array([dt.datetime(2024, 2, 29)])
    data = {**GOOD, "id": pa.array([1.0]), "day": midnight, "name": pa.nulls(1)}
    batch = check_batch(pa.record_batch(data), TABLE)
    assert batch_to_rows(batch) == [(None, 1, None, 19782, 1)]


def test_unknown_missing_and_repeated_columns_are_refused() -> None:
    """A column the table lacks is named with its table; so is one that must be there."""
    with pytest.raises(ColumnNotFound) as caught:
        check_batch(pa.record_batch({**GOOD, "nmae": ["x"]}), TABLE, table="flights")
    assert caught.value.args == ("nmae", "flights", "name, id, delay, day, must")
    with pytest.raises(ColumnNotFound):
        check_batch(pa.record_batch(GOOD), TABLE, columns=["id", "nmae"])
    with pytest.raises(InvalidArgument, match="'must' is missing"):
        check_batch(pa.record_batch({"id": [1]}), TABLE)
    twice = pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["id", "id"])
    with pytest.raises(InvalidArgument, match="twice"):
        check_batch(twice, TABLE)


def test_malformed_buffers_are_found_when_asked_to_look() -> None:
    """Offsets that point past the data, and text that is not UTF-8, never reach a kernel."""
    good = {"id": pa.array([1, 2]), "must": pa.array([1, 2], pa.int8())}
    for bounds, data in (([0, 100, 1], b"x"), ([0, 1, 2], b"\xff\xff")):
        buffers = [None, pa.py_buffer(np.array(bounds, np.int32)), pa.py_buffer(data)]
        column = pa.Array.from_buffers(pa.string(), 2, buffers)
        with pytest.raises(InvalidArgument, match="malformed"):
            check_batch(pa.record_batch({**good, "name": column}), TABLE, validate=True)


def test_rows_over_1_mib_and_calls_over_64_mib_are_too_large() -> None:
    """The limits count data; many small rows may be large together, one row may not."""
    schema = TableSchema.of(
        pa.schema([("id", pa.int64()), ("a", pa.binary()), ("b", pa.list_(pa.string()))]), ["id"]
    )

    def batch(sizes: list[int]) -> pa.RecordBatch:
        halves = [b"x" * (size // 2) for size in sizes]
        lists = [["y" * (size // 4)] * 2 for size in sizes]
        return pa.record_batch({"id": np.arange(len(sizes)), "a": halves, "b": lists})

    assert check_batch(batch([1 << 19] * 4), schema).num_rows == 4
    with pytest.raises(TooLarge, match="row 2 of the call is 1048588 bytes"):
        check_batch(batch([1 << 19, 1 << 19, (1 << 20) + 4]), schema)
    with pytest.raises(TooLarge, match="the call"):
        check_batch(batch([1 << 19] * 129), schema)
