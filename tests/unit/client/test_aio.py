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
