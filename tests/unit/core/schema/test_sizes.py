"""Bytes of rows, and rows cut into calls by them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.schema.sizes import size_cuts, value_sizes


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
    for name, (column, sizes) in rows.items():
        assert value_sizes(column).tolist() == sizes, name
        assert value_sizes(column.slice(1)).tolist() == sizes[1:], name


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
