"""What users give a table as columns, keys, rows and versions: checked, and in one form.

The same for a table reached directly and over HTTP, so that both refuse the same things in the
same words, before anything is sent.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.client.input.convert import RowCodec, is_table, one_column, to_arrow
from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.messages.catalog import LINEARIZABLE
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.alter import check_new_index
from stelae.core.schema.durability import Durability, Replicas, Segments, Wal
from stelae.core.schema.exact import exact_array
from stelae.core.schema.schema import MAX_CALL_BYTES, TableSchema
from stelae.core.schema.sizes import size_cuts
from stelae.core.schema.values import WireRow, check_batch, rows_to_batch

_VERSION_END = 1 << 63
_COLUMN_FROM_KEYS = 64
"""From so many keys on they are converted as one column, which takes a tenth of the time."""


def check_durability(durability: Durability) -> None:
    """Raise `InvalidArgument` for what is no durability at all."""
    if not isinstance(durability, Segments | Wal | Replicas):
        raise InvalidArgument(
            f"durability={durability!r}: give segments('disk', 'disk'), wal(3) or replicas(3)"
        )


def indexed_columns(indexes: str | Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """The columns of a new table that get an index each.

    Raises:
        InvalidArgument, ColumnNotFound: one of them cannot, or is named twice.
    """
    columns = (indexes,) if isinstance(indexes, str) else tuple(indexes)
    if len(set(columns)) != len(columns):
        raise InvalidArgument(f"indexes={list(columns)}: each column at most once")
    for column in columns:
        check_new_index(schema, column, "(new)")
    return columns


def chosen_columns(
    columns: Sequence[str] | None, schema: TableSchema, table: str
) -> tuple[str, ...]:
    """The columns that a read asks for; none: all.

    Raises:
        InvalidArgument, ColumnNotFound: they are no list of columns, each at most once.
    """
    if columns is None:
        return ()
    if isinstance(columns, str | bytes | Mapping) or not isinstance(columns, Iterable):
        raise InvalidArgument("columns is a list of one or more column names")
    # Of any container; NumPy's own texts are made plain.
    names = tuple([str(name) if isinstance(name, str) else name for name in columns])
    if not names:
        raise InvalidArgument("columns is a list of one or more column names")
    schema.check_columns(names, table)
    if len(set(names)) != len(names):
        raise InvalidArgument(f"columns={list(names)}: each at most once")
    return names


def row_limit(limit: Any) -> int | None:
    """The rows that a read may give at most; None: all. Raises `InvalidArgument`."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
        raise InvalidArgument(f"limit={limit!r}: a number of rows, not negative")
    return int(limit)


def batch_limit(batch_rows: Any) -> int | None:
    """The rows that a batch may have at most; None: any number. Raises `InvalidArgument`."""
    found = row_limit(batch_rows)
    if found == 0:
        raise InvalidArgument("batch_rows=0: one row or more")
    return found


def key_list(keys: Any) -> Any:
    """Keys to delete as a list, an Arrow array or a table; one key as a list of one.

    Raises:
        InvalidArgument: they can be read only once, or Arrow has no type for them.
    """
    column = one_column(keys)
    if column is not None:
        return column
    if isinstance(keys, Iterator):
        raise InvalidArgument("keys come as a list, an Arrow array or a table, not as an iterator")
    if isinstance(keys, np.ndarray | range | Set):
        return list(keys)
    return keys if isinstance(keys, list) or is_table(keys) else [keys]


def key_rows(keys: Any, schema: TableSchema, codec: RowCodec, table: str) -> pa.RecordBatch:
    """Keys in any accepted form as a batch of key columns.

    Raises:
        InvalidArgument, ColumnNotFound, TooLarge: they are no keys of the table.
    """
    column = one_column(keys)
    if column is not None:
        keys = pa.table([column], names=[schema.key[0]])
    if is_table(keys):
        found = to_arrow(keys, schema.key_schema)
        missing = [name for name in schema.key if name not in found.column_names]
        if missing:
            raise InvalidArgument(f"keys need the key column {missing[0]!r}")
        return check_batch(found.select(list(schema.key)), schema, columns=schema.key, table=table)
    if isinstance(keys, str | bytes | dict) or not isinstance(keys, Iterable):
        raise InvalidArgument("keys are a list of keys, an Arrow array or a table")
    listed = keys if isinstance(keys, list) else list(keys)
    if len(listed) >= _COLUMN_FROM_KEYS and len(schema.key) == 1 and _are_values(listed):
        (field,) = schema.key_schema
        columns = exact_array(listed, field.type, lambda place: f"key {place}")
        found = pa.table([columns], names=[field.name])
        return check_batch(found, schema, columns=schema.key, table=table)
    return rows_to_batch([codec.key(key) for key in listed], schema.key_schema)


def _are_values(keys: Sequence[Any]) -> bool:
    """Whether each key is the value of the one key column itself: no dict, tuple or list."""
    return not any([issubclass(kind, Mapping | tuple | list) for kind in set(map(type, keys))])


def update_columns(rows: Sequence[Any], schema: TableSchema, table: str) -> tuple[str, ...]:
    """The columns of an update, in schema order: the same in all rows, the key among them.

    Raises:
        InvalidArgument, ColumnNotFound: they are not.
    """
    if not all(isinstance(row, Mapping) for row in rows):
        raise InvalidArgument("the rows of an update are dicts")
    given = set(rows[0])
    if any(set(row) != given for row in rows):
        raise InvalidArgument("the rows of one update must name the same columns")
    check_key_given(given, schema)
    schema.check_columns(sorted(given, key=str), table)
    return tuple(name for name in schema.arrow.names if name in given)


def wire_rows(
    op: WriteOp, rows: Sequence[Any], schema: TableSchema, codec: RowCodec, table: str
) -> tuple[list[WireRow], tuple[str, ...]]:
    """Rows to write, given as dicts, as values of the columns that they have in common; (): all.

    Raises:
        InvalidArgument, ColumnNotFound, TooLarge: they are no rows of the table.
    """
    if op is WriteOp.UPDATE:
        columns = update_columns(rows, schema, table)
    else:
        for row in rows:
            if not isinstance(row, Mapping):
                raise InvalidArgument(f"a row is a dict, not a {type(row).__name__}")
        columns = codec.given(rows)
    return [codec.row(row, columns) for row in rows], columns


def written_columns(op: WriteOp, given: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """The columns of rows to write, in schema order: those given, and of new rows those that have
    to be. Raises `InvalidArgument`: an update without the whole key."""
    needed: Collection[str] = ()
    if op is WriteOp.UPDATE:
        check_key_given(given, schema)
    else:
        needed = schema.required
    return tuple(name for name in schema.arrow.names if name in given or name in needed)


def load_parts(
    rows: pa.Table, schema: TableSchema, table: str, bytes_max: int
) -> list[tuple[int, int]]:
    """Rows to upsert in several calls, as (first row, number of rows). All of them are checked, so
    that no call is refused for its rows after others have written theirs.

    Raises:
        InvalidArgument, ColumnNotFound: they are no rows of the table.
        TooLarge: a row is above its limit.
    """
    columns = written_columns(WriteOp.UPSERT, rows.column_names, schema)
    parts: list[tuple[int, int]] = []
    due = size_cuts(rows, min(bytes_max, MAX_CALL_BYTES))[::-1]
    while due:
        first, count = due.pop()
        try:
            part = rows.slice(first, count)
            check_batch(part, schema, columns=columns, table=table, first_row=first)
        except TooLarge as error:
            if count == 1:
                raise TooLarge(f"row {first}", *error.args[1:]) from None
            # The table's types take more than the given ones, or one row is too large.
            due += [(first + count // 2, count - count // 2), (first, count // 2)]
        else:
            parts.append((first, count))
    return parts


def check_key_given(columns: Collection[str], schema: TableSchema) -> None:
    """Raise InvalidArgument unless the whole key is among the columns of an update."""
    missing = [name for name in schema.key if name not in columns]
    if missing:
        raise InvalidArgument(f"an update needs the key column {missing[0]!r}")


def row_versions(if_version: Any, count: int) -> tuple[int, ...]:
    """``if_version`` of a call as one number for each row, or none.

    Raises:
        InvalidArgument: it is something else.
    """
    if if_version is None:
        return ()
    if isinstance(if_version, int | np.integer):
        if_version = [if_version]
    try:
        versions = tuple([operator.index(version) for version in if_version])
    except TypeError as error:
        raise InvalidArgument(f"if_version is a number for each row: {error}") from error
    if not all(0 <= version < _VERSION_END for version in versions):
        raise InvalidArgument("if_version: versions are 0 (absent) or above")
    if len(versions) != count:
        raise InvalidArgument(f"if_version has {len(versions)} numbers for {count} rows")
    return versions


def staleness(max_staleness: float | None) -> float:
    """``max_staleness_s`` of a request. Raises `InvalidArgument`."""
    if max_staleness is None:
        return LINEARIZABLE
    if isinstance(max_staleness, bool) or not isinstance(max_staleness, int | float):
        raise InvalidArgument(f"max_staleness={max_staleness!r} is not a number of seconds")
    if not 0 <= max_staleness < math.inf:
        raise InvalidArgument(f"max_staleness={max_staleness}: a number of seconds, not negative")
    return float(max_staleness)
