"""Rows of the audit table out of lines of the audit log's files. Pure.

A line of this or of an earlier version is taken as far as it goes: a field that is missing or of
another type is empty. A line that is no JSON object with an id and a time is no row: it was torn by
a loss of power, or somebody else wrote it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from stelae.core.schema.audit import Outcome, outcome_of

TEXT_CHARS = 2000
"""Maximum characters of a text column."""


def rows_of(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that lines stand for, and how many lines stand for none.

    Of several lines with one id the last answered one counts, else the last one.
    """
    found: dict[str, dict[str, Any]] = {}
    unread = 0
    for line in lines:
        if not line.strip():
            continue
        row = _row(line)
        if row is None:
            unread += 1
            continue
        known = found.get(row["id"])
        if known is None or row["outcome"] != Outcome.BEGUN or known["outcome"] == Outcome.BEGUN:
            found[row["id"]] = row
    return list(found.values()), unread


def row_of_lost(file: str) -> dict[str, Any]:
    """Return the row which says that lines may be missing: the same for the same file."""
    row = _empty(f"lost-{file}", datetime.datetime.now(datetime.UTC))
    return {
        **row,
        "outcome": Outcome.LOST.value,
        "details": "a file was deleted before all its lines were known to be in this table",
    }


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    entry_id, at = _text(document, "id"), _time(document)
    if not entry_id or at is None:
        return None
    status, body = _status(document.get("status")), _text(document, "body")
    path, query = _text(document, "path"), _text(document, "query")
    return {
        **_empty(entry_id, at),
        "gateway": _text(document, "gateway"),
        "caller": _text(document, "token"),
        "role": _text(document, "role"),
        "method": _text(document, "method"),
        "path": path,
        "object": _object(path, body),
        "outcome": (Outcome.BEGUN if status is None else outcome_of(status)).value,
        "status": status,
        "calls": _count(document.get("calls")),
        "duration_s": _seconds(document.get("duration_s")),
        "request_id": _text(document, "request_id"),
        "source": _text(document, "client"),
        "details": f"?{query} {body}".rstrip() if query else body,
    }


def _empty(entry_id: str, at: datetime.datetime) -> dict[str, Any]:
    texts = ("gateway", "caller", "role", "method", "path", "object", "request_id", "source")
    return {
        "id": entry_id,
        "time": at,
        **dict.fromkeys(texts, ""),
        "status": None,
        "calls": 1,
        "duration_s": None,
    }


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value[:TEXT_CHARS] if isinstance(value, str) else ""


def _time(document: Mapping[str, Any]) -> datetime.datetime | None:
    """When the call began. Lines of earlier versions have their own time alone."""
    text = _text(document, "began") or _text(document, "at")
    try:
        at = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return at if 1970 <= at.year < 2200 else None


def _status(value: Any) -> int | None:
    is_status = isinstance(value, int) and not isinstance(value, bool)
    return value if is_status and 0 <= value < 1000 else None


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else None


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 < value < 1 << 62 else 1


def _object(path: str, body: str) -> str:
    """What the call is about: the name in its path, else the one in its body; empty: neither."""
    parts = [unquote(part) for part in path.split("/")]
    for kind in ("tables", "tokens", "tservers", "servers", "tablets", "timelines"):
        if kind in parts[:-1]:
            return parts[parts.index(kind) + 1].partition(":")[0]
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return _text(document, "name") if isinstance(document, dict) else ""
