"""Predicates of Ray Data as filters of scans.

Nulls are treated alike on both sides: a comparison with null is null, and a row is kept only where
the whole is true. What has no exact counterpart here is left to Ray Data, as a whole.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from ray.data.expressions import BinaryExpr, ColumnExpr, Expr, LiteralExpr, Operation

from stelae.client.input.filters import WireFilters, normalize_filters
from stelae.core.errors import StelaeError
from stelae.core.schema.schema import TableSchema

MAX_GROUPS = 64
"""Of the disjunctive form: it may be much longer than the predicate."""

_Term = tuple[str, str, Any]
_Groups = list[list[_Term]]

_COMPARE = {
    Operation.EQ: "=",
    Operation.NE: "!=",
    Operation.LT: "<",
    Operation.LE: "<=",
    Operation.GT: ">",
    Operation.GE: ">=",
}
_TURNED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT = {
    int: pa.types.is_integer,
    float: pa.types.is_float64,
    str: pa.types.is_string,
    bytes: pa.types.is_binary,
    bool: pa.types.is_boolean,
}


def scan_filters(predicate: Expr, schema: TableSchema, table: str) -> WireFilters | None:
    """All of a predicate as filters of a scan; None: some of it is none."""
    groups = _groups(predicate, schema)
    if groups is None:
        return None
    try:
        return normalize_filters(groups, schema, table)
    except StelaeError:
        return None


def both(first: WireFilters, second: WireFilters) -> WireFilters | None:
    """Filters that hold where these two do; None: there would be too many."""
    if not first or not second:
        return first or second
    if len(first) * len(second) > MAX_GROUPS:
        return None
    return tuple(one + other for one in first for other in second)


def _groups(predicate: Expr, schema: TableSchema) -> _Groups | None:
    if not isinstance(predicate, BinaryExpr):
        return None
    if predicate.op not in (Operation.AND, Operation.OR):
        term = _term(predicate, schema)
        return None if term is None else [[term]]
    left, right = _groups(predicate.left, schema), _groups(predicate.right, schema)
    if left is None or right is None:
        return None
    if predicate.op is Operation.OR:
        found = left + right
    else:
        found = [one + other for one in left for other in right]
    return found if len(found) <= MAX_GROUPS else None


def _term(predicate: BinaryExpr, schema: TableSchema) -> _Term | None:
    """A comparison of a column with a value."""
    left, right = predicate.left, predicate.right
    operator = _COMPARE.get(predicate.op)
    if operator and isinstance(left, LiteralExpr) and isinstance(right, ColumnExpr):
        left, right, operator = right, left, _TURNED[operator]
    if not isinstance(left, ColumnExpr) or not isinstance(right, LiteralExpr):
        return None
    if left.name not in schema.arrow.names:
        return None
    kind, value = schema.arrow.field(left.name).type, right.value
    if operator:
        return (left.name, operator, value) if _is_exact(value, kind) else None
    if predicate.op is Operation.IN and isinstance(value, list):
        exact = all(_is_exact(item, kind) for item in value)
        return (left.name, "in", value) if exact and value else None
    return None


def _is_exact(value: Any, kind: pa.DataType) -> bool:
    """Whether a comparison is the same in the column's type as in a common one."""
    if type(value) is int and abs(value) < 1 << 53 and pa.types.is_float64(kind):
        return True
    is_kind = _EXACT.get(type(value))
    return is_kind is not None and bool(is_kind(kind))
