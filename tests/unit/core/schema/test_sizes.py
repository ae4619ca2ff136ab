"""Bytes of rows, and rows cut into calls by them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import TooLarge
from stelae.core.schema import sizes
from stelae.core.schema.schema import MAX_ROW_BYTES
from stelae.core.schema.sizes import (
    check_row_sizes,
    cuts_of,
    row_sizes,
    size_cuts,
    value_sizes,
)


def test_sizes_of_values_count_what_each_row_holds() -> None:
    """Fixed, variable and nested values; slices count their own part only."""
    rows: dict[str, tuple[pa.Array, list[int]]] = {
        "fixed": (pa.array([1, None, 3], pa.int32()), [4, 4, 4]),
        "bool": (pa.array([True, False, None]), [1, 1, 1]),
        "text": (pa.array(["é", None, "abc"]), [2, 0, 3]),
        "list": (pa.array([["a", "bc"], [], ["d"]]), [3, 0, 1]),
        "struct": (
            pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": ""}, {"a": 3, "b": "yz"}]),
            [9, 8, 10],
        ),
        "fixed list": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)), [4, 4, 4]),
        "map": (
            pa.array([[("a", 1)], [], [("bc", 2)]], pa.map_(pa.string(), pa.int64())),
            [9, 0, 10],
        ),
        "null": (pa.nulls(3), [0, 0, 0]),
        "large text": (pa.array(["é", None, "abc"], pa.large_string()), [2, 0, 3]),
        "view": (pa.array(["é", None, "abc"], pa.string_view()), [2, 0, 3]),
        "fixed bytes": (pa.array([b"abc", None, b"def"], pa.binary(3)), [3, 3, 3]),
        "dictionary": (pa.array(["abc", None, "abc"]).dictionary_encode(), [3, 0, 3]),
        "list of dictionary": (
            pa.array([["ab", "ab"], [], ["ab"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            [4, 0, 2],
        ),
    }
    for name, (column, expected) in rows.items():
        assert value_sizes(column).tolist() == expected, name
        assert value_sizes(column.slice(1)).tolist() == expected[1:], name


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 500), st.booleans())
def test_parts_are_cut_by_each_rows_own_size(
    lengths: list[int], bytes_max: int, as_dictionary: bool
) -> None:
    """All rows in order, one at least in each part, and no part above its bound but a single row;
    each part takes the rows that fit. Dictionaries count as what they stand for."""
    texts = pa.array(["x" * length for length in lengths], pa.string())
    column = texts.dictionary_encode() if as_dictionary else texts
    rows = pa.table({"a": pa.chunked_array([column.slice(0, 7), column.slice(7)])})
    cuts = size_cuts(rows, bytes_max)
    assert [first for first, _ in cuts] == [sum(n for _, n in cuts[:i]) for i in range(len(cuts))]
    assert sum(count for _, count in cuts) == len(lengths)
    taken = [sum(lengths[first : first + count]) + 4 * count for first, count in cuts]
    assert all(count for _, count in cuts)
    for (first, count), size in zip(cuts, taken, strict=True):
        assert size <= bytes_max or count == 1
        after = first + count
        assert after == len(lengths) or size + lengths[after] + 4 > bytes_max


@pytest.mark.parametrize(
    "column",
    [
        pa.StructArray.from_arrays(
            [pa.nulls(5000, pa.string())] * 30, [f"f{i}" for i in range(30)]
        ),
        pa.array([[""] * 40] * 5000),
        pa.array([[None] * 40] * 5000, pa.list_(pa.string())),
        pa.array([[0.0] * 16] * 5000, pa.list_(pa.float32(), 16)),
    ],
    ids=["struct of nulls", "empty texts", "nulls", "fixed lists"],
)
def test_values_within_values_count_where_they_have_no_data(column: pa.Array) -> None:
    """Offsets and validity at every depth: no part is much above its bound, or far below it."""
    rows = pa.table({"a": column})
    cuts = size_cuts(rows, 100_000)
    sizes = [pa.table({"a": column.slice(first, count)}).nbytes for first, count in cuts]
    assert max(sizes) <= 110_000
    assert sum(sizes) / len(sizes) > 40_000


def test_the_same_rows_are_cut_alike_however_they_lie_in_memory() -> None:
    """Slices and chunks change nothing: a write that is run again makes the same calls."""
    values = [[1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0]] * 20
    column = pa.array(values, pa.list_(pa.float32(), 2))
    sliced = pa.array([[0.0, 0.0], *values], pa.list_(pa.float32(), 2)).slice(1)
    chunked = pa.chunked_array([column.slice(0, 7), column.slice(7)])
    cuts = [size_cuts(pa.table({"a": each}), 100) for each in (column, sliced, chunked)]
    assert cuts[0] == cuts[1] == cuts[2]


@given(
    st.lists(st.text(max_size=20) | st.none(), max_size=40),
    st.integers(1, 300),
    st.integers(0, 5),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]),
)
def test_cuts_are_the_same_with_and_without_a_pass_over_the_rows(
    texts: list[str | None], bytes_max: int, skipped: int, kind: pa.DataType
) -> None:
    """Cuts by bisection of offsets are those of the sizes of all rows, of slices too."""
    numbers = pa.array(range(len(texts)), pa.int64())
    rows = pa.table({"id": numbers, "a": pa.array(texts, pa.string()).cast(kind)}).slice(skipped)
    for each in (rows, rows.to_batches()[0] if rows.num_rows else rows):
        assert size_cuts(each, bytes_max) == cuts_of(row_sizes(each), bytes_max)


def test_rows_of_plain_columns_are_cut_without_a_pass_over_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load is cut before its first call is sent: no size of a single row is worked out."""
    passes: list[pa.Array] = []

    def note(column: pa.Array, beside: int = 0) -> Any:
        passes.append(column)
        return value_sizes(column, beside)

    monkeypatch.setattr(sizes, "value_sizes", note)
    plain = {"id": pa.array(range(100), pa.int64()), "a": pa.array(["xy"] * 100)}
    assert size_cuts(pa.table(plain), 14 * 30) == [(0, 30), (30, 30), (60, 30), (90, 10)]
    assert not passes
    size_cuts(pa.table({"a": pa.array(["xy", None])}), 100)
    assert passes, "nulls have no data, whatever their offsets say"


def test_values_of_fixed_width_have_nothing_next_to_their_data() -> None:
    """A row of numbers counts as its bytes in Arrow: calls are as large as they may be."""
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "x": pa.array([0.5] * 1000)})
    assert rows.nbytes == int(row_sizes(rows).sum())


def test_the_size_of_a_row_is_that_of_all_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added up only where the largest values of all columns are too much for one row."""
    passes: list[pa.Array] = []

    def note(column: pa.Array, beside: int = 0) -> Any:
        passes.append(column)
        return value_sizes(column, beside)

    monkeypatch.setattr(sizes, "value_sizes", note)
    half = "x" * (MAX_ROW_BYTES // 2)
    check_row_sizes(pa.record_batch({"a": [half, "", None], "b": ["", "x", half]}))
    check_row_sizes(pa.record_batch({"n": [1, 2, 3], "a": [half, half, None]}))
    assert not passes
    check_row_sizes(pa.record_batch({"a": [half, ""], "b": ["x", half + "x"]}))
    assert passes
    with pytest.raises(TooLarge, match="row 1 "):
        check_row_sizes(pa.record_batch({"a": ["", half], "b": [half, half + "x"]}))
    with pytest.raises(TooLarge, match="row 0 "):
        check_row_sizes(pa.record_batch({"a": [["x", half, half]], "n": [1]}))
