"""Before a planned stop of a server: its leaderships go to others, within a bounded time.

A leader that just ends leaves its group without one until the others have waited for a whole
election timeout. One that hands over first (thesis §3.10) costs its clients two messages. Nothing
depends on it: what is not handed over in time is elected anew. So it may be asked for twice, and
given up at any point. Tablet servers do so for their tablets, masters for the catalog. Design §8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from stelae.actors.raft.replica import Replica
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.runtime import Runtime

AT_ONCE = 32
ATTEMPT_S = 1.0
"""Of one hand-over: then another member is tried."""
PAUSE_S = 0.02


def waits(replica: Replica) -> bool:
    """Whether this replica leads, or knows nobody who does, and somebody else could."""
    core = replica.core
    others = [uuid for uuid in core.configuration.voters if uuid != replica.uuid]
    return bool(others) and (replica.is_leader or core.leader_uuid is None)


async def hand_over(
    runtime: Runtime, replicas: Callable[[], Iterable[Replica]], timeout_s: float
) -> tuple[TabletId, ...]:
    """Hand over all leaderships of ``replicas``, those there are at each look; returns the groups
    that have no other leader yet."""
    deadline = runtime.clock.monotonic() + timeout_s
    room = asyncio.Semaphore(AT_ONCE)

    async def one(replica: Replica) -> None:
        async with room:
            left_s = min(ATTEMPT_S, deadline - runtime.clock.monotonic())
            if left_s <= 0 or not replica.is_leader:
                return
            try:
                await replica.transfer_leadership(None, left_s)
            except StelaeError:
                runtime.metrics.count("hand_overs_failed")

    while True:
        waiting = [replica for replica in replicas() if waits(replica)]
        if not waiting or runtime.clock.monotonic() >= deadline:
            return tuple([replica.group_id for replica in waiting])
        await asyncio.gather(*map(one, waiting))
        await runtime.clock.sleep(PAUSE_S)
