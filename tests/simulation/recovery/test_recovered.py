"""Recoveries of servers with nothing, with little, and of several at once. Stories on whole
clusters, after RAMCloud's tests (research, scenarios 5, 6, 11, 16 and 21)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stelae.client.table.table import AsyncTable
from stelae.coordinator.status.recoveries import PHASES
from stelae.core.errors import RetryLater
from stelae.core.messages.servers import TabletProgress
from stelae.core.records.records import TabletState
from stelae.core.schema.durability import Durability, segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.simulation.world.options import Limits, Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.wal.wal_cluster import SCHEMA, text
from tests.simulation.world.cluster_fixture import SimClusterFixture

CALL_S = 120.0
"""Who asks a server that is gone, and is not told so, waits half a minute."""
LOGS: list[Durability] = [segments("disk", "disk"), wal(3, segments=("disk", "disk"))]


class RecoveredFixture(SimClusterFixture):
    """A calm cluster with one table."""

    async def create(self, tablets: int, durability: Durability) -> AsyncTable:
        await self.start()
        return await self.database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", tablets),
            durability=durability,
            timeout=60.0,
        )

    def owners(self) -> list[str]:
        """Tablet servers that own a tablet, each as often as it does."""
        found = []
        for name in self.cluster.tservers:
            server = self.world.server(name)
            held = [] if server is None else server._tablets.values()
            found += [name for each in held if each.progress is TabletProgress.SERVING]
        return found

    async def until_served(self, tablets: int) -> None:
        await self.until(lambda: len(self.owners()) == tablets, "all are served")


def tell(story: Callable[[RecoveredFixture], Awaitable[None]]) -> None:
    servers = Servers(masters=3, tservers=3, backups=4, safekeepers=3)
    world = World(3, Options(servers=servers, limits=Limits(segment_size_bytes=4096)))
    here = RecoveredFixture(world)

    async def run() -> None:
        await story(here)

    world.run(run(), limit_s=600.0)


@pytest.mark.parametrize("durability", [segments(), *LOGS], ids=str)
def test_a_table_that_was_never_written_comes_back_empty(durability: Durability) -> None:
    """Nothing was written, and nothing is missing (RAM-572)."""

    async def story(here: RecoveredFixture) -> None:
        table = await here.create(2, durability)
        await here.until_served(2)
        for name in dict.fromkeys(here.owners()):
            here.world.crash(name)
        assert await table.count(timeout=CALL_S) == 0
        await table.upsert({"id": 1, "text": text(1)}, timeout=CALL_S)
        assert await table.get(1, timeout=CALL_S) == {"id": 1, "text": text(1)}

    tell(story)


def test_a_server_without_tablets_dies_and_nothing_is_recovered() -> None:
    """It is given up, and nobody else notices; once it is back it is as good as any other."""

    async def story(here: RecoveredFixture) -> None:
        table = await here.create(1, LOGS[0])
        await here.until_served(1)
        idle = next(name for name in here.cluster.tservers if name not in here.owners())
        here.world.crash(idle, restart=False)
        await asyncio.sleep(10.0)
        status = await here.database.status()
        assert status["recoveries"] == []
        await table.upsert({"id": 1, "text": text(1)}, timeout=CALL_S)
        here.world.restart(idle)
        for name in here.cluster.tservers:
            if name != idle:
                here.world.crash(name, restart=False)
        assert await table.get(1, timeout=CALL_S) == {"id": 1, "text": text(1)}
        assert here.owners() == [idle]

    tell(story)


@pytest.mark.parametrize("durability", LOGS, ids=str)
def test_tablets_of_all_servers_come_back_to_those_that_are_left_or_join(
    durability: Durability,
) -> None:
    """Two of three die at the same moment; then the third, and for a while there is nobody."""

    async def story(here: RecoveredFixture) -> None:
        table = await here.create(6, durability)
        await here.until_served(6)
        await table.upsert([{"id": n, "text": text(n)} for n in range(60)], timeout=CALL_S)
        first, second, third = here.cluster.tservers
        for name in (first, second):
            here.world.crash(name, restart=False)
        await here.until_served(6)
        assert dict.fromkeys(here.owners()) == {third: None}
        assert await table.count(timeout=CALL_S) == 60
        here.world.crash(third, restart=False)
        with pytest.raises(RetryLater):
            await table.count(timeout=8.0)
        here.world.restart(second)
        assert await table.count(timeout=CALL_S) == 60
        rows = (await table.scan(timeout=CALL_S)).to_pylist()
        assert {row["id"]: row["text"] for row in rows} == {n: text(n) for n in range(60)}

    tell(story)


@pytest.mark.parametrize("phase", PHASES)
def test_a_leader_that_dies_at_any_step_leaves_a_recovery_that_goes_on(phase: str) -> None:
    """What was handed over is not recovered again; what the other attempt began is given up."""

    async def story(here: RecoveredFixture) -> None:
        table = await here.create(8, LOGS[0])
        await here.until_served(8)
        rows = [{"id": n, "text": text(n)} for n in range(120)]
        await table.upsert(rows, timeout=CALL_S)
        victim = here.owners()[0]
        lost = here.owners().count(victim)
        here.world.crash(victim, restart=False)
        leader = await _reached(here, phase)
        catalog = here.world.server(leader).catalog
        handed_over = {
            tablet.tablet_id: tablet.term
            for tablet in catalog.live_tablets()
            if tablet.state is TabletState.RUNNING
        }
        here.world.crash(leader, restart=False)
        await here.until_served(8)
        assert victim not in here.owners()
        await here.world.wait_until(lambda: here.cluster.leader() is not None, 30.0, "a leader")
        found = here.world.server(here.cluster.leader() or "").catalog.live_tablets()
        terms = {tablet.tablet_id: tablet.term for tablet in found}
        assert {t: terms[t] for t in handed_over} == handed_over, "recovered again"
        assert len(handed_over) >= (8 - lost if phase != "running" else 9 - lost)
        assert (await table.scan(timeout=CALL_S)).num_rows == 120
        await table.upsert({"id": 200, "text": text(200)}, timeout=CALL_S)

    tell(story)


async def _reached(here: RecoveredFixture, phase: str) -> str:
    """The leader whose recovery has brought a tablet to that phase, in the very moment."""
    while True:
        leader = here.cluster.leader()
        coordinator = None if leader is None else here.world.server(leader).coordinator
        for recovery in coordinator.recoveries._all if coordinator is not None else ():
            if leader and any(phase in each.reached for each in recovery.tablets.values()):
                return leader
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("durability", LOGS, ids=str)
def test_a_key_that_is_made_again_after_a_crash_has_a_higher_version(
    durability: Durability,
) -> None:
    """Also if its tombstone, in the open head, is the only trace of it."""

    async def story(here: RecoveredFixture) -> None:
        table = await here.create(1, durability)
        last = 0
        for _ in range(3):
            for n in range(30):
                (last,) = await table.upsert({"id": 1, "text": text(n)}, timeout=CALL_S)
            (deleted,) = await table.delete(1, timeout=CALL_S)
            assert deleted > last
            (owner,) = here.owners()
            here.world.crash(owner)
            assert await table.get(1, timeout=CALL_S) is None
            (made,) = await table.insert({"id": 1, "text": "again"}, timeout=CALL_S)
            assert made > deleted

    tell(story)
