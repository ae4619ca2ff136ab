"""Masters added, removed and replaced while clients work: golden stories of whole clusters."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument, NotLeader, RetryLater
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid
from stelae.core.messages.catalog import LINEARIZABLE, LIST_TABLES, ListTables
from stelae.core.messages.masters import (
    ADD_MASTER,
    LIST_MASTERS,
    MASTER_INFO,
    REMOVE_MASTER,
    AddMaster,
    AskMaster,
    MasterSet,
    MasterState,
    RemoveMaster,
)
from stelae.core.rpc import Empty
from stelae.simulation import Options, Servers, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.runner import derive_seeds, kept_seeds, replay_command, run_seed
from tests.simulation.masters.ddl_client import DdlClient
from tests.simulation.masters.master_members import SCENARIO

SEEDS = 10


class Operator:
    """Changes the masters of a cluster through the same calls as the command line."""

    def __init__(self, world: World, cluster: SimCluster) -> None:
        self.world = world
        self.cluster = cluster
        self.masters = MastersClient(world.client("operator"), list(cluster.addresses.values()))
        self._orders = 0

    def number(self) -> RequestId:
        """Of the next order; the answers of those before are not waited for any more."""
        self._orders += 1
        return RequestId(ClientId("operator"), self._orders, self._orders)

    async def add(self, name: str) -> MasterSet:
        """Start a master that waits, add it, and wait until it votes."""
        if name not in self.world.nodes:
            self.cluster.start_master(name)
        await self.world.wait_ready(name)
        info = self.world.server(name).info
        order = AddMaster(self.number(), info.uuid, name, info.address)
        while True:
            found = await self.masters.call(ADD_MASTER, order, timeout_s=20.0)
            if any(m.uuid == info.uuid and m.voter for m in found.members):
                self.cluster.masters = sorted(m.name for m in found.members)
                return found
            await asyncio.sleep(0.05)

    async def ask_to_add(self, uuid: ServerUuid, name: str, address: Address) -> MasterSet:
        """And wait for nothing but the answer."""
        order = AddMaster(self.number(), uuid, name, address)
        return await self.masters.call(ADD_MASTER, order, timeout_s=5.0)

    async def remove(self, name: str) -> MasterSet:
        order = RemoveMaster(self.number(), name)
        found = await self.masters.call(REMOVE_MASTER, order, timeout_s=20.0)
        self.cluster.masters = sorted(m.name for m in found.members)
        return found

    async def list(self) -> list[tuple[str, bool]]:
        found = await self.masters.call(LIST_MASTERS, Empty(), timeout_s=20.0)
        return sorted((m.name, m.voter) for m in found.members)


async def start(world: World) -> tuple[SimCluster, Operator, DdlClient]:
    cluster = SimCluster(world)
    await cluster.start()
    await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
    return cluster, Operator(world, cluster), DdlClient(world, cluster, "c1")


def beats_reach(world: World, cluster: SimCluster, name: str) -> bool:
    """Whether all tservers and backups report to that master."""
    server = world.server(name)
    heard = {seen.server.name for seen in server.liveness.all()}
    return heard >= {*cluster.tservers, *cluster.backups}


def run(seed: int, story: Any) -> None:
    world = World(seed, Options())
    world.run(story(world))


def test_a_master_is_added_and_everybody_learns_of_it() -> None:
    """It is brought up as a non-voter, votes once it has caught up, and is heard of by all."""

    async def story(world: World) -> None:
        cluster, operator, client = await start(world)
        for number in range(30):  # enough that the log has been shortened to a snapshot
            await client.create(f"c1-{number}")
        found = await operator.add("master-4")
        assert [m.voter for m in found.members] == [True] * 4
        added = world.server("master-4")
        assert added.catalog.snapshot()
        await world.wait_until(
            lambda: beats_reach(world, cluster, "master-4"), 5, "heartbeats to the new master"
        )
        leader = world.server(cluster.leader() or "")
        assert len(added.catalog.tables) == 30
        await world.wait_until(
            lambda: added.catalog.snapshot() == leader.catalog.snapshot(), 5, "equal catalogs"
        )
        await operator.add("master-4")  # again is fine

    run(1, story)


def test_the_leader_is_removed_and_serves_no_more() -> None:
    """It hands over first; clients go on; what was the leader says that it is a master no more."""

    async def story(world: World) -> None:
        cluster, operator, client = await start(world)
        await client.create("c1-0")
        leader = cluster.leader()
        assert leader is not None
        await operator.remove(leader)
        assert [name for name, _ in await operator.list()] == cluster.masters
        assert leader not in cluster.masters
        await client.create("c1-1")
        asked = world.client("asker").peers
        await world.wait_until(
            lambda: world.server(leader).group.state is MasterState.REMOVED, 5, "it knows"
        )
        told = await asked.call(world.address(leader), MASTER_INFO, AskMaster(), timeout_s=1.0)
        assert told.body.state is MasterState.REMOVED
        with pytest.raises(NotLeader, match="a master no more"):
            await asked.call(world.address(leader), LIST_TABLES, ListTables(), timeout_s=1.0)
        await asyncio.sleep(5.0)  # it disturbs nobody
        term = world.server(cluster.leader() or "")._replicas
        assert all(replica.term <= 3 for replica in term.values())

    run(2, story)


def test_a_master_that_lost_its_disk_is_replaced_under_a_new_uuid() -> None:
    """It comes back as another, waits, is added, and then the lost one goes."""

    async def story(world: World) -> None:
        cluster, operator, client = await start(world)
        await client.create("c1-0")
        victim = next(name for name in cluster.masters if name != cluster.leader())
        old = world.server(victim).info.uuid
        world.crash(victim, lose_disk=True)
        await world.wait_ready(victim)
        await world.wait_until(
            lambda: world.server(victim).group.state is MasterState.JOINING, 10, "it waits"
        )
        assert world.server(victim).info.uuid != old
        await operator.add(victim)
        found = await operator.remove(old)
        assert len(found.members) == 3
        assert all(m.voter and m.uuid != old for m in found.members)
        await client.create("c1-1")
        other = next(name for name in cluster.masters if name not in (victim, cluster.leader()))
        world.crash(other, restart=False)
        await client.create("c1-2")  # the new one makes the majority

    run(3, story)


def test_all_masters_are_replaced_and_clients_and_servers_follow() -> None:
    """None of the addresses that a client, a tserver or a backup was given is left in the end."""

    async def story(world: World) -> None:
        cluster, operator, client = await start(world)
        for number in range(3):
            name, gone = f"master-{number + 4}", f"master-{number + 1}"
            await operator.add(name)
            await operator.remove(gone)
            await client.create(f"c1-{number}")
            await client.look(f"c1-{number}")
            await world.stop(gone)
        assert sorted(cluster.masters) == ["master-4", "master-5", "master-6"]
        await asyncio.sleep(6.0)
        await client.list()
        for name in [*cluster.tservers, *cluster.backups]:
            world.restart(name)  # they find the masters by what they have stored
        await world.wait_ready(*cluster.tservers, *cluster.backups)
        await world.wait_until(
            lambda: beats_reach(world, cluster, cluster.leader() or "master-4"), 10, "heartbeats"
        )
        await client.create("c1-9")

    run(4, story)


def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    """Unknown names, strangers, the last master, a second change at once."""

    async def story(world: World) -> None:
        cluster, operator, _ = await start(world)
        with pytest.raises(InvalidArgument, match="there is no master 'nobody'; there are"):
            await operator.remove("nobody")
        tserver = world.server(cluster.tservers[0]).info
        with pytest.raises(InvalidArgument, match="is not a master"):
            await operator.ask_to_add(tserver.uuid, "x", tserver.address)
        cluster.start_master("master-4")
        await world.wait_ready("master-4")
        info = world.server("master-4").info
        with pytest.raises(RetryLater, match="already, and it lives"):
            await operator.ask_to_add(info.uuid, "master-1", info.address)
        world.partition(cluster.masters, ["master-4"])  # seen by nobody
        with pytest.raises(RetryLater, match="cannot see"):
            await operator.ask_to_add(info.uuid, "master-4", info.address)
        for name in list(cluster.masters)[1:]:
            await operator.remove(name)
        with pytest.raises(InvalidArgument, match="the last one"):
            await operator.remove(cluster.masters[0])

    run(5, story)


def test_late_copies_of_orders_neither_add_nor_remove_a_master_again() -> None:
    """One is added, removed, and added again: a copy of the first order, and then one of the
    second, arrives when the opposite has been ordered since; under the next leader, too."""

    async def story(world: World) -> None:
        cluster, operator, _ = await start(world)
        cluster.start_master("master-4")
        await world.wait_ready("master-4")
        info = world.server("master-4").info
        client = ClientId("another operator")
        added = AddMaster(RequestId(client, 1, 0), info.uuid, "master-4", info.address)
        removed = RemoveMaster(RequestId(client, 2, 0), info.uuid)

        async def tell(method: Any, order: Any) -> list[str]:
            found = await operator.masters.call(method, order, timeout_s=20.0)
            return [member.uuid for member in found.members]

        assert info.uuid in await tell(ADD_MASTER, added)
        await operator.add("master-4")
        assert info.uuid not in await tell(REMOVE_MASTER, removed)
        assert info.uuid not in await tell(ADD_MASTER, added)
        leader = cluster.leader()
        world.crash(leader or "")
        await world.wait_until(lambda: cluster.leader() not in (None, leader), 30, "a leader")
        assert info.uuid not in await tell(ADD_MASTER, added)
        await operator.add("master-4")
        assert info.uuid in await tell(REMOVE_MASTER, removed)

    run(7, story)


def test_an_addition_goes_on_under_the_next_leader_or_is_given_up() -> None:
    """The leader dies right after the entry; the next one promotes. One that is gone is let go."""

    async def story(world: World) -> None:
        cluster, operator, client = await start(world)
        cluster.start_master("master-4")
        await world.wait_ready("master-4")
        info = world.server("master-4").info
        order = AddMaster(operator.number(), info.uuid, "master-4", info.address)
        await operator.masters.call(ADD_MASTER, order, timeout_s=5.0)
        leader = cluster.leader()
        assert leader is not None
        world.crash(leader)
        await world.wait_until(lambda: cluster.leader() not in (None, leader), 30, "a leader")

        def promoted() -> bool:
            name = cluster.leader()
            members = world.server(name).group.members if name else ()
            return any(m.uuid == info.uuid and m.voter for m in members)

        await world.wait_until(promoted, 10, "the next leader promotes")
        cluster.start_master("master-5")
        await world.wait_ready("master-5")
        lost = world.server("master-5").info
        await operator.ask_to_add(lost.uuid, "master-5", lost.address)
        world.crash("master-5", lose_disk=True, restart=False)
        await asyncio.sleep(65.0)
        names = [name for name, _ in await operator.list()]
        assert "master-4" in names
        if world.server(cluster.leader() or "").group.members[-1].uuid == lost.uuid:
            raise AssertionError("a master that never came is still a member")
        await client.create("c1-0")

    run(6, story)


def test_a_founder_that_comes_late_founds_no_second_group() -> None:
    """It was down when the others founded the group, and one of them is another master by now."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        names = tuple(cluster.masters)
        await cluster.start()

        def late() -> list[str]:
            servers = {n: world.server(n) for n in names}
            return [n for n, server in servers.items() if not (server and server._replicas)]

        await world.wait_until(lambda: len(late()) == 1, 30, "two of three")
        (name,) = late()
        world.crash(name, restart=False)
        others = [n for n in cluster.masters if n != name]
        await world.wait_until(lambda: cluster.leader() in others, 30, "a leader")
        cluster.masters = others
        operator, client = Operator(world, cluster), DdlClient(world, cluster, "c1")
        await operator.add("master-4")  # so that the group can do without two
        await client.create("c1-0")
        victim = next(n for n in others if n != cluster.leader())
        world.crash(victim, lose_disk=True)
        await world.wait_ready(victim)
        world.restart(name)
        await world.wait_until(lambda: not late(), 30, "it takes part")
        stranger = world.server(victim).info.uuid
        assert stranger not in world.server(name).group.founders
        await client.create("c1-1")  # needs the late one's vote
        server = world.server(name)
        await world.wait_until(lambda: len(server.catalog.tables) == 2, 10, "it has caught up")
        assert stranger not in {member.uuid for member in server.group.members}
        assert server.group.state is MasterState.VOTER

    run(14, story)


def test_a_master_that_lost_its_disk_before_the_group_was_founded_is_no_founder() -> None:
    """The others found the group with the one they heard of, or not at all."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        world.partition(["master-2"], ["master-3"])
        world.partition(["master-3"], ["master-2"])
        await cluster.start()
        await asyncio.sleep(1.0)
        old = world.server("master-1").info.uuid
        world.crash("master-1", lose_disk=True)
        await world.wait_ready("master-1")
        world.heal()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        new = world.server("master-1").info.uuid
        for name in ("master-2", "master-3"):
            assert old in world.server(name).group.founders
            assert new not in world.server(name).group.founders

    run(8, story)


def test_a_master_that_lost_its_disk_founds_nothing_with_masters_that_only_load() -> None:
    """All are started again at once, and the others are asked before they have read their disks."""

    async def story(world: World) -> None:
        def listens(name: str) -> bool:
            server = world.server(name)
            return server is not None and server.group._self is not None

        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        for name in cluster.masters:
            world.crash(name, restart=False, lose_disk=name == "master-1")
        world.nodes["master-1"].disks_lost = 0  # who starts the whole cluster does not know
        world.restart("master-1")
        await world.wait_ready("master-1")
        for name in ("master-2", "master-3"):
            world.restart(name)
            await world.wait_until(partial(listens, name), 10, "it listens", poll_s=0.0001)
            world.nodes[name].disk.slowness = 2000.0  # it is asked before it has loaded
        await asyncio.sleep(1.0)
        for name in ("master-2", "master-3"):
            world.nodes[name].disk.slowness = 1.0
        stranger = world.server("master-1")
        await world.wait_until(
            lambda: cluster.leader() is not None and bool(stranger.group.newest),
            60,
            "the stranger hears of them",
        )
        assert stranger.group.state is MasterState.JOINING
        assert stranger.info.uuid not in {member.uuid for member in stranger.group.newest}

    run(10, story)


@pytest.mark.parametrize("max_staleness_s", [LINEARIZABLE, 5.0])
def test_who_knows_only_a_master_that_was_lost_finds_the_others(max_staleness_s: float) -> None:
    """What came in its place, started with no other name, hears of them because they ask for it."""

    async def story(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        operator = Operator(world, cluster)
        await operator.add("master-2")
        await operator.add("master-3")
        world.crash("master-1", lose_disk=True)
        await world.wait_ready("master-1")
        late = MastersClient(world.client("late"), [world.address("master-1")])
        question = ListTables(max_staleness_s=max_staleness_s)
        ask = late.call if max_staleness_s < 0 else late.call_any
        assert (await ask(LIST_TABLES, question, timeout_s=20.0)).tables == ()

    world = World(9, Options(servers=Servers(masters=1)))
    world.run(story(world))


@pytest.mark.parametrize(
    "seed", kept_seeds("reformed") + derive_seeds("reformed", SEEDS), ids=lambda seed: f"seed{seed}"
)
def test_masters_come_and_go_under_faults_and_ddl_goes_on(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command('reformed', seed)}\n{outcome.failure}"
