"""The columns of the audit table, and what they say.

One row is one call, or several that were refused at the door and are counted together. ``id`` is
that of the lines in the gateway's file, so a line that is copied again is the same row.
"""

from __future__ import annotations

import enum

import pyarrow as pa

from stelae.core.errors import InvalidArgument
from stelae.core.schema.own_tables import AUDIT_TABLE, check_users_table, is_own_table
from stelae.core.schema.schema import TableSchema, check_table_name

AUDIT_KEY = "id"
AUDIT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("gateway", pa.string(), nullable=False),
        pa.field("caller", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("object", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("status", pa.int32()),
        pa.field("calls", pa.int64(), nullable=False),
        pa.field("duration_s", pa.float64()),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("details", pa.string(), nullable=False),
    ]
)


class Outcome(enum.StrEnum):
    """What came of a call."""

    BEGUN = "begun"
    """No answer is noted: it is under way, or was cut off and may have been carried out."""
    DONE = "done"
    REFUSED = "refused"
    """Answered 4xx: definitely not executed."""
    FAILED = "failed"
    """Answered 5xx: it may have been carried out."""
    LOST = "lost"
    """Not a call: lines may be missing here."""


def outcome_of(status: int) -> Outcome:
    """Return the outcome of a call that was answered with this HTTP status."""
    if status < 400:
        return Outcome.DONE
    return Outcome.REFUSED if status < 500 else Outcome.FAILED


def has_audit_columns(schema: pa.Schema, key: tuple[str, ...]) -> bool:
    """Whether a table of these columns can be the audit table; any other of its name is a user's,
    whom an earlier version let make it."""
    kinds = {field.name: field.type for field in schema}
    return key == (AUDIT_KEY,) and kinds == {field.name: field.type for field in AUDIT_SCHEMA}


def check_not_own(name: str, schema: TableSchema, what: str) -> None:
    """Raise `InvalidArgument` for the audit table. ``what``: what is refused, in words."""
    if has_audit_columns(schema.arrow, schema.key):
        check_users_table(name, what)


def check_new_name(name: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Raise `InvalidArgument` unless a table of these columns may be created by this name."""
    if not is_own_table(name):
        check_table_name(name)
        return
    own = TableSchema.of(AUDIT_SCHEMA, (AUDIT_KEY,))
    if not schema.equals(own.arrow) or key != own.key:
        raise InvalidArgument(f"table {AUDIT_TABLE!r} is Stelae's own: it has other columns")
