"""Masters in the simulated world: golden stories, and seeds of the ``masters`` scenario."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import StelaeError, TableExists
from stelae.core.ids import ClientId, RequestId, ServerUuid
from stelae.core.messages.catalog import CREATE_TABLE, CreateTable
from stelae.core.records.records import ServerKind
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from tests.simulation.masters import masters
from tests.simulation.masters.ddl_client import DdlClient
from tests.simulation.masters.planted_masters import BUGS

SEEDS = 6
BUG_SEEDS = 150


async def start(world: World) -> tuple[SimCluster, Any]:
    """A calm cluster with a leader, and a client."""
    cluster = SimCluster(world)
    await cluster.start()
    await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
    return cluster, DdlClient(world, cluster, "c1")


def whole(world: World, cluster: SimCluster) -> bool:
    return bool(masters.in_order(world, cluster))


def leader_of(world: World, cluster: SimCluster) -> Any:
    name = cluster.leader()
    assert name is not None
    return world.server(name)


def test_a_table_is_created_served_and_deleted_without_a_trace() -> None:
    """The whole life of a table; nothing is left on tservers when it is gone."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        assert await client.create("t")
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served")
        assert await client.look("t")
        await client.delete("t")
        assert await client.look("t") is None
        await world.wait_until(
            lambda: not any(world.server(name).reports() for name in cluster.tservers),
            10,
            "all tablets closed",
        )

    world = World(1, Options())
    world.run(story(world))


def test_a_killed_tserver_is_replaced_within_moments() -> None:
    """A visible crash: from the kill to the order to open, 150 ms at most; all tablets at once, and
    the page tells when they came to each phase."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        await asyncio.sleep(1.0)  # all servers have been heard, and are watched
        made = 0
        for number in range(40):  # the client may be impatient
            made += made < 4 and await client.create(f"c1-{number}", buckets=4) is not None
        assert made == 4
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served")
        leader = leader_of(world, cluster)
        seen = leader.liveness.live(ServerKind.TSERVER, leader._runtime.clock.monotonic())
        owners = [each.server for each in seen]
        lists = [list(leader.catalog.owned_by(o.uuid, o.incarnation)) for o in owners]
        owned, victim = max(zip(lists, owners, strict=True), key=lambda pair: len(pair[0]))
        assert len(owned) >= 4 * made / len(seen)
        killed = world.loop.time()
        world.crash(victim.name)

        def opened() -> bool:
            pages = leader.coordinator.recoveries.describe()
            return bool(pages) and pages[0]["phases_s"].get("opened") is not None

        await world.wait_until(opened, 2, "new owners told to open", poll_s=0.001)
        assert world.loop.time() - killed <= 0.15
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served again")
        page = leader.coordinator.recoveries.describe()[0]
        assert (page["server"], page["state"]) == (victim.name, "done")
        assert page["tablets_running"] == len(owned)
        phases = [page["phases_s"][name] for name in ("raised", "fenced", "planned", "opened")]
        assert phases == sorted(phases)

    for seed in (3, 11, 19, 22, 22053):
        world = World(seed, Options())
        world.run(story(world))


def test_a_recovery_begun_by_one_leader_is_finished_by_the_next() -> None:
    """The leader dies right after the tserver: everything goes on from replicated state."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        for number in range(3):
            await client.create(f"c1-{number}")
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served")
        leader = cluster.leader()
        assert leader is not None
        world.crash(cluster.tservers[0])
        await asyncio.sleep(0.01)
        world.crash(leader)
        await world.wait_until(lambda: whole(world, cluster), 60, "all tablets served again")
        assert cluster.leader() != leader

    for seed in range(5):
        world = World(seed, Options())
        world.run(story(world))


def test_a_create_right_after_an_election_finds_all_tservers() -> None:
    """KUDU-1358: every master hears every heartbeat, so a new leader's cache is warm."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        await asyncio.sleep(1.0)
        leader = cluster.leader()
        assert leader is not None
        world.crash(leader)
        await world.wait_until(lambda: cluster.leader() not in (None, leader), 30, "a new leader")
        new = leader_of(world, cluster)
        now = new._runtime.clock.monotonic()
        assert len(new.liveness.live(ServerKind.TSERVER, now)) == len(cluster.tservers)
        assert await client.create("t")
        await world.wait_until(lambda: whole(world, cluster), 30, "all tablets served")

    world = World(4, Options())
    world.run(story(world))


def test_a_delete_whose_calls_were_never_sent_is_done_under_the_next_leader() -> None:
    """KUDU-1374: the leader dies between the entry and the calls; nothing hangs on an event."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        await client.create("t")
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served")
        leader = cluster.leader()
        assert leader is not None
        world.partition([leader], cluster.tservers)
        await client.delete("t")
        world.crash(leader)
        world.unpartition([leader], cluster.tservers)
        await world.wait_until(
            lambda: not any(world.server(name).reports() for name in cluster.tservers),
            30,
            "all tablets closed",
        )

    world = World(5, Options())
    world.run(story(world))


def test_rays_death_notice_moves_tablets_only_after_the_lease() -> None:
    """Where a process cannot be seen, it has ended itself, or its lease has, before."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        await client.create("c1-0")
        await world.wait_until(lambda: whole(world, cluster), 10, "all tablets served")
        leader = leader_of(world, cluster)
        tablet = next(iter(leader.catalog.live_tablets()))
        owner = leader.liveness.newest(ServerUuid(tablet.owner)).server
        told = world.loop.time()
        for name in cluster.masters:
            world.server(name).server_died(owner.uuid, owner.incarnation)
        await world.wait_until(
            lambda: leader.catalog.tablets[tablet.tablet_id].term > tablet.term, 10, "a new owner"
        )
        old = world.server(owner.name)
        is_same_run = old is not None and old.info.incarnation == owner.incarnation
        assert not is_same_run or not old._lease.is_valid
        if is_same_run:
            assert world.loop.time() - told >= cluster.settings.lease_s / 2

    world = World(6, Options(one_machine=False))
    world.run(story(world))


def test_a_copy_of_a_refused_request_is_refused_for_ever() -> None:
    """A create was refused because of its name; once the name is free, a late copy does nothing."""

    async def story(world: World) -> None:
        cluster, client = await start(world)
        await client.create("t")
        table = (await client.list_records())[0]
        request = RequestId(ClientId("other"), 1, 1)
        order = CreateTable(request, "t", table.schema, table.partitioning, table.durability)
        caller = MastersClient(world.client("other"), list(cluster.addresses.values()))
        with pytest.raises(TableExists):
            await caller.call(CREATE_TABLE, order, timeout_s=5.0)
        await client.delete("t")
        with pytest.raises(TableExists):
            await caller.call(CREATE_TABLE, order, timeout_s=5.0)
        assert await client.look("t") is None

    world = World(7, Options())
    world.run(story(world))


def test_a_few_seeds_of_masters_under_faults() -> None:
    """All answers are those of one catalog; the cluster comes to rest in the one right state."""
    run_seeds(load_scenario("masters"), SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_of_the_masters_is_found(bug: str) -> None:
    """The simulator can see this bug; the same seed is fine without it."""
    scenario = load_scenario("masters")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None
