"""One event loop in a thread of its own: what lets blocking and async callers share connections.

A notebook has a loop already, a script has none, and a Ray actor has several: all of them reach
the client's loop from outside. `Loop.run` blocks; `Loop.bridge` awaits from whatever loop calls.

A loop belongs to the process that made it. In a forked child it counts as closed, and the child's
copies of its sockets are closed (`stelae.core.forks`); `stelae.client.connection` makes a new one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from stelae.core.errors import ClosedMeanwhile, InvalidArgument
from stelae.core.forks import close_quietly, forget_in_children, keep_for_ever

CANCEL_S = 5.0
"""Maximum seconds that `Loop.close` waits for the tasks that it has cancelled."""
CLOSED = "this database is closed: connect again"

T = TypeVar("T")


class _Uvloop(uvloop.Loop):
    """An event loop that knows its connections, so that a forked child can close its copies."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: set[Any] = set()  # those of TLS cannot be referred to weakly

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        made = await super().create_connection(*args, **options)
        self._note(made[0])
        return made

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        made = await super().create_unix_connection(*args, **options)
        self._note(made[0])
        return made

    def _note(self, transport: Any) -> None:
        self._connections = {each for each in self._connections if not each.is_closing()}
        self._connections.add(transport)

    def descriptors(self) -> list[int]:
        """The file descriptors that must not be shared with a forked child."""
        open_ones = [each for each in list(self._connections) if not each.is_closing()]
        sockets = [each.get_extra_info("socket") for each in open_ones]
        backend: int = self._get_backend_id()  # type: ignore[attr-defined]  # the epoll instance
        return [backend, *[each.fileno() for each in sockets if each is not None]]


class Loop:
    """A running loop. Threads are daemons: an interpreter that ends does not wait for them."""

    def __init__(self) -> None:
        self._loop = _Uvloop()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="stelae")
        self._thread.start()
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`: the thread of this loop is in the parent only."""
        was_closed = self._closed.is_set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._closed.set()
        if not was_closed:
            keep_for_ever(self._loop)
            close_quietly(self._loop.descriptors())

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
            self._check_open(work)
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
        """Run ``work`` here, awaited from the caller's loop. Raises InvalidArgument if closed."""
        with self._lock:
            self._check_open(work)
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _check_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._closed.is_set():
            work.close()
            raise InvalidArgument(CLOSED)

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
        """Cancel tasks until none is left, or until ``CANCEL_S`` has passed.

        A cancelled task may start another one on its way out. A task that stays on a closed loop
        ends when it is collected, in whichever thread and call that happens.
        """
        end_s = self._loop.time() + CANCEL_S
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=max(0.0, end_s - self._loop.time()))
            if self._loop.time() >= end_s:
                break


class OnLoop(Protocol):
    """An object that lives on a `Loop`, in whichever process asks for it."""

    def here(self) -> tuple[Loop, Any]:
        """The loop of this process, and the object on it."""

    def known(self) -> Any:
        """The object for what needs no loop: also of one that is closed."""

    def wrapped(self, found: Any) -> Any:
        """What a caller gets for the result of a call."""


class Bridged:
    """The async twin of an object that lives on a `Loop`: its coroutines, awaitable anywhere, and
    what yields by and by, from whatever loop it is iterated over. Pickled as its object is."""

    def __init__(self, target: OnLoop) -> None:
        self._target = target

    def __reduce__(self) -> Any:
        return Bridged, (self._target,)

    def __repr__(self) -> str:
        return f"<async calls of {self._target!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target.known(), name)
        if inspect.isasyncgenfunction(found):
            return functools.wraps(found)(functools.partial(self._pieces, name))
        if not asyncio.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            loop, target = self._target.here()
            work = getattr(target, name)(*args, **kwargs)
            return self._target.wrapped(await loop.bridge(work))

        return call

    async def _pieces(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        loop, target = self._target.here()
        pieces: AsyncGenerator[Any, None] = getattr(target, name)(*args, **kwargs)
        over = object()

        async def following() -> Any:
            return await anext(pieces, over)

        try:
            while (piece := await loop.bridge(following())) is not over:
                yield piece
        finally:
            await loop.bridge(pieces.aclose())
