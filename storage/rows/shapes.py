"""Rows of small calls are checked here before anything is done: types, ranges, nulls, sizes.

A row that does not fit its columns would only be noticed at sealing, when it is too late to refuse
it. One `Shape` is made per list of columns that callers use, and checks a row in a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.schema.schema import MAX_CALL_BYTES, MAX_ROW_BYTES, TableSchema, is_plain_type
from stelae.core.schema.values import batch_to_rows

Row = tuple[Any, ...]
_PATH = re.compile(r"^(.*) - at `\$\[0\]\[(\d+)\](?:\[(\d+)\])?`$")
_INT64 = (-(1 << 63), (1 << 63) - 1)


def _python_type(kind: pa.DataType) -> Any:
    """The msgspec type of a column's wire values."""
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_string(kind):
        return str
    if pa.types.is_binary(kind):
        return bytes
    if pa.types.is_unsigned_integer(kind):
        high = (1 << kind.bit_width) - 1
        # msgspec bounds are int64; msgpack itself carries nothing above a uint64.
        bounds = msgspec.Meta(ge=0, le=high) if high <= _INT64[1] else msgspec.Meta(ge=0)
        return Annotated[int, bounds]
    width = kind.bit_width
    return Annotated[int, msgspec.Meta(ge=-(1 << (width - 1)), le=(1 << (width - 1)) - 1)]


def check_names(schema: TableSchema, table: str, names: Sequence[str], *, partial: bool) -> None:
    """Whether rows may be written with these columns; ``partial``: what is left out stays.

    Raises:
        ColumnNotFound: one is not the table's.
        InvalidArgument: one is there twice; one of the key, or one that may not be null, is not.
    """
    schema.check_columns(names, table)
    if len(set(names)) != len(names):
        raise InvalidArgument(f"columns={list(names)}: each at most once")
    missing = [name for name in schema.key if name not in names]
    if missing:
        raise InvalidArgument(f"columns={list(names)}: the key column {missing[0]!r} is left out")
    if not partial:
        needed = [f.name for f in schema.arrow if f.name in schema.required and f.name not in names]
        if needed:
            raise InvalidArgument(f"column {needed[0]!r} may not be null, and is left out")


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class Shape:
    """What rows of ``columns`` must look like, and how they become rows of all columns.

    Raises (at construction):
        ColumnNotFound: a column that the table does not have.
        InvalidArgument: a key column, or one that may not be null, is left out; or a column named
            twice; or the table has columns that do not travel as rows.
    """

    def __init__(
        self,
        schema: TableSchema,
        table: str,
        columns: Sequence[str],
        *,
        partial: bool,
        only_key: bool,
    ) -> None:
        arrow = schema.arrow
        names = list(columns)
        check_names(schema, table, names, partial=partial)
        if only_key and set(names) != set(schema.key):
            raise InvalidArgument(f"columns={names}: a delete takes the key, {list(schema.key)}")
        fields = [arrow.field(name) for name in names]
        for field in fields:
            if not is_plain_type(field.type):
                raise InvalidArgument(f"column {field.name!r} ({field.type}) travels as Arrow only")
        self.columns = names
        self._fields = fields
        types = [
            _python_type(f.type) | None if f.nullable else _python_type(f.type) for f in fields
        ]
        row_type = tuple.__class_getitem__(tuple(types))
        self._rows = msgspec.defstruct("Rows", [("rows", list[row_type])], array_like=True)  # type: ignore[valid-type]
        self._builtin = (bytes,) if any(pa.types.is_binary(f.type) for f in fields) else ()
        self._variable = [
            i
            for i, f in enumerate(fields)
            if pa.types.is_string(f.type) or pa.types.is_binary(f.type)
        ]
        self._fixed_bytes = sum(
            8 if i in self._variable else f.type.bit_width / 8 for i, f in enumerate(fields)
        )
        places = [names.index(f.name) if f.name in names else None for f in arrow]
        self._places = None if places == list(range(len(names))) else places
        """Of each column of the table, where it stands in a given row; None: rows are full."""
        self.missing = [i for i, place in enumerate(places) if place is None]
        """Columns of the table that the rows do not have."""
        self._key_places = tuple(names.index(name) for name in schema.key)
        self._single_key = self._key_places[0] if len(self._key_places) == 1 else -1
        self._absent: Row = (None,) * len(places)
        if schema.defaults is not None and not partial:
            filled = pa.RecordBatch.from_arrays(
                schema.default_arrays(arrow.names, 1), names=arrow.names
            )
            self._absent = batch_to_rows(filled)[0]

    def check(self, rows: Sequence[Any]) -> tuple[list[Row], int]:
        """Return the rows as tuples of checked values, and about how many bytes they take.

        Raises:
            InvalidArgument: naming column and row of the first value that does not fit.
            TooLarge: a row or the call is.
        """
        try:
            checked: list[Row] = msgspec.convert(
                (rows,), self._rows, builtin_types=self._builtin
            ).rows  # type: ignore[attr-defined]
        except msgspec.ValidationError as error:
            raise self._explain(str(error)) from error
        total = int(self._fixed_bytes * len(checked))
        if self._variable:
            total += self._variable_bytes(checked)
        if total > MAX_CALL_BYTES:
            raise TooLarge("the call", total, MAX_CALL_BYTES)
        return checked, total

    def _variable_bytes(self, rows: list[Row]) -> int:
        total = 0
        for row in rows:
            size = 0
            for i in self._variable:
                value = row[i]
                if value is not None:
                    size += len(value) if type(value) is bytes else _utf8_bytes(value)
            if size > MAX_ROW_BYTES:
                raise TooLarge("a row", size, MAX_ROW_BYTES)
            total += size
        return total

    def _explain(self, text: str) -> InvalidArgument:
        found = _PATH.match(text)
        if found is None:
            return InvalidArgument(f"rows: {text}")
        reason, row, column = found.groups()
        if column is None:
            return InvalidArgument(f"row {row}: {reason}; its columns are {self.columns}")
        field = self._fields[int(column)]
        return InvalidArgument(f"row {row}, column {field.name!r} ({field.type}): {reason}")

    @staticmethod
    def bytes_of(rows: Sequence[Row], columns: Sequence[int]) -> int:
        """About how many bytes these columns of full rows take."""
        total = 0
        for row in rows:
            for i in columns:
                value = row[i]
                if type(value) is str:
                    total += _utf8_bytes(value)
                elif type(value) is bytes:
                    total += len(value)
        return total + 8 * len(rows) * len(columns)

    def key(self, row: Row) -> Row:
        """The key of a row of this shape."""
        if self._single_key >= 0:
            return (row[self._single_key],)
        return tuple([row[i] for i in self._key_places])

    def full(self, row: Row, present: Row | None = None) -> Row:
        """A row of all columns: those not given come from ``present``, or from their defaults."""
        places = self._places
        if places is None:
            return row
        if present is None:
            present = self._absent
        return tuple([present[i] if p is None else row[p] for i, p in enumerate(places)])
