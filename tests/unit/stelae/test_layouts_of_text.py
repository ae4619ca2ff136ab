"""Text and bytes on the command line and in files, in each of Arrow's layouts."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.cli.files.csv_columns import typed_column
from stelae.cli.files.writing import CsvWriter
from stelae.cli.values import defaults_of, fields_of, filters_of, keys_of, row_of
from stelae.client.http.json_values import column_to_json, from_json_value
from stelae.core.schema.exact import exact_array

LAYOUTS: list[tuple[pa.DataType, Any, str]] = [
    (pa.string(), "YWJj", "YWJj"),
    (pa.large_string(), "YWJj", "YWJj"),
    (pa.string_view(), "YWJj", "YWJj"),
    (pa.binary(), b"abc", "YWJj"),
    (pa.binary(3), b"abc", "YWJj"),
    (pa.large_binary(), b"abc", "YWJj"),
    (pa.binary_view(), b"abc", "YWJj"),
    (pa.dictionary(pa.int32(), pa.string()), "YWJj", "YWJj"),
    (pa.dictionary(pa.int8(), pa.large_binary()), b"abc", "YWJj"),
    (pa.dictionary(pa.int32(), pa.int64()), 12, "12"),
]


@pytest.mark.parametrize(("kind", "value", "text"), LAYOUTS, ids=lambda each: str(each))
def test_a_value_is_written_alike_in_each_layout(kind: pa.DataType, value: Any, text: str) -> None:
    """In rows, keys, filters and columns of CSV: without quotes, and bytes as base64."""
    schema = pa.schema([("n", kind)])
    assert row_of([f"n={text}"], schema, "t") == {"n": value}
    assert row_of([f'n="{text}"'], schema, "t") == {"n": value}
    assert keys_of([text], schema, ["n"], "t") == [(value,)]
    assert filters_of([f"n = {text}"], schema, "t") == [("n", "=", value)]
    column = typed_column(pa.array([text, None]), kind, "n", 0)
    assert column.type == kind
    assert column.to_pylist() == [value, None]


@pytest.mark.parametrize(("kind", "value", "text"), LAYOUTS, ids=lambda each: str(each))
def test_a_column_in_each_layout_comes_back_from_csv_and_json(
    kind: pa.DataType, value: Any, text: str
) -> None:
    """What is exported is imported as the same values."""
    column = exact_array([value, None, value], kind, str)
    shown = msgspec.json.decode(msgspec.json.encode(column_to_json(column)))
    assert [str(each) for each in shown] == [text, "None", text]
    assert exact_array([from_json_value(v, kind, "n") for v in shown], kind, str).equals(column)
    target = io.BytesIO()
    rows = pa.table({"n": column})
    writer = CsvWriter(target, rows.schema, "t")
    writer.write(rows)
    writer.close()
    cell = text if isinstance(value, int) else f'"{text}"'
    assert target.getvalue().decode().splitlines() == ['"n"', cell, "", cell]


def test_a_default_of_a_new_column_is_text_in_each_layout() -> None:
    """``--add n:large_string --default n=abc``: types are named as Arrow names them."""
    added = fields_of(["n:large_string", "b:large_binary"])
    found = defaults_of({"n": "abc", "b": "YWJj"}, pa.schema([]), added, {})
    assert found == {"n": "abc", "b": b"abc"}
