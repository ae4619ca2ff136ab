"""`stelae.core.schema.exact` and `casts`: a value is kept as it is, or refused by name."""

from __future__ import annotations

import datetime
import enum
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stelae.core.errors import InvalidArgument
from stelae.core.schema.casts import exact_cast
from stelae.core.schema.exact import exact_column
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import to_wire

UTC = datetime.UTC
DAY = datetime.datetime(2020, 1, 1)


class Colour(str, enum.Enum):  # noqa: UP042 – unlike a StrEnum, its str() is not its value
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])

KEPT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), Level.HIGH, 3),
    (pa.int64(), np.int64(5), 5),
    (pa.int64(), pd.NA, None),
    (pa.float32(), 1, 1.0),
    (pa.float32(), math.inf, math.inf),
    (pa.string(), Colour.RED, "red"),
    (pa.string(), np.str_("q"), "q"),
    (pa.binary(), bytearray(b"q"), b"q"),
    (pa.bool_(), np.bool_(True), True),
    (pa.timestamp("us"), "2020-01-01", DAY),
    (pa.timestamp("us"), np.datetime64("3000-01-01", "s"), datetime.datetime(3000, 1, 1)),
    (pa.timestamp("us"), pd.NaT, None),
    (pa.date32(), DAY, DAY.date()),
    (pa.decimal128(10, 2), Decimal("1.0"), Decimal("1.00")),
    (pa.decimal128(10, 2), 3, Decimal("3.00")),
    (pa.time32("s"), datetime.time(1, 2, 3), datetime.time(1, 2, 3)),
    (pa.duration("us"), np.timedelta64(5, "s"), datetime.timedelta(seconds=5)),
    (pa.duration("us"), np.timedelta64("NaT"), None),
    (pa.binary(3), b"abc", b"abc"),
    (pa.list_(pa.float32()), [1.5, None], [1.5, None]),
    (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
    (pa.list_(pa.int64(), 2), [1, 2], [1, 2]),
    (PAIR, {"a": 1}, {"a": 1, "b": None}),
    (pa.list_(PAIR), [{"b": Colour.RED}, None], [{"a": None, "b": "red"}, None]),
    (pa.map_(pa.string(), pa.int64()), {"x": 1}, [("x", 1)]),
]
REFUSED: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), 1.5),
    (pa.int64(), 1.0),
    (pa.int64(), True),
    (pa.int64(), Decimal("1.5")),
    (pa.int64(), 2**63),
    (pa.int64(), math.nan),
    (pa.int8(), 300),
    (pa.float32(), 1e300),
    (pa.float32(), 16777217),
    (pa.float64(), True),
    (pa.string(), b"x"),
    (pa.string(), "\ud800"),
    (pa.binary(), "x"),
    (pa.bool_(), 1),
    (pa.timestamp("us"), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
    (pa.timestamp("us"), DAY.date()),
    (pa.timestamp("s"), datetime.datetime(2020, 1, 1, 0, 0, 0, 5)),
    (pa.timestamp("ns"), np.datetime64("3000-01-01", "s")),
    (pa.timestamp("us"), np.datetime64("2020-01-01T00:00:00.123456789")),
    (pa.date32(), datetime.datetime(2020, 1, 1, 12)),
    (pa.decimal128(10, 2), Decimal("1.005")),
    (pa.decimal128(10, 2), 1.0),
    (pa.decimal128(10, 2), True),
    (pa.time32("s"), datetime.time(1, 2, 3, 5)),
    (pa.duration("s"), datetime.timedelta(microseconds=1)),
    (pa.binary(3), b"ab"),
    (pa.list_(pa.float32()), [1e300]),
    (pa.list_(pa.timestamp("us")), [datetime.datetime(2020, 1, 1, tzinfo=UTC)]),
    (pa.list_(pa.int64()), "12"),
    (pa.list_(pa.int64(), 2), [1]),
    (PAIR, {"A": 1}),
    (PAIR, {"a": 1, "c": 2}),
    (PAIR, {"a": 1.5}),
    (pa.map_(pa.string(), pa.int64()), {"x": 1.5}),
    (pa.map_(pa.string(), pa.int64()), {None: 1}),
]


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize(("kind", "value", "kept"), KEPT)
def test_what_fits_is_kept_as_it_is(kind: pa.DataType, value: Any, kept: Any, count: int) -> None:
    """One result, whatever the number of rows."""
    column = exact_column([None, *[value] * count], pa.field("c", kind))
    column.validate(full=True)
    assert column.type == kind
    assert column.to_pylist() == [None, *[kept] * count]


@pytest.mark.parametrize("count", [0, 200])
@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_what_does_not_fit_is_refused_by_column_and_row(
    kind: pa.DataType, value: Any, count: int
) -> None:
    """Nothing is rounded, cut or dropped."""
    with pytest.raises(InvalidArgument, match="column 'c', row "):
        exact_column([*[None] * count, value], pa.field("c", kind))
    if not pa.types.is_nested(kind):
        with pytest.raises(InvalidArgument):
            to_wire(value, kind, "c")


def test_the_place_of_a_nested_value_is_told() -> None:
    """Row, element and field lead to it."""
    kind = pa.list_(pa.struct([("a", pa.list_(pa.int8()))]))
    with pytest.raises(InvalidArgument, match=r"column 'c', row 1\[2\]\.a\[1\]: 300 "):
        exact_column([[], [{}, None, {"a": [1, 300]}]], pa.field("c", kind))


CASTS: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([1.0, None]), pa.int64(), [1, None]),
    (pa.array([0.1, None]), pa.decimal128(10, 2), [Decimal("0.10"), None]),
    (pa.array([1], pa.time32("s")), pa.time64("us"), [datetime.time(0, 0, 1)]),
    (pa.array(["a"]).dictionary_encode(), pa.string(), ["a"]),
    (pa.array([None]), PAIR, [None]),
    (pa.array([{"b": "x"}, None]), PAIR, [{"a": None, "b": "x"}, None]),
    (pa.array([[1.5, None], None, []]).slice(1), pa.list_(pa.float32()), [None, []]),
    (pa.array([[1.0, 2.0], None]), pa.list_(pa.int64(), 2), [[1, 2], None]),
    (pa.array([None, [3, 4]], pa.list_(pa.int8(), 2)), pa.list_(pa.int64()), [None, [3, 4]]),
    (
        pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int8())),
        pa.map_(pa.string(), pa.int64()),
        [[("x", 1)], None],
    ),
]
LOSSES: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1.005]), pa.decimal128(10, 2)),
    (pa.array([Decimal("1.005")]), pa.decimal128(10, 2)),
    (pa.array([1.5]), pa.int64()),
    (pa.array([1], pa.time64("us")), pa.time32("s")),
    (pa.array([b"a"]), pa.string()),
    (pa.array([[1e300]]), pa.list_(pa.float32())),
    (pa.array([[DAY]], pa.list_(pa.timestamp("us", "UTC"))), pa.list_(pa.timestamp("us"))),
    (pa.array([[1.0], [1.0, 2.0]]), pa.list_(pa.float64(), 2)),
    (pa.array([{"A": 1}]), PAIR),
    (pa.array([{"a": 1, "c": 1}]), PAIR),
    (pa.array([{"a": 1.5}]), PAIR),
    (pa.array([[("x", 1.5)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.int8())),
]


@pytest.mark.parametrize(("column", "wanted", "kept"), CASTS)
def test_arrow_data_is_cast_where_that_loses_nothing(
    column: pa.Array, wanted: pa.DataType, kept: list[Any]
) -> None:
    """At every depth, with nulls and slices."""
    cast = exact_cast(column, wanted, "column 'c'")
    cast.validate(full=True)
    assert cast.type == wanted
    assert cast.to_pylist() == kept


@pytest.mark.parametrize(("column", "wanted"), LOSSES)
def test_a_cast_that_would_lose_something_is_refused(column: pa.Array, wanted: pa.DataType) -> None:
    """At every depth."""
    with pytest.raises(InvalidArgument, match="column 'c'"):
        exact_cast(column, wanted, "column 'c'")


def test_the_first_value_that_does_not_fit_is_told() -> None:
    """With its row, also in a later chunk."""
    column = pa.array([*map(float, range(1000)), 0.5, 0.25])
    with pytest.raises(InvalidArgument, match=r"0\.5, row 1007"):
        exact_cast(column, pa.int64(), "column 'c'", 7)


@pytest.mark.parametrize(
    "kind",
    [
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_(pa.field("item", pa.int64(), False)),
        pa.struct([pa.field("a", pa.int64(), False)]),
        pa.list_(pa.struct([pa.field("a", pa.int64(), False)])),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.list_view(pa.int64()),
    ],
)
def test_types_that_no_table_can_hold_are_refused_at_create(kind: pa.DataType) -> None:
    """Such a table would take rows, and answer no read."""
    schema = pa.schema([pa.field("id", pa.int64(), False), ("c", kind)])
    with pytest.raises(InvalidArgument, match="column 'c'"):
        TableSchema.of(schema, ["id"])
