"""Changes of a tablet's members that cannot finish: the group goes on with the members before.

Whoever is made a voter, or is to make up the majority without the one that goes, dies or hangs in
the moment in which the change is in the leader's log, and committed nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import patch

import pytest

from stelae.consensus.raft.raft import Raft
from stelae.core.errors import OutcomeUnknown, RetryElsewhere, RetryLater
from stelae.core.ids import OpId
from stelae.core.messages.replicas import CHANGE_REPLICAS, ChangeKind
from stelae.simulation import World
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.replicated.tablet_group import SETTINGS, Caller, Group
from tests.simulation.replicated.test_planted_replicas import change, members, play

SEEDS = range(1, 5)
ELECTIONS_S = 4 * SETTINGS.tablet_election_ticks * SETTINGS.group_tick_s
HANGS = 1_000_000.0
CHANGE_S = 60 * SETTINGS.group_tick_s
"""For so long a leader waits for a change while all answer, and nothing is committed."""


def others(group: Group, *names: str) -> list[str]:
    return [name for name in group.names if name not in names]


def taken_back(world: World) -> float:
    """By all servers."""
    name = "member_changes_taken_back"
    return sum(metrics.counts.get(name, 0.0) for metrics in world.metrics.values())


async def wait_begun(group: Group, leader: str, name: str, *, voter: bool) -> None:
    """Until a change that makes this server a voter, or none, is in the leader's log alone."""
    uuid = group.uuid(name)

    def begun() -> bool:
        tablet = group.tablet(leader)
        assert tablet is not None
        log = tablet.replica.core.log
        is_voter = uuid in log.configuration.voters
        if is_voter is voter:
            assert log.unfinished_change is not None, "the moment was missed"
        return is_voter is voter

    await group.world.wait_until(begun, 60.0, "the change to begin", poll_s=0.0001)


async def add(group: Group, leader: str, name: str) -> None:
    await group.order(leader, CHANGE_REPLICAS, change(group, ChangeKind.ADD, name, OpId(0, 0)))


async def write_within(world: World, client: Caller, value: str, limit_s: float) -> None:
    began_s = world.loop.time()
    await client.upsert(1, value)
    assert world.loop.time() - began_s < limit_s, "the group stood still"


async def becomes_voter(group: Group, name: str) -> None:
    """By itself, as it is a member still; all have the same then."""
    await group.world.wait_ready(name)

    def votes() -> bool:
        leader = group.leader()
        return leader is not None and group.uuid(name) in members(group, leader).voters

    await group.world.wait_until(votes, 60.0, f"{name} is a voter")
    await group.wait_agreement(group.names)


# ---- stories ---------------------------------------------------------------------------------


def two_of_four_die(seed: int) -> None:
    """A voter and the one that is just made the fourth die: two of the three before are left."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        leader = await group.wait_leader()
        follower, _ = others(group, leader, "t4")
        await add(group, leader, "t4")
        await wait_begun(group, leader, "t4", voter=True)
        for name in (follower, "t4"):
            world.crash(name, restart=False)
        await write_within(world, client, "two", ELECTIONS_S)
        assert taken_back(world) == 1
        now = group.leader()
        assert now is not None
        assert len(members(group, now).voters) == 3
        for name in (follower, "t4"):
            world.restart(name)
            await world.wait_ready(name)
        await becomes_voter(group, "t4")
        assert (await client.get(1) or ("", 0))[0] == "two"

    play(story, seed, servers=4)


def the_second_of_two_dies(seed: int) -> None:
    """A tablet with one replica gets a second one, which dies as it becomes a voter."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await add(group, "t1", "t2")
        await wait_begun(group, "t1", "t2", voter=True)
        world.crash("t2", restart=False)
        await write_within(world, client, "two", ELECTIONS_S)
        assert taken_back(world) == 1
        assert (await client.get(1) or ("", 0))[0] == "two"
        world.restart("t2")
        await world.wait_ready("t2")
        await becomes_voter(group, "t2")

    play(story, seed, servers=2, count=1)


def the_second_of_two_hangs(seed: int) -> None:
    """It answers heartbeats, but its disk does not. It is not promoted again while that is so."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await add(group, "t1", "t2")
        await wait_begun(group, "t1", "t2", voter=True)
        disk = world.nodes["t2"].disk
        disk.slowness = HANGS
        await write_within(world, client, "two", CHANGE_S + ELECTIONS_S)
        for number in range(3, 20):
            await write_within(world, client, str(number), ELECTIONS_S)
            await asyncio.sleep(0.3)
        assert taken_back(world) == 1
        world.crash("t2")  # a disk that hangs is replaced by hand
        disk.slowness = 1.0
        await becomes_voter(group, "t2")

    play(story, seed, servers=2, count=1)


def who_stays_dies(seed: int) -> None:
    """Of three one is let go, and in the same moment another one dies: the first is needed."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        await group.wait_agreement(group.names)
        leader = await group.wait_leader()
        goes, stays = others(group, leader)
        order = change(group, ChangeKind.REMOVE, goes, OpId(0, 0))
        removing = asyncio.ensure_future(group.order(leader, CHANGE_REPLICAS, order, 20.0))
        await wait_begun(group, leader, goes, voter=False)
        world.crash(stays, restart=False)
        await write_within(world, client, "two", 2 * ELECTIONS_S)
        assert taken_back(world) == 1
        with pytest.raises((OutcomeUnknown, RetryElsewhere, RetryLater)):
            await removing
        now = group.leader()
        assert now is not None
        assert len(members(group, now).voters) == 3
        world.restart(stays)
        await world.wait_ready(stays)
        await group.wait_agreement(group.names)

    play(story, seed)


def the_leader_dies_in_the_midst_of_it(seed: int) -> None:
    """Having taken the change back in memory it crashes; on its disk, and on the other's, the
    change still stands. Three of four are gone: only with one of them back it goes on."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await client.upsert(1, "one")
        leader = await group.wait_leader()
        follower, third = others(group, leader, "t4")
        await add(group, leader, "t4")
        await wait_begun(group, leader, "t4", voter=True)
        for name in (follower, "t4"):
            world.crash(name, restart=False)
        await asyncio.sleep(0.05)
        world.pause(third)
        await world.wait_until(lambda: taken_back(world) == 1, 10.0, "it is taken back")
        world.crash(leader)
        world.resume(third)
        world.restart(follower)
        await world.wait_ready(leader, follower)
        await client.upsert(1, "two")
        world.restart("t4")
        await world.wait_ready("t4")
        await becomes_voter(group, "t4")
        assert (await client.get(1) or ("", 0))[0] == "two"

    play(story, seed, servers=4)


STORIES = [
    two_of_four_die,
    the_second_of_two_dies,
    the_second_of_two_hangs,
    who_stays_dies,
    the_leader_dies_in_the_midst_of_it,
]


@pytest.mark.parametrize("story", STORIES)
def test_a_change_that_cannot_finish_is_taken_back(story: Callable[[int], None]) -> None:
    """See the story's own words."""
    for seed in SEEDS:
        story(seed)


def _merely_step_down(core: Raft) -> None:
    core._become_follower(core.term, None)


@pytest.mark.parametrize("story", STORIES[:4])
def test_without_it_the_group_stands_still(story: Callable[[int], None]) -> None:
    """The stories can fail: they do with a leader that only steps down."""
    with (
        patch.object(Raft, "_give_up", _merely_step_down),
        pytest.raises(SimulationFailure) as failure,
    ):
        story(SEEDS[0])
    assert isinstance(failure.value.error, AssertionError | OutcomeUnknown | TimeoutError)
