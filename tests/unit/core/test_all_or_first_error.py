"""The parts of a call: all of them, or the first error; and nobody's cancellation is lost."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import NotLeader, OutcomeUnknown, RowExists, Unavailable
from stelae.core.tasks import all_or_first_error, most_telling


def test_a_bug_is_not_hidden_behind_a_refusal() -> None:
    """Of what the parts of a call raised, what nobody foresaw is told."""
    refusal, bug = RowExists("t", "1", 1), AssertionError("broken")
    assert most_telling([refusal, bug]) is bug
    assert most_telling([refusal, Unavailable("m", "x")]) is refusal


def test_an_unknown_outcome_is_not_hidden_behind_a_refusal() -> None:
    """Who is told of the refusal alone would believe that nothing else was done."""
    refusal, unknown = RowExists("t", "1", 1), OutcomeUnknown("a", "write", 1.0)
    assert most_telling([refusal, unknown]) is unknown
    assert most_telling([unknown, AssertionError("broken")]) is not unknown


async def test_parts_that_fail_leave_later_timeouts_of_their_task_alone() -> None:
    """As a `TaskGroup` would not, in older Pythons: its task stays marked as being cancelled."""
    ended: list[str] = []

    async def fail() -> None:
        raise NotLeader("a", 7, "b:1")

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    async def one() -> int:
        return 1

    assert await all_or_first_error([one(), one()]) == [1, 1]
    assert await all_or_first_error([]) == []
    with pytest.raises(NotLeader):
        await all_or_first_error([hang(), fail(), one()])
    assert ended == ["hang"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.shield(asyncio.sleep(0.01))


async def test_whoever_is_cancelled_while_a_part_fails_ends() -> None:
    """Whoever handles the part's error must not go on: its owner waits for its end."""
    handled: list[str] = []

    async def breaks_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NotLeader("a", 7, "b:1") from None

    async def again_and_again() -> None:
        while True:
            try:
                await all_or_first_error([breaks_when_cancelled(), breaks_when_cancelled()])
            except NotLeader:
                handled.append("again")
            await asyncio.sleep(0)

    task = asyncio.create_task(again_and_again())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5.0)
    assert task.cancelled()
    assert handled == []
