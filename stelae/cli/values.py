"""Columns, names, values and filters as they are written on the command line.

A value is written as in the JSON of the HTTP API (`stelae.client.http.json_values`), without
quotes: a date as ``2026-11-30``, bytes as base64, a list as ``[1, 2]``. Nothing is rounded: what
does not fit the column's type is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.client.http.json_values import from_json_value, from_path_text
from stelae.core.errors import ColumnNotFound, InvalidArgument
from stelae.core.schema.casts import is_bytes, is_text
from stelae.core.schema.schema import type_named

_NOT_NULL = " not null"
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NO_NUMBER = re.compile(r"nan|([+-]?)inf(inity)?", re.IGNORECASE)
_COMPARED = re.compile(r"\s*(<=|>=|!=|==|=|<|>)\s*(.*)", re.DOTALL)
_LISTED = re.compile(r"\s+(not\s+in|in)\b\s*(.*)", re.DOTALL | re.IGNORECASE)
_NULL_TEST = re.compile(r"\s+(is\s+not\s+null|is\s+null)\s*", re.IGNORECASE)


# ---- columns and names ----------------------------------------------------------------------


def fields_of(texts: Sequence[str], option: str = "--add") -> list[pa.Field]:
    """``name:type`` or ``name:type not null`` as Arrow fields. Raises `InvalidArgument`."""
    fields = []
    for text in texts:
        name, colon, kind = text.partition(":")
        if not colon or not name:
            raise InvalidArgument(f"{option} {text!r}: write COLUMN:TYPE, as in seats:int16")
        nullable = not kind.endswith(_NOT_NULL)
        kind = kind.removesuffix(_NOT_NULL).strip()
        fields.append(pa.field(name, type_named(kind, name), nullable))
    return fields


def names_of(texts: Sequence[str]) -> list[str]:
    """Names of columns, given one by one or with commas between them."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def pairs_of(texts: Sequence[str], option: str) -> dict[str, str]:
    """``a=b`` as a dict. Raises `InvalidArgument`."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in pairs:
            raise InvalidArgument(f"{option} {text!r}: write NAME=…, each name once")
        pairs[name] = value
    return pairs


# ---- values ---------------------------------------------------------------------------------


def plain_value(text: str, kind: pa.DataType, what: str) -> Any:
    """A value of this type, as `from_json_value` gives it; ``what`` names it in messages.

    Text is taken as it stands. Raises `InvalidArgument`: it does not fit the type.
    """
    if pa.types.is_dictionary(kind):
        return plain_value(text, kind.value_type, what)
    if is_text(kind):
        return text
    if pa.types.is_floating(kind):
        return _floating(text, kind, what)
    if is_bytes(kind):
        return from_path_text(text.replace("+", "-").replace("/", "_"), pa.binary(), what)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return from_path_text(text, kind, what)
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return from_json_value(int(text) if _INTEGER.fullmatch(text) else text, kind, what)
    is_moment = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if is_moment or pa.types.is_decimal(kind) or kind == pa.uuid():
        return from_json_value(text, kind, what)
    try:
        return from_json_value(msgspec.json.decode(text), kind, what)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{what}: {text[:80]!r} is no JSON ({kind}): {error}") from None


def _floating(text: str, kind: pa.DataType, what: str) -> float:
    if match := _NO_NUMBER.fullmatch(text):
        return math.nan if match[2] is None and match[1] is None else float(text)
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    if math.isinf(value):  # also of digits beyond the largest double
        raise InvalidArgument(f"{what}: {text[:80]!r} does not fit type {kind}")
    return float(from_json_value(value, kind, what))


def literal_value(text: str, kind: pa.DataType, what: str) -> Any:
    """As `plain_value`, but ``null`` is null, and text may stand in JSON's quotes: ``"null"``.

    Raises:
        InvalidArgument: it does not fit the type.
    """
    if text == "null":
        return None
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str)
        except msgspec.MsgspecError:
            if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
                raise InvalidArgument(f"{what}: {text[:80]!r}: a quote is missing") from None
    return plain_value(text, kind, what)


def defaults_of(
    texts: Mapping[str, str],
    schema: pa.Schema,
    added: Sequence[pa.Field],
    renames: Mapping[str, str],
) -> dict[str, Any]:
    """Defaults in the types of their columns.

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
        values[name] = literal_value(text, kinds[name], f"the default of column {name!r}")
    return values


def row_of(texts: Sequence[str], schema: pa.Schema, table: str) -> dict[str, Any]:
    """A row written as ``column=value …``. Raises `InvalidArgument`, `ColumnNotFound`."""
    return {
        name: literal_value(text, _type_of(name, schema, table), f"column {name!r}")
        for name, text in pairs_of(texts, "row").items()
    }


def rows_of_json(text: str, schema: pa.Schema, table: str) -> list[dict[str, Any]]:
    """A row as a JSON object, or rows as an array of objects.

    Raises:
        InvalidArgument, ColumnNotFound: they are no rows of the table.
    """
    try:
        found = msgspec.json.decode(text, type=dict[str, Any] | list[dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"row {text[:80]!r} is no JSON object, and no array: {error}"
        ) from None
    rows = found if isinstance(found, list) else [found]
    return [
        {
            name: from_json_value(value, _type_of(name, schema, table), f"column {name!r}")
            for name, value in row.items()
        }
        for row in rows
    ]


def keys_of(
    texts: Sequence[str], schema: pa.Schema, key: Sequence[str], table: str
) -> list[tuple[Any, ...]]:
    """Keys, each of as many texts as the key has columns, in the types of these.

    Raises:
        InvalidArgument: a text is missing, or does not fit its column.
    """
    if not texts or len(texts) % len(key):
        raise InvalidArgument(
            f"the key of {table!r} is made of {', '.join(key)}: give a value for each, in this "
            f"order; {len(texts)} value(s) were given"
        )
    kinds = [schema.field(name).type for name in key]
    values = [
        plain_value(text, kinds[place % len(key)], f"key column {key[place % len(key)]!r}")
        for place, text in enumerate(texts)
    ]
    return [tuple(values[at : at + len(key)]) for at in range(0, len(values), len(key))]


def _type_of(name: str, schema: pa.Schema, table: str) -> pa.DataType:
    if schema.get_field_index(name) < 0:
        raise ColumnNotFound(name, table, ", ".join(schema.names))
    return schema.field(name).type


# ---- filters --------------------------------------------------------------------------------


def filters_of(texts: Sequence[str], schema: pa.Schema, table: str) -> list[tuple[str, str, Any]]:
    """Filters such as ``price > 3`` or ``dest in LAX, SFO``, as `Table.scan` takes them.

    Raises:
        InvalidArgument: it is no filter, or its value does not fit the column.
        ColumnNotFound: the table does not have the column.
    """
    return [_filter_of(text, schema, table) for text in texts]


def _filter_of(text: str, schema: pa.Schema, table: str) -> tuple[str, str, Any]:
    column, rest = _column_of(text.strip(), schema, table)
    kind, what = schema.field(column).type, f"filter on {column!r}"
    if match := _NULL_TEST.fullmatch(rest):
        return column, " ".join(match[1].lower().split()), None
    if match := _LISTED.fullmatch(rest):
        return column, " ".join(match[1].lower().split()), _list_of(match[2].strip(), kind, what)
    if match := _COMPARED.fullmatch(rest):
        return column, match[1], _compared_value(match[2].strip(), kind, what)
    raise InvalidArgument(
        f"--where {text!r}: write COLUMN OPERATOR VALUE, as in 'price > 3'; operators are "
        "= != < <= > >= in, not in, is null, is not null"
    )


def _column_of(text: str, schema: pa.Schema, table: str) -> tuple[str, str]:
    """The column that a filter begins with, and what follows. Names may have any characters: the
    longest that fits is meant."""
    for name in sorted(schema.names, key=len, reverse=True):
        rest = text[len(name) :]
        if text.startswith(name) and (not rest or rest[0].isspace() or rest[0] in "<>=!"):
            return name, rest
    first = re.match(r"[^\s<>=!]*", text)
    raise ColumnNotFound(first[0] if first else text, table, ", ".join(schema.names))


def _list_of(text: str, kind: pa.DataType, what: str) -> list[Any]:
    """``[…]`` in JSON, or values with commas between them, in parentheses or not."""
    if text.startswith("["):
        try:
            found = msgspec.json.decode(text, type=list[Any])
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{what}: {text[:80]!r} is no list: {error}") from None
        return [from_json_value(value, kind, what) for value in found]
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [_compared_value(part.strip(), kind, what) for part in text.split(",")]


def _compared_value(text: str, kind: pa.DataType, what: str) -> Any:
    """As `literal_value`, and in single quotes, as SQL has text: with them it would be another."""
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return plain_value(text[1:-1].replace("''", "'"), kind, what)
    return literal_value(text, kind, what)
