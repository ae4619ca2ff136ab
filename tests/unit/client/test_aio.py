"""The loop in a thread of its own: whoever waits for a call hears when another thread closes it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stelae.client.aio import Loop
from stelae.core.errors import ClosedMeanwhile, InvalidArgument, OutcomeUnknown


def test_a_call_under_way_ends_when_its_loop_is_closed() -> None:
    """In an error that says that nobody can tell what became of it; it does not wait for ever."""
    loop, begun, failures = Loop(), threading.Event(), list[BaseException]()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop.run(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert begun.wait(20.0)
    loop.close()
    thread.join(20.0)
    assert not thread.is_alive()
    assert [type(error) for error in failures] == [ClosedMeanwhile]
    assert isinstance(failures[0], OutcomeUnknown)
    assert str(failures[0]).startswith("the database was closed while the call was under way")


def test_a_call_after_its_loop_was_closed_is_refused() -> None:
    """In plain words, and at once."""
    loop = Loop()
    loop.close()

    async def work() -> None:
        raise AssertionError("it is not begun")

    with pytest.raises(InvalidArgument, match="closed: connect again"):
        loop.run(work())
    loop.close()


def test_what_a_cancelled_task_starts_on_its_way_out_is_ended_too() -> None:
    """A task that stays on a closed loop would run when it is collected, within any other call."""
    loop, ended = Loop(), list[str]()

    async def later() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("later")

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            kept.append(asyncio.get_running_loop().create_task(later()))
            await asyncio.sleep(0)
            ended.append("first")

    kept: list[asyncio.Task[None]] = []

    async def begin() -> None:
        kept.append(asyncio.get_running_loop().create_task(first()))
        await asyncio.sleep(0)

    loop.run(begin())
    loop.close()
    assert all(task.done() for task in kept)
    assert sorted(ended) == ["first", "later"]
