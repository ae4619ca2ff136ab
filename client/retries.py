"""How a client repeats a call on a tablet: where to, how often, and what it says in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from stelae.client.attempts import ATTEMPT_TIMEOUT_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, Attempt
from stelae.client.group_calls import GroupCall, NoGroup
from stelae.client.locations import TableCache
from stelae.core.catalog_messages import LINEARIZABLE
from stelae.core.errors import (
    DeadlineExpired,
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    StelaeError,
)
from stelae.core.runtime import Runtime

T = TypeVar("T")


async def on_tablet(
    runtime: Runtime,
    cache: TableCache,
    number: int,
    what: str,
    attempt: Attempt[T],
    *,
    timeout_s: float,
    tried: StelaeError | None = None,
    max_staleness_s: float = LINEARIZABLE,
) -> T:
    """Carry ``attempt`` out on tablet ``number``, through moves and recoveries, until the deadline.

    Every attempt must be the same request (same request id, or a read). ``tried`` is how an attempt
    ended that the caller has made already. A read with ``max_staleness_s`` any replica may answer.

    Raises:
        Rejected, DataLost: as the server says.
        SchemaChanged: surely not done; the caller makes another call with the newer schema.
        OutOfMemory, NoSpace: at once; waiting does not help by itself.
        OutcomeUnknown: an attempt may have been carried out; no time, or no room, to find out.
        RetryLater, TooStale: the deadline passed, and surely none was.
    """
    clock = runtime.clock
    deadline = clock.monotonic() + timeout_s
    while True:
        try:
            if cache.group(number) is None:
                return await _at_owner(runtime, cache, number, what, attempt, deadline, tried)
            call = GroupCall(runtime, cache, number, what, attempt, timeout_s)
            return await (call.at_leader(tried) if max_staleness_s < 0 else call.anywhere(tried))
        except (NoGroup, _NoOwner) as changed:
            tried, timeout_s = changed.tried, deadline - clock.monotonic()


class _NoOwner(Exception):
    """The table has a tablet with replicas in its place by now."""

    def __init__(self, tried: StelaeError | None) -> None:
        super().__init__(tried)
        self.tried = tried


async def _at_owner(
    runtime: Runtime,
    cache: TableCache,
    number: int,
    what: str,
    attempt: Attempt[T],
    deadline: float,
    tried: StelaeError | None,
) -> T:
    """`on_tablet`, of a tablet that has an owner. Raises `_NoOwner`."""
    clock = runtime.clock
    pause_s = FIRST_PAUSE_S
    last = tried
    unknown = tried if isinstance(tried, OutcomeUnknown) else None
    while True:
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            raise unknown or last or DeadlineExpired(what, "nothing: it had passed at the call")
        where = cache.tablet(number)
        if where.tablet.is_group:
            raise _NoOwner(unknown or last)
        try:
            if where.address:
                limit_s = min(left_s, ATTEMPT_TIMEOUT_S)
                return await attempt(where, where.tablet.owner, limit_s)
            last = DeadlineExpired(what, where.problem or f"tablet {where.tablet.tablet_id}")
        except (OutOfMemory, NoSpace) as error:
            if unknown is not None:
                raise unknown from error
            raise
        except OutcomeUnknown as error:
            unknown = error
        except SchemaChanged:
            raise  # no repetition of the same call helps, and no attempt of it was or will be done
        except (RetryElsewhere, RetryLater) as error:
            last = error
        await clock.sleep(min(pause_s, max(deadline - clock.monotonic(), 0.0)))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(max(deadline - clock.monotonic(), 0.0)):
                await cache.refresh()
        except (RetryLater, OutcomeUnknown) as error:
            last = error if isinstance(error, RetryLater) else last
        except TimeoutError:
            continue  # to the deadline, which tells what was waited for


def most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Of the errors of a call's parts, the one to raise: a bug is not hidden behind a refusal."""
    return next((error for error in errors if not isinstance(error, StelaeError)), errors[0])


async def all_or_first_error(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What all parts return, in order; once one fails, the others are given up.

    No `TaskGroup`: one whose part fails while it waits leaves its task marked as being cancelled
    for ever, and in Python before 3.11.3 every later `asyncio.timeout` there then lets its
    CancelledError out.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [e for task in tasks if not task.cancelled() and (e := task.exception()) is not None]
    if errors:
        raise most_telling(errors)
    return [task.result() for task in tasks]
