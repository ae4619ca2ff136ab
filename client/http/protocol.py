"""What both ends of the HTTP API agree on: media types, headers, problem documents. (design §12)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stelae.client.input.given import staleness
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    RetryLater,
    StelaeError,
    TableNotFound,
    Unauthorized,
    decode_error,
)
from stelae.core.ids import ClientId, RequestId

ARROW_TYPE = "application/vnd.apache.arrow.stream"
JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
PROBLEM_TYPE = "application/problem+json"

TIMEOUT_HEADER = "Stelae-Timeout-Seconds"
"""A name of our own: Ray Serve heeds `X-Request-Timeout-Seconds` itself, and cuts calls by it."""
IDEMPOTENCY_HEADER = "Idempotency-Key"
REQUEST_ID_HEADER = "Stelae-Request-Id"
"""Of Stelae's own client, instead of `IDEMPOTENCY_HEADER`: servers may forget what was answered."""
NEXT_PAGE_HEADER = "Stelae-Next-Page"
"""With an answer that is no JSON object: by what to ask for the rows after these."""
SCHEMA_VERSION_HEADER = "Stelae-Schema-Version"
"""The version of the table's schema that the columns of a request are of; absent: the newest."""

IF_VERSION_COLUMN = "_if_version"
"""In an Arrow body of ``rows:write``: the version that each row must have; 0: must be absent."""
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""How a whole Arrow stream ends; one that was cut off does not."""


def format_request_id(request: RequestId) -> str:
    return f"{request.client_id}.{request.sequence}.{request.first_incomplete}"


def parse_request_id(text: str) -> RequestId:
    """Raises InvalidArgument."""
    client, _, rest = text.partition(".")
    sequence, _, first = rest.partition(".")
    numbers = [part for part in (sequence, first) if part.isascii() and part.isdecimal()]
    if len(numbers) != 2 or not client.isalnum() or not client.isascii() or len(client) > 64:
        raise InvalidArgument(
            f"{REQUEST_ID_HEADER} {text[:80]!r}: client.sequence.first_incomplete"
        )
    request = RequestId(ClientId(client), int(sequence), int(first))
    if not 0 <= request.first_incomplete <= request.sequence < 1 << 63:
        raise InvalidArgument(f"{REQUEST_ID_HEADER} {text[:80]!r}: the numbers make no sense")
    return request


def if_match(edition: str) -> dict[str, str]:
    """The header of a request that is for a table of this edition alone; empty: of any. Raises
    InvalidArgument."""
    if not edition:
        return {}
    if not edition.isascii() or not edition.isprintable() or '"' in edition or " " in edition:
        raise InvalidArgument(f"{edition[:80]!r} is the edition of no table")
    return {"If-Match": f'"{edition}"'}


def wait_s_of(error: StelaeError) -> float:
    """After how long the same call may succeed, where the server that refused it knows; else 0."""
    found = error.args[2] if isinstance(error, Overloaded) and len(error.args) > 2 else 0.0
    return float(found) if isinstance(found, int | float) else 0.0


def error_of_problem(status: int, problem: Mapping[str, Any]) -> StelaeError:
    """The error that a problem document stands for; by its status where it names none.

    Anything may answer at an address: a document that no Stelae made still becomes an error of
    the right family.
    """
    name, args = problem.get("error"), problem.get("args")
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
    error: StelaeError | None = None
    if isinstance(name, str) and isinstance(args, list):
        error = _named_error(name, args)
    if error is None:
        error = _error_of_status(status, detail)
    notes = problem.get("notes")
    for note in notes if isinstance(notes, list) else ():
        error.add_note(str(note))
    return error


def _named_error(name: str, args: list[Any]) -> StelaeError | None:
    try:
        return decode_error(msgspec.msgpack.encode((name, args)))
    except (TypeError, OverflowError):  # not this class's parameters, or not to be encoded
        return None


def _error_of_status(status: int, detail: str) -> StelaeError:
    if status in (401, 403):
        return Unauthorized(detail)
    if status == 404:
        return TableNotFound(detail)
    if status == 429:
        return Overloaded(detail, 0)
    if status == 504:
        return OutcomeUnknown("the HTTP server", detail, 0.0)
    if status in (408, 502, 503):
        return RetryLater(detail)
    return Rejected(detail) if status < 500 else StelaeError(detail)


def staleness_query(max_staleness: float | None, first: str = "?") -> str:
    """``max_staleness`` as the end of a path. Raises InvalidArgument."""
    value = staleness(max_staleness)
    return "" if value < 0 else f"{first}max_staleness={value!r}"
