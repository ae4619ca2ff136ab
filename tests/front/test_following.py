"""How long a revoked token is taken for good: `stelae.serve.gateway.following`, with a clock of its
own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.core.errors import Unavailable
from stelae.core.records.tokens import AccessToken, AccessTokens, Role, TokenList, hash_token
from stelae.serve.bodies.problems import NotAuthenticated
from stelae.serve.gateway.following import TokenFollower
from stelae.serve.gateway.tokens import TokenVerifier

TOKEN = "stelae_ada"
NIGHT_S = 8 * 3600.0


class Masters:
    """They have one token, until it is revoked; they answer when they are let, or not at all."""

    def __init__(self) -> None:
        self.now = 100.0
        self.access = AccessTokens((AccessToken("ada", Role.READ, hash_token(TOKEN), 0.0, ""),))
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.are_up = True
        self.follower = TokenFollower(TokenVerifier(), self.database, lambda: self.now)

    async def database(self) -> Any:
        return self

    async def access_tokens(self, known: int, *, timeout: float) -> TokenList:
        await self.may_answer.wait()
        if not self.are_up:
            raise Unavailable("the masters", "they are down")
        same = known == self.access.generation
        return TokenList(self.access.generation, None if same else self.access)

    def revoke(self) -> None:
        self.access = AccessTokens((), (), self.access.generation + 1)

    async def is_good(self) -> bool:
        try:
            return (await self.follower.verify(TOKEN)).name == "ada"
        except NotAuthenticated:
            return False


async def test_after_a_night_at_rest_nobody_is_checked_against_last_nights_list() -> None:
    """Neither the request that asks, nor those that come while the question is under way."""
    masters = Masters()
    assert await masters.is_good()
    masters.revoke()
    masters.now += NIGHT_S
    masters.may_answer.clear()
    first = asyncio.create_task(masters.is_good())
    await asyncio.sleep(0)
    masters.now += 0.05
    second = asyncio.create_task(masters.is_good())
    await asyncio.sleep(0)
    masters.now += 0.3
    third = asyncio.create_task(masters.is_good())
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in (first, second, third))
    masters.may_answer.set()
    assert list(await asyncio.gather(first, second, third)) == [False, False, False]


async def test_a_question_that_went_unanswered_is_forgotten_after_a_second() -> None:
    """Until then nobody waits; hours later the masters are asked as if nothing had been."""
    masters = Masters()
    assert await masters.is_good()
    masters.now, masters.are_up = masters.now + NIGHT_S, False
    assert await masters.is_good()  # what is known holds
    masters.may_answer.clear()
    masters.now += 0.5
    assert await asyncio.wait_for(masters.is_good(), 5.0)  # and nobody waits
    masters.may_answer.set()
    await asyncio.sleep(0.01)
    masters.revoke()
    masters.now, masters.are_up = masters.now + NIGHT_S, True
    assert not await masters.is_good()


@pytest.mark.parametrize("age_s", [1.5, 2.5])
async def test_a_list_that_is_not_too_old_is_used_while_a_newer_one_is_asked_for(
    age_s: float,
) -> None:
    """A request does not wait for masters that are slow, before it has to."""
    masters = Masters()
    assert await masters.is_good()
    masters.now += age_s
    masters.may_answer.clear()
    request = asyncio.create_task(masters.is_good())
    await asyncio.sleep(0.01)
    assert request.done() == (age_s < 2.0)
    masters.may_answer.set()
    assert await request
