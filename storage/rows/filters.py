"""``where``: filter lists in disjunctive form, as ``pyarrow.parquet.read_table(filters=)`` takes.

A predicate is (column, op, value) with op one of ``= == != < <= > >= in not in``; a list of them
holds where all do, a list of lists where any does. Nulls are as in pyarrow: a comparison with null
is null, a row is kept only where the whole is true, and ``not in`` keeps nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import TableSchema, is_plain_type
from stelae.core.schema.values import to_wire

Predicate = tuple[str, str, Any]
Where = Sequence[Sequence[Predicate]]
Mask = Callable[[pa.RecordBatch], pa.BooleanArray]

MAX_PREDICATES = 1000
_COMPARE = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
OPERATORS = (*_COMPARE, "in", "not in")


class Filter:
    """A checked ``where``.

    Raises (at construction):
        ColumnNotFound: it names a column that the table does not have.
        InvalidArgument: an unknown operator, or a value that the column's type cannot hold.
    """

    def __init__(self, where: Where, schema: TableSchema, table: str) -> None:
        if sum(len(conjunction) for conjunction in where) > MAX_PREDICATES:
            raise InvalidArgument(f"where has more than {MAX_PREDICATES} predicates")
        self._any = [[_compile(p, schema, table) for p in conjunction] for conjunction in where]
        if any(not conjunction for conjunction in self._any):
            raise InvalidArgument("where has an empty list of predicates")

    def __bool__(self) -> bool:
        """Whether it can leave any row out."""
        return bool(self._any)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """For each row of ``batch`` (which has the columns named) true, false or null."""
        found: pa.BooleanArray | None = None
        for conjunction in self._any:
            part = conjunction[0](batch)
            for predicate in conjunction[1:]:
                part = pc.and_kleene(part, predicate(batch))
            found = part if found is None else pc.or_kleene(found, part)
        assert found is not None, "an empty where has no mask"
        return found


def _compile(predicate: Predicate, schema: TableSchema, table: str) -> Mask:
    if len(predicate) != 3:
        raise InvalidArgument(f"where: {predicate!r} is not (column, op, value)")
    column, op, value = predicate
    schema.check_columns((column,), table)
    kind = schema.arrow.field(column).type
    if op not in OPERATORS:
        raise InvalidArgument(f"where: {op!r} is no operator; use one of {', '.join(OPERATORS)}")
    if not is_plain_type(kind):
        raise InvalidArgument(f"where: column {column!r} has type {kind}, which has no filters")
    if op in _COMPARE:
        return _comparison(column, op, _scalar(value, kind, column))
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument(f"where: {column!r} {op} wants a list of values, not {value!r}")
    members = pa.array([_scalar(v, kind, column) for v in value], kind)
    return _membership(column, members, negated=op == "not in")


def _scalar(value: object, kind: pa.DataType, column: str) -> pa.Scalar:
    wire = None if value is None else to_wire(value, kind, f"where: column {column!r}")
    return pa.scalar(wire, kind)


def _comparison(column: str, op: str, value: pa.Scalar) -> Mask:
    compare = _COMPARE[op]
    return lambda batch: compare(batch.column(column), value)


def _membership(column: str, members: pa.Array, *, negated: bool) -> Mask:
    def mask(batch: pa.RecordBatch) -> pa.BooleanArray:
        found = pc.is_in(batch.column(column), value_set=members)
        return pc.invert(found) if negated else found

    return mask
