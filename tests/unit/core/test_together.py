"""What goes to one receiver at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stelae.core.together import LATE_S, Together


def sent(
    story: Callable[[Together[str, int], list[object]], Awaitable[None]], quiet_turns: int = 0
) -> list[list[int]]:
    """What was sent, message by message; the story ends those that it wants to end."""
    messages: list[list[int]] = []
    tokens: list[object] = []

    def send(receiver: str, waiting: list[int]) -> None:
        messages.append(waiting)
        tokens.append(together.began(receiver))

    together: Together[str, int] = Together(send, quiet_turns=quiet_turns)
    asyncio.run(_run(story, together, tokens))
    assert not together._waiting
    assert not together._timers
    return messages


async def _run(
    story: Callable[[Together[str, int], list[object]], Awaitable[None]],
    together: Together[str, int],
    tokens: list[object],
) -> None:
    await story(together, tokens)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_comes_in_one_turn_goes_in_one_message_for_each_receiver() -> None:
    """In its order."""

    async def story(together: Together[str, int], tokens: list[object]) -> None:
        for number in range(3):
            together.add("a", number)
            together.add("b", 10 + number)
        await turns()

    assert sent(story) == [[0, 1, 2], [10, 11, 12]]


def test_what_comes_while_a_message_is_under_way_goes_with_the_next() -> None:
    """As soon as that one is answered."""

    async def story(together: Together[str, int], tokens: list[object]) -> None:
        together.add("a", 1)
        await turns()
        together.add("a", 2)
        await turns()
        together.add("a", 3)
        assert len(tokens) == 1
        together.ended("a", tokens[0])
        together.add("a", 4)
        await turns()
        assert len(tokens) == 2
        together.ended("a", tokens[1])
        together.add("a", 5)
        await turns()

    assert sent(story) == [[1], [2, 3, 4], [5]]


def test_a_late_message_holds_nobody_up_for_long() -> None:
    """Its answer, when it comes, is nothing to those who went without it."""

    async def story(together: Together[str, int], tokens: list[object]) -> None:
        together.add("a", 1)
        await turns()
        together.add("a", 2)
        await asyncio.sleep(3 * LATE_S)
        assert len(tokens) == 2
        together.add("a", 3)
        together.ended("a", tokens[0])
        await turns()
        assert len(tokens) == 2
        together.ended("a", tokens[1])
        await turns()

    assert sent(story) == [[1], [2], [3]]


def test_what_comes_turn_after_turn_goes_in_one_message_after_quiet_ones() -> None:
    """Of one that was answered, too, what waited goes with what comes then."""

    async def story(together: Together[str, int], tokens: list[object]) -> None:
        for number in range(6):
            together.add("a", number)
            await turns(2)
        assert not tokens
        await turns(5)
        assert len(tokens) == 1
        together.add("a", 6)
        together.ended("a", tokens[0])
        await turns(2)
        together.add("a", 7)
        await turns(5)

    assert sent(story, quiet_turns=3) == [[0, 1, 2, 3, 4, 5], [6, 7]]


def test_who_waits_for_quiet_turns_does_not_do_so_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message leaves though more comes in each turn."""
    now_s = 0.0

    async def story(together: Together[str, int], tokens: list[object]) -> None:
        nonlocal now_s
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        for number in range(12):
            together.add("a", number)
            await turns(1)
            now_s += LATE_S / 8
        assert len(tokens) == 1
        together.ended("a", tokens[0])
        now_s += LATE_S
        await turns(2)

    messages = sent(story, quiet_turns=3)
    assert len(messages) == 2
    assert [number for message in messages for number in message] == list(range(12))
    assert len(messages[0]) > 3
