"""How a client repeats a call on a tablet: where to, how often, and what it says in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import (
    ATTEMPT_TIMEOUT_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    PATIENCE,
    Attempt,
)
from stelae.client.routing.group_calls import GroupCall, NoGroup
from stelae.client.routing.locations import TableCache
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    DeadlineExpired,
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    StelaeError,
    TabletNotReady,
    TooStale,
)
from stelae.core.messages.catalog import LINEARIZABLE, TabletLocation
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
    patience: float = PATIENCE,
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
        WasSplit: the caller cuts the call anew.
    """
    clock = runtime.clock
    deadline = clock.monotonic() + timeout_s
    while True:
        try:
            if cache.group(number) is None:
                world = (runtime, cache, number, what, attempt)
                return await _at_owner(*world, deadline, tried, patience)
            call = GroupCall(runtime, cache, number, what, attempt, timeout_s)
            return await (call.at_leader(tried) if max_staleness_s < 0 else call.anywhere(tried))
        except (NoGroup, _NoOwner) as changed:
            tried, timeout_s = changed.tried, deadline - clock.monotonic()
        except WasSplit as split:
            raise WasSplit(split.number, split.tried or tried) from None


def _where(cache: TableCache, number: int, tried: StelaeError | None) -> TabletLocation:
    try:
        return cache.tablet(number)
    except WasSplit:
        raise WasSplit(number, tried) from None


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
    patience: float,
) -> T:
    """`on_tablet`, of a tablet that has an owner. Raises `_NoOwner`."""
    clock = runtime.clock
    backoff = Backoff(runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S, factor=patience)
    last = tried
    unknown = tried if isinstance(tried, OutcomeUnknown) else None
    while True:
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            raise unknown or _at_deadline(cache, what, last)
        where = _where(cache, number, unknown or last)
        if where.tablet.is_group:
            raise _NoOwner(unknown or last)
        try:
            if where.address:
                limit_s = min(left_s, ATTEMPT_TIMEOUT_S)
                return await attempt(where, where.tablet.owner, limit_s)
            waits_for = where.problem or f"tablet {where.tablet.tablet_id}"
            last = DeadlineExpired(cache.named(what), waits_for)
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
        await backoff.pause(clock, deadline)
        try:
            async with asyncio.timeout(max(deadline - clock.monotonic(), 0.0)):
                await cache.refresh()
        except (RetryLater, OutcomeUnknown) as error:
            last = error if isinstance(error, RetryLater) else last
        except TimeoutError:
            continue  # to the deadline, which tells what was waited for


def _at_deadline(cache: TableCache, what: str, last: StelaeError | None) -> StelaeError:
    """The error that ends a call whose deadline has passed; surely no attempt was carried out."""
    if last is None:
        return DeadlineExpired(cache.named(what))
    if isinstance(last, RetryLater | TooStale):
        return last
    return DeadlineExpired(cache.named(what), str(last))  # there is no other server to ask now


async def parts_of(
    runtime: Runtime, cache: TableCache, number: int, deadline: float
) -> Sequence[int]:
    """The tablets that have the rows of one that was split. They may have been split themselves,
    and a look that others are waiting for may have been before that: it is looked again.

    Raises TabletNotReady: the masters tell of none by the deadline.
    """
    clock, is_first = runtime.clock, True
    backoff = Backoff(runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while not (found := cache.parts.within(number)):
        if clock.monotonic() >= deadline:
            raise TabletNotReady(cache.table.table_id, f"split, and its part {number} is not known")
        if not is_first:
            await backoff.pause(clock, deadline)
        await cache.refresh()
        is_first = False
    return found
