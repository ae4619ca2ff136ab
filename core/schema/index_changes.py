"""How a table's indexes change: each change is a version of its schema, as one of columns is."""

from __future__ import annotations

from msgspec.structs import replace

from stelae.core.errors import IndexExists, IndexNotFound, InvalidArgument
from stelae.core.schema.indexes import IndexDefinition, IndexId, is_index_type
from stelae.core.schema.schema import TableSchema

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
