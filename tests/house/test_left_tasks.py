"""Tasks on closed loops are ended after the test that left them, not by the garbage collector."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.left_tasks import end_left_tasks


def left(work: Any) -> asyncio.Task[Any]:
    """Begin a task, and close its loop before it has ended."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work, name="left alone")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return task


def test_a_task_on_a_closed_loop_is_ended_and_named_once() -> None:
    """Its way out is run at once, even if it awaits something there."""
    steps = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("out")
            try:
                await asyncio.sleep(0)
            finally:
                steps.append("all out")

    task = left(work())
    (told,) = [each for each in end_left_tasks() if "left alone" in each]
    assert "test_left_tasks.py" in told
    assert steps == ["out", "all out"]
    assert not [each for each in end_left_tasks() if "left alone" in each]
    assert task.get_loop().is_closed()


def test_a_task_on_a_loop_that_is_open_is_left_alone() -> None:
    """It may go on."""

    async def check() -> int:
        async def work() -> int:
            await asyncio.sleep(0)
            return 7

        task = asyncio.create_task(work(), name="goes on")
        await asyncio.sleep(0)
        assert not [each for each in end_left_tasks() if "goes on" in each]
        return await task

    assert asyncio.run(check()) == 7
