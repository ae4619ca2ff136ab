"""``where``: filter lists in disjunctive form, as ``pyarrow.parquet.read_table(filters=)`` takes.

A predicate is (column, op, value) with op one of ``= == != < <= > >= in not in``; a list of them
holds where all do, a list of lists where any does. Nulls are as in pyarrow: a comparison with null
is null, a row is kept only where the whole is true, and ``not in`` keeps nulls.

The cost is bounded by the number of predicates, which each batch of rows pays for, and by the
number of values in lists, which construction pays for. Alternatives that each compare one column
with one value are one list, whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.exact import exact_array
from stelae.core.schema.schema import TableSchema, is_plain_type
from stelae.core.schema.values import to_wire

Predicate = tuple[str, str, Any]
Where = Sequence[Sequence[Predicate]]
Mask = Callable[[pa.RecordBatch], pa.BooleanArray]

MAX_PREDICATES = 1000
MAX_VALUES = 1 << 21
"""Maximum number of values in all lists of one ``where``."""
COMPILED_AT_ONCE = 64
"""Maximum number of predicates and values that are compiled on an event loop."""
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


def filter_size(where: Where) -> int:
    """The number of predicates, and of values in their lists: what compiling them costs."""
    lists = [term[2] for group in where for term in group if len(term) == 3]
    values = sum([len(value) for value in lists if isinstance(value, list | tuple)])
    return sum([len(group) for group in where]) + values


class Filter:
    """A checked ``where``.

    Raises (at construction):
        ColumnNotFound: it names a column that the table does not have.
        InvalidArgument: an unknown operator, a value that the column's type cannot hold, or more
            predicates or values than a filter may have.
    """

    def __init__(self, where: Where, schema: TableSchema, table: str) -> None:
        if any(not conjunction for conjunction in where):
            raise InvalidArgument("where has an empty list of predicates")
        if filter_size(where) > MAX_VALUES:
            raise InvalidArgument(
                f"where has more than {MAX_VALUES} values; read the rows of many keys with "
                "get_many, or scan with fewer values at a time"
            )
        wanted = _joined(where, schema)
        if sum(len(conjunction) for conjunction in wanted) > MAX_PREDICATES:
            raise InvalidArgument(
                f"where has more than {MAX_PREDICATES} predicates; give many values of one column "
                "as one list: (column, 'in', values)"
            )
        self._any = [[_compile(p, schema, table) for p in conjunction] for conjunction in wanted]

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


def _joined(where: Where, schema: TableSchema) -> Where:
    """The same filter, with alternatives that each want one column to have a value as one list.

    Floating-point columns are left alone: 0.0 equals -0.0, and NaN does not equal itself, but a
    list has the one without the other, and has NaN.
    """
    found: list[Sequence[Predicate]] = []
    values: dict[str, list[Any]] = {}
    for conjunction in where:
        column = _column_of_equality(conjunction)
        at = -1 if column is None else schema.arrow.get_field_index(column)
        if column is None or at < 0 or pa.types.is_floating(schema.arrow.field(at).type):
            found.append(conjunction)
        else:
            values.setdefault(column, []).append(conjunction[0][2])
    for column, equal in values.items():
        found.append([(column, "=", equal[0])] if len(equal) == 1 else [(column, "in", equal)])
    return found


def _column_of_equality(conjunction: Sequence[Predicate]) -> str | None:
    """The column if this is ``column = value`` alone; nothing equals null."""
    if len(conjunction) != 1 or len(conjunction[0]) != 3:
        return None
    column, op, value = conjunction[0]
    return column if op in ("=", "==") and value is not None and isinstance(column, str) else None


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
    what = f"where: column {column!r}"
    members = exact_array(value, kind, lambda place: f"{what}, value {place}")
    return _membership(column, members, negated=op == "not in")


def _scalar(value: object, kind: pa.DataType, column: str) -> pa.Scalar:
    wire = None if value is None else to_wire(value, kind, f"where: column {column!r}")
    return pa.scalar(wire, kind)


def _comparison(column: str, op: str, value: pa.Scalar) -> Mask:
    compare = _COMPARE[op]
    return lambda batch: compare(batch.column(column), value)


def _membership(column: str, members: pa.Array, *, negated: bool) -> Mask:
    def mask(batch: pa.RecordBatch) -> pa.BooleanArray:
        values = batch.column(column)
        # Each call hashes its value set. The members that occur in the batch are found by hashing
        # the batch's values, which are few where members are many.
        is_long = len(members) > 4 * len(values)
        among = members.filter(pc.is_in(members, value_set=values)) if is_long else members
        found = pc.is_in(values, value_set=among)
        return pc.invert(found) if negated else found

    return mask
