"""Values as JSON, and back: the mapping of the HTTP API.

=====================  ==================================================================
column                 JSON
=====================  ==================================================================
integers               number, exact also beyond 2**53
floats                 number; ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` as text
bool, string           as they are
binary                 base64 (RFC 4648 §4, padded)
date, timestamp        ISO 8601 text; also taken: the integer that Arrow stores, which is
                       what moments outside of the years 1 to 9999 are shown as
decimal                text
time, duration         the integer that Arrow stores
interval               array of months, days, nanoseconds
list; struct; map      array; object; array of [key, value]
dictionary             as its values
uuid                   text; other extension types are shown as their storage
null                   null
=====================  ==================================================================

What is read is taken back: `from_json_value` makes the same value of what `column_to_json` gave.

NaN and the infinities are text, as in protobuf's JSON mapping, because JSON has no number for them
and null would be another value. Nothing is rounded: what does not fit is refused, naming the
column.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.casts import is_bytes
from stelae.core.schema.schema import is_plain_type
from stelae.core.schema.values import from_wire, to_wire

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NANOSECONDS = re.compile(r"(.*[.,]\d{6})(\d+)(.*)", re.DOTALL)
_FRACTION_DIGITS = 9
_NOT_A_TIME = -(1 << 63)
"""The one moment that has no text (NumPy takes it for NaT); it is shown as its integer."""


# ---- to JSON --------------------------------------------------------------------------------


def to_json_value(value: Any, kind: pa.DataType) -> Any:
    """What `msgspec.json.encode` writes as JSON for a value, which is as ``as_py`` gives it."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if pa.types.is_dictionary(kind):
        return to_json_value(value, kind.value_type)
    if is_bytes(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # Python's calendar ends; NumPy's text has no zone, and Python does not read its years.
        return value.isoformat() if hasattr(value, "isoformat") else int(value.astype(np.int64))
    if pa.types.is_decimal(kind):
        return str(value)
    if _is_made_of_others(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return column_to_json(pa.array([value], kind))[0]
    return value


def _is_made_of_others(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) or isinstance(kind, pa.BaseExtensionType)


def column_to_json(column: pa.Array) -> list[Any]:
    """A column's values, each as `to_json_value` gives them."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(kind):
        return column_to_json(column.dictionary_decode())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return column.cast(width).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        days = kind == pa.date32()
        stored = column.view(pa.int32() if days else pa.int64()).to_pylist()
        return [value if value == _NOT_A_TIME else _moment(value, kind) for value in stored]
    if _is_made_of_others(kind):
        return _nested_to_json(column, kind)
    return [to_json_value(value, kind) for value in column.to_pylist()]


def _nested_to_json(column: pa.Array, kind: pa.DataType) -> list[Any]:
    """From Arrow, and not from Python's values, which have no nanoseconds."""
    if isinstance(kind, pa.BaseExtensionType):
        if kind == pa.uuid():
            return [None if value is None else str(value) for value in column.to_pylist()]
        return column_to_json(column.storage)
    is_there = column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [column_to_json(part) for part in column.flatten()]
        return [
            dict(zip(names, [part[row] for part in parts], strict=True)) if there else None
            for row, there in enumerate(is_there)
        ]
    if pa.types.is_map(kind):
        pairs = zip(column_to_json(column.keys), column_to_json(column.items), strict=True)
        elements: list[Any] = [list(pair) for pair in pairs]
        spans = itertools.pairwise(column.offsets.to_pylist())
        return [
            elements[start:end] if there else None
            for there, (start, end) in zip(is_there, spans, strict=True)
        ]
    elements, found, at = column_to_json(column.flatten()), list[Any](), 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else elements[at : at + length])
        at += length or 0
    return found


def _moment(value: int | None, kind: pa.DataType) -> Any:
    return to_json_value(from_wire(value, kind), kind)


def batch_to_json_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts that `msgspec.json.encode` takes."""
    names = batch.schema.names
    columns = [column_to_json(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def encode_rows(batch: pa.RecordBatch | pa.Table) -> list[bytes]:
    """The JSON object of each row."""
    encoder = msgspec.json.Encoder()
    return [encoder.encode(row) for row in batch_to_json_rows(batch)]


# ---- from JSON ------------------------------------------------------------------------------


def from_json_value(value: Any, kind: pa.DataType, what: str) -> Any:
    """A decoded JSON value as what the client takes for a column of this type.

    Wire values for plain types; for others what ``pa.array`` takes. ``what`` names the value in
    messages.

    Raises:
        InvalidArgument: it does not fit the type.
    """
    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return from_json_value(value, kind.value_type, what)
    if is_bytes(kind):
        return _from_base64(value, what)
    if pa.types.is_floating(kind) and isinstance(value, str):
        if value not in _SPECIAL:
            raise InvalidArgument(f"{what}: {value[:80]!r} is text, and does not fit type {kind}")
        return _SPECIAL[value]
    if pa.types.is_timestamp(kind) and isinstance(value, str):
        return _timestamp(value, kind, what)
    if is_plain_type(kind):
        return to_wire(value, kind, what)
    return _from_other(value, kind, what)


def _from_base64(value: Any, what: str) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(f"{what}: {value[:80]!r} is not base64") from None
    raise InvalidArgument(f"{what}: a {type(value).__name__}, where base64 text is wanted")


def _timestamp(text: str, kind: pa.DataType, what: str) -> Any:
    """Python reads six digits of a fraction and forgets the rest; here they count."""
    match = _NANOSECONDS.fullmatch(text)
    if match is None:
        return to_wire(text, kind, what)
    digits = match[2].rstrip("0")
    if not digits:
        return to_wire(match[1] + match[3], kind, what)
    if kind.unit != "ns" or 6 + len(digits) > _FRACTION_DIGITS:
        raise InvalidArgument(f"{what}: {text[:80]!r} is finer than {kind}")
    microseconds = to_wire(match[1] + match[3], pa.timestamp("us", kind.tz), what)
    assert isinstance(microseconds, int)
    return to_wire(1000 * microseconds + int(digits.ljust(3, "0")), kind, what)


def _from_other(value: Any, kind: pa.DataType, what: str) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(value, kind, what)
    if pa.types.is_decimal(kind):
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InvalidArgument(f"{what}: a decimal is text, so that nothing is rounded")
        try:
            return Decimal(value)
        except InvalidOperation:
            raise InvalidArgument(f"{what}: {str(value)[:80]!r} is not a decimal") from None
    if pa.types.is_struct(kind):
        return _struct(value, kind, what)
    if pa.types.is_map(kind):
        pairs = _list(value, what)
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
            raise InvalidArgument(f"{what}: a map is an array of [key, value]")
        return [
            (from_json_value(k, kind.key_type, what), from_json_value(v, kind.item_type, what))
            for k, v in pairs
        ]
    if pa.types.is_nested(kind):
        return [from_json_value(item, kind.value_type, what) for item in _list(value, what)]
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return to_wire(value, pa.int32() if kind.bit_width == 32 else pa.int64(), what)
    if pa.types.is_interval(kind):
        return _interval(value, what)
    return value


def _extension(value: Any, kind: pa.BaseExtensionType, what: str) -> Any:
    if kind != pa.uuid():
        return from_json_value(value, kind.storage_type, what)
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgument(f"{what}: {str(value)[:80]!r} is not the text of a UUID") from None


def _interval(value: Any, what: str) -> pa.MonthDayNano:
    parts = _list(value, what)
    if len(parts) != 3:
        raise InvalidArgument(f"{what}: an interval is an array of months, days, nanoseconds")
    widths = (pa.int32(), pa.int32(), pa.int64())
    return pa.MonthDayNano([to_wire(p, w, what) for p, w in zip(parts, widths, strict=True)])


def _struct(value: Any, kind: pa.DataType, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what}: a {type(value).__name__}, where an object is wanted")
    fields = {field.name: field.type for field in kind}
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise InvalidArgument(f"{what}: it has no field {unknown[0][:80]!r}")
    return {
        name: from_json_value(item, fields[name], f"{what}.{name}") for name, item in value.items()
    }


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InvalidArgument(f"{what}: a {type(value).__name__}, where an array is wanted")
    return value


# ---- keys in paths --------------------------------------------------------------------------


def from_path_text(text: str, kind: pa.DataType, what: str) -> Any:
    """One part of a key in a URL path (already percent-decoded) as a wire value.

    Integers in decimal, ``true`` and ``false``, base64url for binary (padding optional), ISO 8601
    for dates and timestamps.

    Raises:
        InvalidArgument: it does not fit the type.
    """
    if pa.types.is_integer(kind):
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            raise InvalidArgument(f"{what}: {text[:80]!r} is not an integer")
        return to_wire(int(text), kind, what)
    if pa.types.is_boolean(kind):
        if text not in ("true", "false"):
            raise InvalidArgument(f"{what}: {text[:80]!r} is neither true nor false")
        return text == "true"
    if pa.types.is_binary(kind):
        if not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
            raise InvalidArgument(f"{what}: {text[:80]!r} is not base64url")
        plain = text.rstrip("=").replace("-", "+").replace("_", "/")
        return _from_base64(plain + "=" * (-len(plain) % 4), what)
    return from_json_value(text, kind, what)
