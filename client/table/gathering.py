"""Writes of one row that are made at the same time go in one message.

Many tasks of one process each write a row now and then: what a call costs, on both ends, is more
than what its row costs. So while calls are under way, or were a moment ago, further ones are sent
together: to the server that owns their tablets (`stelae.client.routing.shared_writes`), or, where
there is no such one or a tablet has others wait, to their tablet, those of one turn of the event
loop. A lone call goes at once, by itself. Each call keeps its request id, its deadline and its own
answer; where the message fails, for whatever reason, each goes on by itself as if that had been its
first attempt. Design §5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.locations import TableCache
from stelae.client.routing.part import Part
from stelae.client.routing.retries import on_tablet
from stelae.client.routing.shared_writes import SharedWrites
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import RequestId, ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import (
    SMALL_ROW_BYTES_MAX,
    WRITE_MANY,
    WRITES_MAX,
    WriteMany,
    WriteManyReply,
    WriteOp,
    WriteReply,
)
from stelae.core.runtime import Runtime
from stelae.storage.entries.outcomes import answer

COMPANY_S = 0.05
"""After calls that were under way at the same time so long ago, one that is alone is taken for the
first of several: those that were answered together tend to go on together."""
SendAlone: TypeAlias = Callable[[Part, RequestId, float, StelaeError | None], Awaitable[WriteReply]]
"""(part, request, timeout in seconds, how an earlier attempt ended) → answer"""
_Alike: TypeAlias = tuple[int, WriteOp, tuple[str, ...], int]


@dataclass(slots=True)
class _Waiting:
    part: Part
    request: RequestId
    deadline_s: float
    outcome: asyncio.Future[WriteReply | StelaeError | None]
    """None: it is to go by itself."""


class Gathering:
    """The small writes of one table; on the client's event loop."""

    def __init__(self, runtime: Runtime, cache: TableCache) -> None:
        self._runtime = runtime
        self._cache = cache
        self._shared = SharedWrites(runtime, cache)
        self._under_way = 0
        self._company_until_s = 0.0
        self._waiting: dict[_Alike, list[_Waiting]] = {}
        self._sending: dict[asyncio.Task[None], None] = {}

    async def send(
        self, part: Part, request: RequestId, timeout_s: float, send_alone: SendAlone
    ) -> WriteReply:
        """Send a part until its end is known; raises as `on_tablet` does."""
        tried: StelaeError | None = None
        self._under_way += 1
        try:
            clock = self._runtime.clock
            row_bytes = _row_bytes(part) if self._has_company(clock.monotonic()) else -1
            if 0 <= row_bytes <= SMALL_ROW_BYTES_MAX:
                deadline_s = clock.monotonic() + timeout_s
                where = self._shared.where(part, timeout_s)
                if where is not None:
                    outcome = await self._shared.write(where, part, request, row_bytes)
                else:
                    outcome = await self._together(part, request, deadline_s)
                if isinstance(outcome, WriteReply):
                    return outcome
                tried, timeout_s = outcome, deadline_s - clock.monotonic()
            return await send_alone(part, request, timeout_s, tried)
        finally:
            self._under_way -= 1

    def _has_company(self, now_s: float) -> bool:
        """Whether others are under way with this call, or were with the last ones."""
        if self._under_way > 1:
            self._company_until_s = now_s + COMPANY_S
            return True
        return now_s < self._company_until_s

    async def _together(
        self, part: Part, request: RequestId, deadline_s: float
    ) -> WriteReply | StelaeError | None:
        alike = (part.number, part.op, part.columns, part.schema_version)
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(alike)
        if waiting is None:
            waiting = self._waiting[alike] = []
            loop.call_soon(self._flush, alike)
        mine = _Waiting(part, request, deadline_s, loop.create_future())
        waiting.append(mine)
        if len(waiting) >= WRITES_MAX:
            self._flush(alike)
        return await mine.outcome

    def _flush(self, alike: _Alike) -> None:
        waiting = [one for one in self._waiting.pop(alike, ()) if not one.outcome.done()]
        if len(waiting) == 1:
            waiting[0].outcome.set_result(None)
        elif waiting:
            task = asyncio.get_running_loop().create_task(self._send(waiting))
            self._sending[task] = None
            task.add_done_callback(lambda task: self._sending.pop(task))

    async def _send(self, waiting: Sequence[_Waiting]) -> None:
        """Send calls in one message, and tell each how that ended for it."""
        outcomes: Sequence[WriteReply | StelaeError | None] = [None] * len(waiting)
        try:
            outcomes = await self._outcomes(waiting)
        except OutcomeUnknown as error:
            outcomes = [error] * len(waiting)
        except WasSplit as split:
            outcomes = [split.tried] * len(waiting)
        except StelaeError:
            self._runtime.metrics.count("gathered_writes_failed")  # each sees for itself
        finally:
            for one, outcome in zip(waiting, outcomes, strict=True):
                if not one.outcome.done():
                    one.outcome.set_result(outcome)

    async def _outcomes(self, waiting: Sequence[_Waiting]) -> list[WriteReply | StelaeError | None]:
        first, peers = waiting[0].part, self._runtime.peers
        requests = tuple([one.request for one in waiting])
        rows = tuple([one.part.rows[0] for one in waiting])

        async def attempt(
            where: TabletLocation, owner: ServerUuid | None, limit_s: float
        ) -> WriteManyReply:
            shared = (where.tablet.tablet_id, first.schema_version, first.op, first.columns)
            many = WriteMany(*shared, requests, rows)
            reply = await peers.call(
                where.address, WRITE_MANY, many, timeout_s=limit_s, destination=owner
            )
            return reply.body

        soonest_s = min([one.deadline_s for one in waiting])
        timeout_s = soonest_s - self._runtime.clock.monotonic()
        number, runtime, cache = first.number, self._runtime, self._cache
        reply = await on_tablet(runtime, cache, number, "write", attempt, timeout_s=timeout_s)
        return [_outcome(outcome) for outcome in reply.outcomes]


def _outcome(outcome: bytes) -> WriteReply | StelaeError | None:
    try:
        return answer(outcome)
    except StelaeError as error:
        return error


def _row_bytes(part: Part) -> int:
    """Of the text of one row that is written whatever the tablet holds; -1: it is none."""
    if len(part.rows) != 1 or part.expected or not part.op.is_unconditional:
        return -1
    return sum([len(value) for value in part.rows[0] if isinstance(value, str | bytes)])
