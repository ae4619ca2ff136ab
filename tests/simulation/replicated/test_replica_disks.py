"""Whom it concerns if a replica's disk fails or is full, its server has no memory left for more
rows, or an entry cannot be executed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.core.errors import CorruptData, OutcomeUnknown, OutOfMemory, TabletNotHere
from stelae.core.ids import ClientId, OpId, RequestId, ServerUuid
from stelae.core.messages.replicas import (
    BEGIN_COPY,
    DELETE_REPLICA,
    FETCH_FILE,
    START_TABLET_COPY,
    BeginCopy,
    DataState,
    DeleteReplica,
    FetchFile,
    StartTabletCopy,
)
from stelae.core.messages.rows import WRITE, Write, WriteOp
from stelae.core.messages.servers import ReplicaRole
from stelae.simulation import Options, World
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.loop import SimLoop
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.simulation.replicated.ordered_group import OTHER, play, report, role, second_tablet
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group

STRANGER = ServerUuid("f" * 32)


def images(disk: SimDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith(f"data/{TABLET}/")]


async def with_images(world: World, group: Group, client: Caller, name: str) -> None:
    """Write until that server has flushed something."""
    for n in range(40):
        await client.upsert(n, "x" * 100)
    await world.wait_until(lambda: bool(images(world.nodes[name].disk)), 10.0, "images")


def test_it_is_known_why_a_copy_was_given_up_until_one_comes() -> None:
    """Operators see it in the status, without the server's log."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        tablet = group.tablet(leader)
        assert tablet is not None
        spare = "t4"
        source, address = group.uuid(leader), world.address(leader)
        world.nodes[spare].disk.full = True
        order = StartTabletCopy(TABLET, source, address, tablet.replica.term, DataState.ABSENT)
        await group.order(spare, START_TABLET_COPY, order)
        server = group.server(spare)
        assert server is not None

        def problem() -> str:
            found: str = server.replicas.copy_problem(TABLET)
            return found

        await world.wait_until(lambda: bool(problem()), 10.0, "it is given up")
        assert "no space left" in problem()
        world.nodes[spare].disk.full = False
        await group.order(spare, START_TABLET_COPY, order)
        await world.wait_until(lambda: not problem(), 10.0, "it is here")

    world = World(1, Options())
    group = Group(world, servers=4)

    async def told() -> None:
        await group.start()
        await group.wait_leader()
        await story(world, group, Caller(group, "client"))

    world.run(told(), limit_s=300.0)


def test_an_image_that_cannot_be_read_for_a_copy_fails_its_replica() -> None:
    """The source says so to the masters, so that another replica becomes the source."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        await with_images(world, group, client, leader)
        plan = await group.order(leader, BEGIN_COPY, BeginCopy(TABLET, STRANGER))
        file = plan.files[0]
        world.nodes[leader].disk.make_unreadable(f"data/{TABLET}/{file.path}")
        with pytest.raises(CorruptData, match="cannot be read"):
            await group.order(leader, FETCH_FILE, FetchFile(plan.session, file.path, 0, 1000))
        assert role(group, leader) is ReplicaRole.FAILED
        found = report(group, leader)
        assert found is not None
        assert file.path in found.problem
        await client.upsert(1, "the others go on")

    play(story)


@pytest.mark.parametrize("folder", ["tablet-meta", "consensus-meta"])
def test_a_bad_sector_fails_one_tablet_at_a_servers_start(folder: str) -> None:
    """The server starts, and its other tablet serves."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await second_tablet(group)
        victim = next(name for name in group.names if name != group.leader())
        world.crash(victim, restart=False)
        world.nodes[victim].disk.make_unreadable(f"{folder}/{TABLET}")
        world.restart(victim)
        await world.wait_ready(victim)
        assert role(group, victim) is ReplicaRole.FAILED
        server = group.server(victim)
        assert server is not None
        opened = lambda: server.replicas.tablet(OTHER) is not None  # noqa: E731
        await world.wait_until(opened, 10.0, "the other tablet is open")
        with pytest.raises(TabletNotHere):
            server.replicas.serving(TABLET)
        await client.upsert(1, "the group goes on")

    play(story)


def test_a_full_disk_gets_room_from_what_was_deleted() -> None:
    """Nobody has to purge for a replica to go on, and nothing is purged while there is room."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await second_tablet(group)
        victim = next(name for name in group.names if name != group.leader())
        disk = world.nodes[victim].disk
        await group.order(victim, DELETE_REPLICA, DeleteReplica(OTHER, True, OpId(0, 0)))

        def deleted() -> list[str]:
            return [p for p in disk.paths() if p.startswith("quarantine/")]

        for n in range(20):
            await client.upsert(n, f"value {n}")
        assert deleted()
        disk.capacity_bytes = sum(len(disk.durable(path)) for path in disk.paths())
        await client.upsert(1, "one more")
        await world.wait_until(lambda: not deleted(), 10.0, "room was made")
        disk.capacity_bytes += 50_000  # the simulated log needs more than the little that was there
        await group.wait_agreement(group.names)

    play(story)


def test_an_entry_that_nobody_can_execute_stops_one_tablet_and_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All replicas have it, also after a restart: the tablet is lost, the servers go on. The bug is
    told to whoever watches the process."""
    told: list[BaseException] = []
    execute = TabletStateMachine.apply

    def apply(machine: TabletStateMachine, index: int, term: int, command: bytes) -> Any:
        if b"poison" in command:
            raise KeyError("poison")
        return execute(machine, index, term, command)

    monkeypatch.setattr(TabletStateMachine, "apply", apply)
    monkeypatch.setattr(
        SimLoop, "call_exception_handler", lambda loop, context: told.append(context["exception"])
    )

    async def story(world: World, group: Group, client: Caller) -> None:
        await second_tablet(group)
        leader = await group.wait_leader()
        request = RequestId(ClientId("mad"), 1, 1)
        poison = Write(TABLET, 0, WriteOp.UPSERT, request, ((1, "poison"),))
        with pytest.raises(OutcomeUnknown):
            await group.order(leader, WRITE, poison, timeout_s=2.0)
        lives = {name: world.nodes[name].lives for name in group.names}

        def most_failed() -> bool:  # the last one never learns that the entry is committed
            roles = [role(group, name) for name in group.names]
            return roles.count(ReplicaRole.FAILED) > 1

        await world.wait_until(most_failed, 30.0, "it has failed, and what led after it")
        assert {name: world.nodes[name].lives for name in group.names} == lives
        for name in group.names:
            server = group.server(name)
            assert server is not None
            assert server.replicas.tablet(OTHER) is not None
            world.crash(name)
        await world.wait_ready(*group.names)
        await world.wait_until(most_failed, 30.0, "it fails again")
        assert [type(error) for error in told] == [KeyError] * 4

    play(story)


def test_a_follower_without_memory_makes_its_leader_refuse_rows() -> None:
    """With the follower's name and numbers; deletes go on, and so do all writes once it has memory
    again, or is gone: the others need not wait for it."""

    async def story(world: World, group: Group, client: Caller) -> None:
        leader = await group.wait_leader()
        follower = next(name for name in group.names if name != leader)
        number = 0

        async def put(op: WriteOp = WriteOp.UPSERT) -> str:
            nonlocal number
            number += 1
            row = (number, "x") if op is WriteOp.UPSERT else (1,)
            request = RequestId(ClientId("greedy"), number, number)
            try:
                await group.order(leader, WRITE, Write(TABLET, 0, op, request, (row,)))
            except OutOfMemory as error:
                return str(error)
            return ""

        assert await put() == ""
        server = group.server(follower)
        assert server is not None
        server.cleaner.limit_bytes = 17
        await asyncio.sleep(1.0)
        refused = await put()
        assert follower in refused
        assert "of its 16" in refused, "rows that live may take 95 %"
        assert await put(WriteOp.DELETE) == ""
        server.cleaner.limit_bytes = 1 << 30
        await asyncio.sleep(1.0)
        assert await put() == ""
        server.cleaner.limit_bytes = 17
        await asyncio.sleep(1.0)
        assert await put()
        world.crash(follower, restart=False)
        await asyncio.sleep(3.0)
        assert await put() == ""

    play(story)
