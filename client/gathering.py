"""Writes of one row that are made at the same time go to their tablet in one message.

Many tasks of one process each write a row now and then: what a call costs, on both ends, is more
than what its row costs. So while calls are under way, those that come in the same turn of the event
loop are sent together. Nobody waits for others to come: a lone call goes at once, by itself. Each
call keeps its request id, its deadline and its own answer; where the message fails, for whatever
reason, each goes on by itself as if that had been its first attempt. Design §5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.client.locations import TableCache
from stelae.client.part import Part
from stelae.client.retries import on_tablet
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import RequestId, ServerUuid
from stelae.core.messages import (
    WRITE_MANY,
    TabletLocation,
    WriteMany,
    WriteManyReply,
    WriteOp,
    WriteReply,
)
from stelae.core.row_messages import SMALL_ROW_BYTES_MAX, WRITES_MAX
from stelae.core.runtime import Runtime
from stelae.storage.outcomes import answer

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
    """The small writes of one table handle; on the client's event loop."""

    def __init__(self, runtime: Runtime, cache: TableCache, send_alone: SendAlone) -> None:
        self._runtime = runtime
        self._cache = cache
        self._send_alone = send_alone
        self._under_way = 0
        self._waiting: dict[_Alike, list[_Waiting]] = {}
        self._sending: dict[asyncio.Task[None], None] = {}

    async def send(self, part: Part, request: RequestId, timeout_s: float) -> WriteReply:
        """Send a part until its end is known; raises as `on_tablet` does."""
        tried: StelaeError | None = None
        self._under_way += 1
        try:
            if self._under_way > 1 and _is_small(part):
                clock = self._runtime.clock
                deadline_s = clock.monotonic() + timeout_s
                outcome = await self._together(part, request, deadline_s)
                if isinstance(outcome, WriteReply):
                    return outcome
                tried, timeout_s = outcome, deadline_s - clock.monotonic()
            return await self._send_alone(part, request, timeout_s, tried)
        finally:
            self._under_way -= 1

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


def _is_small(part: Part) -> bool:
    """Whether it is one small row that is written whatever the tablet holds."""
    if len(part.rows) != 1 or part.expected or not part.op.is_unconditional:
        return False
    size = sum([len(value) for value in part.rows[0] if isinstance(value, str | bytes)])
    return size <= SMALL_ROW_BYTES_MAX
