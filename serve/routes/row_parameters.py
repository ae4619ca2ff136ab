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
ROW_PATH: list[dict[str, Any]] = [
    {"name": "table", "in": "path", "required": True, "schema": {"type": "string"}},
    {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "Values of the key columns in their order, with commas between; each "
        "percent-encoded.",
        "schema": {"type": "string"},
        "example": "42",
    },
]
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
