"""Ends the tasks that a test leaves behind on a closed loop.

Such a task is destroyed whenever the garbage collector meets it. What its coroutine runs on its way
out then runs within another test, in the middle of any call. Seen once: an `ast.parse` that failed
because a parse of a traceback had run within it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

CLOSES = 100
"""Maximum number of times that one coroutine is closed: it may await something on its way out."""


def end_left_tasks() -> list[str]:
    """End the tasks whose loop is closed, and return their names."""
    left = [task for task in _all_tasks() if not task.done() and task.get_loop().is_closed()]
    told = [task for task in left if getattr(task, "_log_destroy_pending", True)]
    for task in told:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is told here
        work = task.get_coro()
        assert isinstance(work, Coroutine)
        _close(work)
    return [repr(task) for task in told]


def _all_tasks() -> list[asyncio.Task[Any]]:
    """The tasks of all loops. Other threads may begin tasks while the set is copied."""
    for _ in range(1000):
        try:
            return list(asyncio.tasks._all_tasks)  # type: ignore[attr-defined]
        except RuntimeError:
            continue
    raise AssertionError("tasks are begun without a pause")


def _close(work: Coroutine[Any, Any, Any]) -> None:
    for _ in range(CLOSES):
        try:
            work.close()
        except RuntimeError:  # it awaited something instead of ending
            continue
        return
