"""The key of one row, as a request names it: in its path, or in its query.

- **In the path**, ``…/rows/LAX,7``: the values of the key columns in key order, with commas
  between, each percent-encoded (a comma inside a value is ``%2C``).
- **In the query**, ``…/rows?key=LAX&key=7``: one parameter for each key column, in key order. Every
  key has this form.

Clients and proxies change paths: they remove the segments ``.`` and ``..``, percent-encoded or not,
join slashes, and decode ``%2F``. They change no query. So a key in a path is refused if it is
empty, or if it has an empty segment, ``.`` or ``..`` between its slashes: with another client it
would be another row, or another resource.

Source: RFC 3986, 5.2.4 and 6.2.2; WHATWG URL, "double-dot URL path segment".
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from stelae.client.http.json_values import from_path_text
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import DOT_SEGMENTS
from stelae.serve.gateway.requests import fields_of

KEY_FIELD = "key"
_RAW_KEY = re.compile(rb"/v1/tables/[^/]+/rows/(.*)", re.DOTALL)
_CHANGED = frozenset([b"", *(segment.encode() for segment in DOT_SEGMENTS)])
"""Segments that clients or proxies remove."""


def row_key(request: Request, table: AsyncTable) -> tuple[Any, ...]:
    """The key as wire values. Raises InvalidArgument."""
    in_path, in_query = _in_path(request), fields_of(request, KEY_FIELD)
    if in_path and in_query:
        raise InvalidArgument(f"the key is in the path and in ?{KEY_FIELD}=: give it once")
    if in_query:
        parts = in_query
    else:
        _check_path(in_path)
        parts = [unquote_to_bytes(part) for part in in_path.split(b",")]
    if len(parts) != len(table.key):
        raise InvalidArgument(
            f"the key of {table.name!r} has {len(table.key)} column(s), {', '.join(table.key)}; "
            f"{len(parts)} value(s) were given (a comma inside a value is %2C in a path; or give "
            f"?{KEY_FIELD}= for each column)"
        )
    return tuple(
        [
            from_path_text(_text(part, name), table.schema.field(name).type, f"key column {name!r}")
            for name, part in zip(table.key, parts, strict=True)
        ]
    )


def _in_path(request: Request) -> bytes:
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    match = _RAW_KEY.search(raw)
    return match[1] if match is not None else b""


def _check_path(raw: bytes) -> None:
    """Refuse what another client or a proxy would change on the way. Raises InvalidArgument."""
    if not _CHANGED.isdisjoint(unquote_to_bytes(raw).split(b"/")):
        raise InvalidArgument(
            f"the key {raw.decode('ascii', 'replace')[:80]!r} in the path is empty, or has an "
            "empty segment, . or .., which clients and proxies remove: give it in the query, "
            f"…/rows?{KEY_FIELD}=… (once for each key column)"
        )


def _text(part: bytes, name: str) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"key column {name!r}: the value is not UTF-8") from None
