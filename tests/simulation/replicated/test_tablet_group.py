"""A tablet with replicas on tablet servers: failovers, restarts from disk, orders, broken disks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import OpId
from stelae.core.messages.replicas import DELETE_REPLICA, DeleteReplica
from stelae.simulation import Options, World
from stelae.simulation.runner import derive_seeds, find_bug, replay_command, run_seed
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.replicated.group_faults import SCENARIO, draw, run_group
from tests.simulation.replicated.planted_group import BUGS, planted
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group

SEEDS = 12
BUG_SEEDS = 40
COUNTED_SEEDS = 4


def test_writes_go_on_when_the_leader_dies_and_restarts_find_what_was_flushed() -> None:
    """Three servers, the leader killed, the rest go on; all restarted, every row is there."""
    world = World(1, Options())
    group = Group(world)

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        client = Caller(group, "client")
        written = {}
        for n in range(60):
            written[n % 20] = (f"value {n}", await client.upsert(n % 20, f"value {n}"))
        world.crash(leader, restart=False)
        for n in range(60, 120):
            written[n % 20] = (f"value {n}", await client.upsert(n % 20, f"value {n}"))
        assert await group.wait_leader() != leader
        world.restart(leader)
        await group.wait_agreement(group.names)
        for name in group.names:
            tablet = group.tablet(name)
            assert tablet is not None
            snapshot = tablet.replica.core.log.snapshot
            assert snapshot is not None
            assert snapshot.last.index > 20, "flushed"
        for name in group.names:
            world.crash(name)
        for key, expected in written.items():
            assert await client.get(key) == expected
        await group.wait_agreement(group.names)

    world.run(story(), limit_s=300.0)


def test_members_that_all_listen_elsewhere_find_each_other_by_the_masters_list() -> None:
    """After a restart of all, on new ports, each hears of the others by its heartbeats' answers."""
    world = World(2, Options())
    group = Group(world, fixed_ports=False)

    async def story() -> None:
        await group.start()
        await group.wait_leader()
        client = Caller(group, "client")
        version = await client.upsert(1, "one")
        before = [world.address(name) for name in group.names]
        for name in group.names:
            world.crash(name)
        await world.wait_ready()
        assert all(world.address(name) not in before for name in group.names)
        servers = [group.server(name) for name in group.names]
        infos = [server.info for server in servers if server is not None]
        for server in servers:
            assert server is not None
            server.members.update(infos)
        assert await client.get(1) == ("one", version)

    world.run(story(), limit_s=300.0)


def test_a_server_may_be_told_to_stop_in_the_midst_of_an_order() -> None:
    """The order ends with it: nothing of it begins once the server's tasks have ended."""
    world = World(3, Options())
    group = Group(world)

    async def story() -> None:
        await group.start()
        name = await group.wait_leader()
        server = group.server(name)
        assert server is not None

        async def delete() -> None:
            with contextlib.suppress(OutcomeUnknown):
                order = DeleteReplica(TABLET, True, OpId(0, 0))
                await group.order(name, DELETE_REPLICA, order, timeout_s=1.0)

        async with server.replicas.lock(TABLET):
            ordered = asyncio.create_task(delete())
            await asyncio.sleep(0.1)
            await world.spawn(name, server.stop())
        await ordered
        await asyncio.sleep(0.5)

    world.run(story(), limit_s=100.0)


@pytest.mark.parametrize("seed", derive_seeds("group", SEEDS), ids=lambda seed: f"seed{seed}")
def test_under_faults_nothing_is_lost_doubled_or_older_than_allowed(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command(SCENARIO.name, seed)}\n{outcome.failure}"


def test_reads_of_bounded_age_are_answered_under_faults_too() -> None:
    """Whatever is judged in those worlds, there is something to judge."""
    worlds = [World(seed, draw(seed)) for seed in range(COUNTED_SEEDS)]
    found = [world.run(run_group(world), limit_s=400.0) for world in worlds]
    assert all(old.reads for old in found)
    assert sum(len(old.reads) for old in found) > sum(old.refused for old in found)
    assert any(read.version is not None for old in found for read in old.reads)


# ---- planted bugs ----------------------------------------------------------------------------


def a_write_is_repeated_after_a_flush(seed: int) -> None:
    """All servers restart from what they flushed, and a client repeats its last write."""
    world = World(seed, Options())
    group = Group(world)

    async def story() -> None:
        await group.start()
        first, other = Caller(group, "first"), Caller(group, "other")
        version = await first.upsert(1, "one")
        for n in range(60):
            await other.upsert(1, f"value {n}")
        await group.wait_agreement(group.names)
        for name in group.names:
            tablet = group.tablet(name)
            assert tablet is not None
            await tablet.flush()
        for name in group.names:
            world.crash(name)
        await world.wait_ready()
        first.sequence -= 1
        assert await first.upsert(1, "one") == version, "a write was done twice"
        assert (await first.get(1) or ("",))[0] == "value 59"
        await group.wait_agreement(group.names)

    world.run(story(), limit_s=300.0)


class SlowFlushes:
    """A disk on which images wait: the first one until `first_may_end`, later ones for ever."""

    def __init__(self, disk: SimDisk) -> None:
        self.first_may_end = asyncio.Event()
        self.begun = 0
        self._sync = disk.sync
        disk.sync = self.sync  # type: ignore[method-assign]

    async def sync(self, content: Any, path: str) -> None:
        if path.startswith("data/"):
            self.begun += 1
            await (self.first_may_end if self.begun == 1 else asyncio.Event()).wait()
        await self._sync(content, path)


def a_long_flush_ends_and_the_next_one_does_not(seed: int) -> None:
    """What was written during the first one is in the log alone when the server dies."""
    world = World(seed, Options())
    group = Group(world)

    async def story() -> None:
        await group.start()
        client = Caller(group, "client")
        leader = await group.wait_leader()
        victim = next(name for name in group.names if name != leader)
        disk = world.nodes[victim].disk
        sync = disk.sync
        slow = SlowFlushes(disk)
        for n in range(200):
            await client.upsert(n % 20, f"value {n}" + "x" * 40)
        assert slow.begun == 1
        slow.first_may_end.set()
        await world.wait_until(lambda: slow.begun > 1, 10.0, "the next flush")
        await client.upsert(1, "one more turn, in which the log is trimmed")
        await group.wait_agreement(group.names)
        world.crash(victim, restart=False)
        disk.sync = sync  # type: ignore[method-assign]
        world.restart(victim)
        await group.wait_agreement(group.names, timeout_s=15.0)

    world.run(story(), limit_s=300.0)


STORIES: dict[str, Callable[[int], None]] = {
    "flushes forget who wrote": a_write_is_repeated_after_a_flush,
    "the log is cut beyond the flush": a_long_flush_ends_and_the_next_one_does_not,
}
"""What chance seldom makes."""


@pytest.mark.parametrize("bug", STORIES)
def test_a_planted_bug_is_found_by_a_story(bug: str) -> None:
    """The story breaks a promise with this bug, whatever the seed, and is fine without it."""
    for seed in range(2):
        STORIES[bug](seed)
        with planted(bug), pytest.raises(SimulationFailure) as failure:
            STORIES[bug](seed)
        assert isinstance(failure.value.error, AssertionError | StelaeError)


@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in sorted(BUGS) if bug not in STORIES])
def test_a_planted_bug_is_found(bug: str) -> None:
    """The scenario can see this bug; the same seed is fine without it."""
    outcome = find_bug(SCENARIO, bug, BUG_SEEDS)
    assert outcome.failure is not None
    assert run_seed(SCENARIO, outcome.seed).failure is None
