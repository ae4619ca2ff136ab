"""Writes of one row, which share an entry of a replicated tablet's log with their like.

Rows come one by one from many callers, and what an entry costs (to be encoded, sent, saved and
executed on each replica) is more than what a row costs. So all that wait for the same append go
into one entry. Each is still a request of its own: found again by its id when it is repeated,
refused by itself, answered by itself. Design §5, §8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stelae.actors.raft.types import Part
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import RequestId
from stelae.core.messages.rows import SMALL_ROW_BYTES_MAX, WRITES_MAX, Write, WriteMany, WriteReply
from stelae.core.rpc import Call
from stelae.storage.entries.outcomes import done, refused
from stelae.storage.replicated.commands import GroupCommand, Stamp, encode_group, encode_write

_REQUEST_BYTES = 64
"""What the log keeps of a call beside its row, about."""


def is_small(write: Write, size_bytes: int) -> bool:
    """Whether a call is one row that is written whatever the tablet holds. ``size_bytes``: of its
    row; 0: not known."""
    one = len(write.rows) == 1 and not write.if_versions
    return one and write.op.is_unconditional and 0 < size_bytes <= SMALL_ROW_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SmallWrite:
    """A `Part`: one call of a client, or several that came in one message."""

    call: Write | WriteMany
    requests: tuple[RequestId, ...]
    stamp: Stamp
    schema_version: int
    row_bytes: int

    @property
    def count(self) -> int:
        return len(self.requests)

    @property
    def size_bytes(self) -> int:
        return self.row_bytes + _REQUEST_BYTES * len(self.requests)

    def fits(self, other: Part) -> bool:
        if not isinstance(other, SmallWrite):
            return False
        mine, its = self.call, other.call
        is_alike = mine.op is its.op and mine.columns == its.columns
        return is_alike and self.schema_version == other.schema_version

    def joined(self, others: Sequence[Part]) -> bytes:
        call, version = self.call, self.schema_version
        if not others and isinstance(call, Write):
            return encode_write(call, call.rows, None, schema_version=version, stamp=self.stamp)
        parts = [self, *[other for other in others if isinstance(other, SmallWrite)]]
        return encode_group(
            GroupCommand(
                parts[-1].stamp,
                call.op,
                version,
                call.columns,
                tuple([request for part in parts for request in part.requests]),
                tuple([row for part in parts for row in part.call.rows]),
            )
        )


class Writable(Protocol):
    """A tablet of any durability."""

    async def read_rows(self, call: Call[Write]) -> Any: ...

    async def write(
        self, call: Call[Write], rows: Any, refusal: StelaeError | None
    ) -> WriteReply: ...


def check_many(many: WriteMany) -> None:
    """Raises InvalidArgument: it is none."""
    count = len(many.requests)
    if not 0 < count <= WRITES_MAX or len(many.rows) != count or not many.op.is_unconditional:
        raise InvalidArgument(f"{count} requests to {many.op.name}, with {len(many.rows)} rows")


async def one_by_one(
    tablet: Writable, call: Call[WriteMany], refusal: StelaeError | None
) -> tuple[bytes, ...]:
    """What each call of a message came to, begun in order, by itself."""
    many = call.body

    async def one(request: RequestId, row: tuple[Any, ...]) -> bytes:
        shared = (many.tablet_id, many.schema_version, many.op)
        write = Call(Write(*shared, request, (row,), many.columns), (), call.timeout_s)
        try:
            reply = await tablet.write(write, await tablet.read_rows(write), refusal)
        except StelaeError as error:
            return refused(error)
        return done(reply.first_version, reply.row_count)

    pairs = zip(many.requests, many.rows, strict=True)
    return tuple(await asyncio.gather(*[one(request, row) for request, row in pairs]))
