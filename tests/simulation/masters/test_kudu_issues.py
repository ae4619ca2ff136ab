"""The known issues of Kudu's masters, as the seed names them: none of them can happen here.

Each story runs on real servers in the simulated world, and fails without the protection it is
about: the last tests take each protection away and see that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver.tablet.load_rate import LoadRate
from stelae.client.database import AsyncDatabase
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.errors import OutcomeUnknown, RetryLater, StelaeError, TooStale
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.catalog import CREATE_TABLE, GET_TABLE, CreateTable, GetTable
from stelae.core.messages.reports import Picture
from stelae.core.records.records import TabletState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.masters import masters

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
Story = Callable[[World], Coroutine[Any, Any, None]]


def tell(story: Story, seed: int = 1) -> None:
    """Run a story in a calm world."""
    world = World(seed, Options())
    world.run(story(world))


async def start(world: World) -> tuple[SimCluster, AsyncDatabase]:
    """A cluster with a leader, and a client that writes no rows."""
    cluster = SimCluster(world)
    await cluster.start()
    await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
    return cluster, cluster.database("client")


async def create(database: AsyncDatabase, name: str, buckets: int = 3) -> None:
    await database.create_table(
        name,
        SCHEMA.arrow,
        key="id",
        partition=hash_partition("id", buckets=buckets),
        durability=segments(),
        timeout=30.0,
    )


def leader_of(world: World, cluster: SimCluster) -> Any:
    name = cluster.leader()
    assert name is not None
    return world.server(name)


async def depose(world: World, cluster: SimCluster) -> str:
    """Kill the leader; return its name once another leads."""
    old = cluster.leader()
    assert old is not None
    world.crash(old)
    await world.wait_until(lambda: cluster.leader() not in (None, old), 30, "a new leader")
    return old


def held(world: World, cluster: SimCluster) -> list[str]:
    """The tablets that running tservers hold."""
    servers = (world.server(name) for name in cluster.tservers)
    return [r.tablet_id for server in servers if server is not None for r in server.reports()]


# ---- the stories ----------------------------------------------------------------------------


async def kudu_1358(world: World) -> None:
    """Create in the very moment a new leader is there: on all tservers, at once."""
    cluster, database = await start(world)
    await asyncio.sleep(1.0)
    await depose(world, cluster)
    leader = leader_of(world, cluster)
    request = RequestId(ClientId("raw"), 1, 1)
    count = len(cluster.tservers)
    order = CreateTable(request, "t", SCHEMA, hash_partition("id", buckets=count), segments())
    address = cluster.addresses[cluster.leader() or ""]
    await database.runtime.peers.call(address, CREATE_TABLE, order, timeout_s=1.0)
    owners = {tablet.owner for tablet in leader.catalog.live_tablets()}
    assert len(owners) == count, "tablets pile up on the servers that were heard first"
    await world.wait_until(lambda: len(held(world, cluster)) == count, 10, "all tablets opened")


async def kudu_1353(world: World) -> None:
    """Where tablets are is known in the very moment a new leader is there, without any report."""
    cluster, database = await start(world)
    await create(database, "t")
    await world.wait_until(lambda: masters.in_order(world, cluster), 10, "all served")
    await depose(world, cluster)
    address = cluster.addresses[cluster.leader() or ""]
    found = await database.runtime.peers.call(address, GET_TABLE, GetTable("t"), timeout_s=1.0)
    assert all(location.address for location in found.body.tablets), "a location is not known"


async def kudu_1374(world: World) -> None:
    """The leader dies with its calls to tservers unsent; the next one finds what is to be done."""
    cluster, database = await start(world)
    await create(database, "t")
    await world.wait_until(lambda: len(held(world, cluster)) == 3, 10, "all tablets opened")
    await asyncio.sleep(2.0)  # reports have gone quiet: nothing changes any more
    leader = cluster.leader()
    assert leader is not None
    world.partition([leader], cluster.tservers)
    await database.delete_table("t")
    world.crash(leader)
    world.unpartition([leader], cluster.tservers)
    await world.wait_until(lambda: not held(world, cluster), 30, "all tablets closed")


async def kudu_495(world: World) -> None:
    """A leader that cannot replicate fails the operation, lives on, and keeps nothing of it."""
    cluster, database = await start(world)
    old = cluster.leader()
    assert old is not None
    master = world.server(old)
    lives = world.nodes[old].lives
    others = [name for name in cluster.masters if name != old]
    world.partition([old], others)
    request = RequestId(ClientId("raw"), 1, 1)
    order = CreateTable(request, "half", SCHEMA, hash_partition("id", buckets=2), segments())
    with pytest.raises(StelaeError):
        await database.runtime.peers.call(
            cluster.addresses[old], CREATE_TABLE, order, timeout_s=5.0
        )
    await world.wait_until(lambda: master.coordinator is None, 30, "the old leader to step down")
    await create(cluster.database("other"), "half", buckets=1)
    world.unpartition([old], others)
    await world.wait_until(
        lambda: len({world.server(name).catalog.snapshot() for name in cluster.masters}) == 1,
        30,
        "equal catalogs",
    )
    assert world.nodes[old].lives == lives, "the master did not live on"
    assert world.server(old).catalog.find("half").partitioning.tablet_count == 1
    await database.delete_table("half", timeout=30.0)


async def kudu_500(world: World) -> None:
    """Followers answer reads that may be a little old, as long as they can prove it."""
    cluster, database = await start(world)
    await create(database, "t")
    await asyncio.sleep(1.0)
    for name in cluster.masters:
        one = AsyncDatabase(database.runtime, [cluster.addresses[name]], cluster.settings)
        assert [t.name for t in await one.tables(max_staleness=1.0)] == ["t"]
        assert (await one.table("t", max_staleness=1.0)).name == "t"
        assert await one.is_create_done("t", max_staleness=1.0)
        located = await one.locate_table("t", max_staleness=1.0)
        assert located
        assert all(each.address for each in located)
        same = await one.locate([each.tablet.tablet_id for each in located], max_staleness=1.0)
        assert same == located
        assert (await one.status(max_staleness=1.0))["tables"][0]["name"] == "t"
    leader = cluster.leader()
    follower = next(name for name in cluster.masters if name != leader)
    others = [name for name in cluster.masters if name != follower]
    world.partition([follower], others)
    world.partition(others, [follower])
    await create(database, "u")
    alone = AsyncDatabase(world.client("alone"), [cluster.addresses[follower]], cluster.settings)
    world.partition(["alone"], others)
    world.partition(others, ["alone"])
    seen: list[tuple[float, list[str]]] = []
    cut_at = world.loop.time()
    while world.loop.time() < cut_at + 3.0:
        try:
            tables = await alone.tables(max_staleness=1.0, timeout=0.05)
        except TooStale:
            break
        except OutcomeUnknown:  # it has asked one of those that it is cut off from
            continue
        seen.append((world.loop.time(), [table.name for table in tables]))
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("a follower that was cut off answers for ever")
    assert seen, "it could have answered for a while"
    with pytest.raises(TooStale, match="may be"):
        await alone.tables(max_staleness=1.0, timeout=5.0)
    assert [t.name for t in await alone.tables(max_staleness=3600.0)] == ["t"]


async def two_of_three_down(world: World) -> None:
    """Reads that may be old go on; changes get `RetryLater` within their deadline."""
    cluster, database = await start(world)
    await create(database, "t")
    await asyncio.sleep(1.0)
    for name in cluster.masters[:2]:
        world.crash(name, restart=False)
    began = world.loop.time()
    assert [t.name for t in await database.tables(max_staleness=60.0)] == ["t"]
    assert (await database.table("t", max_staleness=60.0)).name == "t"
    assert world.loop.time() - began < 5.0
    began = world.loop.time()
    with pytest.raises(RetryLater):
        await database.delete_table("t", timeout=3.0)
    assert world.loop.time() - began < 3.5


# ---- the tests ------------------------------------------------------------------------------


def test_kudu_1358_a_create_right_after_an_election_knows_all_tservers() -> None:
    """Every master hears every heartbeat, so a new leader's knowledge of servers is warm."""
    tell(kudu_1358)


def test_kudu_1353_locations_are_known_right_after_an_election() -> None:
    """They follow from replicated records and liveness; there is no cache to warm."""
    tell(kudu_1353)


def test_kudu_1374_a_delete_whose_calls_were_never_sent_is_done_under_the_next_leader() -> None:
    """Level-triggered, from full reports to each new leader: no event can be missed."""
    tell(kudu_1374)


def test_kudu_495_a_failed_replication_fails_the_operation_never_the_master() -> None:
    """The draft is dropped and the name is free again."""
    tell(kudu_495)


def test_kudu_500_followers_answer_reads_of_bounded_staleness() -> None:
    """All of them, as long as their state is provably new enough, and no longer."""
    tell(kudu_500)


def test_with_two_of_three_masters_down_reads_go_on_and_changes_wait() -> None:
    """A minority can still say what it knows, and how old that may be."""
    tell(two_of_three_down)


def _deaf_followers(patch: pytest.MonkeyPatch) -> None:
    hear = Liveness.heartbeat

    def heartbeat(self: Liveness, beat: Any, now: float) -> Any:
        return hear(self, beat, now) if self._is_leader else None

    patch.setattr(Liveness, "heartbeat", heartbeat)


def _edge_triggered(patch: pytest.MonkeyPatch) -> None:
    """Each change is told once, to every master; a leader takes a part for the whole."""

    def take(self: Picture, beat: Any, now: float) -> bool:
        self.number = max(self.number, beat.number)
        for report in beat.tablets:
            self._put(report)
        return True

    patch.setattr(Picture, "take", take)
    from stelae.core.messages import reports

    def quiet(self: Any, current: Any) -> Any:
        self._number += 1
        self._compare(current)
        changed = tuple((i, current[i]) for i in self._dirty if i in current)
        self._dirty.clear()
        return reports.Report(self._number, self._number - 1, changed, (), 0)

    patch.setattr(reports.Reporter, "next", quiet)
    patch.setattr(reports.Reporter, "wants_report", True)
    # Else what was lost is told again as soon as the tablet's load is another.
    patch.setattr(LoadRate, "look", lambda self, count, now_s: 0.0)


def _fatal_replication(patch: pytest.MonkeyPatch) -> None:
    change = Operations.change

    async def fatal(self: Operations, *args: Any, **kwargs: Any) -> Any:
        try:
            return await change(self, *args, **kwargs)
        except StelaeError as error:
            raise AssertionError("replication must not fail") from error

    patch.setattr(Operations, "change", fatal)


def _believing_followers(patch: pytest.MonkeyPatch) -> None:
    from stelae.actors.raft.staleness import Freshness

    patch.setattr(Freshness, "staleness_s", lambda self: 0.0)


def _forgetful_catalog(patch: pytest.MonkeyPatch) -> None:
    """Locations come from what is reported to this leader, not from records and liveness."""
    from stelae.actors.master.client_requests import ClientRequests
    from stelae.core.ids import Address
    from stelae.core.messages.catalog import TabletLocation

    locate = ClientRequests._locate

    def reported(self: Any, problems: Any, tablet: Any, now: float) -> Any:
        seen = self._master.liveness.newest(tablet.owner)
        if seen is None or tablet.tablet_id not in seen.reports:
            return TabletLocation(tablet, Address(""))
        return locate(self, problems, tablet, now)

    patch.setattr(ClientRequests, "_locate", reported)


@pytest.mark.parametrize(
    ("story", "remove"),
    [
        (kudu_1358, _deaf_followers),
        (kudu_1353, _forgetful_catalog),
        (kudu_1374, _edge_triggered),
        (kudu_495, _fatal_replication),
        (kudu_500, _believing_followers),
    ],
    ids=lambda value: value.__name__.strip("_"),
)
def test_without_its_protection_each_issue_is_back(
    story: Story, remove: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stories can fail: they do, once what they are about is taken away."""
    remove(monkeypatch)
    with pytest.raises(SimulationFailure):
        tell(story)


def test_the_record_of_a_deleted_tablet_stays_for_ever() -> None:
    """So that an unknown tablet is never taken for a deleted one."""

    async def story(world: World) -> None:
        cluster, database = await start(world)
        await create(database, "t", buckets=1)
        located = await database.locate_table("t")
        await database.delete_table("t")
        (gone,) = await database.locate([located[0].tablet.tablet_id])
        assert gone.tablet.state is TabletState.DELETED
        assert gone.address == ""
        assert "deleted with table 't'" in gone.problem
        restored = Catalog()
        restored.restore(leader_of(world, cluster).catalog.snapshot())
        assert restored.tablets[gone.tablet.tablet_id].state is TabletState.DELETED

    tell(story)
