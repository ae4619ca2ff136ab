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


_KEYED = "key-"


def keyed_client(digest: str) -> ClientId:
    """Who makes one call under a key, and is not heard of again: told by its id, as tablets keep
    what they know of such clients apart from what they know of others."""
    return ClientId(_KEYED + digest)


def is_keyed(client_id: str) -> bool:
    """Whether a client is one of `keyed_client`."""
    return client_id.startswith(_KEYED)


_GATEWAY = "http-"


def gateway_client(digest: str) -> ClientId:
    """A client over HTTP that numbers its requests. Servers keep what they know of such clients
    apart, because anybody with a token may call himself by any number of names."""
    return ClientId(_GATEWAY + digest)


def is_of_gateway(client_id: str) -> bool:
    """Whether a client is one of `gateway_client`."""
    return client_id.startswith(_GATEWAY)


_JOB = "job-"
_STREAM = "stream-"


def job_client(digest: str) -> ClientId:
    """Who writes a piece of a job's rows, a call after the other, and is not heard of again."""
    return ClientId(_JOB + digest)


def is_job(client_id: str) -> bool:
    """Whether a client is one of `job_client`."""
    return client_id.startswith(_JOB)


def stream_client(series: str, batch: int, digest: str) -> ClientId:
    """The same of a batch of a stream. Of a ``series`` (hex digits) a batch is begun only once all
    of those before it are over for good. ``digest``: of the piece."""
    assert batch >= 0
    return ClientId(f"{_STREAM}{series}-{batch}-{digest}")


def series_of(client_id: str) -> tuple[str, int] | None:
    """Series and batch of one of `stream_client`; None: it is another one, or none we made."""
    if not client_id.startswith(_STREAM):
        return None
    series, _, rest = client_id.removeprefix(_STREAM).partition("-")
    batch, _, digest = rest.partition("-")
    is_one = series and digest and batch.isascii() and batch.isdecimal()
    return (series, int(batch)) if is_one else None


def make_uuid(rng: random.Random) -> str:
    """Draw 32 hex digits from ``rng``; the only way Stelae makes ids, so that a seed fixes them."""
    return uuid.UUID(int=rng.getrandbits(128), version=4).hex


def segment_id(term: int, number: int) -> int:
    """The id of the ``number``-th segment (from 1) that the owner of ``term`` makes.

    Ids rise along a log, and two owners never make the same one, even where the earlier owner's
    last segments were never seen by the later: of one term there is one owner.
    """
    assert 0 < number < 1 << 32, "segments of one term"
    return term << 32 | number


def segment_name(segment: int) -> str:
    """How people read a segment id: ``term.number``."""
    return f"{segment >> 32}.{segment & 0xFFFFFFFF}"
