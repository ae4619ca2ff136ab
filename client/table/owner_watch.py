"""A call that a tablet's owner may take long to answer: is it the owner still?

Of a machine that is gone without notice nothing comes, not even an error, while a piece of a scan
may well take seconds of work. No time tells the two apart. The masters can: they give a silent
server up, and the tablet's record names another owner, or another term. So they are asked while the
call lasts, first soon and then less often, and the call is given up once they say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from stelae.client.routing.locations import TableCache
from stelae.core.backoff import Backoff
from stelae.core.errors import StelaeError, TabletNotReady
from stelae.core.messages.catalog import TabletLocation
from stelae.core.runtime import Runtime

FIRST_LOOK_S = 0.5
LONGEST_PAUSE_S = 4.0

T = TypeVar("T")


async def while_owned(
    runtime: Runtime, cache: TableCache, where: TabletLocation, call: Awaitable[T]
) -> T:
    """What the call to the tablet's owner returns.

    Raises:
        TabletNotReady: the tablet has another owner by now, or is another.
        StelaeError: as the call does.
    """
    loop = asyncio.get_running_loop()
    watches: list[asyncio.Task[None]] = []
    given_up = asyncio.timeout(None)
    timer = loop.call_later(
        FIRST_LOOK_S,
        lambda: watches.append(loop.create_task(_watch(runtime, cache, where, given_up))),
    )
    try:
        async with given_up:
            return await call
    except TimeoutError:
        if not given_up.expired():
            raise
        what = f"owned by another server than {where.address}, which was given up"
        raise TabletNotReady(where.tablet.tablet_id, what) from None
    finally:
        timer.cancel()
        for watch in watches:
            watch.cancel()


async def _watch(
    runtime: Runtime, cache: TableCache, where: TabletLocation, given_up: asyncio.Timeout
) -> None:
    asked, number = where.tablet, where.tablet.number
    backoff = Backoff(runtime.rng, FIRST_LOOK_S, LONGEST_PAUSE_S)
    while True:
        try:
            await cache.refresh()
        except StelaeError:
            # The call may succeed all the same, and tells by itself if it does not.
            runtime.metrics.count("locations_not_refreshed")
        else:
            now = cache.tablet(number).tablet if number in cache.numbers else None
            if now is None or (now.tablet_id, now.term) != (asked.tablet_id, asked.term):
                given_up.reschedule(asyncio.get_running_loop().time())
                return
        await backoff.pause(runtime.clock)
