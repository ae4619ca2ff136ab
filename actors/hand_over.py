"""Before a planned stop of a tserver: its leaderships go to others, within a bounded time.

A leader that just ends leaves its group without one until the others have waited for a whole
election timeout. One that hands over first (thesis §3.10) costs its clients two messages. Nothing
depends on it: what is not handed over in time is elected anew. Design §8.
"""

from __future__ import annotations

import asyncio

from stelae.actors.replicated_tablet import ReplicatedTablet
from stelae.actors.tablet_replicas import TabletReplicas
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.runtime import Runtime

AT_ONCE = 32
ATTEMPT_S = 1.0
"""Of one hand-over: then another member is tried."""
PAUSE_S = 0.02


def waits(tablet: ReplicatedTablet) -> bool:
    """Whether this replica leads, or knows nobody who does, and somebody else could."""
    core = tablet.replica.core
    others = [uuid for uuid in core.configuration.voters if uuid != tablet.replica.uuid]
    return bool(others) and (tablet.replica.is_leader or core.leader_uuid is None)


async def hand_over(
    runtime: Runtime, replicas: TabletReplicas, timeout_s: float
) -> tuple[TabletId, ...]:
    """Hand over all leaderships of a server; returns the tablets that have no other leader yet."""
    deadline = runtime.clock.monotonic() + timeout_s
    room = asyncio.Semaphore(AT_ONCE)

    async def one(tablet: ReplicatedTablet) -> None:
        async with room:
            left_s = min(ATTEMPT_S, deadline - runtime.clock.monotonic())
            if left_s <= 0 or not tablet.replica.is_leader:
                return
            try:
                await tablet.replica.transfer_leadership(None, left_s)
            except StelaeError:
                runtime.metrics.count("hand_overs_failed")

    while True:
        waiting = [tablet for tablet in replicas.running() if waits(tablet)]
        if not waiting or runtime.clock.monotonic() >= deadline:
            return tuple([tablet.tablet_id for tablet in waiting])
        await asyncio.gather(*map(one, waiting))
        await runtime.clock.sleep(PAUSE_S)
