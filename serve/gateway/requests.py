"""Exactly-once writes over HTTP: from a request's headers to the id its write is known by.

Invariants: two writes of rows share an id only if token, key, table, method and content are all the
same, so a key used again by mistake for another write does that write, and never swallows it. What
changes the catalog has its key for itself: with another request it is refused (`KeyReused`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes

from fastapi import Request

from stelae.client.database import AsyncDatabase
from stelae.client.http.protocol import IDEMPOTENCY_HEADER, REQUEST_ID_HEADER, parse_request_id
from stelae.client.routing.session import Session
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ClientId, RequestId, gateway_client, keyed_client
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import principal_of

MAX_KEY_LENGTH = 255
TARGET_FIELDS = ("key", "column")
"""Fields of a query that name a row, or an index, where its name may not stand in a path."""


class FixedSession(Session):
    """A session whose every request has the same id. The parts of one call may share it: each
    tablet keeps results of its own."""

    def __init__(self, request: RequestId) -> None:
        super().__init__(request.client_id)
        self._request = request

    @contextmanager
    def request(self, receiver: str = "") -> Iterator[RequestId]:
        yield self._request


def is_numbered(request: Request) -> bool:
    """Whether the request has an id, by which it is known when it comes again."""
    return REQUEST_ID_HEADER in request.headers or IDEMPOTENCY_HEADER in request.headers


def numbered(
    request: Request, table: AsyncTable, op: bytes, body: bytes, attempt: int = 0
) -> AsyncTable:
    """The table, with its writes numbered as the request's headers want it.

    ``attempt``: of a request that may write several times until one of them counts; each has an id
    of its own.

    `REQUEST_ID_HEADER` names an id of the caller's own session, kept apart from those of other
    tokens. `IDEMPOTENCY_HEADER` makes one of its own, kept until it expires, or there are too many
    (`stelae.storage.entries.client_results`). Without either, the
    replica's session numbers the write: exactly once as long as this request lives, and no longer.

    Raises:
        InvalidArgument: a header is not well formed.
    """
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is not None:
        theirs = parse_request_id(given)
        client = _digest(
            principal_of(request).name.encode(), theirs.client_id.encode(), *_number(attempt)
        )
        return table.with_session(_session_of(client, theirs))
    key = _key(request)
    if not key:
        return table
    condition = request.headers.getlist("if-match"), request.headers.getlist("if-none-match")
    client = _digest(
        principal_of(request).name.encode(),
        key.encode(),
        table.record.table_id.encode(),
        op,
        *_target(request),
        repr(condition).encode(),
        body,
        *_number(attempt),
    )
    return table.with_session(FixedSession(RequestId(keyed_client(client), 1, 1)))


async def ordering(request: Request, op: bytes, body: bytes) -> AsyncDatabase:
    """The database, its calls numbered as the request's headers want it; see `ordered`."""
    database = await gateway_of(request).database()
    session = ordered(request, op, body)
    return database if session is None else database.with_session(session)


def ordering_on(request: Request, table: AsyncTable, op: bytes, body: bytes) -> AsyncTable:
    """The table, for what changes it in the catalog; see `ordered`."""
    session = ordered(request, op, body, table.record.table_id)
    return table if session is None else table.with_session(session)


def ordered(request: Request, op: bytes, body: bytes, table_id: str = "") -> Session | None:
    """The session of a request that changes the catalog; None: that of the replica.

    The masters remember a key as a client that makes one request, numbered by what that is: so the
    same request gets the first answer, and another one none.

    Raises:
        InvalidArgument: a header is not well formed.
    """
    who = principal_of(request).name.encode()
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is not None:
        theirs = parse_request_id(given)
        client = _digest(who, theirs.client_id.encode())
        return _session_of(client, theirs)
    key = _key(request)
    if not key:
        return None
    condition = request.headers.getlist("if-match"), request.headers.getlist("if-none-match")
    what = _digest(op, *_target(request), table_id.encode(), repr(condition).encode(), body)
    client = keyed_client(_digest(who, key.encode()))
    return FixedSession(RequestId(client, int(what[:15], 16), 0))


def _session_of(client: ClientId, theirs: RequestId) -> FixedSession:
    """Of a client over HTTP, which servers keep apart from those of the cluster's own clients."""
    return FixedSession(RequestId(gateway_client(client), theirs.sequence, theirs.first_incomplete))


def _key(request: Request) -> str:
    """The key; empty: none. Raises InvalidArgument."""
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return ""
    if not 0 < len(key) <= MAX_KEY_LENGTH or not all("!" <= letter <= "~" for letter in key):
        raise InvalidArgument(f"{IDEMPOTENCY_HEADER}: 1 to {MAX_KEY_LENGTH} visible characters")
    return key


def _target(request: Request) -> list[bytes]:
    """What a request is about: its path, and what its query names of it."""
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    named = [
        field.encode() + b"=" + value
        for field in TARGET_FIELDS
        for value in fields_of(request, field)
    ]
    return [path, *named]


def fields_of(request: Request, name: str) -> list[bytes]:
    """The values of a query's fields of that name, decoded, in order. Bytes, as text that is not
    UTF-8 would become other text."""
    query: bytes = request.scope.get("query_string", b"")
    if not query:
        return []
    pairs = [pair.replace(b"+", b" ").partition(b"=") for pair in query.split(b"&")]
    wanted = name.encode()
    return [unquote_to_bytes(value) for field, _, value in pairs if field == wanted]


def _number(attempt: int) -> tuple[bytes, ...]:
    return (str(attempt).encode(),) if attempt else ()


def _digest(*parts: bytes) -> ClientId:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return ClientId(whole.hexdigest()[:32])
