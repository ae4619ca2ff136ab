"""Clients' writes as they reach a tablet server: each by itself, or several of one row together.

What a call costs here (a task, a wait, an entry of the log) is more than what its row costs. So
calls of one row that arrive in the same turn of the event loop, from whatever connections, are
carried out as one `WriteMany`: one check of the server's right to serve, one entry, one wait. Each
keeps its request id and has its own answer; those that wait for much longer than others do not
wait with them. A call that is alone, or is anything else, goes its own way. Design §5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from stelae.actors.cleaner import Cleaner
from stelae.actors.load_rate import weight_of
from stelae.actors.replicated_tablet import ReplicatedTablet
from stelae.actors.small_writes import check_many, is_small
from stelae.actors.tablet import Tablet
from stelae.actors.tablet_input import check_request
from stelae.core.errors import InvalidArgument, NoSpace, OutOfMemory, StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages import WRITE, WRITE_MANY, Write, WriteMany, WriteManyReply, WriteOp
from stelae.core.row_messages import WRITES_MAX
from stelae.core.rpc import Call, Gathered, Handlers, Outcome, Reply, prompt
from stelae.storage.outcomes import answer

_Served: TypeAlias = Tablet | ReplicatedTablet


class ClientWrites:
    """The writing calls of one tablet server."""

    def __init__(
        self,
        cleaner: Cleaner,
        serving: Callable[[TabletId], _Served],
        no_room: Callable[[_Served], OutOfMemory | NoSpace | None],
    ) -> None:
        """``serving`` gives a tablet that this server may answer for now, or raises why not."""
        self._cleaner = cleaner
        self._serving = serving
        self._no_room = no_room

    def handlers(self) -> Handlers:
        write = Gathered(self._on_write, alike=alike, together=self._on_writes, most=WRITES_MAX)
        return {WRITE: write, WRITE_MANY: self._on_write_many}

    @prompt
    async def _on_write(self, call: Call[Write]) -> Reply[Any]:
        tablet = self._serving(call.body.tablet_id)
        rows = await tablet.read_rows(call)
        if call.blobs:
            tablet = self._serving(call.body.tablet_id)  # reading took its time
        tablet, refusal = await self._room(tablet, call.body.op, call.timeout_s)
        size_bytes = sum([blob.nbytes for blob in call.blobs])
        self._cleaner.used_bytes += size_bytes
        reply = Reply(await tablet.write(call, rows, refusal))
        tablet.calls += weight_of(size_bytes)
        return reply

    async def _on_writes(self, calls: Sequence[Call[Write]]) -> Sequence[Outcome]:
        """Carry out calls that are `alike`; the answer of each."""
        first = calls[0].body
        requests = tuple([call.body.request for call in calls])
        rows = tuple([call.body.rows[0] for call in calls])
        shared = (first.tablet_id, first.schema_version, first.op, first.columns)
        timeout_s = min([call.timeout_s for call in calls])
        many = Call(WriteMany(*shared, requests, rows), (), timeout_s)
        return [_told(outcome) for outcome in await self._write_many(many)]

    @prompt
    async def _on_write_many(self, call: Call[WriteMany]) -> Reply[Any]:
        check_many(call.body)
        for request in call.body.requests:
            check_request(request)
        return Reply(WriteManyReply(await self._write_many(call)))

    async def _write_many(self, call: Call[WriteMany]) -> tuple[bytes, ...]:
        tablet = self._serving(call.body.tablet_id)
        tablet, refusal = await self._room(tablet, call.body.op, call.timeout_s)
        outcomes = await tablet.write_many(call, refusal)
        tablet.calls += len(outcomes)
        return outcomes

    async def _room(
        self, tablet: _Served, op: WriteOp, timeout_s: float
    ) -> tuple[_Served, OutOfMemory | NoSpace | None]:
        """The tablet, and why it takes no rows; memory is cleaned first if that may help."""
        refusal = None if op is WriteOp.DELETE else self._no_room(tablet)
        if not isinstance(refusal, OutOfMemory) or not self._cleaner.may_help:
            return tablet, refusal
        await self._cleaner.wait_room(timeout_s / 2)
        tablet = self._serving(tablet.tablet_id)
        return tablet, self._no_room(tablet)


def alike(call: Call[Write]) -> Hashable | None:
    """Calls of which this is the same may be carried out together; None: by itself.

    Deadlines within a power of two are alike: together, calls wait as long as the first of them.
    """
    write = call.body
    if call.blobs or len(write.rows) != 1:
        return None
    size_bytes = sum([len(value) for value in write.rows[0] if isinstance(value, str | bytes)])
    if not is_small(write, size_bytes + 1):
        return None
    try:
        check_request(write.request)
    except InvalidArgument:
        return None  # it is told so
    patience = math.frexp(call.timeout_s)[1]
    return write.tablet_id, write.schema_version, write.op, write.columns, patience


def _told(outcome: bytes) -> Outcome:
    try:
        return Reply(answer(outcome))
    except StelaeError as error:
        return error
