"""One event loop in a thread of its own: what lets blocking and async callers share connections.

A notebook has a loop already, a script has none, and a Ray actor has several: all of them reach
the client's loop from outside. `Loop.run` blocks; `Loop.bridge` awaits from whatever loop calls.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from stelae.core.errors import ClosedMeanwhile, InvalidArgument

CANCEL_S = 5.0
"""For so long `Loop.close` waits for calls that it has cancelled."""

T = TypeVar("T")


class Loop:
    """A running loop. Threads are daemons: an interpreter that ends does not wait for them."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="stelae")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end and return what it returns. Ctrl-C cancels it.

        A lock instead of a future: a blocking call of one row feels each turn of the loop.

        Raises:
            InvalidArgument: it is closed.
            ClosedMeanwhile: another thread closed it before ``work`` had ended.
        """
        assert threading.current_thread() is not self._thread, "would wait for itself"
        ended = threading.Lock()
        ended.acquire()
        tasks: list[asyncio.Task[None]] = []
        found: list[T] = []
        failed: list[BaseException] = []

        async def carry() -> None:
            try:
                found.append(await work)
            except BaseException as error:
                failed.append(error)
            finally:
                ended.release()

        with self._lock:  # what is begun before `close` is cancelled by it, and nothing is later
            if self._closed.is_set():
                work.close()
                raise InvalidArgument("this database is closed: connect again")
            self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(carry())))
        try:
            ended.acquire()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise
        if failed and self._closed.is_set() and isinstance(failed[0], asyncio.CancelledError):
            raise ClosedMeanwhile("the database") from None
        if failed:
            raise failed[0]
        return found[0]

    def bridge(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run ``work`` here, awaited from the caller's loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        """End it. Whoever still waits for a call, in another thread, hears of it."""
        with self._lock:
            self._closed.set()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)


class Bridged:
    """The async twin of an object that lives on a `Loop`: its coroutines, awaitable anywhere, and
    what yields by and by, from whatever loop it is iterated over."""

    def __init__(self, loop: Loop, target: Any, wrap: Callable[[Any], Any] = lambda x: x) -> None:
        self._loop = loop
        self._target = target
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.isasyncgenfunction(found):
            return functools.wraps(found)(functools.partial(self._pieces, found))
        if not asyncio.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrap(await self._loop.bridge(found(*args, **kwargs)))

        return call

    async def _pieces(
        self, found: Callable[..., AsyncGenerator[Any, None]], *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        pieces = found(*args, **kwargs)
        over = object()

        async def following() -> Any:
            return await anext(pieces, over)

        try:
            while (piece := await self._loop.bridge(following())) is not over:
                yield piece
        finally:
            await self._loop.bridge(pieces.aclose())
