"""A deletion for ever that its server's full disk stops half-way, with nobody left to ask for it:
see `stelae.actors.tserver.replicated_tablet.manager`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stelae.actors.tserver.replicated_tablet.lifecycle import FULL_DISK_RETRY_MAX_S
from stelae.core.errors import NoSpace
from stelae.core.ids import OpId
from stelae.core.messages.replicas import DELETE_REPLICA, DataState, DeleteReplica
from stelae.core.messages.servers import ReplicaRole
from stelae.simulation import Options, World
from stelae.simulation.world.disk import SimDisk
from tests.simulation.replicated.ordered_group import report
from tests.simulation.replicated.tablet_group import TABLET, Caller, Group

FOR_EVER = DeleteReplica(TABLET, True, OpId(0, 0))
MOMENT_S = 2.0


class FullOnceItIsSaid:
    """Fills the disk at the commit point of the deletion: the new superblock has its name."""

    def __init__(self, disk: SimDisk) -> None:
        self.attempts = 0
        """To write anything at all since then."""
        self._disk = disk
        self._begin_names, self._check_space = disk.begin_names, disk.check_space
        disk.begin_names = self.begin_names  # type: ignore[method-assign]
        disk.check_space = self.check_space  # type: ignore[method-assign]

    def begin_names(self, *names: Any) -> None:
        self._begin_names(*names)
        if names[0][0] == f"tablet-meta/{TABLET}":
            self._disk.full = True

    def check_space(self, content: Any, end: int) -> None:
        self.attempts += self._disk.full
        self._check_space(content, end)


def left(disk: SimDisk) -> list[str]:
    """Log and images that are not in the quarantine yet."""
    folders = (f"wals/{TABLET}/", f"data/{TABLET}/")
    return [path for path in disk.paths() if path.startswith(folders)]


def play(
    story: Callable[[World, Group, str, FullOnceItIsSaid], Coroutine[Any, Any, None]],
    *,
    has_failed: bool = False,
) -> None:
    """Tell what follows once a server was told to delete its replica for ever, and could not.
    ``has_failed``: its disk had been full before, and it is about to begin again."""
    world = World(1, Options())
    group = Group(world)

    async def told() -> None:
        await group.start()
        leader = await group.wait_leader()
        client = Caller(group, "client")
        for n in range(30):
            await client.upsert(n, "x" * 100)
        await group.wait_agreement(group.names)
        name = next(name for name in group.names if name != leader)
        disk = world.nodes[name].disk
        if has_failed:
            disk.full = True
            await client.upsert(31, "x")
            await world.wait_until(lambda: fails(group, name), MOMENT_S, "the replica fails")
            disk.full = False
        fault = FullOnceItIsSaid(disk)
        with pytest.raises(NoSpace):
            await group.order(name, DELETE_REPLICA, FOR_EVER)
        await story(world, group, name, fault)

    world.run(told(), limit_s=600.0)


def fails(group: Group, name: str) -> bool:
    found = report(group, name)
    return found is not None and found.group is not None and found.group.role is ReplicaRole.FAILED


def check_half_done(world: World, group: Group, name: str) -> None:
    server = group.server(name)
    assert server is not None
    assert server.replicas.data_state(TABLET) is DataState.DELETED
    assert report(group, name) is None, "somebody is told, and will ask for the rest"
    assert left(world.nodes[name].disk)


def burials() -> int:
    """How many tasks carry the deletion on."""
    return sum(task.get_name() == f"bury {TABLET}" for task in asyncio.all_tasks())


@pytest.mark.parametrize("full_s", [0.0, 90.0])
def test_a_deletion_that_a_full_disk_stopped_goes_on_by_itself(full_s: float) -> None:
    """Nobody asks again: the tombstone is reported no more. However often it meets the full disk,
    log and images go once there is room, and the tombstone votes."""

    async def story(world: World, group: Group, name: str, fault: FullOnceItIsSaid) -> None:
        check_half_done(world, group, name)
        await asyncio.sleep(full_s)
        check_half_done(world, group, name)
        disk, server = world.nodes[name].disk, group.server(name)
        assert server is not None
        disk.full = False
        buried = lambda: not left(disk) and burials() == 0  # noqa: E731
        await world.wait_until(buried, FULL_DISK_RETRY_MAX_S + MOMENT_S, "the rest is deleted")
        assert any(path.startswith("quarantine/") for path in disk.paths())
        assert server.replicas.data_state(TABLET) is DataState.DELETED
        assert TABLET in server.replicas._tombstones
        assert not server.replicas._burials

    play(story)


def test_a_failed_replica_that_is_half_deleted_does_not_begin_again() -> None:
    """It was to begin again once there is room; what is left of it then is a tombstone."""

    async def story(world: World, group: Group, name: str, fault: FullOnceItIsSaid) -> None:
        server = group.server(name)
        check_half_done(world, group, name)
        await asyncio.sleep(3 * FULL_DISK_RETRY_MAX_S)
        assert group.server(name) is server, "the server has ended"
        check_half_done(world, group, name)
        world.nodes[name].disk.full = False
        buried = lambda: not left(world.nodes[name].disk)  # noqa: E731
        await world.wait_until(buried, FULL_DISK_RETRY_MAX_S + MOMENT_S, "the rest is deleted")

    play(story, has_failed=True)


def test_a_deletion_is_tried_again_seldom_and_by_one_task() -> None:
    """However often it is ordered meanwhile; each order says why it is not done yet."""

    async def story(world: World, group: Group, name: str, fault: FullOnceItIsSaid) -> None:
        for _ in range(5):
            with pytest.raises(NoSpace):
                await group.order(name, DELETE_REPLICA, FOR_EVER)
            assert burials() == 1
        fault.attempts, duration_s = 0, 10 * FULL_DISK_RETRY_MAX_S
        await asyncio.sleep(duration_s)
        assert 2 <= fault.attempts <= 4 * duration_s / FULL_DISK_RETRY_MAX_S
        assert burials() == 1
        check_half_done(world, group, name)
        world.nodes[name].disk.full = False
        await group.order(name, DELETE_REPLICA, FOR_EVER)
        assert not left(world.nodes[name].disk)
        await asyncio.sleep(FULL_DISK_RETRY_MAX_S + MOMENT_S)
        assert burials() == 0, "what was done meanwhile ends it too"

    play(story)


def test_a_deletion_whose_disk_fails_as_well_ends_until_the_next_start() -> None:
    """It is counted, and not tried for ever; the next life of the server carries it to its end."""

    async def story(world: World, group: Group, name: str, fault: FullOnceItIsSaid) -> None:
        disk = world.nodes[name].disk
        disk.full, disk.fail_next_sync = False, True
        failed = lambda: not disk.fail_next_sync  # noqa: E731
        await world.wait_until(failed, FULL_DISK_RETRY_MAX_S, "it is tried again")
        await asyncio.sleep(MOMENT_S / 2)
        assert burials() == 0
        assert world.metrics[name].counts["tablet_drops_failed"] == 1
        world.crash(name, restart=False)
        world.restart(name)
        await world.wait_ready(name)
        assert not left(disk)
        assert report(group, name) is None
        server = group.server(name)
        assert server is not None
        assert server.replicas.data_state(TABLET) is DataState.DELETED

    play(story)
