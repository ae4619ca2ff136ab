"""Writes of one row that are made at the same time, as one message to each server.

They leave together (`stelae.core.together`): those of a few turns of the loop, as a caller such as
an HTTP replica takes several for each, or that come while the server has others to answer. The
server carries out at once what it can carry out without waiting
for anything but its log, and answers once all of that is durable. Each write keeps its request id
and its answer; one that has none, or an error, goes on by itself, under the same id, from how that
ended (`stelae.client.routing.sharing` says for how long a message is waited for).

Bounds: `WRITES_MAX` rows and `TOGETHER_BYTES` of a message. Tables with indexes do not share: their
rows wait for entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.part import Part
from stelae.client.routing.sharing import Receiver, Sharing
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import RequestId
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import (
    WRITE_EACH,
    WRITES_MAX,
    WriteEach,
    WriteEachReply,
    WriteMany,
    WriteOp,
    WriteReply,
)
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.together import Together
from stelae.storage.entries.outcomes import answer

QUIET_TURNS = 8
TOGETHER_BYTES = 32 << 10
_CALL_BYTES, _VALUE_BYTES = 96, 16
"""What a call takes beside its row, and a value that is no text."""

Ended: TypeAlias = WriteReply | StelaeError | None
"""How a write ended, if it did not go by itself; None: it is to go by itself."""
_Alike: TypeAlias = tuple[int, WriteOp, tuple[str, ...], int]


@dataclass(slots=True)
class _Waiting:
    where: TabletLocation
    part: Part
    request: RequestId
    size_bytes: int
    ended: asyncio.Future[Ended]


class SharedWrites:
    """Those of one table."""

    def __init__(self, runtime: Runtime, cache: TableCache) -> None:
        self._cache = cache
        self._metrics = runtime.metrics
        self._sharing = Sharing(runtime, cache)
        self._together: Together[Receiver, _Waiting]
        self._together = Together(self._send, quiet_turns=QUIET_TURNS)

    def where(self, part: Part, timeout_s: float) -> TabletLocation | None:
        """Where a small write of one row may go with others; None: by itself."""
        if timeout_s < ATTEMPT_TIMEOUT_S or self._cache.table.schema.indexes:
            return None
        return self._sharing.where(part.number)

    async def write(
        self, where: TabletLocation, part: Part, request: RequestId, row_bytes: int
    ) -> Ended:
        """Send it there with others. ``row_bytes``: of its text."""
        size_bytes = row_bytes + _VALUE_BYTES * len(part.rows[0]) + _CALL_BYTES
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._together.add(Receiver.of(where), _Waiting(where, part, request, size_bytes, ended))
        return await ended

    def _send(self, to: Receiver, waiting: Sequence[_Waiting]) -> None:
        message: list[_Waiting] = []
        size_bytes = 0
        for one in waiting:
            if one.ended.done():
                continue  # its caller is gone
            size_bytes += one.size_bytes
            if message and (len(message) == WRITES_MAX or size_bytes > TOGETHER_BYTES):
                self._post(to, message)
                message, size_bytes = [], one.size_bytes
            message.append(one)
        if message:
            self._post(to, message)

    def _post(self, to: Receiver, message: Sequence[_Waiting]) -> None:
        parts: dict[_Alike, list[_Waiting]] = {}
        for one in message:
            part = one.part
            alike = (part.number, part.op, part.columns, part.schema_version)
            parts.setdefault(alike, []).append(one)
        each = WriteEach(tuple([_together(ones) for ones in parts.values()]))
        under_way = self._together.began(to)

        def done(outcome: Reply[WriteEachReply] | StelaeError) -> None:
            self._answered(list(parts.values()), outcome)
            self._together.ended(to, under_way)

        is_sent = False
        try:
            is_sent = self._sharing.post(to, WRITE_EACH, each, done)
        finally:
            if not is_sent:
                _tell(message, [None] * len(message))
                self._together.ended(to, under_way)

    def _answered(
        self, parts: Sequence[Sequence[_Waiting]], outcome: Reply[WriteEachReply] | StelaeError
    ) -> None:
        if isinstance(outcome, StelaeError) or len(outcome.body.outcomes) != len(parts):
            self._metrics.count("gathered_writes_failed")  # each sees for itself
            tried = outcome if isinstance(outcome, OutcomeUnknown) else None
            self._sharing.pause([ones[0].part.number for ones in parts])
            for ones in parts:
                _tell(ones, [tried] * len(ones))
            return
        for ones, outcomes in zip(parts, outcome.body.outcomes, strict=True):
            ends = [_ended(each) for each in outcomes]
            if len(ends) != len(ones):
                ends = [None] * len(ones)
            if not all([isinstance(end, WriteReply) for end in ends]):
                self._sharing.pause([ones[0].part.number])
            _tell(ones, ends)


def _together(ones: Sequence[_Waiting]) -> WriteMany:
    first = ones[0].part
    return WriteMany(
        ones[0].where.tablet.tablet_id,
        first.schema_version,
        first.op,
        first.columns,
        tuple([one.request for one in ones]),
        tuple([one.part.rows[0] for one in ones]),
    )


def _ended(outcome: bytes) -> Ended:
    if not outcome:
        return None
    try:
        return answer(outcome)
    except StelaeError as error:
        return error


def _tell(ones: Sequence[_Waiting], ends: Sequence[Ended]) -> None:
    for one, end in zip(ones, ends, strict=True):
        if not one.ended.done():
            one.ended.set_result(end)
