"""Disks that take seconds for one sync: they make writes slow, and depose nobody.

A replica whose loop waits for its disk goes on telling its leader that it follows, and a leader
whose disk is behind goes on with its heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from stelae.actors.raft.loop import ReplicaLoop
from stelae.consensus.raft.messages import Message
from stelae.consensus.raft.raft import Raft
from stelae.core.messages.rows import WriteOp
from stelae.simulation import Options, World
from tests.simulation.replicated.tablet_group import SETTINGS, Caller, Group

SLOWNESS = 3000.0
"""A sync takes two to ten seconds; an election, a third of one."""
SLOW_S = 20.0
Who = Callable[[str, Sequence[str]], Sequence[str]]
WHO: dict[str, Who] = {
    "one follower": lambda leader, followers: followers[:1],
    "both followers": lambda leader, followers: followers,
    "the leader": lambda leader, followers: [leader],
    "everybody": lambda leader, followers: [leader, *followers],
}


def terms_after(who: str, seed: int, writers: int = 4) -> tuple[list[int], int]:
    """The terms in which the group was led while those disks were slow, each as often as it was
    looked at, and how many writes were answered in that time. All writes are there at the end."""
    world = World(seed, Options())
    group = Group(world)
    seen: list[int] = []
    written: dict[int, tuple[str, int]] = {}

    async def write(number: int, until_s: float) -> None:
        client = Caller(group, f"client {number}", attempt_s=2.0)
        turn = 0
        while world.loop.time() < until_s:
            key, turn = 100 * number + turn % 100, turn + 1
            value = f"{number}.{turn}" + "x" * 50
            reply = await client.write(WriteOp.UPSERT, [(key, value)], attempts=10_000)
            written[key] = (value, reply.first_version)
            await asyncio.sleep(0.05)

    async def story() -> int:
        await group.start()
        leader = await group.wait_leader()
        await Caller(group, "first").upsert(0, "before")
        followers = [name for name in group.names if name != leader]
        for name in WHO[who](leader, followers):
            world.nodes[name].disk.slowness = SLOWNESS
        until_s = world.loop.time() + SLOW_S
        writes = [asyncio.create_task(write(n, until_s)) for n in range(1, writers + 1)]
        while world.loop.time() < until_s:
            tablet = group.tablet(leader)
            assert tablet is not None
            seen.append(tablet.replica.term if tablet.replica.leader_ready else 0)
            await asyncio.sleep(0.1)
        answered = len(written)
        for name in group.names:
            world.nodes[name].disk.heal()
        await world.wait_until(lambda: all(w.done() for w in writes), 120.0, "the last writes")
        for w in writes:
            w.result()
        client = Caller(group, "reader")
        for key, expected in written.items():
            assert await client.get(key) == expected
        await group.wait_agreement(group.names)
        return answered

    return seen, world.run(story(), limit_s=600.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("who", WHO)
def test_a_slow_disk_deposes_nobody(who: str, seed: int) -> None:
    """One leader of one term all the time; writes are answered, soon where a majority is fast."""
    seen, answered = terms_after(who, seed)
    assert len(dict.fromkeys(seen)) == 1, f"led in terms {list(dict.fromkeys(seen))}"
    fast = who in ("one follower", "the leader")
    assert answered >= (200 if fast else 4)


@pytest.mark.parametrize("bug", ["silent while it saves", "waits for its own disk"])
def test_this_would_see_a_replica_that_waits_for_its_disk(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer while they save, two followers lose their leader; and one that stops its
    loop until its own disk has caught up is deposed."""
    if bug == "silent while it saves":

        def silent(core: Raft, message: Message) -> None:
            return None

        monkeypatch.setattr(Raft, "answer_while_busy", silent)
        seen, _ = terms_after("both followers", 0)
    else:
        execute = ReplicaLoop._execute

        async def patiently(loop: ReplicaLoop, *args: Any, **named: Any) -> None:
            await execute(loop, *args, **named)
            await loop._writer.drained()

        monkeypatch.setattr(ReplicaLoop, "_execute", patiently)
        seen, _ = terms_after("the leader", 0)
    assert len(dict.fromkeys(seen)) > 1


def test_a_leader_whose_followers_are_slow_does_not_pile_up_what_they_lack() -> None:
    """Callers give up and try again, and each try is an entry: beyond a bound they wait outside of
    the log, and nobody is forgotten there once there is room."""
    limit = 200_000
    world = World(2, Options())
    group = Group(world, settings=msgspec.structs.replace(SETTINGS, queue_bytes=limit))
    most = 0

    async def write(number: int) -> None:
        client = Caller(group, f"client {number}", attempt_s=0.2)
        row = (number, "x" * 10_000)
        await client.write(WriteOp.UPSERT, [row], attempts=10_000)

    async def story() -> None:
        nonlocal most
        await group.start()
        leader = await group.wait_leader()
        for name in group.names:
            if name != leader:
                world.nodes[name].disk.slowness = SLOWNESS
        writes = [asyncio.create_task(write(number)) for number in range(5)]
        until_s = world.loop.time() + SLOW_S
        while world.loop.time() < until_s:
            tablet = group.tablet(leader)
            assert tablet is not None
            log = tablet.replica.core.log
            most = max(most, log.bytes_after(log.applied_index))
            await asyncio.sleep(0.05)
        for name in group.names:
            world.nodes[name].disk.heal()
        await asyncio.wait_for(asyncio.gather(*writes), 60.0)
        await group.wait_agreement(group.names)

    world.run(story(), limit_s=300.0)
    assert limit / 2 < most < 1.5 * limit
