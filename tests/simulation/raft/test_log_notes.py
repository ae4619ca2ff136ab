"""What a replica acknowledged is not cut from its log as a torn append: see
`stelae.actors.raft.durable_mark`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stelae.actors.raft.durable_mark import REST_S, LogNote
from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.core.messages.servers import ReplicaRole
from stelae.simulation import Options, World
from stelae.simulation.world.disk import SimDisk
from tests.simulation.replicated.ordered_group import report, role
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group

Damage = Callable[[SimDisk, str, int], None]
PROCESS_DIES = Options(keep_unsynced_rate=1.0)
POWER_FAILS = Options(keep_unsynced_rate=0.0)


def log_of(disk: SimDisk) -> tuple[str, int]:
    """The newest file of the tablet's log, and where its records end."""
    paths = [p for p in disk.paths() if p.startswith(f"wals/{TABLET}/log-")]
    return paths[-1], len(disk.durable(paths[-1]).rstrip(b"\0"))


def flip(disk: SimDisk, path: str, end: int) -> None:
    disk.corrupt(path, end - 2)


def cut(disk: SimDisk, path: str, end: int) -> None:
    disk.cut(path, end - 10)


def remove(disk: SimDisk, path: str, end: int) -> None:
    disk.cut(path, 0)


DAMAGES: dict[str, Damage] = {"a wrong bit": flip, "a shorter file": cut, "an empty file": remove}


def play(
    story: Callable[[World, Group, Caller], Coroutine[Any, Any, None]], options: Options
) -> None:
    world = World(3, options)
    group = Group(world)

    async def told() -> None:
        await group.start()
        await group.wait_leader()
        await story(world, group, Caller(group, "client"))

    world.run(told(), limit_s=600.0)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("death", ["at once, of the process", "at rest, of the machine"])
def test_a_log_that_lost_its_durable_end_fails_its_replica(damage: str, death: str) -> None:
    """The end of the log that was acknowledged last: no later record tells of it."""
    at_once = death == "at once, of the process"

    async def story(world: World, group: Group, client: Caller) -> None:
        victim = next(name for name in group.names if name != group.leader())
        for number in range(5):
            await client.upsert(number, "acknowledged")
        await group.wait_agreement(group.names)
        if not at_once:
            await asyncio.sleep(2 * REST_S)
        world.crash(victim, restart=False)
        disk = world.nodes[victim].disk
        DAMAGES[damage](disk, *log_of(disk))
        world.restart(victim)
        await world.wait_ready(victim)
        await world.wait_until(lambda: role(group, victim) is not None, 10.0, "it is looked at")
        await asyncio.sleep(1.0)
        assert role(group, victim) is ReplicaRole.FAILED
        found = report(group, victim)
        assert found is not None
        assert "log-" in found.problem
        await client.upsert(1, "the others go on")

    play(story, PROCESS_DIES if at_once else POWER_FAILS)


@pytest.mark.parametrize("options", [PROCESS_DIES, POWER_FAILS])
def test_an_append_that_a_crash_interrupted_is_cut(options: Options) -> None:
    """What was never durable may be missing, or half there: the replica runs, and gets it anew."""

    async def story(world: World, group: Group, client: Caller) -> None:
        victim = next(name for name in group.names if name != group.leader())
        disk = world.nodes[victim].disk
        for number in range(12):
            await client.upsert(number, "x" * 600)
            disk.slowness = 100.0
            waiting = asyncio.create_task(client.upsert(number, "y" * 600))
            await world.wait_until(lambda: disk.syncs_in_flight > 0, 10.0, "it writes", poll_s=1e-3)
            world.crash(victim, restart=False)
            disk.heal()
            world.restart(victim)
            await world.wait_ready(victim)
            await waiting
            await group.wait_agreement(group.names)

    play(story, options)


@pytest.mark.parametrize("bug", [False, True])
def test_an_acknowledged_write_is_rather_awaited_than_lost(
    bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that acknowledged it one is away, and the other's log was cut: it must not elect the
    third, which never had it. Planted: a server that does not read its note does."""
    if bug:

        async def forgetful(note: LogNote) -> int:
            return 0

        monkeypatch.setattr(LogNote, "load", forgetful)

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        witness, other = (name for name in group.names if name != leader)
        await client.upsert(1, "old")
        await group.wait_agreement(group.names)
        world.crash(other, restart=False)
        await client.upsert(1, "acknowledged")
        await asyncio.sleep(2 * REST_S)
        world.crash(leader, restart=False)
        world.crash(witness, restart=False)
        disk = world.nodes[witness].disk
        path, _ = log_of(disk)
        disk.cut(path, disk.durable(path).rindex(b"StRe"))
        for name in (witness, other):
            world.restart(name)
        await world.wait_ready(witness, other)
        if bug:
            assert (await client.get(1) or ("", 0))[0] == "old"
            return
        with pytest.raises((OutcomeUnknown, RetryLater)):
            await client.get(1, attempts=100)
        assert role(group, witness) is ReplicaRole.FAILED
        world.restart(leader)
        assert (await client.get(1) or ("", 0))[0] == "acknowledged"

    play(story, POWER_FAILS)
