"""Work that mostly need not wait, with a limit for when it has to."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.tasks import within


async def _at_once() -> int:
    return 7


async def _after_a_turn() -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return 8


async def _fails_after_a_turn() -> int:
    await asyncio.sleep(0)
    raise KeyError("x")


def test_it_gives_what_the_work_returns_or_raises() -> None:
    """Whether it has waited or not."""

    async def story() -> None:
        assert await within(0.0, _at_once()) == 7
        assert await within(5.0, _after_a_turn()) == 8
        with pytest.raises(KeyError):
            await within(5.0, _fails_after_a_turn())

    asyncio.run(story())


def test_what_waits_too_long_is_ended() -> None:
    """By a TimeoutError; and who waits for it may be cancelled as ever."""
    ended: list[str] = []

    async def never() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await within(0.01, never())
        task = asyncio.create_task(within(60.0, never()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert ended == ["cancelled"] * 2
