"""Predicates that Spark's JVM hands over: which columns' may come, and what their values mean.

A comparison is taken over only where it is the same here and there: where the column has the very
type in Spark that it has in the table, but for floats that are not 64 bits wide. Days and times are
of the years 1 to 9999, which Python has: the JVM keeps other filters (`Filters.java`).
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from stelae.core.schema.schema import TableSchema

MARK = "stelae.exact"
"""In the metadata of such a column in Spark's schema."""
_EPOCH = datetime.datetime(1970, 1, 1)
_EXACT = (
    pa.types.is_signed_integer,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_date32,
)


def is_exact(kind: pa.DataType) -> bool:
    """Whether filters of a column may be applied by the tservers."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(is_kind(kind) for is_kind in _EXACT)


def decoded(term: list[Any], schema: TableSchema) -> tuple[str, str, Any]:
    """A (column, operator, value) of the JVM's in the values that filters have."""
    name, operator, value = term
    kind = schema.arrow.field(name).type
    if operator == "in":
        return name, operator, [_value(item, kind) for item in value]
    return name, operator, _value(value, kind)


def _value(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_date32(kind):
        return (_EPOCH + datetime.timedelta(days=value)).date()
    if pa.types.is_timestamp(kind):
        moment = _EPOCH + datetime.timedelta(microseconds=value)
        return moment if kind.tz is None else moment.replace(tzinfo=datetime.UTC)
    return value
