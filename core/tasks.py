"""Background tasks with an owner: no task outlives its server, and no failure is swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start ``work``; the scope owns it."""
        assert not self._closed, f"task {name} started after close"
        task = asyncio.create_task(work, name=name)
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
