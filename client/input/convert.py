"""What users hand in (dicts, Arrow, pandas, polars) as the rows of a call, and back again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.exact import exact_column
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import WireValue, batch_to_rows, from_wire, to_wire

Row = Mapping[str, Any]
"""One row as a dict of column name to value."""
Rows = Row | Sequence[Row] | pa.Table | pa.RecordBatch | Any
"""Rows in any form `to_arrow` takes; pandas and polars DataFrames are known by their methods."""
Key = Any
"""A key value; for a composite key a tuple, or a dict of the key columns."""


def to_arrow(data: Any, schema: pa.Schema, defaults: Mapping[str, Any] | None = None) -> pa.Table:
    """Rows in any of the accepted forms as an Arrow table; columns as given.

    Dicts are read with the types that ``schema`` names; a column that some of them leave out gets
    its value of ``defaults`` there, or null. Accepts whatever speaks the Arrow
    C stream or has ``to_arrow`` (polars), and pandas DataFrames (without their index).

    Raises:
        InvalidArgument: none of these, or values that do not fit their column's type.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        data = [data]
    if is_column(data):
        raise InvalidArgument(
            f"a {type(data).__name__} is one column: give a dict of columns to an Arrow or pandas "
            "table, or rows as dicts (`series.to_dict()`)"
        )
    try:
        if isinstance(data, Sequence) and not isinstance(data, str | bytes):
            return _from_dicts(data, schema, defaults or {})
        if hasattr(data, "to_arrow"):
            table: pa.Table = data.to_arrow()
            return table
        if type(data).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the rows do not fit the table's columns: {error}") from error
    raise InvalidArgument(
        f"rows of type {type(data).__name__}: give a dict, a list of dicts, or an Arrow, pandas or "
        "polars table"
    )


def _from_dicts(rows: Sequence[Any], schema: pa.Schema, defaults: Mapping[str, Any]) -> pa.Table:
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidArgument(f"row {place} is a {type(row).__name__}, not a dict")
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    unknown = [name for name in names if schema.get_field_index(name) < 0]
    if unknown:
        raise ColumnNotFound(unknown[0], "(this)", ", ".join(schema.names))
    columns = [
        exact_column([row.get(n, absent) for row in rows], schema.field(n))
        for n, absent in ((n, defaults.get(n)) for n in names)
    ]
    return pa.table(columns, names=list(names))


_MAX_CHOSEN = 64


class RowCodec:
    """Single rows and keys of one table, to and from the tuples that small calls carry."""

    def __init__(self, schema: TableSchema, table: str) -> None:
        self._table = table
        self._schema = schema
        self._columns = [(f.name, _to_wire_of(f), not f.nullable) for f in schema.arrow]
        self._to_wire = {name: convert for name, convert, _ in self._columns}
        self._types = {field.name: field.type for field in schema.arrow}
        self._names = frozenset(schema.arrow.names)
        self._chosen: dict[tuple[str, ...], list[Any]] = {}
        self.defaults: dict[str, Any] = {}
        """What rows get that leave columns out, as wire values; only those that are not null."""
        if schema.defaults is not None:
            values = batch_to_rows(schema.defaults)[1]
            pairs = zip(schema.arrow.names, values, strict=True)
            self.defaults = {name: value for name, value in pairs if value is not None}

    def given(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The columns, in schema order, that some of these new rows give, or must; () for all.

        What no row gives is left out of the call: its default is the server's to know. Where some
        rows give a column, the others get the default that is known here.
        """
        count = len(self._columns)
        for row in rows:
            if len(row) == count:
                return ()
        named: dict[str, None] = {}
        for row in rows:
            named.update(dict.fromkeys(row))
        needed = self._schema.required
        names = tuple([name for name, _, _ in self._columns if name in named or name in needed])
        return names if len(names) < count else ()

    def row(self, row: Row, columns: tuple[str, ...] = ()) -> tuple[WireValue, ...]:
        """A row as a tuple of all columns in schema order, or of ``columns``.

        Raises:
            ColumnNotFound: a name that the table does not have.
            InvalidArgument: a value missing where null may not stand, or of the wrong type.
        """
        if not isinstance(row, Mapping):
            raise InvalidArgument(f"a row is a dict, not a {type(row).__name__}")
        if not self._names.issuperset(row):
            unknown = next(name for name in row if name not in self._names)
            raise ColumnNotFound(str(unknown), self._table, ", ".join(self._schema.arrow.names))
        values: list[WireValue] = []
        for name, convert, required in self._of(columns) if columns else self._columns:
            value = row.get(name)
            if value is None:
                values.append(self._absent(row, name, required))
            else:
                values.append(convert(value))
        return tuple(values)

    def _of(self, columns: tuple[str, ...]) -> list[Any]:
        found = self._chosen.get(columns)
        if found is None:
            if len(self._chosen) >= _MAX_CHOSEN:
                self._chosen = {}
            of_name = {column[0]: column for column in self._columns}
            found = self._chosen[columns] = [of_name[name] for name in columns]
        return found

    def _absent(self, row: Row, name: str, required: bool) -> WireValue:
        """What stands for a column that the row leaves out, or gives as null."""
        if name not in row and name in self.defaults:
            return self.defaults[name]  # type: ignore[no-any-return]
        if required:
            raise InvalidArgument(f"column {name!r} of {self._table!r} may not be null")
        return None

    def key(self, key: Key) -> tuple[WireValue, ...]:
        """A key in any accepted form as the tuple of its wire values, in key order."""
        names = self._schema.key
        if isinstance(key, Mapping):
            if set(key) != set(names):
                raise InvalidArgument(f"the key of {self._table!r} is made of {', '.join(names)}")
            key = tuple(key[name] for name in names)
        elif not isinstance(key, tuple | list):
            key = (key,)
        if len(key) != len(names):
            raise InvalidArgument(
                f"the key of {self._table!r} has {len(names)} column(s), {', '.join(names)}; "
                f"{len(key)} value(s) were given"
            )
        values = []
        for name, value in zip(names, key, strict=True):
            if value is None:
                raise InvalidArgument(f"key column {name!r} of {self._table!r} may not be null")
            values.append(self._to_wire[name](value))
        return tuple(values)

    def dict(
        self, values: Sequence[WireValue], columns: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Wire values of all columns (or of ``columns``) as a row that people read."""
        names = columns or self._schema.arrow.names
        return {
            name: from_wire(value, self._types[name])
            for name, value in zip(names, values, strict=True)
        }


def _to_wire_of(field: pa.Field) -> Callable[[Any], WireValue]:
    """`to_wire` for one column; the common values, which need no change, pass at once."""
    kind, name = field.type, field.name

    def any_value(value: Any) -> WireValue:
        return to_wire(value, kind, name)

    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        low = -(1 << kind.bit_width - 1) if signed else 0
        high = (1 << kind.bit_width - signed) - 1
        return lambda v: v if type(v) is int and low <= v <= high else any_value(v)
    if pa.types.is_float64(kind):
        return lambda v: v if type(v) is float else any_value(v)
    if pa.types.is_string(kind):
        return lambda v: v if type(v) is str and v.isascii() else any_value(v)
    return any_value


def is_column(data: Any) -> bool:
    """Whether this is an Arrow array, or a Series or Index of pandas or polars."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return True
    library = type(data).__module__.partition(".")[0]
    return library in ("pandas", "polars") and not hasattr(data, "columns")


def one_column(data: Any) -> pa.Array | pa.ChunkedArray | None:
    """An Arrow array, or a Series or Index of pandas or polars, as an Arrow array; else None.

    Raises:
        InvalidArgument: Arrow has no type for its values.
    """
    if not is_column(data):
        return None
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return data
    try:
        found: pa.Array | pa.ChunkedArray
        found = data.to_arrow() if hasattr(data, "to_arrow") else pa.array(data, from_pandas=True)
        return found
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"a {type(data).__name__} that is no column: {error}") from error


def is_table(data: Any) -> bool:
    """Whether rows or keys come as a table of columns rather than as Python values."""
    return not isinstance(data, list | tuple | dict | str | bytes) and (
        isinstance(data, pa.Table | pa.RecordBatch)
        or hasattr(data, "to_arrow")
        or hasattr(data, "__arrow_c_stream__")
        or type(data).__module__.partition(".")[0] == "pandas"
    )


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_batch(blob: Any) -> pa.RecordBatch:
    """The one batch of an Arrow IPC stream; its columns are views into it."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_next_batch()
