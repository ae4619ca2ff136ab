"""Arrow types by the names that people write: ``int64``, ``timestamp[us, tz=UTC]``, …"""

from __future__ import annotations

import re

import pyarrow as pa

from stelae.core.errors import InvalidArgument

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
