"""Disks that fail, fill up or lie under the replicas of a tablet server: one ends, and no other."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import (
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import OpId
from stelae.core.messages.replicas import (
    CREATE_REPLICA,
    DELETE_REPLICA,
    DeleteReplica,
)
from stelae.core.messages.rows import GET, Get
from stelae.core.messages.servers import ReplicaRole
from stelae.simulation import World
from tests.simulation.replicated.ordered_group import OTHER, play, report, role, second_tablet
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group


def test_a_failed_sync_ends_one_replica_and_nothing_else() -> None:
    """The replica is reported FAILED at once and answers nothing; the server's other tablet goes
    on, the group goes on without it, and it is there again after the server's next start."""

    async def story(world: World, group: Group, client: Caller) -> None:
        await second_tablet(group)
        await client.upsert(1, "one")
        await asyncio.sleep(5.0)  # the other tablet has its leader, and leaves the disk alone
        victim = next(name for name in group.names if name != group.leader())
        world.nodes[victim].disk.fail_next_sync = True
        version = await client.upsert(1, "two")
        failed = lambda: role(group, victim) is ReplicaRole.FAILED  # noqa: E731
        await world.wait_until(failed, 10.0, "it failed")
        found = report(group, victim)
        assert found is not None
        assert "Input/output error" in found.problem
        with pytest.raises(TabletNotHere):
            await group.order(victim, GET, Get(TABLET, ((1,),), max_staleness_s=10.0))
        with pytest.raises(TabletNotReady, match="failed"):
            await group.order(victim, CREATE_REPLICA, group.creation())
        server = group.server(victim)
        assert server is not None
        assert server.replicas.tablet(OTHER) is not None
        assert await client.get(1) == ("two", version)
        world.crash(victim)
        await group.wait_agreement(group.names)

    play(story)


def test_a_replica_on_a_full_disk_begins_again_once_there_is_room() -> None:
    """What a full disk stops goes on by itself later, flushes included."""

    async def story(world: World, group: Group, client: Caller) -> None:
        victim = next(name for name in group.names if name != group.leader())
        world.nodes[victim].disk.full = True
        for n in range(40):
            await client.upsert(n, f"value {n}")
        assert role(group, victim) is ReplicaRole.FAILED
        told, began_s = 0, world.loop.time()
        while world.loop.time() < began_s + 20.0:
            await client.upsert(1, "more")
            await asyncio.sleep(0.5)
            found = report(group, victim)
            assert found is not None
            assert found.group is not None
            if found.group.role is ReplicaRole.FAILED:
                assert found.group.no_room, "it says that it tries again"
                told += 1
        assert told > 25, "it seldom reads all its images in vain"
        world.nodes[victim].disk.full = False
        await group.wait_agreement(group.names)
        assert role(group, victim) is ReplicaRole.FOLLOWER

    play(story)


@pytest.mark.parametrize("log", ["whole", "damaged"])
def test_a_damaged_image_fails_one_replica_which_can_then_be_deleted(log: str) -> None:
    """It is reported with the file; its tombstone votes by its log, unless that is damaged too."""

    async def story(world: World, group: Group, client: Caller) -> None:
        for n in range(40):
            await client.upsert(n, "x" * 100)
        victim = next(name for name in group.names if name != group.leader())
        disk = world.nodes[victim].disk
        await world.wait_until(
            lambda: any(path.startswith(f"data/{TABLET}/") for path in disk.paths()), 10.0, "images"
        )
        tablet = group.tablet(victim)
        assert tablet is not None
        last = tablet.end_of_log
        world.crash(victim, restart=False)
        if log == "damaged":
            disk.corrupt(next(p for p in disk.paths() if p.startswith(f"wals/{TABLET}/")), 30)
        image = next(path for path in disk.paths() if path.startswith(f"data/{TABLET}/"))
        disk.corrupt(image, 200)
        world.restart(victim)
        await world.wait_ready(victim)
        failed = lambda: role(group, victim) is ReplicaRole.FAILED  # noqa: E731
        await world.wait_until(failed, 10.0, "it failed")
        found = report(group, victim)
        assert found is not None
        assert "image" in found.problem
        assert found.group is not None
        assert (found.term > 0) is (log == "whole")
        assert found.group.last == (last if log == "whole" else OpId(0, 0))
        await group.order(victim, DELETE_REPLICA, DeleteReplica(TABLET, False, OpId(9, 999)))
        assert role(group, victim) is ReplicaRole.TOMBSTONE
        server = group.server(victim)
        assert server is not None
        assert server.replicas.last_op_id(TABLET) == (last if log == "whole" else None)

    play(story)
