"""Columns, names and values as they are written on the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.client.http.json_values import from_json_value
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.schema import type_named

_NOT_NULL = " not null"


def fields_of(texts: Sequence[str]) -> list[pa.Field]:
    """``name:type`` or ``name:type not null`` as Arrow fields. Raises `InvalidArgument`."""
    fields = []
    for text in texts:
        name, colon, kind = text.partition(":")
        if not colon or not name:
            raise InvalidArgument(f"--add {text!r}: write COLUMN:TYPE, as in seats:int16")
        nullable = not kind.endswith(_NOT_NULL)
        kind = kind.removesuffix(_NOT_NULL).strip()
        fields.append(pa.field(name, type_named(kind, name), nullable))
    return fields


def pairs_of(texts: Sequence[str], option: str) -> dict[str, str]:
    """``a=b`` as a dict. Raises `InvalidArgument`."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in pairs:
            raise InvalidArgument(f"{option} {text!r}: write NAME=…, each name once")
        pairs[name] = value
    return pairs


def defaults_of(
    texts: Mapping[str, str],
    schema: pa.Schema,
    added: Sequence[pa.Field],
    renames: Mapping[str, str],
) -> dict[str, Any]:
    """Defaults in the types of their columns: JSON values, or plain text where that is no JSON.

    Raises:
        ColumnNotFound: a column that the table will not have.
        InvalidArgument: a value that does not fit.
    """
    kinds = {renames.get(field.name, field.name): field.type for field in schema}
    kinds |= {field.name: field.type for field in added}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in kinds:
            raise ColumnNotFound(name, "(altered)", ", ".join(kinds))
        value: Any = text
        with contextlib.suppress(msgspec.DecodeError):  # text without quotes
            value = msgspec.json.decode(text)
        if value is not None and pa.types.is_string(kinds[name]) and not isinstance(value, str):
            value = text
        what = f"the default of column {name!r}"
        values[name] = None if value is None else from_json_value(value, kinds[name], what)
    return values
