"""The search for the leader of one tablet: all replicas are asked side by side, again and again.

The question is a read of no keys, which only a leader answers that was proven to lead while it did
(by its lease or by a majority); a call that is larger is then sent once, to that one. One search
serves all calls of a client that wait for the tablet, so an election is not met by a storm. What
replicas answer meanwhile names further ones; the masters are asked who has replicas when one says
that it has none, and every `REFRESH_S`.

Replicas that hang hold nobody up. Pauses grow with the time that the search has taken, so the
leader is found soon after there is one, whether an election takes milliseconds or minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from stelae.core.errors import NotLeader, OutcomeUnknown, RetryElsewhere, RetryLater, StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.rows import GET, Get
from stelae.core.runtime import Runtime

SEARCH_S = 5.0
QUESTION_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.25
PAUSE_SHARE = 1 / 8
"""Of the time that the search has taken so far."""
REFRESH_S = 0.25
SHORTEST_REFRESH_S = 0.05
MOMENT_S = 1e-6
"""Less time than this is none: a clock may not tell the end of it from its beginning."""


class _Target(Protocol):
    @property
    def address(self) -> Address: ...

    @property
    def server(self) -> ServerUuid | None: ...


class _Route(Protocol):
    """What a `GroupRoute` is for the search."""

    answers: dict[Address, str]

    @property
    def tablet_id(self) -> TabletId: ...

    @property
    def is_gone(self) -> bool: ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...

    def target(self, address: Address) -> _Target: ...

    def lead(self, address: Address) -> None: ...


class LeaderSearch:
    """One search; ``refresh`` asks the masters anew, who tell the route."""

    def __init__(
        self, runtime: Runtime, route: _Route, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self._runtime = runtime
        self._route = route
        self._refresh = refresh
        self._begun = runtime.clock.monotonic()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: dict[Address, None] = {}
        self._misplaced = asyncio.Event()

    async def run(self) -> None:
        """Search until there is a leader, the tablet is gone, or `SEARCH_S` are over.

        Raises:
            TableNotFound: the table was deleted.
        """
        self._route.answers.clear()
        self._ask_all()
        if not self._asked:
            self._misplaced.set()
        self._start(self._look_up())
        try:
            await self._ended
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._end_with)
        self._tasks.append(task)

    def _end_with(self, task: asyncio.Task[None]) -> None:
        """An error of a part is the error of the search."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def _left_s(self) -> float:
        return self._begun + SEARCH_S - self._runtime.clock.monotonic()

    def _ask_all(self) -> None:
        for address in self._route.addresses:
            self._ask_at(address)

    def _ask_at(self, address: Address) -> None:
        if address not in self._asked:
            self._asked[address] = None
            self._start(self._ask(address))

    async def _ask(self, address: Address) -> None:
        """Ask one replica until it leads."""
        clock, route = self._runtime.clock, self._route
        question = Get(route.tablet_id, ())
        while (left_s := self._left_s) > MOMENT_S:
            server = route.target(address).server  # another one may have its address by now
            try:
                await self._runtime.peers.call(
                    address,
                    GET,
                    question,
                    timeout_s=min(QUESTION_TIMEOUT_S, left_s),
                    destination=server,
                )
            except NotLeader as error:
                route.answers[address] = str(error)
                if error.leader:
                    self._ask_at(Address(error.leader))
            except StelaeError as error:
                route.answers[address] = str(error)
                if isinstance(error, RetryElsewhere):
                    self._misplaced.set()
            else:
                route.lead(address)
                self._end()
                return
            taken_s = clock.monotonic() - self._begun
            await clock.sleep(min(max(FIRST_PAUSE_S, PAUSE_SHARE * taken_s), LONGEST_PAUSE_S))

    async def _look_up(self) -> None:
        """Ask the masters who has replicas, while the search lasts; and end it."""
        while (left_s := self._left_s) > MOMENT_S:
            try:
                async with asyncio.timeout(min(REFRESH_S, left_s)):
                    await self._misplaced.wait()
            except TimeoutError:
                pass  # time to ask in any case
            self._misplaced.clear()
            try:
                async with asyncio.timeout(max(self._left_s, 0.0)):
                    await self._refresh()
            except (RetryLater, OutcomeUnknown, TimeoutError):
                # The replicas may know who leads all the same.
                self._runtime.metrics.count("locations_not_refreshed")
            if self._route.is_gone:
                break
            self._ask_all()
            await self._runtime.clock.sleep(SHORTEST_REFRESH_S)
        self._end()
