"""Columns of text, as CSV has them, in the types of a table's columns: exact, or refused by row.

Text is what `stelae.cli.values.plain_value` takes. Columns of common types whose texts are all
written in one plain way take Arrow's parser, which gives the same values, many times faster.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.cli.values import plain_value
from stelae.core.errors import InvalidArgument
from stelae.core.schema.exact import exact_array

_INTEGER = r"^-?[0-9]{1,20}$"
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DATE = r"^([1-9][0-9]{3}|0[0-9]{2}[1-9])-[0-9]{2}-[0-9]{2}$"
_TIME = r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_MOMENT = _DATE[:-1] + _TIME + "$"
_MOMENT_WITH_ZONE = _DATE[:-1] + _TIME + r"(Z|[+-][0-9]{2}:[0-9]{2})$"
_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,19})$"
_CANONICAL_FLOAT = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?$"

_GUESSED: tuple[tuple[pa.DataType, str], ...] = (
    (pa.int64(), _CANONICAL_INTEGER),
    (pa.uint64(), _CANONICAL_INTEGER),
    (pa.float64(), _CANONICAL_FLOAT),
    (pa.bool_(), r"^(true|false)$"),
    (pa.date32(), _DATE),
    (pa.timestamp("us"), _MOMENT),
    (pa.timestamp("us", "UTC"), _MOMENT_WITH_ZONE),
)
"""Types that a column of text may be meant to have, and how all its values are written then."""


def typed_column(texts: pa.Array, kind: pa.DataType, name: str, first_row: int) -> pa.Array:
    """The column in type ``kind``.

    Raises:
        InvalidArgument: a text that does not fit, by its column and row.
    """
    fast = _by_arrow(texts, kind)
    if fast is not None:
        return fast

    def where(place: int) -> str:
        return f"column {name!r}, row {first_row + place}"

    values: list[Any] = []
    for place, text in enumerate(texts.to_pylist()):
        values.append(None if text is None else plain_value(text, kind, where(place)))
    return exact_array(values, kind, where)


def _by_arrow(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """None: another type, or some text is written in another way, or does not fit."""
    pattern = _pattern_of(kind)
    if pa.types.is_string(kind):
        return texts
    if not pattern or not _all_match(texts, pattern):
        return None
    try:
        found = texts.cast(kind)
    except pa.ArrowException:
        return None
    if pa.types.is_floating(kind) and pc.any(pc.is_inf(found)).as_py():
        return None
    return found


def _pattern_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return _INTEGER
    if pa.types.is_float64(kind):
        return _FLOAT
    if pa.types.is_date32(kind):
        return _DATE
    if pa.types.is_timestamp(kind):
        return _MOMENT_WITH_ZONE if kind.tz else _MOMENT
    return ""


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False)


def guessed_type(texts: pa.Array) -> pa.DataType:
    """The type that a column of text is meant to have. Digits with a zero before them stay text, as
    do more digits than a double keeps."""
    if texts.null_count == len(texts):
        return pa.string()
    for kind, pattern in _GUESSED:
        if not _all_match(texts, pattern):
            continue
        try:
            typed_column(texts, kind, "", 0)
        except InvalidArgument:
            continue
        return kind
    return pa.string()
