"""Table schemas: an Arrow schema, a primary key, and what may stand in each.

Rows hold the user's columns in schema order. Inside Stelae two more columns travel with them:
``_op`` (uint8, `RowKind`) and ``_version`` (uint64).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from stelae.core.errors import ColumnNotFound, InvalidArgument

MAX_COLUMNS = 300
MAX_ROW_BYTES = 1 << 20
MAX_CALL_BYTES = 64 << 20
MAX_NAME_LENGTH = 255
OP_COLUMN = "_op"
VERSION_COLUMN = "_version"


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
    """Whether values of this type travel as msgpack in small calls (see `stelae.core.values`)."""
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


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """The columns and primary key of a table, as kept in the catalog.

    ``arrow_ipc`` is the serialized Arrow schema of the user's columns, normalised; ``key`` names
    the key columns in key order; ``version`` grows with every alter.
    """

    arrow_ipc: bytes
    key: tuple[str, ...]
    version: int = 1

    @staticmethod
    def of(schema: pa.Schema, key: Sequence[str]) -> TableSchema:
        """Check and normalise what a user gave.

        Raises:
            InvalidArgument: duplicate or reserved names, no key, wrong key type, too many columns.
            ColumnNotFound: the key names a column that is not there.
        """
        key = (key,) if isinstance(key, str) else tuple(key)
        names = list(schema.names)
        if not names or len(names) > MAX_COLUMNS:
            raise InvalidArgument(f"a table has 1 to {MAX_COLUMNS} columns, not {len(names)}")
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"column {name!r} is named twice")
            if not name or name.startswith("_") or len(name) > MAX_NAME_LENGTH:
                raise InvalidArgument(
                    f"column name {name!r}: 1 to {MAX_NAME_LENGTH} characters, not starting with _"
                )
        if not key or len(set(key)) != len(key):
            raise InvalidArgument(f"key={list(key)}: name one or more columns, each once")
        fields = []
        for name in key:
            if name not in names:
                raise ColumnNotFound(name, "(new)", ", ".join(names))
        for field in schema:
            kind = normal_type(field.type)
            if field.name in key and not is_key_type(kind):
                raise InvalidArgument(
                    f"key column {field.name!r} has type {kind}; keys are made of integers, bool, "
                    "string, binary, date and timestamp"
                )
            fields.append(
                pa.field(field.name, kind, nullable=field.name not in key and field.nullable)
            )
        return TableSchema(pa.schema(fields).serialize().to_pybytes(), key)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The user's columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.arrow_ipc))

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns, nullable where not key (tombstones), then ``_op`` and ``_version``."""
        fields = [pa.field(f.name, f.type, nullable=f.name not in self.key) for f in self.arrow]
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
    def is_plain(self) -> bool:
        """Whether every column can travel as msgpack rows."""
        return all(is_plain_type(field.type) for field in self.arrow)

    def check_columns(self, columns: Sequence[str], table: str) -> None:
        """Raise `ColumnNotFound` for the first of ``columns`` that is not there."""
        for column in columns:
            if not isinstance(column, str) or self.arrow.get_field_index(column) < 0:
                raise ColumnNotFound(str(column), table, ", ".join(self.arrow.names))
