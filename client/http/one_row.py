"""One row in a GET: its key as parameters of the query, and the row in the answer. Pure.

Only for tables whose columns are integers, floats, bools, strings and binaries: the values of these
are the same in JSON as in Arrow. Source: `stelae.client.http.json_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stelae.client.http.direct import Answer
from stelae.client.http.json_values import from_json_value
from stelae.client.http.protocol import PROBLEM_TYPE
from stelae.core.errors import InvalidArgument, RowNotFound
from stelae.core.schema.schema import VERSION_COLUMN, TableSchema
from stelae.core.schema.values import from_wire

MAX_KEY_CHARACTERS = 1000
"""Servers and proxies refuse long addresses."""
OK, NOT_FOUND = 200, 404


def row_fields(key: Sequence[Any], schema: TableSchema) -> list[tuple[str, str]] | None:
    """The parameters that name a row. ``key``: wire values. None: a GET is not for it."""
    if not all(_is_simple(field.type) for field in schema.arrow):
        return None
    texts = []
    for name, value in zip(schema.key, key, strict=True):
        kind = schema.arrow.field(name).type
        if pa.types.is_integer(kind):
            texts.append(str(value))
        elif pa.types.is_string(kind) and value and _is_unicode(value):
            texts.append(value)
        else:
            return None
    if sum(map(len, texts)) > MAX_KEY_CHARACTERS:
        return None
    return [("key", text) for text in texts]


def row_of(
    answer: Answer, schema: TableSchema, columns: Sequence[str], with_version: bool
) -> tuple[dict[str, Any] | None] | None:
    """The row, or that there is none. None: the answer is neither."""
    try:
        found = msgspec.json.decode(answer.body)
        if answer.status == NOT_FOUND and answer.content_type.startswith(PROBLEM_TYPE):
            return (None,) if found["error"] == RowNotFound.__name__ else None
        if answer.status != OK:
            return None
        row: dict[str, Any] = {}
        for name in columns or schema.arrow.names:
            kind = schema.arrow.field(name).type
            row[name] = from_wire(from_json_value(found[name], kind, name), kind)
        if with_version:
            row[VERSION_COLUMN] = int(answer.etag.strip('"'))
    except (msgspec.MsgspecError, InvalidArgument, LookupError, TypeError, ValueError):
        return None  # a proxy's answer, or a newer server's: the loop's way judges it
    return (row,)


def _is_simple(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or (pa.types.is_floating(kind) and not pa.types.is_float16(kind))
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def _is_unicode(text: str) -> bool:
    """Lone surrogates have no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
