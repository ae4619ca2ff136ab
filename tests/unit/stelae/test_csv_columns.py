"""Text of CSV as other types: the fast way and the slow one agree, and neither changes a value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.cli.files import csv_columns
from stelae.cli.files.csv_columns import guessed_type, typed_column
from stelae.cli.values import plain_value
from stelae.core.errors import InvalidArgument
from stelae.core.schema.exact import exact_array

KINDS = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float64(), pa.float32(), pa.date32()),
    *(pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in (None, "UTC")),
]
DIGITS = st.text("0123456789", min_size=1, max_size=21)
NUMBERS = st.one_of(
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.floats().map(repr),
    st.builds("{}{}.{}e{}".format, st.sampled_from(["", "-", "+"]), DIGITS, DIGITS, DIGITS),
    st.sampled_from(
        ["0x1F", "1e400", "-0", "007", " 1", "1 ", "1_0", ".5", "5.", "nan", "inf", ""]
    ),
)
MOMENTS = st.one_of(
    st.dates().map(str),
    st.builds(
        "{}{}{:02}:{:02}:{:02}{}{}".format,
        st.dates(),
        st.sampled_from(["T", " "]),
        *(st.integers(0, most) for most in (24, 60, 60)),
        st.sampled_from(["", ".5", ".123456", ".1234567", ".123456789"]),
        st.sampled_from(["", "Z", "+01:00", "-23:59", "+24:00", "+0100"]),
    ),
    st.sampled_from(["2024", "2024-02-30", "0000-01-01", "10000-01-01", "2024-1-2", "20240102"]),
)


def by_value(text: str, kind: pa.DataType) -> pa.Array | None:
    """The slow way; None: it is refused."""
    try:
        return exact_array([plain_value(text, kind, "x")], kind, lambda _: "x")
    except InvalidArgument:
        return None


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(KINDS), text=st.one_of(NUMBERS, MOMENTS))
def test_what_arrows_parsers_take_is_what_a_single_value_is(kind: pa.DataType, text: str) -> None:
    """Bit by bit, so that 0.0 and -0.0 differ, and NaN is itself."""
    fast = csv_columns._by_arrow(pa.array([text], pa.string()), kind)
    if fast is not None:
        slow = by_value(text, kind)
        assert slow is not None, (text, kind, fast)
        assert (
            fast.buffers()[1].to_pybytes()[: kind.bit_width // 8]
            == (slow.buffers()[1].to_pybytes()[: kind.bit_width // 8])
        ), (text, kind)


def test_a_column_with_one_odd_text_is_read_by_value() -> None:
    """The same values, and nulls where they were; the text that does not fit is named by row."""
    texts = pa.array(["1.5", None, "+.5e1", "NaN"])
    found = typed_column(texts, pa.float64(), "f", 0).to_pylist()
    assert found[:3] == [1.5, None, 5.0]
    assert found[3] != found[3]
    with pytest.raises(InvalidArgument, match="column 'n', row 12: '0x1F'"):
        typed_column(pa.array(["1", None, "0x1F"]), pa.int64(), "n", 10)
    with pytest.raises(InvalidArgument, match="column 'n', row 1: 200"):
        typed_column(pa.array(["1", "200"]), pa.int8(), "n", 0)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", None], pa.int64()),
        (["1", "01"], pa.string()),
        (["1", "9223372036854775808"], pa.uint64()),
        (["-1", "9223372036854775808"], pa.string()),
        (["1", "2.5", "1e3"], pa.float64()),
        (["1e400"], pa.string()),
        (["true", "false"], pa.bool_()),
        (["True"], pa.string()),
        (["2026-11-30"], pa.date32()),
        (["2026-02-30"], pa.string()),
        (["2026-11-30 08:00:00.000001"], pa.timestamp("us")),
        (["2026-11-30 08:00:00.0000001"], pa.string()),
        (["2026-11-30T08:00:00+01:00"], pa.timestamp("us", "UTC")),
        ([None, None], pa.string()),
        ([""], pa.string()),
    ],
)
def test_a_type_is_guessed_only_if_it_keeps_every_text(texts: list[Any], kind: pa.DataType) -> None:
    """Otherwise the column stays text."""
    assert guessed_type(pa.array(texts, pa.string())) == kind
