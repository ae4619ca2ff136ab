"""The leader dies at every await of every operation; masters with full disks and damaged files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import CorruptData, OutcomeUnknown, RetryLater
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.catalog import CREATE_TABLE, LIST_TABLES, CreateTable, ListTables
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.disk import SimDisk
from stelae.simulation.world.loop import SimHandle, SimLoop
from stelae.simulation.world.options import Limits, Servers
from tests.simulation.masters import masters
from tests.simulation.masters.ddl_client import DdlClient

Step = Callable[[DdlClient], Awaitable[Any]]

SAMPLES = 6
"""Places of the crash in the fast test; the slow one takes every place."""
OPERATIONS: dict[str, Step] = {
    "create": lambda client: client.create("new", buckets=2),
    "delete": lambda client: client.delete("old"),
    "rename": lambda client: client.rename("old"),
    "alter": lambda client: client.alter("old"),
}


class Blow:
    """Kills the leader when its process has run ``at`` callbacks: between two of its awaits."""

    def __init__(self, world: World, cluster: SimCluster, at: int | None) -> None:
        self.count = 0
        self._world, self._at = world, at
        self._leader = cluster.leader()
        assert self._leader is not None
        self._process = world.nodes[self._leader].process

    def after(self, handle: SimHandle) -> None:
        if handle.process is not self._process:
            return
        self.count += 1
        if self.count == self._at and self._leader is not None:
            self._world.crash(self._leader)


def run_struck(operation: str, at: int | None, *, patient: bool) -> int:
    """One operation, the leader killed at its ``at``-th step; returns how many steps there were.

    A patient client asks until it is answered; another gives up at the first silence. Whatever came
    of it, all answers are those of one catalog, and the cluster comes to rest in order.
    """
    options = Options(servers=Servers(3, 2, 2), shuffle=0.0)
    world = World(f"struck/{operation}", options)
    counts: list[int] = []

    async def story() -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        await masters._place_stranger(world, cluster)
        client = DdlClient(world, cluster, "c1")
        client.impatient_rate = 0.0
        await client.create("old", buckets=2)
        await world.wait_until(lambda: masters.in_order(world, cluster), 30, "a cluster in order")
        blow = Blow(world, cluster, at)
        call = SimLoop._call

        def counted(self: SimLoop, handle: SimHandle) -> None:
            call(self, handle)
            blow.after(handle)

        if not patient:
            client.impatient_rate, client.impatience_s = 1.0, 0.05
        with patch.object(SimLoop, "_call", counted):
            await OPERATIONS[operation](client)
            await world.wait_until(lambda: masters.in_order(world, cluster), 60, "order again")
        await masters.finish(world, cluster, [client])
        masters.check_stranger(world, cluster)
        counts.append(blow.count)

    world.run(story())
    return counts[0]


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "impatient"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_leader_killed_amid_an_operation_breaks_no_promise(operation: str, patient: bool) -> None:
    """A sample of the places where the leader may die, evenly spread over all of them."""
    steps = run_struck(operation, None, patient=patient)
    assert steps > SAMPLES
    for sample in range(SAMPLES):
        run_struck(operation, 1 + sample * steps // SAMPLES, patient=patient)


@pytest.mark.soak
@pytest.mark.parametrize("patient", [True, False], ids=["patient", "impatient"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_leader_killed_at_any_await_breaks_no_promise(operation: str, patient: bool) -> None:
    """Every single step of the leader's process, until all that follows from it is done."""
    for at in range(1, run_struck(operation, None, patient=patient) + 1):
        run_struck(operation, at, patient=patient)


# ---- disks ----------------------------------------------------------------------------------


async def begin(world: World) -> tuple[SimCluster, DdlClient]:
    cluster = SimCluster(world)
    await cluster.start()
    await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
    client = DdlClient(world, cluster, "c1")
    client.impatient_rate = 0.0
    return cluster, client


def follower_of(cluster: SimCluster) -> str:
    return next(name for name in cluster.masters if name != cluster.leader())


FILES = ("instance", "masters", "consensus-meta", "snapshots", "wals")
CHECKED_TOGETHER = 64
"""Bytes: a checksum names the place where what it covers begins."""
PLACES = (0.0, 0.3, 0.6)
"""Of a file's length. At the very end of a log a wrong byte is a torn write, and cut off."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("part", FILES)
def test_a_damaged_file_stops_its_master_and_no_other(part: str, place: float) -> None:
    """One flipped bit: the master names the file and does not start; the others go on."""
    world = World(f"damage/{part}/{place}", Options(limits=Limits(snapshot_entries=4)))

    async def story() -> None:
        cluster, client = await begin(world)
        for number in range(8):  # in several writes, so that later ones vouch for earlier ones
            await client.create(f"t{number}", buckets=1)
            await world.wait_until(lambda: masters.in_order(world, cluster), 30, "in order")
        victim = follower_of(cluster)
        node = world.nodes[victim]
        await world.stop(victim)
        path, offset = damage(node.disk, part, place)
        node.exits = (CorruptData,)
        refusals: list[CorruptData] = []
        fail = world._on_error

        def note(process: Any, error: BaseException) -> None:
            if isinstance(error, CorruptData):
                refusals.append(error)
            fail(process, error)

        world._on_error = note  # type: ignore[method-assign]
        world.restart(victim)
        await world.wait_until(lambda: not node.running, 10, "the master to refuse")
        refusal = refusals[-1]
        assert refusal.args[0] in path, f"{path} is damaged, and {refusal} is said"
        assert 0 <= refusal.args[1] <= offset + CHECKED_TOGETHER, f"damaged at {offset}: {refusal}"
        assert await client.create("after")
        assert await client.delete("t0")
        client.history.require()

    world.run(story())


def damage(disk: SimDisk, part: str, place: float) -> tuple[str, int]:
    """Flip one bit; returns where."""
    paths = [path for path in disk.paths() if part in path and "lock" not in path]
    assert paths, f"no {part} among {disk.paths()}"
    path = paths[0]
    offset = int(len(disk.durable(path)) * place)
    disk.corrupt(path, offset)
    return path, offset


def test_a_torn_tail_of_the_log_is_cut_off_and_no_damage() -> None:
    """What a power cut leaves of the last write is no corruption: the master starts and joins."""
    world = World("torn", Options())

    async def story() -> None:
        cluster, client = await begin(world)
        await client.create("t")
        victim = follower_of(cluster)
        node = world.nodes[victim]
        await world.stop(victim)
        log = next(path for path in reversed(node.disk.paths()) if "wals/" in path)
        content = node.disk._files[log]
        for data in (content.live, content.durable):
            data.extend(b"\x17" * 9)  # the beginning of a record that was never finished
        node.auto_restart = True
        world.restart(victim)
        await world.wait_until(lambda: masters.in_order(world, cluster), 30, "all in order")

    world.run(story())


def test_a_master_whose_disk_is_full_leaves_and_the_others_go_on() -> None:
    """The leader's disk fills up: it ends itself, another leads, and it comes back with space."""
    world = World("full", Options())

    async def story() -> None:
        cluster, client = await begin(world)
        await client.create("t")
        leader = cluster.leader()
        assert leader is not None
        world.nodes[leader].disk.full = True
        assert await client.create("u")
        assert cluster.leader() != leader
        world.nodes[leader].disk.full = False
        await world.wait_until(lambda: masters.in_order(world, cluster), 60, "all in order")
        client.history.require()

    world.run(story())


def test_with_two_of_three_masters_down_changes_are_refused_in_time() -> None:
    """A change is answered within its deadline, by RetryLater; reads that may be old go on."""
    world = World("two down", Options())

    async def story() -> None:
        cluster, client = await begin(world)
        await client.create("t")
        await world.wait_until(lambda: masters.in_order(world, cluster), 30, "in order")
        table = (await client.list_records())[0]
        order = CreateTable(
            RequestId(ClientId("x"), 1, 1),
            "u",
            table.schema,
            table.partitioning,
            table.durability,
        )
        caller = MastersClient(world.client("x"), list(cluster.addresses.values()))
        await asyncio.sleep(1.0)
        for name in (follower_of(cluster), cluster.leader() or ""):
            await world.stop(name)
        await asyncio.sleep(2.0)
        begun = world.loop.time()
        with pytest.raises((RetryLater, OutcomeUnknown)) as caught:
            await caller.call(CREATE_TABLE, order, timeout_s=3.0)
        assert isinstance(caught.value, RetryLater)
        assert world.loop.time() - begun <= 3.1
        old = await caller.call_any(LIST_TABLES, ListTables(max_staleness_s=60.0), timeout_s=5.0)
        assert [found.name for found in old.tables] == ["t"]

    world.run(story())
