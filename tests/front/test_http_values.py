"""JSON values, keys in paths and Arrow bodies of HTTP, each by itself."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.client.http.json_values import (
    batch_to_json_rows,
    column_to_json,
    encode_rows,
    from_json_value,
    from_path_text,
)
from stelae.core.errors import InvalidArgument, TooLarge
from stelae.serve.bodies.arrow import read_stream, write_stream
from stelae.serve.bodies.problems import (
    MalformedBody,
)

LIMIT = 1 << 20

# ---- JSON -----------------------------------------------------------------------------------

UTC = datetime.UTC
SAMPLES = [
    (pa.int64(), [None, -(2**63), 2**63 - 1, 2**53 + 1]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.int8(), [-128, 127]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["", "é\u2028\U0001f600", '"\\', None]),
    (pa.binary(), [b"", b"\x00\xff", None]),
    (pa.float64(), [0.1, -0.0, 1e300, math.inf, -math.inf, None]),
    (pa.float32(), [0.5, math.inf]),
    (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    (pa.date64(), [datetime.date(2013, 1, 1)]),
    (pa.timestamp("s"), [datetime.datetime(2013, 1, 1, 5, 15)]),
    (pa.timestamp("us"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2013, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("ns"), [1, -1, 1_600_000_000_123_456_789]),
    (pa.decimal128(10, 2), [Decimal("12.30"), Decimal("-0.01"), None]),
    (pa.list_(pa.int64()), [[1, None], [], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.binary())]), [{"a": 1, "b": b"x"}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    (pa.time64("us"), [datetime.time(1, 2, 3, 4), None]),
    (pa.duration("ms"), [datetime.timedelta(days=1), None]),
]


@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=lambda part: str(part)[:30])
def test_json_gives_back_every_value(kind: pa.DataType, values: list[object]) -> None:
    """Column to JSON text to column: equal, for each type."""
    column = pa.array(values, kind)
    text = msgspec.json.encode(column_to_json(column))
    back = [from_json_value(value, kind, "c") for value in msgspec.json.decode(text)]
    assert pa.array(back, kind).equals(column)


def test_nan_travels_as_text_and_differs_from_null() -> None:
    """NaN, null and a missing number stay apart."""
    column = pa.array([math.nan, None], pa.float64())
    assert json.loads(msgspec.json.encode(column_to_json(column))) == ["NaN", None]
    assert math.isnan(from_json_value("NaN", pa.float64(), "c"))
    with pytest.raises(InvalidArgument, match="column 'x'"):
        from_json_value("nan?", pa.float64(), "column 'x'")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1", pa.int64()),
        (1.0, pa.int64()),
        (True, pa.int64()),
        (2**63, pa.int64()),
        (-1, pa.uint8()),
        (1, pa.string()),
        (1, pa.binary()),
        ("?", pa.binary()),
        ("YQ", pa.binary()),
        (1, pa.bool_()),
        ("true", pa.bool_()),
        ("yesterday", pa.date32()),
        ("x", pa.timestamp("us")),
        ("2020-01-01T00:00:00.0000001", pa.timestamp("us")),
        ("2020-01-01T00:00:00.0000000001", pa.timestamp("ns")),
        ("2020-01-01T00:00:00Z", pa.timestamp("us")),
        (1.5, pa.decimal128(4, 1)),
        ("x", pa.decimal128(4, 1)),
        (1, pa.list_(pa.int64())),
        (["a"], pa.list_(pa.int64())),
        ({"z": 1}, pa.struct([("a", pa.int64())])),
        ([], pa.struct([])),
        ([[1]], pa.map_(pa.int64(), pa.int64())),
        ({}, pa.int64()),
        (2**53 + 1, pa.float64()),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: object, kind: pa.DataType) -> None:
    """Nothing is rounded or converted: the error names the column."""
    with pytest.raises(InvalidArgument, match="column 'x'"):
        from_json_value(value, kind, "column 'x'")


@given(st.integers(-(2**63), 2**63 - 1))
def test_nanoseconds_keep_their_last_digits(moment: int) -> None:
    """Nine digits of a second survive text, which Python's own parser would cut to six."""
    kind = pa.timestamp("ns")
    text = column_to_json(pa.array([moment], kind))[0]
    assert from_json_value(text, kind, "c") == moment


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("-5", pa.int64(), -5),
        ("true", pa.bool_(), True),
        ("", pa.string(), ""),
        ("a,b", pa.string(), "a,b"),
        ("_-8", pa.binary(), b"\xff\xef"),
        ("2013-01-01", pa.date32(), 15706),
        ("1970-01-01T00:00:01", pa.timestamp("ms"), 1000),
    ],
)
def test_keys_in_paths_are_read_by_type(text: str, kind: pa.DataType, value: object) -> None:
    """Each key type has one spelling in a path."""
    assert from_path_text(text, kind, "k") == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", pa.int64()),
        ("1.0", pa.int64()),
        ("٣", pa.int64()),
        ("+1", pa.int64()),
        ("1" * 5000, pa.int64()),
        ("True", pa.bool_()),
        ("!", pa.binary()),
        ("x", pa.date32()),
    ],
)
def test_keys_in_paths_that_do_not_fit_are_refused(text: str, kind: pa.DataType) -> None:
    """No guessing: other spellings are errors."""
    with pytest.raises(InvalidArgument):
        from_path_text(text, kind, "key column 'k'")


def test_rows_are_objects_with_their_columns_in_order() -> None:
    """`encode_rows` gives the JSON of `batch_to_json_rows`, row by row."""
    batch = pa.table({"b": [1, 2], "a": ["x", None]})
    assert batch_to_json_rows(batch) == [{"b": 1, "a": "x"}, {"b": 2, "a": None}]
    assert encode_rows(batch) == [b'{"b":1,"a":"x"}', b'{"b":2,"a":null}']


def test_days_beyond_pythons_calendar_can_still_be_shown() -> None:
    """A date32 outside years 1 to 9999 is the integer that Arrow stores, which is taken, too."""
    assert column_to_json(pa.array([2**31 - 1], pa.date32())) == [2**31 - 1]
    assert from_json_value(2**31 - 1, pa.date32(), "c") == 2**31 - 1


# ---- Arrow ----------------------------------------------------------------------------------


def stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def test_arrow_streams_are_read_whole() -> None:
    """Plain and compressed streams, several batches, dictionaries: the same table."""
    table = pa.table({"a": list(range(1000)), "s": pa.array(["x"] * 1000).dictionary_encode()})
    for options in ({}, {"compression": "zstd"}, {"compression": "lz4"}):
        found = read_stream(stream(table, **options), size_bytes_max=LIMIT, rows_max=1000)
        assert found.equals(table)
    data = write_stream(table.schema, table.to_batches(max_chunksize=100))
    assert read_stream(data, size_bytes_max=LIMIT, rows_max=1000).num_rows == 1000


def test_a_stream_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    """Compressed zeros: a few kilobytes that claim 8 MiB."""
    table = pa.table({"a": np.zeros(LIMIT, np.int64)})
    data = stream(table, compression="zstd")
    assert len(data) < LIMIT // 8
    with pytest.raises(TooLarge, match="unpacked"):
        read_stream(data, size_bytes_max=LIMIT, rows_max=10 * LIMIT)


def test_a_dictionary_that_decodes_to_too_much_is_refused() -> None:
    """One long value in many rows is counted as often as it stands there."""
    column = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int8), ["x" * 10_000])
    with pytest.raises(TooLarge, match="decoded"):
        read_stream(stream(pa.table({"s": column})), size_bytes_max=LIMIT, rows_max=1000)


def test_rows_without_bytes_are_bounded_too() -> None:
    """Columns of type null can claim any number of rows."""
    data = stream(pa.table({"n": pa.nulls(10_000)}))
    with pytest.raises(InvalidArgument, match="10000 rows"):
        read_stream(data, size_bytes_max=LIMIT, rows_max=9_999)


@given(st.data())
def test_damaged_streams_are_errors_and_nothing_else(data: st.DataObject) -> None:
    """Any byte changed, any tail cut: a table or one of our errors, never another exception."""
    good = bytearray(stream(pa.table({"a": [1, 2, 3], "s": ["x", "yy", None]}), compression="lz4"))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            found = read_stream(damaged, size_bytes_max=LIMIT, rows_max=1000)
        except (MalformedBody, TooLarge, InvalidArgument):
            continue
        found.validate(full=True)
