"""Exactly-once writes over HTTP: from a request's headers to the id its write is known by.

Invariant: two writes share an id only if token, key, table, method and content are all the same, so
a key used again by mistake for another write does that write, and never swallows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from stelae.client.http_protocol import IDEMPOTENCY_HEADER, REQUEST_ID_HEADER, parse_request_id
from stelae.client.session import Session
from stelae.client.table import AsyncTable
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ClientId, RequestId
from stelae.serve.guard import principal_of

MAX_KEY_LENGTH = 255


class FixedSession(Session):
    """A session whose every request has the same id. The parts of one call may share it: each
    tablet keeps results of its own."""

    def __init__(self, request: RequestId) -> None:
        super().__init__(request.client_id)
        self._request = request

    @contextmanager
    def request(self, receiver: str = "") -> Iterator[RequestId]:
        yield self._request


def numbered(request: Request, table: AsyncTable, op: bytes, body: bytes) -> AsyncTable:
    """The table, with its writes numbered as the request's headers want it.

    `REQUEST_ID_HEADER` names an id of the caller's own session, kept apart from those of other
    tokens. `IDEMPOTENCY_HEADER` makes one of its own, kept until it expires. Without either, the
    replica's session numbers the write: exactly once as long as this request lives, and no longer.

    Raises:
        InvalidArgument: a header is not well formed.
    """
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is not None:
        theirs = parse_request_id(given)
        client = _digest(principal_of(request).name.encode(), theirs.client_id.encode())
        return table.with_session(
            FixedSession(RequestId(client, theirs.sequence, theirs.first_incomplete))
        )
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return table
    if not 0 < len(key) <= MAX_KEY_LENGTH or not all("!" <= letter <= "~" for letter in key):
        raise InvalidArgument(f"{IDEMPOTENCY_HEADER}: 1 to {MAX_KEY_LENGTH} visible characters")
    condition = request.headers.get("if-match", ""), request.headers.get("if-none-match", "")
    client = _digest(
        principal_of(request).name.encode(),
        key.encode(),
        table.record.table_id.encode(),
        op,
        request.scope.get("raw_path") or request.scope["path"].encode(),
        repr(condition).encode(),
        body,
    )
    return table.with_session(FixedSession(RequestId(client, 1, 1)))


def _digest(*parts: bytes) -> ClientId:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return ClientId(whole.hexdigest()[:32])
