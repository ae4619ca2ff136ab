"""Repetition of HTTP requests: no write that may have been executed is called undone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import httpx
import pytest

from stelae.client.http import transport as module
from stelae.client.http.transport import HttpTransport
from stelae.core.errors import NoSpace, OutcomeUnknown, StelaeError, Unavailable

PROBLEM = {"content-type": "application/problem+json"}
Answer = Callable[[httpx.Request], httpx.Response]


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset", request=request)


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request) from ConnectionRefusedError(111, "no")


def refused_by_all(request: httpx.Request) -> httpx.Response:
    each = [ConnectionRefusedError(111, "no"), ConnectionRefusedError(111, "no")]
    group = ExceptionGroup("two addresses", each)
    raise httpx.ConnectError("all failed", request=request) from group


def full(request: httpx.Request) -> httpx.Response:
    problem = {"error": "NoSpace", "args": ["backup-1", "disk"], "detail": "no space"}
    return httpx.Response(503, json=problem, headers=PROBLEM)


def fine(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={})


async def outcome(*answers: Answer, method: str = "PUT", timeout_s: float = 5.0) -> StelaeError:
    """What a call ends in whose attempts are answered so; the last answer repeats."""
    left = list(answers)

    def next_answer(request: httpx.Request) -> httpx.Response:
        return (left.pop(0) if len(left) > 1 else left[0])(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(next_answer))
    transport = HttpTransport(
        "http://h:1", "token", client, rng=random.Random(1), monotonic=time.monotonic
    )
    with pytest.raises(StelaeError) as caught:
        await transport.call(method, "/x", what="upsert", timeout_s=timeout_s, repeatable=True)
    await transport.close()
    return caught.value


async def test_what_may_have_been_done_stays_unknown_whatever_comes_after() -> None:
    """A refused repeat says nothing of the first attempt."""
    assert isinstance(await outcome(refused), Unavailable)
    assert isinstance(await outcome(lost, refused), OutcomeUnknown)
    assert isinstance(await outcome(lost, full), OutcomeUnknown)
    assert isinstance(await outcome(full), NoSpace)


async def test_a_refusal_by_all_addresses_of_a_name_is_told_at_once() -> None:
    """``localhost`` is two addresses on most machines."""
    error = await outcome(refused_by_all, timeout_s=600.0)
    assert isinstance(error, Unavailable)
    assert "nobody listens" in str(error)


async def test_a_write_is_not_repeated_beyond_what_servers_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its id may be forgotten by then, and it would be carried out twice; a read may go on."""
    monkeypatch.setattr(module, "REPEAT_S", -1.0)
    assert isinstance(await outcome(lost, fine, timeout_s=600.0), OutcomeUnknown)
    client = httpx.AsyncClient(transport=httpx.MockTransport(fine))
    transport = HttpTransport(
        "http://h:1", "token", client, rng=random.Random(1), monotonic=time.monotonic
    )
    await transport.call("GET", "/x", what="get", timeout_s=5.0, repeatable=True)
    await transport.close()
