"""A replica that stops owes nobody an answer afterwards."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import NotLeader, OutcomeUnknown, TabletNotReady
from stelae.simulation import Options, World
from tests.simulation.replicated.tablet_group import Group

SOON_S = 0.5
SEEDS = 12


def test_whoever_waits_for_a_replica_that_stops_is_told_at_once() -> None:
    """Not at the deadline, which is far: writes, reads and transfers, those that it has begun with
    and those that it has not; and what comes later is refused."""
    told = [stop(seed) for seed in range(1, SEEDS + 1)]
    # A second transfer is refused by a turn of the loop, if one comes before the end, or by that.
    assert {second for second, _ in told} == {TabletNotReady, NotLeader}, "the test is idle"
    assert [has_begun for _, has_begun in told].count(True) > SEEDS / 2, "the test is idle"


def stop(seed: int) -> tuple[type[BaseException], bool]:
    """Stop a leader for whom others wait; what the second transfer is told, and whether the first
    write was in its log."""
    world = World(seed, Options())
    group = Group(world)
    told: list[tuple[type[BaseException], bool]] = []

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        tablet = group.tablet(leader)
        assert tablet is not None
        replica = tablet.replica
        others = [name for name in group.names if name != leader]
        world.partition([leader], others)
        target = group.uuid(others[0])
        last = replica.core.log.last.index
        index = last + 5
        begun = [
            asyncio.create_task(replica.propose(b"begun", 100.0)),
            asyncio.create_task(replica.wait_applied(index, 100.0)),
        ]
        await asyncio.sleep(0.02)
        transfer = asyncio.create_task(replica.transfer_leadership(target, 100.0))
        await asyncio.sleep(0.02)
        assert replica.is_leader
        new = [
            asyncio.create_task(replica.propose(b"new", 100.0)),
            asyncio.create_task(replica.transfer_leadership(target, 100.0)),
        ]
        await asyncio.sleep(0)
        has_begun = replica.core.log.last.index > last
        began_s = world.loop.time()
        await replica.stop()
        outcomes = await asyncio.gather(*begun, *new, return_exceptions=True)
        *types, second = [type(outcome) for outcome in outcomes]
        assert types == [OutcomeUnknown if has_begun else NotLeader, NotLeader, NotLeader]
        assert second in (NotLeader, TabletNotReady)
        told.append((second, has_begun))
        await transfer  # it leads no more, as was asked for
        for late in (replica.propose(b"late", 100.0), replica.wait_applied(index, 100.0)):
            with pytest.raises(NotLeader):
                await late
        with pytest.raises(NotLeader):
            await replica.read_barrier(100.0)
        assert world.loop.time() - began_s < SOON_S

    world.run(story(), limit_s=60.0)
    return told[0]
