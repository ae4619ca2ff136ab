"""Tasks and coroutines: no task outlives its server, and no failure is swallowed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from stelae.core.current import CURRENT
from stelae.core.errors import OutcomeUnknown, StelaeError

T = TypeVar("T")


class Tasks:
    """The background tasks of one server.

    The first task that fails ends the scope: `failure` resolves to its exception, and the server's
    host ends the process (or the simulated run). `close` cancels and awaits all tasks. A scope
    within another (a tablet's within its server's) hands its failure on to it.
    """

    def __init__(self, parent: Tasks | None = None) -> None:
        self._parent = parent
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict keeps the order of starting
        self._failed = asyncio.Event()
        self._error: BaseException | None = None
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nothing may be spawned any more."""
        return self._closed

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start ``work``; the scope owns it."""
        assert not self._closed, f"task {name} started after close"
        if CURRENT.get() is None:
            task = asyncio.create_task(work, name=name)
        else:  # it is not the work of whoever asked for something just now
            context = contextvars.copy_context()
            context.run(CURRENT.set, None)
            task = asyncio.create_task(work, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self._failed.set()
        if self._parent is not None:
            self._parent._fail(error)

    async def wait_failed(self) -> BaseException:
        """Wait until a task fails, and return its exception."""
        await self._failed.wait()
        assert self._error is not None
        return self._error

    async def close(self) -> None:
        """Cancel all tasks and wait for them. Raises the first failure, if there was one."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._error is not None:
            raise self._error


def most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Of the errors of a call's parts, the one to raise: a bug is not hidden behind a refusal, nor
    that nobody knows what came of some part."""
    bugs = [error for error in errors if not isinstance(error, StelaeError)]
    unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
    return [*bugs, *unknown, *errors][0]


async def all_or_first_error(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What all parts return, in order; once one fails, the others are given up.

    No `TaskGroup`: one that is cancelled while its parts fail raises their errors, and whoever
    handles these goes on as if nobody had cancelled it. And one whose part fails while it waits
    leaves its task marked as being cancelled for ever: in Python before 3.11.3 every later
    `asyncio.timeout` there then lets its CancelledError out.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [e for task in tasks if not task.cancelled() and (e := task.exception()) is not None]
    if errors:
        raise most_telling(errors)
    return [task.result() for task in tasks]


class Rest(Generic[T]):
    """What remains of a coroutine that has run to its first wait."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        while True:
            value, thrown = None, None
            try:
                value = yield waits_for
            except BaseException as error:
                thrown = error
            try:
                waits_for = self._work.send(value) if thrown is None else self._work.throw(thrown)
            except StopIteration as ended:
                result: T = ended.value
                return result


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns, by then. A timer, which costs as much as a small piece of work, is set
    only if it has to wait. Raises TimeoutError."""
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    async with asyncio.timeout(timeout_s):
        return await Rest(work, waits_for)
