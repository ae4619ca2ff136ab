"""Names of things: servers, tables, tablets, log positions. Glossary: docs/architecture.md."""

from __future__ import annotations

import random
import uuid
from typing import NewType

import msgspec

ServerUuid = NewType("ServerUuid", str)
"""Who a server is: made once, kept in the ``instance`` file of its data directory."""
TableId = NewType("TableId", str)
TabletId = NewType("TabletId", str)
"""32 hex digits, never reused. A segments-durable tablet's log carries the same id."""
ClientId = NewType("ClientId", str)
SegmentId = NewType("SegmentId", int)
"""Rises from 1 within one tablet's log; never reused."""
Term = NewType("Term", int)

Address = NewType("Address", str)
"""``host:port`` of a server's TCP port."""


class OpId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Name of one log entry: the term of the leader that wrote it, and its place in the log."""

    term: int
    index: int


class RequestId(msgspec.Struct, frozen=True, array_like=True):
    """Identity of one client request, for exactly-once writes.

    Requests below ``first_incomplete`` have been answered to the client's satisfaction: servers
    may forget their results, and drop late copies of them.
    """

    client_id: ClientId
    sequence: int
    first_incomplete: int


def make_uuid(rng: random.Random) -> str:
    """Draw 32 hex digits from ``rng``; the only way Stelae makes ids, so that a seed fixes them."""
    return uuid.UUID(int=rng.getrandbits(128), version=4).hex
