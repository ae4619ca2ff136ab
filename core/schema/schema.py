"""Table schemas: an Arrow schema, a primary key, and what may stand in each.

Rows hold the user's columns in schema order. Inside Stelae two more columns travel with them:
``_op`` (uint8, `RowKind`) and ``_version`` (uint64).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.indexes import IndexDefinition
from stelae.core.schema.own_tables import RESERVED

MAX_COLUMNS = 300
MAX_ROW_BYTES = 1 << 20
MAX_CALL_BYTES = 64 << 20
MAX_NAME_LENGTH = 255
DOT_SEGMENTS = (".", "..")
"""Segments that clients and proxies remove from the path of a URL (RFC 3986, 5.2.4)."""
_NOT_IN_TABLE_NAMES = "/\\?#%,:"
OP_COLUMN = "_op"
VERSION_COLUMN = "_version"
COLUMN_ID_KEY = b"stelae.column_id"
"""Metadata of a stored Arrow field: the column's id, in decimal."""


class RowKind(enum.IntEnum):
    """What a logged row is. A tombstone has null in every column outside the key."""

    ROW = 0
    TOMBSTONE = 1


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type may stand in a primary key."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def is_plain_type(kind: pa.DataType) -> bool:
    """Whether values of this type travel as msgpack in small calls (see
    `stelae.core.schema.values`)."""
    return is_key_type(kind) or bool(pa.types.is_floating(kind) and not pa.types.is_float16(kind))


def normal_type(kind: pa.DataType) -> pa.DataType:
    """The type a column is stored as: dictionaries decoded, large and view types made plain.

    Spark's JVM reads plain string and binary only, and one stored form is enough.
    """
    if pa.types.is_dictionary(kind):
        return normal_type(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    return kind


def check_column_type(kind: pa.DataType, what: str) -> None:
    """Raise `InvalidArgument` unless a table can hold this type, at every depth.

    Parts of a value may always be null: a deleted row, or one older than the column, has no value,
    and Arrow then wants null in each part.
    """
    refused = ("is_run_end_encoded", "is_union", "is_list_view", "is_large_list_view")
    if any([getattr(pa.types, name)(kind) for name in refused]):
        raise InvalidArgument(f"{what}: no table can hold type {kind}; give its values as they are")
    for part in _parts_of(kind):
        if not part.nullable:
            raise InvalidArgument(
                f"{what}: {kind} says that {part.name!r} is never null; only a whole column can"
            )
        check_column_type(part.type, f"{what}.{part.name}")


def _parts_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields within a type; not a map's key, which is never null by definition."""
    if pa.types.is_map(kind):
        return [kind.item_field, pa.field(kind.key_field.name, kind.key_type)]
    if pa.types.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    if hasattr(kind, "value_field"):
        return [kind.value_field]
    return []


def check_table_name(name: object) -> None:
    """Raise `InvalidArgument` unless ``name`` can name a table, as a segment of a URL's path too.

    Clients and proxies remove the segments ``.`` and ``..`` from a path, percent-encoded or not, so
    a request for a table of such a name would reach another path. (``%`` is refused by itself.)
    """
    fine = (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
        and name == name.strip()
        and not set(name) & set(_NOT_IN_TABLE_NAMES)
        and name not in DOT_SEGMENTS
    )
    if fine and str(name).startswith(RESERVED):
        raise InvalidArgument(
            f"table name {str(name)[:40]!r}: names that begin with {RESERVED} are Stelae's own"
        )
    if not fine:
        raise InvalidArgument(
            f"table name {str(name)[:40]!r}: 1 to {MAX_NAME_LENGTH} printable characters, none of "
            f"{' '.join(_NOT_IN_TABLE_NAMES)} and no spaces at its ends; and neither . nor .., "
            "which clients and proxies remove from URLs"
        )


def check_known_name(name: object) -> None:
    """Raise `InvalidArgument` unless ``name`` may be that of an existing table.

    Weaker than `check_table_name`: a table keeps a name that was given before that check refused
    it, and can still be opened, renamed and deleted.
    """
    fine = isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
    if not fine:
        raise InvalidArgument(
            f"table name {str(name)[:40]!r}: 1 to {MAX_NAME_LENGTH} printable characters"
        )


def check_column_name(name: object) -> None:
    """Raise `InvalidArgument` unless this can name a column."""
    fine = isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
    if not fine or str(name).startswith("_"):
        raise InvalidArgument(
            f"column name {str(name)[:40]!r}: 1 to {MAX_NAME_LENGTH} printable characters, not "
            "starting with _"
        )


def check_column_names(names: Sequence[str]) -> None:
    """Raise `InvalidArgument` unless these can be the columns of one table."""
    if not names or len(names) > MAX_COLUMNS:
        raise InvalidArgument(f"a table has 1 to {MAX_COLUMNS} columns, not {len(names)}")
    seen: dict[str, None] = {}
    for name in names:
        check_column_name(name)
        if name in seen:
            raise InvalidArgument(f"column {name!r} is named twice")
        seen[name] = None


def constant_array(value: pa.Scalar, row_count: int) -> pa.Array:
    """``row_count`` times the same value."""
    if not value.is_valid:
        return pa.nulls(row_count, value.type)
    return pa.repeat(value, row_count)


FIRST_KEY_SEED = 0x9E3779B97F4A7C15
"""The key seed of every table made before tables had their own."""


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """The columns and primary key of a table, as kept in the catalog.

    A column's id is given once: a column that is dropped and added again has another one, by which
    rows written before are told from those after. How schemas change: `stelae.core.schema.alter`.
    """

    arrow_ipc: bytes
    """The serialized Arrow schema of the user's columns, normalised."""
    key: tuple[str, ...]
    """The key columns in key order. They are the same in every version."""
    column_ids: tuple[int, ...]
    """Of the columns in schema order."""
    next_column_id: int
    """Above every id that any version of this schema ever had."""
    version: int = 1
    """Grows with every change of columns or defaults."""
    defaults_ipc: bytes = b""
    """Empty if every default is null; else an Arrow IPC stream of two rows with all columns: the
    read defaults (what rows show that were written before the column was added; never changed),
    and the write defaults (what rows get that leave the column out)."""
    indexes: tuple[IndexDefinition, ...] = ()
    """Secondary indexes, of at most one for each column; see `stelae.core.schema.alter`."""
    key_seed: int = FIRST_KEY_SEED
    """Seed of the hashes of keys, 64 bits, drawn by the master that creates the table. Who does not
    know it cannot choose keys whose hashes collide. It never changes."""

    @staticmethod
    def of(schema: pa.Schema, key: Sequence[str]) -> TableSchema:
        """Check and normalise what a user gave.

        Raises:
            InvalidArgument: duplicate or reserved names, no key, wrong key type, too many columns.
            ColumnNotFound: the key names a column that is not there.
        """
        key = (key,) if isinstance(key, str) else tuple(key)
        names = list(schema.names)
        check_column_names(names)
        if not key or len(set(key)) != len(key):
            raise InvalidArgument(f"key={list(key)}: name one or more columns, each once")
        fields = []
        for name in key:
            if name not in names:
                raise ColumnNotFound(name, "(new)", ", ".join(names))
        for field in schema:
            kind = normal_type(field.type)
            check_column_type(kind, f"column {field.name!r}")
            if field.name in key and not is_key_type(kind):
                raise InvalidArgument(
                    f"key column {field.name!r} has type {kind}; keys are made of integers, bool, "
                    "string, binary, date and timestamp"
                )
            fields.append(
                pa.field(field.name, kind, nullable=field.name not in key and field.nullable)
            )
        ids = tuple(range(1, len(fields) + 1))
        return TableSchema(pa.schema(fields).serialize().to_pybytes(), key, ids, len(fields) + 1)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The user's columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.arrow_ipc))

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns, nullable where not key (tombstones), then ``_op`` and ``_version``. Each
        column carries its id, so that a segment says by itself which columns it has."""
        fields = [
            pa.field(f.name, f.type, f.name not in self.key, {COLUMN_ID_KEY: b"%d" % column_id})
            for f, column_id in zip(self.arrow, self.column_ids, strict=True)
        ]
        return pa.schema(
            [
                *fields,
                pa.field(OP_COLUMN, pa.uint8(), False),
                pa.field(VERSION_COLUMN, pa.uint64(), False),
            ]
        )

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The key columns, in key order."""
        return pa.schema([self.arrow.field(name) for name in self.key])

    @cached_property
    def key_positions(self) -> tuple[int, ...]:
        """Where each key column stands among the columns, in key order."""
        return tuple(self.arrow.get_field_index(name) for name in self.key)

    @cached_property
    def defaults(self) -> pa.RecordBatch | None:
        """The read defaults and the write defaults, as two rows; None: all are null."""
        if not self.defaults_ipc:
            return None
        with pa.ipc.open_stream(self.defaults_ipc) as reader:
            return reader.read_next_batch()

    def read_default(self, name: str) -> pa.Scalar:
        """What rows written before column ``name`` was there show for it."""
        return self._default(name, 0)

    def write_default(self, name: str) -> pa.Scalar:
        """What rows get that leave column ``name`` out; null: none."""
        return self._default(name, 1)

    def _default(self, name: str, row: int) -> pa.Scalar:
        if self.defaults is None:
            return pa.scalar(None, self.arrow.field(name).type)
        default: pa.Scalar = self.defaults.column(name)[row]
        return default

    def default_arrays(self, names: Sequence[str], row_count: int) -> list[pa.Array]:
        """What ``row_count`` rows get in columns ``names`` if they leave them out."""
        return [constant_array(self.write_default(name), row_count) for name in names]

    def column_of(self, index: IndexDefinition) -> str:
        """What the column of an index is called in this version."""
        return str(self.arrow.names[self.column_ids.index(index.column_id)])

    def index_of(self, column: str) -> IndexDefinition | None:
        """The index of a column, if there is one."""
        at = self.arrow.get_field_index(column)
        column_id = self.column_ids[at] if at >= 0 else 0
        return next((index for index in self.indexes if index.column_id == column_id), None)

    @cached_property
    def required(self) -> frozenset[str]:
        """The columns that a row has to give: without default, and never null."""
        return frozenset(
            f.name for f in self.arrow if not f.nullable and not self.write_default(f.name).is_valid
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether every column can travel as msgpack rows."""
        return all(is_plain_type(field.type) for field in self.arrow)

    def check_columns(self, columns: Sequence[str], table: str) -> None:
        """Raise `ColumnNotFound` for the first of ``columns`` that is not there."""
        for column in columns:
            if not isinstance(column, str) or self.arrow.get_field_index(column) < 0:
                raise ColumnNotFound(str(column), table, ", ".join(self.arrow.names))


_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")
_DECIMAL = re.compile(r"decimal128\((\d{1,2}), ?(-?\d{1,2})\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d{1,6})\]")


def type_named(text: str, column: str) -> pa.DataType:
    """The Arrow type that ``str`` of it names. Raises InvalidArgument."""
    try:
        if match := _TIMESTAMP.fullmatch(text):
            kind = pa.timestamp(match[1], match[2])
            pa.scalar(0, kind).as_py()  # is there such a time zone?
            return kind
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        if match := _FIXED.fullmatch(text):
            return pa.binary(int(match[1]))
        return pa.type_for_alias(text)
    except (ValueError, LookupError, pa.ArrowException) as error:
        raise InvalidArgument(
            f"column {column!r}: {text[:80]!r} is no type known here ({error}); try arrow_schema"
        ) from None
