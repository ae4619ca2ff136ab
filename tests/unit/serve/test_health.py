"""``/healthz``: however many ask, the masters are asked seldom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from stelae.core.errors import NoQuorum, StelaeError
from stelae.serve.gateway.health import ASK_TIMEOUT_S, FRESH_S, Health


class Masters:
    """A database whose masters answer when they are let to."""

    def __init__(self) -> None:
        self.calls = 0
        self.now = 100.0
        self.error: StelaeError | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.runtime = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: self.now))

    async def tables(self, *, timeout: float) -> list[Any]:
        assert timeout == ASK_TIMEOUT_S
        self.calls += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return []

    def health(self) -> Health:
        async def database() -> Any:
            return self

        return Health(database)


async def test_many_at_once_ask_once_and_those_after_them_nothing() -> None:
    """One question, also where the first who asked goes away; then its answer holds a moment."""
    masters = Masters()
    masters.answers.clear()
    health = masters.health()
    asking = [asyncio.create_task(health.check()) for _ in range(500)]
    await asyncio.sleep(0)
    asking[0].cancel()
    masters.answers.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [None] * 499
    assert masters.calls == 1
    masters.now += FRESH_S / 2
    assert [await health.check() for _ in range(100)] == [None] * 100
    assert masters.calls == 1
    await health.close()


async def test_readiness_turns_within_about_a_second() -> None:
    """Either way; a bad answer holds as long as a good one."""
    assert FRESH_S + ASK_TIMEOUT_S <= 1.5
    masters = Masters()
    health = masters.health()
    assert await health.check() is None
    masters.error = NoQuorum("m1, m2, m3")
    masters.now += FRESH_S
    assert [await health.check() for _ in range(3)] == [masters.error] * 3
    assert masters.calls == 2
    masters.error = None
    masters.now += FRESH_S
    assert await health.check() is None
    await health.close()


async def test_a_question_under_way_ends_with_the_gateway() -> None:
    """No task is left behind."""
    masters = Masters()
    masters.answers.clear()
    health = masters.health()
    asking = asyncio.create_task(health.check())
    await asyncio.sleep(0)
    await health.close()
    await asyncio.wait([asking])
    assert asking.cancelled()
