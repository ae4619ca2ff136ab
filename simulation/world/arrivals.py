"""Requests that arrive close together and are handed over as one, as the real network does it.

There it is those of one turn of the event loop (`stelae.core.rpc.Gathered`); here turns take no
time, so that those count which arrive within `WINDOW_S` of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from stelae.core.errors import StelaeError
from stelae.core.rpc import Call, Gathered, Handler, Outcome, Reply
from stelae.simulation.world.loop import SimLoop

WINDOW_S = 0.005

_Waiting = list[tuple[Call[Any], asyncio.Future[Outcome]]]


class Arrivals:
    """Of one process. ``running``: its handlers at work, that of the request itself among them."""

    def __init__(self, loop: SimLoop, running: dict[asyncio.Task[None], None]) -> None:
        self._loop = loop
        self._running = running
        self._waiting: dict[tuple[Gathered[Any], Hashable], _Waiting] = {}

    async def carry_out(self, handler: Handler, call: Call[Any]) -> Reply[Any]:
        """Run the handler, for this call alone or for others too. Raises what that raises."""
        if not isinstance(handler, Gathered) or len(self._running) < 2:
            return await handler(call)
        alike = handler.alike(call)
        if alike is None:
            return await handler(call)
        waiting = self._waiting.get((handler, alike))
        if waiting is None:
            waiting = self._waiting[handler, alike] = []
            self._loop.call_later(WINDOW_S, self._hand_over, handler, alike)
        answered: asyncio.Future[Outcome] = self._loop.create_future()
        waiting.append((call, answered))
        if len(waiting) == handler.most:
            self._hand_over(handler, alike)
        outcome = await answered
        if isinstance(outcome, StelaeError):
            raise outcome
        return outcome

    def _hand_over(self, handler: Gathered[Any], alike: Hashable) -> None:
        waiting = [one for one in self._waiting.pop((handler, alike), []) if not one[1].done()]
        if waiting:  # else the process is being stopped
            task = self._loop.create_task(_together(handler, waiting))
            self._running[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)


async def _together(handler: Gathered[Any], waiting: _Waiting) -> None:
    calls = [call for call, _ in waiting]
    try:
        if len(calls) == 1:
            outcomes: list[Outcome | Exception] = [await handler(calls[0])]
        else:
            outcomes = [*await handler.together(calls)]
        assert len(outcomes) == len(calls), "an outcome for each call"
    except Exception as error:  # of each call's handler, which says so or ends the run
        outcomes = [error] * len(calls)
    for (_, answered), outcome in zip(waiting, outcomes, strict=True):
        if answered.done():
            continue
        if isinstance(outcome, Exception) and not isinstance(outcome, StelaeError):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)
