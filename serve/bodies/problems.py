"""Errors as RFC 9457 problem documents, each class with a stable type and status.

Extension members let a client rebuild the error: ``error`` (the class in `stelae.core.errors`),
``args`` (its parameters), ``notes``. What the caller should do follows from the status as it does
from the family: 4xx do not repeat, 429 and 503 (with ``Retry-After``) repeat, 504 repeat only with
the same request id, 500 tell the operator. (design §12)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from stelae.client.http.protocol import PROBLEM_TYPE, wait_s_of
from stelae.core import errors
from stelae.core.current import request_id
from stelae.core.errors import StelaeError, VersionMismatch


class NotAuthenticated(errors.Unauthorized):
    """No token, or one that is not known."""


class NotPermitted(errors.Unauthorized):
    """The token's role does not allow this."""


class MalformedBody(errors.InvalidArgument):
    """The body cannot be read at all, or is of no known media type."""


class UnsupportedMedia(errors.InvalidArgument):
    """The media type of the body is not one that this path takes."""


class UnsupportedEncoding(UnsupportedMedia):
    """The body's Content-Encoding is not one that is taken."""


class BodyTooSlow(errors.RetryLater):
    """The client did not send its body at the least rate."""


class ConfirmationNeeded(errors.InvalidArgument):
    """A table is deleted only by a request that names it twice."""


class SafekeeperNotFound(errors.InvalidArgument):
    """The path names a safekeeper that never registered."""


class TokenShown(errors.TokenExists):
    """The token's request is repeated, and its text was in the first answer alone."""

    template = (
        "token {0!r} was made by a request with this Idempotency-Key, and shown in its first "
        "answer alone: if that is lost, revoke the token (DELETE /v1/tokens/{0}) and make one with "
        "another key"
    )


class OperationNotFound(errors.InvalidArgument):
    """The path names an operation that is not known (any more)."""


class PreconditionFailed(errors.InvalidArgument):
    """`If-Match` does not name what is there, or `If-None-Match` does."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One row of the table of problems."""

    status: int
    slug: str
    title: str
    retry_after_s: int | None = None

    @property
    def uri(self) -> str:
        return f"/problems/{self.slug}"


CONDITION_FAILED = ProblemType(412, "precondition-failed", "It is not what it was any more")
PROBLEMS: dict[type[BaseException], ProblemType] = {
    errors.Rejected: ProblemType(400, "rejected", "The request was refused"),
    errors.InvalidArgument: ProblemType(400, "invalid-argument", "The request is not valid"),
    MalformedBody: ProblemType(400, "malformed-body", "The body cannot be read"),
    UnsupportedMedia: ProblemType(415, "unsupported-media-type", "The media type is not taken"),
    UnsupportedEncoding: ProblemType(415, "unsupported-encoding", "The encoding is not taken"),
    BodyTooSlow: ProblemType(408, "body-too-slow", "The body came too slowly"),
    ConfirmationNeeded: ProblemType(400, "confirmation-needed", "Confirm that it is to go"),
    errors.TooManyReplicas: ProblemType(400, "too-many-replicas", "There are too few backups"),
    errors.TooFewServers: ProblemType(400, "too-few-servers", "There are too few servers"),
    errors.ColumnNotFound: ProblemType(400, "column-not-found", "There is no such column"),
    errors.IndexNotFound: ProblemType(404, "index-not-found", "The column has no index"),
    errors.IndexExists: ProblemType(409, "index-exists", "The column has an index"),
    errors.TableNotFound: ProblemType(404, "table-not-found", "There is no such table"),
    errors.TabletNotFound: ProblemType(404, "tablet-not-found", "There is no such tablet"),
    SafekeeperNotFound: ProblemType(404, "safekeeper-not-found", "There is no such safekeeper"),
    OperationNotFound: ProblemType(404, "operation-not-found", "There is no such operation"),
    PreconditionFailed: CONDITION_FAILED,
    errors.TableChanged: CONDITION_FAILED,
    errors.SpecChanged: CONDITION_FAILED,
    errors.RowNotFound: ProblemType(404, "row-not-found", "There is no such row"),
    errors.TokenExists: ProblemType(409, "token-exists", "A token of that name exists"),
    TokenShown: ProblemType(409, "token-shown", "A token is shown once"),
    errors.KeyReused: ProblemType(422, "key-reused", "The key stands for another request"),
    errors.TokenNotFound: ProblemType(404, "token-not-found", "There is no such token"),
    errors.TableExists: ProblemType(409, "table-exists", "A table of that name exists"),
    errors.RowExists: ProblemType(409, "row-exists", "A row with that key exists"),
    errors.VersionMismatch: ProblemType(409, "version-mismatch", "The row has another version"),
    errors.SnapshotLost: ProblemType(410, "snapshot-lost", "Its pages are kept no more"),
    errors.StaleRequest: ProblemType(409, "stale-request", "The request is outdated"),
    errors.AlreadyRunning: ProblemType(409, "already-running", "It runs already"),
    errors.MigrationUnderWay: ProblemType(409, "migration-under-way", "It is changed already"),
    errors.TooLarge: ProblemType(413, "too-large", "The request is too large"),
    NotAuthenticated: ProblemType(401, "not-authenticated", "A token is needed"),
    NotPermitted: ProblemType(403, "not-permitted", "The token's role is too small"),
    errors.Unauthorized: ProblemType(502, "cluster-refused", "The cluster refused this server"),
    errors.ProtocolMismatch: ProblemType(502, "protocol-mismatch", "Versions do not match"),
    errors.RetryElsewhere: ProblemType(503, "moved", "The tablet is moving", 1),
    errors.TooStale: ProblemType(503, "too-stale", "Nobody's state is new enough", 1),
    errors.SchemaChanged: ProblemType(409, "schema-changed", "The table was altered"),
    errors.RetryLater: ProblemType(503, "retry-later", "Not possible just now", 1),
    errors.Overloaded: ProblemType(429, "overloaded", "Too much at once", 1),
    errors.OutOfMemory: ProblemType(503, "out-of-memory", "The memory limit is reached", 10),
    errors.NoSpace: ProblemType(503, "no-space", "There is no space left", 10),
    errors.IndexletNotReady: ProblemType(503, "indexlet-not-ready", "An index is filled", 1),
    errors.TabletNotReady: ProblemType(503, "tablet-not-ready", "A tablet is not served", 1),
    errors.NoQuorum: ProblemType(503, "no-quorum", "The masters have no leader", 1),
    errors.NotEnoughServers: ProblemType(503, "not-enough-servers", "Too few servers", 5),
    errors.NameReserved: ProblemType(503, "name-reserved", "The table is being created", 1),
    errors.Unavailable: ProblemType(503, "unavailable", "A server cannot be reached", 1),
    errors.DeadlineExpired: ProblemType(503, "deadline-expired", "Not begun in time", 1),
    errors.NotDoneYet: ProblemType(503, "not-done-yet", "It goes on by itself", 1),
    errors.OutcomeUnknown: ProblemType(504, "outcome-unknown", "Done or not: it is not known"),
    errors.DataLost: ProblemType(500, "data-lost", "Data is lost or damaged"),
    errors.CorruptData: ProblemType(500, "corrupt-data", "Data is damaged"),
    errors.SegmentsMissing: ProblemType(503, "segments-missing", "Segments are missing", 10),
    StelaeError: ProblemType(500, "internal-error", "Something went wrong"),
}
"""Every class not named here has the row of its nearest ancestor."""

PRECONDITION_FAILED = ProblemType(412, "version-mismatch", "The row has another version")
INVALID_REQUEST = ProblemType(422, "invalid-request", "The request does not fit the schema")
INTERNAL = PROBLEMS[StelaeError]
UNHEALTHY = PROBLEMS[errors.NoQuorum]
NOT_FOUND = ProblemType(404, "not-found", "There is nothing at this path")
METHOD_NOT_ALLOWED = ProblemType(405, "method-not-allowed", "Not with this method")


def all_problems() -> dict[str, ProblemType]:
    """Every problem type by the last part of its URI."""
    rows = [*PROBLEMS.values(), INVALID_REQUEST, NOT_FOUND, METHOD_NOT_ALLOWED]
    return {row.slug: row for row in rows}


def problem_type(error: StelaeError, *, conditional: bool = False) -> ProblemType:
    """The row for an error; ``conditional``: the request had ``If-Match`` or ``If-None-Match``."""
    if conditional and isinstance(error, VersionMismatch):
        return PRECONDITION_FAILED
    return next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)


def error_document(error: StelaeError, kind: ProblemType) -> dict[str, Any]:
    """The problem document of an error."""
    public = next(k for k in type(error).__mro__ if k.__module__ == errors.__name__)
    document: dict[str, Any] = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": str(error),
        "error": public.__name__,
        "args": list(error.args),
    }
    notes = getattr(error, "__notes__", None)
    if notes:
        document["notes"] = list(notes)
    return document


def error_response(error: StelaeError, *, conditional: bool = False) -> Response:
    """The whole answer for an error."""
    kind = problem_type(error, conditional=conditional)
    headers = {"Retry-After": str(math.ceil(wait_s))} if (wait_s := wait_s_of(error)) else None
    if isinstance(error, UnsupportedEncoding):
        headers = {"Accept-Encoding": "gzip"}  # RFC 9110, 15.5.16
    return problem_response(error_document(error, kind), kind, headers)


def plain_response(
    kind: ProblemType,
    detail: str,
    *,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for a problem that is no `StelaeError`."""
    document: dict[str, Any] = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
    }
    if errors:
        document["errors"] = list(errors)
    return problem_response(document, kind, headers)


def problem_response(
    document: Mapping[str, Any], kind: ProblemType, headers: Mapping[str, str] | None = None
) -> Response:
    all_headers = dict(headers or {})
    if asked_by := request_id():
        document = {**document, "request_id": asked_by}
    if kind.retry_after_s is not None:
        all_headers.setdefault("Retry-After", str(kind.retry_after_s))
    if kind.status == 401:
        all_headers["WWW-Authenticate"] = 'Bearer realm="stelae"'
    if kind.status == 408:
        all_headers["Connection"] = "close"  # the rest of the body is not waited for
    return Response(
        msgspec.json.encode(document, enc_hook=str), kind.status, all_headers, PROBLEM_TYPE
    )


def has_condition(request: Request) -> bool:
    """Whether the request names a version in its headers."""
    return "if-match" in request.headers or "if-none-match" in request.headers
