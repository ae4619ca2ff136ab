"""A disk that fails one sync, and works again: while a replica is made (see
`stelae.actors.tserver.replicated_tablet.lifecycle`), and while a follower saves what it is about to
acknowledge (see
`stelae.actors.raft.log_writer`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Any

import msgspec
import pytest

from stelae.core.errors import OutcomeUnknown, TabletNotReady
from stelae.core.ids import OpId
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    ChangeKind,
    ChangeReplicas,
)
from stelae.core.messages.rows import WriteOp
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.replication import Configuration, Peer
from stelae.simulation import Options, World
from stelae.simulation.world.disk import InjectedDiskError, SimDisk
from stelae.storage.files.raft_log import NOTE_NAME
from tests.simulation.replicated.ordered_group import role
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group


class OneFailure:
    """Lets the ``number``-th sync of files from now on fail, and no other."""

    def __init__(self, disk: SimDisk, number: int) -> None:
        self.has_failed = False
        self._left = number
        self._disk = disk
        self._sync = disk.sync
        disk.sync = self.sync  # type: ignore[method-assign]

    async def sync(self, content: Any, path: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._disk.fail_next_sync = self.has_failed = True
        await self._sync(content, path)


async def restart_if_failed(world: World, group: Group, name: str) -> None:
    """As an operator does with a server that says that a replica of it has failed."""
    if role(group, name) is ReplicaRole.FAILED:
        world.crash(name, restart=False)
        world.restart(name)
        await world.wait_ready(name)


@pytest.mark.parametrize("number", range(1, 4))
def test_a_creation_whose_sync_fails_is_carried_out_after_a_restart(number: int) -> None:
    """It is refused, or its replica is reported failed; the server lives on, and its next life has
    the replica, at the latest when the order is given again."""
    world = World(number, Options())
    group = Group(world, servers=3, count=2)

    async def story() -> None:
        await group.start()
        await group.wait_leader()
        name = group.names[2]
        life = world.nodes[name].lives
        failure = OneFailure(world.nodes[name].disk, number)
        member = Peer(group.uuid(name), world.address(name), True, name)
        members = Configuration(OpId(0, 0), (*group.configuration.peers, member))
        order = msgspec.structs.replace(group.creation(), configuration=members)
        with contextlib.suppress(TabletNotReady):
            await group.order(name, CREATE_REPLICA, order)
        await asyncio.sleep(3.0)
        assert world.nodes[name].lives == life
        await restart_if_failed(world, group, name)
        await group.insist(name, CREATE_REPLICA, order)
        running = lambda: group.tablet(name) is not None  # noqa: E731
        await world.wait_until(running, 10.0, "it runs")
        assert failure.has_failed

    world.run(story(), limit_s=120.0)


@pytest.mark.parametrize("number", range(1, 11))
def test_a_copy_whose_sync_fails_comes_after_a_restart(number: int) -> None:
    """Whichever sync it is: nothing half-made counts, and the copy is ordered anew and comes."""
    world = World(number, Options())
    group = Group(world, servers=4, count=3)

    async def story() -> None:
        await group.start()
        leader = await group.wait_leader()
        client = Caller(group, "client")
        for n in range(40):
            await client.upsert(n, f"value {n} " + "x" * 100)
        spare = group.names[3]
        tablet = group.tablet(leader)
        assert tablet is not None
        await tablet.flush()
        failure = OneFailure(world.nodes[spare].disk, number)
        order = ChangeReplicas(
            TABLET,
            ChangeKind.ADD,
            group.uuid(spare),
            world.address(spare),
            spare,
            tablet.replica.members.op_id,
        )
        await group.order(leader, CHANGE_REPLICAS, order)
        for _ in range(30):
            await restart_if_failed(world, group, spare)
            states = [group.state(name) for name in group.names]
            if None not in states and len(dict.fromkeys(states)) == 1:
                break
            await asyncio.sleep(1.0)
        await group.wait_agreement(group.names)
        assert failure.has_failed
        for n in range(40):
            assert (await client.get(n) or ("", 0))[0].startswith(f"value {n} ")

    world.run(story(), limit_s=300.0)


class LostAppend:
    """Lets the next sync of a log fail, and loses what that covered; later ones say that all is
    well. ``at_once``: the one that is done where the message arrived."""

    def __init__(self, disk: SimDisk, *, at_once: bool) -> None:
        self.has_failed = False
        self._at_once = at_once
        self._disk = disk
        self._sync, self._sync_at_once = disk.sync, disk.sync_at_once
        disk.sync = self.sync  # type: ignore[method-assign]
        disk.sync_at_once = self.sync_at_once  # type: ignore[method-assign]

    def _fail(self, content: Any) -> None:
        self.has_failed = True
        content.synced += len(content.pending)
        content.pending.clear()
        raise InjectedDiskError(errno.EIO, "Input/output error")

    def sync_at_once(self, content: Any) -> bool:
        if self.has_failed:
            return self._sync_at_once(content)
        if self._at_once and content.pending:
            self._fail(content)
        return False

    async def sync(self, content: Any, path: str) -> None:
        is_log = path.startswith(f"wals/{TABLET}/") and not path.endswith(NOTE_NAME)
        if not self.has_failed and not self._at_once and is_log and content.pending:
            await asyncio.sleep(0.01)
            self._fail(content)
        await self._sync(content, path)


@pytest.mark.parametrize("at_once", [True, False], ids=["where it arrived", "in the loop"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_write_whose_sync_fails_at_a_follower_is_not_acknowledged(
    seed: int, at_once: bool
) -> None:
    """Of three one is down, and the second one's disk loses a write: nobody is told that it is
    done, and the leader does not take the follower to have it; it is done once that one is back."""
    world = World(seed, Options(keep_unsynced_rate=0.0))
    group = Group(world)

    async def story() -> None:
        await group.start()
        client = Caller(group, "client", attempt_s=0.5)
        for n in range(5):
            await client.upsert(n, f"value {n}")
        leader = await group.wait_leader()
        down, victim = [name for name in group.names if name != leader]
        world.crash(down, restart=False)
        await client.upsert(1, "both have it")
        await group.wait_agreement([leader, victim])
        tablet = group.tablet(leader)
        assert tablet is not None
        leading = tablet.replica.core.leader
        assert leading is not None
        matched = leading.progress[group.uuid(victim)].match_index
        fault = LostAppend(world.nodes[victim].disk, at_once=at_once)
        with pytest.raises(OutcomeUnknown):
            await client.write(WriteOp.UPSERT, [(1, "lost here")], attempts=4)
        assert fault.has_failed
        assert leading.progress[group.uuid(victim)].match_index == matched
        assert role(group, victim) is ReplicaRole.FAILED
        await restart_if_failed(world, group, victim)
        assert (await client.get(1) or ("",))[0] == "lost here", "the leader has it still"
        world.restart(down)
        await group.wait_agreement(group.names)

    world.run(story(), limit_s=120.0)
