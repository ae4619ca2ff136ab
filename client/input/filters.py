"""Filters of scans, from the lists people write to the form that travels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.exact import exact_array
from stelae.core.schema.schema import TableSchema, is_plain_type
from stelae.core.schema.values import WireValue, to_wire, wire_values

Where = Sequence[Any] | None
"""``[("dest", "=", "LAX"), …]``: all hold; or a list of such lists: any of them holds. Nulls are
found by ``("dest", "is null")`` and ``("dest", "is not null")``."""
WireFilters = tuple[tuple[tuple[str, str, Any], ...], ...]

OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null")
_NULL_TESTS = {"is null": "in", "is not null": "not in"}
"""They take no value, and travel as lists of null."""


def normalize_filters(where: Where, schema: TableSchema, table: str) -> WireFilters:
    """Check filters against the table's columns and turn their values into wire form.

    Raises:
        InvalidArgument: not of the documented shape, an unknown operator, or a wrong type.
        ColumnNotFound: a column that the table does not have.
    """
    if isinstance(where, pc.Expression):
        raise InvalidArgument(
            'where is a list of (column, operator, value), such as [("id", ">", 3)]; only '
            f"scan_batches takes a pyarrow expression such as {where}"
        )
    if where is None or (isinstance(where, list | tuple) and not where):
        return ()
    if not isinstance(where, list | tuple):
        raise InvalidArgument(f"where={where!r}: a list of (column, operator, value) tuples")
    groups = [where] if all(isinstance(item, tuple) for item in where) else where
    return tuple(tuple(_term(term, schema, table) for term in _group(group)) for group in groups)


def _group(group: Any) -> Sequence[Any]:
    if not isinstance(group, list | tuple) or not group:
        raise InvalidArgument(
            f"where={group!r}: give (column, operator, value) tuples in a list, or a list of such"
        )
    return group


def _term(term: Any, schema: TableSchema, table: str) -> tuple[str, str, Any]:
    if isinstance(term, list | tuple) and len(term) == 2 and term[1] in _NULL_TESTS:
        term = (*term, None)
    if not isinstance(term, list | tuple) or len(term) != 3 or not isinstance(term[0], str):
        raise InvalidArgument(f"filter {term!r} is not (column, operator, value)")
    column, operator, value = term
    schema.check_columns([column], table)
    if operator not in OPERATORS:
        raise InvalidArgument(f"filter {term!r}: operators are {', '.join(OPERATORS)}")
    kind = schema.arrow.field(column).type
    if not is_plain_type(kind):
        raise InvalidArgument(f"filter {term!r}: columns of type {kind} cannot be filtered on")
    what = f"filter on {column!r}"
    if operator in ("in", "not in"):
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            raise InvalidArgument(f"filter {term!r}: {operator!r} wants a list of values")
        return column, operator, _wire_list(value, kind, what)
    if operator in _NULL_TESTS:
        if value is not None:
            raise InvalidArgument(f"filter {term!r}: {operator!r} takes no value")
        return column, _NULL_TESTS[operator], (None,)
    if value is None:
        raise InvalidArgument(
            f"filter {term!r}: nothing equals None; ask for ({column!r}, 'is null')"
        )
    return column, operator, to_wire(value, kind, what)


def _wire_list(values: Iterable[Any], kind: pa.DataType, what: str) -> tuple[WireValue, ...]:
    """The wire values of a list, of any kind of container."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        found: list[Any] = values.to_pylist()
    else:
        found = sorted(values, key=repr) if isinstance(values, set | frozenset) else list(values)
    column = exact_array(found, kind, lambda place: f"{what}, value {place}")
    return tuple(wire_values(column))
