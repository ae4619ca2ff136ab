"""What OpenAPI says of the paths, queries and headers of rows, which their routes read by hand."""

from __future__ import annotations

from typing import Any

OPS = ("insert", "upsert", "update", "delete")

OP = {
    "name": "op",
    "in": "query",
    "required": False,
    "description": "With an Arrow body: what to do with its rows. `upsert` if absent.",
    "schema": {"type": "string", "enum": list(OPS)},
}


STREAM = {
    "name": "stream",
    "in": "query",
    "required": False,
    "description": "`true`, with an Arrow body: write while it arrives, however long it is, in "
    "windows of about 8 MiB that are each a write of their own. What was written before an error "
    "stays; the problem's `notes` say how many rows.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}
_TABLE = {"name": "table", "in": "path", "required": True, "schema": {"type": "string"}}
ROW_PATH: list[dict[str, Any]] = [
    _TABLE,
    {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "Values of the key columns in their order, with commas between; each "
        "percent-encoded. A key that is empty, or has `.`, `..` or nothing between its slashes, is "
        "refused here, as clients and proxies remove these from paths: give it in the query, "
        "`/v1/tables/{table}/rows?key=`.",
        "schema": {"type": "string"},
        "example": "42",
    },
]
ROW_QUERY: list[dict[str, Any]] = [
    _TABLE,
    {
        "name": "key",
        "in": "query",
        "required": True,
        "description": "The value of each key column, in their order: `?key=a&key=b`. Takes every "
        "key: nothing on the way changes a query.",
        "style": "form",
        "explode": True,
        "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "example": ["42"],
    },
]
ROW_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "additionalProperties": True},
            "example": {"dest": "LAX"},
        }
    },
}
COLUMNS = {
    "name": "columns",
    "in": "query",
    "required": False,
    "description": "Only these: `?columns=a&columns=b`.",
    "schema": {"type": "array", "items": {"type": "string"}},
}
ROW_ANSWER: dict[str, Any] = {
    "description": "The row: its columns by name.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "additionalProperties": True, "title": "Row"},
            "example": {"id": 42, "dest": "LAX", "departed": "2013-01-01T10:00:00+00:00"},
        }
    },
}
