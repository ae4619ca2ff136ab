"""How a table's schema changes: columns added, dropped, renamed, defaults set; all or nothing.

Key columns stay as they are, for good: hashes of keys in stored summaries, the partitioning, and
the keys of requests made with an older schema are all made from them, by name.

A column is known by its id, and ids are never given twice. So a column that was dropped and is
added again under the same name is another one: rows written before show its default; and an index
stays with its column, or goes with it. As in Kudu a column has a read default, fixed when it is
added, and a write default, which may be changed. Each change of an index is a version of the
schema, too.

Source: seed Kudu multi-master, AlterTable; Kudu's ColumnSchema and SchemaBuilder (``schema.h``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.core.errors import ColumnNotFound, IndexExists, IndexNotFound, InvalidArgument, TooLarge
from stelae.core.schema.indexes import IndexDefinition, IndexId, is_index_type
from stelae.core.schema.schema import (
    TableSchema,
    check_column_name,
    check_column_names,
    check_column_type,
    constant_array,
    normal_type,
)

MAX_DEFAULT_BYTES = 1 << 10
"""Of one default value: a scan repeats it for every row that was written before the column."""
MAX_HISTORY = 8
"""So many earlier versions of a schema are understood of requests made with them."""


class SchemaChange(msgspec.Struct, frozen=True, array_like=True):
    """One alter of a table's columns: drops first, then all renames at once, then additions.

    Defaults name columns as they are called afterwards.
    """

    add_ipc: bytes = b""
    """Serialized Arrow schema of the columns to add; empty: none."""
    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    """(old name, new name)"""
    defaults_ipc: bytes = b""
    """Arrow IPC stream of one row: of each column in it the new default; null: none any more."""

    @property
    def is_empty(self) -> bool:
        return self == SchemaChange()


def schema_change(
    add: Sequence[pa.Field] = (),
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    defaults: Mapping[str, pa.Scalar] | None = None,
) -> SchemaChange:
    """The change in the form in which it travels."""
    return SchemaChange(
        pa.schema(add).serialize().to_pybytes() if add else b"",
        tuple(drop),
        tuple((rename or {}).items()),
        _stream(defaults) if defaults else b"",
    )


def _stream(columns: Mapping[str, pa.Scalar] | Mapping[str, list[pa.Scalar]]) -> bytes:
    """Values by column as an Arrow IPC stream of one batch."""
    arrays = []
    for value in columns.values():
        values = value if isinstance(value, list) else [value]
        arrays.append(pa.concat_arrays([constant_array(v, 1) for v in values]))
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def altered(schema: TableSchema, change: SchemaChange, table: str) -> TableSchema:
    """The next version of ``schema``. ``table`` names it in messages.

    Raises:
        ColumnNotFound: a column to change is not there.
        InvalidArgument: what is asked for cannot be; the text says what and why.
        TooLarge: a default value is.
    """
    if change.is_empty:
        raise InvalidArgument(f"nothing to alter in {table!r}: name columns or defaults to change")
    added = added_columns(change)
    defaults = _defaults(change)
    dropped = dict.fromkeys(change.drop)
    renamed = dict(change.rename)
    _check_existing(schema, (*change.drop, *renamed), table)
    if len(dropped) != len(change.drop) or len(renamed) != len(change.rename):
        raise InvalidArgument("a column is dropped or renamed twice in one call")
    both = [name for name in renamed if name in dropped]
    if both:
        raise InvalidArgument(f"column {both[0]!r} is to be both dropped and renamed")
    kept = [
        (column_id, field.with_name(renamed.get(field.name, field.name)), field.name)
        for column_id, field in zip(schema.column_ids, schema.arrow, strict=True)
        if field.name not in dropped
    ]
    fields = [field for _, field, _ in kept] + added
    names = [field.name for field in fields]
    check_column_names(names)
    unknown = [name for name in defaults if name not in names]
    if unknown:
        raise ColumnNotFound(unknown[0], table, ", ".join(names))
    for name in schema.key:
        if name in defaults:
            raise InvalidArgument(f"key column {name!r} has no default: every row gives its key")
    pairs = {
        field.name: _changed_default(schema, before, field, defaults) for _, field, before in kept
    }
    pairs |= {field.name: _first_default(field, defaults) for field in added}
    end = schema.next_column_id + len(added)
    ids = (*(column_id for column_id, _, _ in kept), *range(schema.next_column_id, end))
    plain = all(not value.is_valid for pair in pairs.values() for value in pair)
    return TableSchema(
        pa.schema(fields).serialize().to_pybytes(),
        schema.key,
        ids,
        end,
        schema.version + 1,
        b"" if plain else _stream(pairs),
        tuple(index for index in schema.indexes if index.column_id in ids),
        schema.key_seed,
    )


def _check_existing(schema: TableSchema, names: Iterable[str], table: str) -> None:
    """The columns to change are there, and not of the key."""
    for name in names:
        schema.check_columns((name,), table)
        if name in schema.key:
            raise InvalidArgument(
                f"column {name!r} is part of the key of {table!r}, and key columns can be neither "
                "dropped nor renamed"
            )


def added_columns(change: SchemaChange) -> list[pa.Field]:
    """The columns to add, in stored types. Raises InvalidArgument."""
    if not change.add_ipc:
        return []
    try:
        fields = pa.ipc.read_schema(pa.py_buffer(change.add_ipc))
        found = [pa.field(f.name, normal_type(f.type), f.nullable) for f in fields]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the columns to add are no Arrow schema: {error}") from None
    for field in found:
        check_column_name(field.name)
        check_column_type(field.type, f"column {field.name!r}")
    return found


def _defaults(change: SchemaChange) -> dict[str, pa.Scalar]:
    """The new defaults by column; null: none any more."""
    if not change.defaults_ipc:
        return {}
    try:
        with pa.ipc.open_stream(change.defaults_ipc) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
        names = batch.schema.names
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the defaults are no Arrow stream: {error}") from None
    if batch.num_rows != 1 or len(dict.fromkeys(names)) != len(names):
        raise InvalidArgument("defaults are one value for each column")
    for name, column in zip(names, batch.columns, strict=True):
        size_bytes = column.nbytes
        if size_bytes > MAX_DEFAULT_BYTES:
            raise TooLarge(f"the default of column {name!r}", size_bytes, MAX_DEFAULT_BYTES)
    return {name: column[0] for name, column in zip(names, batch.columns, strict=True)}


def _fits(value: pa.Scalar, field: pa.Field) -> pa.Scalar:
    if value.type != field.type:
        raise InvalidArgument(
            f"the default of column {field.name!r} has type {value.type}, the column {field.type}"
        )
    return value


def _first_default(field: pa.Field, defaults: Mapping[str, pa.Scalar]) -> list[Any]:
    """(read default, write default) of a column to be added."""
    value = _fits(defaults.get(field.name, pa.scalar(None, field.type)), field)
    if not field.nullable and not value.is_valid:
        raise InvalidArgument(
            f"column {field.name!r} may not be null: it is added with a default for the rows that "
            "are there, or as nullable"
        )
    return [value, value]


def _changed_default(
    schema: TableSchema, before: str, field: pa.Field, defaults: Mapping[str, pa.Scalar]
) -> list[Any]:
    """(read default, write default) of a column that stays; ``before`` is its name until now."""
    read, write = schema.read_default(before), schema.write_default(before)
    if field.name not in defaults:
        return [read, write]
    value = _fits(defaults[field.name], field)
    if not value.is_valid and not field.nullable and read.is_valid:
        raise InvalidArgument(
            f"column {field.name!r} may not be null and was added to a table in use: writers that "
            "do not know it yet need its default; give it another one"
        )
    return [read, value]


def next_history(schema: TableSchema, history: Sequence[TableSchema]) -> tuple[TableSchema, ...]:
    """The earlier versions to remember once ``schema`` is one of them, oldest first."""
    return (*history, schema)[-MAX_HISTORY:]


MAX_INDEXES = 16
"""Of one table: each makes writes wait for one more server."""


def check_new_index(
    schema: TableSchema, column: str, table: str, *, is_unique: bool = False
) -> None:
    """Raise unless ``column`` can get an index. ``table`` names it in messages.

    Raises:
        ColumnNotFound, IndexExists: the column is not there, or has one.
        InvalidArgument: what is asked for cannot be; the text says why, and what can be done.
    """
    if is_unique:
        raise InvalidArgument(
            f"a unique index of {column!r}: rows of different tablets cannot be checked against "
            "each other without a transaction. Make the column the key of the table, or keep a "
            "table with the value as its key, and write there first with if_version=0"
        )
    schema.check_columns((column,), table)
    kind = schema.arrow.field(column).type
    if not is_index_type(kind):
        raise InvalidArgument(
            f"column {column!r} has type {kind}; integers, bool, string, binary, date, timestamp, "
            "decimal128 and float can be indexed. Copy what you look for into a column of such a "
            "type, and index that"
        )
    if schema.index_of(column) is not None:
        raise IndexExists(column, table)
    if len(schema.indexes) >= MAX_INDEXES:
        raise InvalidArgument(f"table {table!r} has {MAX_INDEXES} indexes; drop one first")


def with_index(
    schema: TableSchema, column: str, index_id: IndexId, table: str, *, version: int | None = None
) -> TableSchema:
    """The next version of ``schema``, with an index of ``column``; ``version`` 1 for a new table.

    Raises as `check_new_index` does.
    """
    check_new_index(schema, column, table)
    column_id = schema.column_ids[schema.arrow.get_field_index(column)]
    return replace(
        schema,
        version=schema.version + 1 if version is None else version,
        indexes=(*schema.indexes, IndexDefinition(index_id, column_id)),
    )


def without_index(schema: TableSchema, column: str, table: str) -> TableSchema:
    """The next version of ``schema``, without the index of ``column``.

    Raises:
        ColumnNotFound, IndexNotFound: there is no such column, or no index of it.
    """
    schema.check_columns((column,), table)
    index = schema.index_of(column)
    if index is None:
        raise IndexNotFound(column, table)
    kept = tuple(other for other in schema.indexes if other != index)
    return replace(schema, version=schema.version + 1, indexes=kept)
