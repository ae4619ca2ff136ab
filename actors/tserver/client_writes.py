"""Clients' writes as they reach a tablet server: each by itself, or several of one row together.

What a call costs here (a task, a wait, an entry of the log) is more than what its row costs. So
calls of one row that arrive in the same turn of the event loop, from whatever connections, are
carried out as one `WriteMany`: one check of the server's right to serve, one entry, one wait. Each
keeps its request id and has its own answer; those that wait for much longer than others do not
wait with them. A call that is alone, or is anything else, goes its own way. Design §5.

Calls of one row on several tablets may come in one message (`WRITE_EACH`). They are answered
together, so that none of them waits for anything but its log: what would have to is left undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from stelae.actors.tserver.cleaner import Cleaner
from stelae.actors.tserver.copies import Copies
from stelae.actors.tserver.owned_tablet.indexing import Begun
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.tablet.input import check_request
from stelae.actors.tserver.tablet.load_rate import weight_of
from stelae.actors.tserver.tablet.small_writes import check_many, is_small
from stelae.core.errors import (
    InvalidArgument,
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    StelaeError,
)
from stelae.core.ids import TabletId
from stelae.core.messages.rows import (
    WRITE,
    WRITE_EACH,
    WRITE_MANY,
    WRITES_MAX,
    Write,
    WriteEach,
    WriteEachReply,
    WriteMany,
    WriteManyReply,
    WriteOp,
)
from stelae.core.rpc import Call, Gathered, Handlers, Outcome, Reply, prompt
from stelae.core.runtime import Clock
from stelae.storage.entries.outcomes import answer, refused

_Served: TypeAlias = Tablet | ReplicatedTablet


class ClientWrites:
    """The writing calls of one tablet server."""

    def __init__(
        self,
        clock: Clock,
        cleaner: Cleaner,
        serving: Callable[[TabletId], _Served],
        no_room: Callable[[_Served], OutOfMemory | NoSpace | None],
    ) -> None:
        """``serving`` gives a tablet that this server may answer for now, or raises why not."""
        self._clock = clock
        self._cleaner = cleaner
        self._serving = serving
        self._no_room = no_room
        self._copies = Copies()

    def handlers(self) -> Handlers:
        write = Gathered(self._on_write, alike=alike, together=self._on_writes, most=WRITES_MAX)
        return {WRITE: write, WRITE_MANY: self._on_write_many, WRITE_EACH: self._on_write_each}

    @prompt
    async def _on_write(self, call: Call[Write]) -> Reply[Any]:
        request = call.body.request
        with self._copies.one(call.body.tablet_id, (request,), call.timeout_s):
            reply = await self._write(call)
        self._copies.carried_out(request)
        return reply

    async def _write(self, call: Call[Write]) -> Reply[Any]:
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
        about = (call.body.tablet_id, call.body.requests)
        with self._copies.one(*about, call.timeout_s):
            tablet = self._serving(call.body.tablet_id)
            tablet, refusal = await self._room(tablet, call.body.op, call.timeout_s)
            outcomes = await tablet.write_many(call, refusal)
            tablet.calls += len(outcomes)
            return self._copies.told(*about, outcomes, call.timeout_s)

    @prompt
    async def _on_write_each(self, call: Call[WriteEach]) -> Reply[WriteEachReply]:
        """Nobody waits but for what the log takes: all parts are begun in one turn."""
        parts, clock = call.body.parts, self._clock
        count = sum([len(part.requests) for part in parts])
        if not 0 < count <= WRITES_MAX:
            raise InvalidArgument(f"{count} requests in one message; at most {WRITES_MAX}")
        deadline = clock.monotonic() + call.timeout_s
        with ExitStack() as here:
            for part in parts:
                about = (part.tablet_id, part.requests, call.timeout_s)
                here.enter_context(self._copies.one(*about))
            begun = [self._begin(part) for part in parts]
            return Reply(
                WriteEachReply(
                    tuple(
                        [
                            await self._ended(part, one, deadline - clock.monotonic())
                            for part, one in zip(parts, begun, strict=True)
                        ]
                    )
                )
            )

    def _begin(self, part: WriteMany) -> Begun | None:
        """Carry out calls that need not wait. None: nothing was done, and `WRITE` says why."""
        try:
            check_many(part)
            for request in part.requests:
                check_request(request)
            tablet = self._serving(part.tablet_id)
        except StelaeError:
            return None
        refusal = None if part.op is WriteOp.DELETE else self._no_room(tablet)
        if refusal is not None or not isinstance(tablet, Tablet):
            return None
        begun = tablet.begin_many(part)
        if begun is not None:
            tablet.calls += len(part.requests)
        return begun

    async def _ended(
        self, part: WriteMany, begun: Begun | None, left_s: float
    ) -> tuple[bytes, ...]:
        if begun is None:
            return self._copies.untouched(part.tablet_id, part.requests, left_s)
        try:
            outcomes = await begun.counted(left_s)
        except OutcomeUnknown as error:
            outcomes = (refused(error),) * len(part.requests)
        return self._copies.told(part.tablet_id, part.requests, outcomes, left_s)

    async def _room(
        self, tablet: _Served, op: WriteOp, timeout_s: float
    ) -> tuple[_Served, OutOfMemory | NoSpace | None]:
        """The tablet, and why it takes no rows; memory is cleaned first if that may help. Others
        that wait may take what room there is: then it goes on to wait."""
        refusal = None if op is WriteOp.DELETE else self._no_room(tablet)
        now_s = since_s = self._clock.monotonic()
        deadline_s = since_s + timeout_s / 2
        while self._may_clean_for(refusal) and now_s < deadline_s:
            await self._cleaner.wait_room(since_s, deadline_s)
            tablet = self._serving(tablet.tablet_id)
            refusal = self._no_room(tablet)
            now_s = self._clock.monotonic()
        return tablet, refusal

    def _may_clean_for(self, refusal: OutOfMemory | NoSpace | None) -> bool:
        """Whether it is memory of this server that lacks, not a follower's, and that can be had."""
        is_mine = isinstance(refusal, OutOfMemory) and self._cleaner.refusal() is not None
        return is_mine and self._cleaner.may_help


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
