"""Feast's values as columns and back, and which event of an entity key is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

from feast.protos.feast.types import Value_pb2 as protos
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import (
    Array,
    Bool,
    Bytes,
    Float32,
    Float64,
    Int32,
    Int64,
    Map,
    String,
    UnixTimestamp,
)
from hypothesis import given
from hypothesis import strategies as st

from stelae.connectors.feast_rows import Batch, Event, Layout, feast_rows, layout_of
from stelae.core.errors import InvalidArgument
from tests.feast.views import START, key_of, row_of, view_of

EVERY_TYPE = {
    "text": (String, Value(string_val="Å")),
    "raw": (Bytes, Value(bytes_val=b"\x00\xff")),
    "small": (Int32, Value(int32_val=-(2**31))),
    "large": (Int64, Value(int64_val=2**63 - 1)),
    "half": (Float32, Value(float_val=0.5)),
    "whole": (Float64, Value(double_val=float("inf"))),
    "yes": (Bool, Value(bool_val=False)),
    "when": (UnixTimestamp, Value(unix_timestamp_val=-(2**63))),
    "list": (Array(Int64), Value(int64_list_val=protos.Int64List(val=[1, 2]))),
    "empty": (Array(String), Value(string_list_val=protos.StringList())),
    "map": (Map, Value(map_val=protos.Map(val={"a": Value(bool_val=True)}))),
    "_hidden": (String, Value(string_val="named like Stelae's own columns")),
    "entity_key": (String, Value(string_val="named like the key")),
}


def laid_out(features: Mapping[str, Any], name: str = "planes") -> Layout:
    return layout_of("air", view_of(name, dict(features)), versions=False, key_version=3)


def stored_of(batch: Batch, version: int = 1) -> pa.Table:
    """What a table holds that was empty before this batch."""
    rows, _ = batch.due(nothing(batch.layout), is_again=False)
    return rows.append_column("_version", pa.array([version] * rows.num_rows, pa.uint64()))


def nothing(layout: Layout) -> pa.Table:
    return pa.schema([*layout.schema, ("_version", pa.uint64())]).empty_table()


def test_values_of_every_type_come_back_as_they_were() -> None:
    """Also the extremes, what is empty, and names that cannot be columns'."""
    layout = laid_out({name: kind for name, (kind, _) in EVERY_TYPE.items()})
    values = {name: value for name, (_, value) in EVERY_TYPE.items()}
    stored = stored_of(Batch.of(layout, [row_of("N1", 0, values)]))
    assert stored.schema.field("large").type == pa.int64()
    assert stored["tail"].to_pylist() == ["N1"]
    ((at, read),) = feast_rows(layout, layout.keys([key_of("N1")]), list(values), stored)
    assert at == START
    assert read == values


def test_an_absent_value_is_null_and_a_missing_key_is_nothing() -> None:
    """Also a list that is absent; a key that is asked for twice is found twice."""
    layout = laid_out({"x": Int64, "l": Array(Int64)})
    stored = stored_of(Batch.of(layout, [row_of("N1", 0, {"x": Value(), "l": Value()})]))
    keys = layout.keys([key_of("N2"), key_of("N1"), key_of("N1")])
    missing, found, again = feast_rows(layout, keys, ["x", "l"], stored)
    assert missing == (None, None)
    assert found == again == (START, {"x": Value(), "l": Value()})


def test_only_what_is_asked_for_is_read() -> None:
    """A feature that the view does not have is no error: there is nothing of it."""
    layout = laid_out({"x": Int64, "y": Int64})
    assert layout.columns(["y", "z"]) == ["entity_key", "event_timestamp", "y"]
    stored = stored_of(Batch.of(layout, [row_of("N1", 0, {"x": 1, "y": 2})]))
    ((_, read),) = feast_rows(layout, layout.keys([key_of("N1")]), ["y", "z"], stored)
    assert read == {"y": Value(int64_val=2)}
    assert feast_rows(layout, layout.keys([key_of("N1")]), [], stored) == [(START, {})]


def test_a_value_of_another_type_is_refused_in_plain_words() -> None:
    """So is a feature that the view does not have."""
    layout = laid_out({"x": Int64})
    batch = Batch.of(layout, [row_of("N1", 0, {"x": Value(string_val="1")})])
    with pytest.raises(InvalidArgument, match=r"feature 'x' of 'planes' is of type int64 .*string"):
        batch.due(nothing(layout), is_again=False)
    with pytest.raises(InvalidArgument, match=r"'planes' has no feature 'y'"):
        Batch.of(layout, [row_of("N1", 0, {"y": 1})])


def test_numbers_are_of_the_size_that_the_view_says() -> None:
    """Who writes past Feast's conversions may give others; what does not fit is refused."""
    layout = laid_out({"small": Int32, "half": Float32, "whole": Float64})
    given = {"small": 7, "half": Value(double_val=0.1), "whole": 3}
    stored = stored_of(Batch.of(layout, [row_of("N1", 0, given)]))
    ((_, read),) = feast_rows(layout, layout.keys([key_of("N1")]), list(given), stored)
    assert read == {
        "small": Value(int32_val=7),
        "half": Value(float_val=0.1),
        "whole": Value(double_val=3.0),
    }
    for values in ({"small": 2**40}, {"small": Value(double_val=1.0)}, {"half": 2**24 + 1}):
        batch = Batch.of(layout, [row_of("N1", 0, values)])
        (name,) = values
        with pytest.raises(InvalidArgument, match=rf"feature '{name}' of 'planes' is of type"):
            batch.due(nothing(layout), is_again=False)


def test_parts_of_the_key_may_stand_among_the_features() -> None:
    """As Feast gives them for views on demand; the row is whole all the same."""
    layout = laid_out({"x": Int64})
    batch = Batch.of(layout, [row_of("N1", 0, {"x": 1, "tail": Value(string_val="N1")})])
    assert batch.is_whole
    assert stored_of(batch).select(["tail", "x"]).to_pylist() == [{"tail": "N1", "x": 1}]


def test_times_without_a_zone_are_in_utc() -> None:
    """Those with another zone are the same moment."""
    layout = laid_out({"x": Int64})
    east = START.astimezone(timezone(timedelta(hours=5)))
    for at in (START.replace(tzinfo=None), east):
        batch = Batch.of(layout, [(key_of("N1"), {"x": Value(int64_val=1)}, at, at)])
        assert stored_of(batch)["event_timestamp"].to_pylist() == [START]


def test_times_that_are_null() -> None:
    """As pandas has them. When it was created may be; without the event's time nothing counts."""
    layout = laid_out({"x": Int64})
    nulls: list[Any] = [None, pd.NaT, float("nan")]
    for null in nulls:
        batch = Batch.of(layout, [(key_of("N1"), {"x": Value(int64_val=1)}, START, null)])
        assert stored_of(batch)["created_timestamp"].to_pylist() == [None]
        with pytest.raises(InvalidArgument, match=r"'planes' has no time: tail='N2'"):
            Batch.of(layout, [(key_of("N2"), {"x": Value(int64_val=1)}, null, START)])


def test_a_version_of_a_view_has_a_table_of_its_own() -> None:
    """Only if the registry is told so."""
    view = view_of("planes", {"x": Int64})
    view.current_version_number = 2
    assert layout_of("air", view, versions=True, key_version=3).table == "air.planes@2"
    assert layout_of("air", view, versions=False, key_version=3).table == "air.planes"


@pytest.mark.parametrize(
    ("stored", "new", "due", "due_again"),
    [
        (None, (5, None), True, True),
        ((4, None), (5, None), True, True),
        ((6, None), (5, None), False, False),
        ((6, 1), (5, 9), False, False),
        ((5, None), (5, None), True, False),
        ((5, 1), (5, None), True, False),
        ((5, 1), (5, 1), True, False),
        ((5, 1), (5, 2), True, True),
        ((5, 2), (5, 1), False, False),
    ],
)
def test_which_event_is_due(
    stored: tuple[int, int | None] | None, new: tuple[int, int | None], due: bool, due_again: bool
) -> None:
    """An older event never is; a correction of the same event is; one's own is not done twice."""
    at, created = stored or (None, None)
    event = Event(None, *new, {})
    assert event.is_due(at, created, is_ours=False) is due
    assert event.is_due(at, created, is_ours=True) is due_again


def test_the_newest_event_of_a_batch_counts_in_any_order() -> None:
    """And none of them counts if a newer one is stored."""
    layout = laid_out({"x": Int64})
    rows = [row_of("N1", minute, {"x": minute}) for minute in (3, 9, 1)]
    stored = stored_of(Batch.of(layout, rows))
    assert stored["x"].to_pylist() == [9]
    assert Batch.of(layout, rows[:1]).due(stored, is_again=False)[0].num_rows == 0


def test_what_a_row_leaves_out_is_kept() -> None:
    """It is read with the row's version, and a repeat of the write reads it again."""
    layout = laid_out({"x": Int64, "y": Int64})
    batch = Batch.of(layout, [row_of("N1", 2, {"x": 5})])
    for y in (7, 8):
        stored = stored_of(Batch.of(layout, [row_of("N1", 1, {"x": 1, "y": y})]), version=y)
        rows, versions = batch.due(stored, is_again=y == 8)
        assert rows.select(["x", "y"]).to_pylist() == [{"x": 5, "y": y}]
        assert versions == [y]
        assert not batch.is_whole


@given(st.permutations(range(6)), st.integers(1, 5))
def test_any_order_of_batches_leaves_the_newest(order: list[int], size: int) -> None:
    """One after the other, and each of them twice."""
    layout = laid_out({"x": Int64})
    stored = nothing(layout)
    for start in range(0, 6, size):
        rows = [row_of("N1", minute, {"x": minute}) for minute in order[start : start + size]]
        for is_again in (False, True):
            due, versions = Batch.of(layout, rows).due(stored, is_again=is_again)
            if due.num_rows:
                assert versions == (stored["_version"].to_pylist() or [0])
                version = pa.array([versions[0] + 1], pa.uint64())
                stored = due.append_column("_version", version)
    assert stored["x"].to_pylist() == [5]
    assert stored["event_timestamp"].to_pylist() == [START + timedelta(minutes=5)]
