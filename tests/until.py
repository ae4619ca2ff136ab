"""How tests wait for a cluster or a process: until a condition holds, up to a limit.

A wait that ends without it fails the test, and says what was waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

from stelae.core import errors

T = TypeVar("T")
POLL_S = 0.05
"""Seconds between two looks at a condition."""
NO_LEADER: tuple[type[BaseException], ...] = (errors.RetryLater, errors.RetryElsewhere)
"""Errors of calls while the masters, or a group, elect a leader."""

What = str | Callable[[], str]
"""What is waited for, or a function that says so, with what was found, once the time is over."""


def until(
    condition: Callable[[], T | None],
    timeout_s: float,
    what: What,
    *,
    poll_s: float = POLL_S,
    retried: tuple[type[BaseException], ...] = (),
) -> T:
    """Wait until ``condition()`` is true, and return its result.

    An error of ``retried`` counts as false. The condition is looked at once at least. Raises
    AssertionError after ``timeout_s``.
    """
    deadline, problem = time.monotonic() + timeout_s, ""
    while True:
        try:
            if found := condition():
                return found
            problem = ""
        except retried as error:
            problem = f": {error!r}"
        if time.monotonic() >= deadline:
            raise AssertionError(_text(what, timeout_s, problem))
        time.sleep(poll_s)


@overload
async def until_async(
    condition: Callable[[], Awaitable[T | None]],
    timeout_s: float,
    what: What,
    *,
    poll_s: float = POLL_S,
) -> T: ...


@overload
async def until_async(
    condition: Callable[[], T | None], timeout_s: float, what: What, *, poll_s: float = POLL_S
) -> T: ...


async def until_async(
    condition: Callable[[], Awaitable[T | None] | T | None],
    timeout_s: float,
    what: What,
    *,
    poll_s: float = POLL_S,
) -> T:
    """Do as `until` does in the running loop, by its clock; ``condition`` may be a coroutine
    function, and is cancelled when the time is over."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return cast(T, found)
                await asyncio.sleep(poll_s)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(_text(what, timeout_s, "")) from None


def _text(what: What, timeout_s: float, problem: str) -> str:
    said = what if isinstance(what, str) else what()
    return f"not within {timeout_s:g} s: {said}{problem}"
