"""The comparison of checksums on a whole cluster: at one index under load, and with damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.tserver.replicated_tablet.tablet import MARK_KEPT_S, ReplicatedTablet
from stelae.client.check.check import CheckReport
from stelae.client.check.facts import Severity
from stelae.client.database import AsyncDatabase
from stelae.core.errors import RetryLater, StelaeError
from stelae.core.messages.replicas import MARK_REPLICA, MarkReplica
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
TABLETS = 2


class Stage:
    """Three tservers, and a table with three replicas of each of its tablets."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world)
        self.database: AsyncDatabase
        self.table: Any

    async def begin(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        self.table = await self.database.create_table(
            "t",
            SCHEMA,
            key=["id"],
            partition=hash_partition("id", buckets=TABLETS),
            durability=replicas(3),
            timeout=30.0,
        )

    def tablets(self, name: str) -> list[ReplicatedTablet]:
        """The replicas that run on a server, by tablet."""
        server = self.world.server(name)
        found = [] if server is None else [server.replicas.tablet(i) for i in self.tablet_ids]
        return [tablet for tablet in found if tablet is not None]

    @property
    def tablet_ids(self) -> list[Any]:
        leader = self.cluster.leader()
        assert leader is not None
        return sorted(self.world.server(leader).catalog.tablets)

    async def write(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            await self.table.upsert({"id": number, "text": "x" * 50}, timeout=20.0)


def play(story: Callable[[Stage], Coroutine[Any, Any, None]], seed: int = 3) -> None:
    world = World(seed, Options())
    stage = Stage(world)

    async def told() -> None:
        await stage.begin()
        await story(stage)

    world.run(told(), limit_s=2000.0)


def texts(report: CheckReport) -> list[str]:
    return [f"{finding.section}: {finding}" for finding in report.findings]


def test_replicas_are_equal_at_one_index_while_writes_go_on() -> None:
    """Each comparison is at one index of each log; writes between mark and answer do not matter."""

    async def story(stage: Stage) -> None:
        writers = [asyncio.create_task(stage.write(1000 * n, 400)) for n in range(4)]
        await asyncio.sleep(0.1)
        indexes: list[int] = []
        while not all(writer.done() for writer in writers):
            report = await stage.database.check(checksums=True, wait=10)
            assert report.is_well, texts(report)
            checksums = report.document()["checksums"]
            assert (checksums["tablets"], checksums["equal"]) == (TABLETS, TABLETS)
            for each in checksums["answers"]:
                seen = {answer["index"] for answer in each["replicas"]}
                assert len(each["replicas"]) == 3
                assert len(seen) == 1
                indexes += seen
        assert len(indexes) > 4 * TABLETS, "comparisons were made under load"
        await asyncio.gather(*writers)
        for name in stage.cluster.tservers:
            assert [t.machine.marked_index for t in stage.tablets(name)] == [0] * TABLETS

    play(story)


def test_a_replica_with_other_rows_is_named_and_the_check_fails() -> None:
    """A row that one replica holds in another form is found, and which server it is on."""

    async def story(stage: Stage) -> None:
        await stage.write(0, 40)
        victim = stage.cluster.tservers[1]
        tablet = stage.tablets(victim)[0]
        index = tablet.machine.applied_index
        tablet.machine.memory.execute(WriteOp.UPSERT, ((10_000, "from nowhere"),), None, index)
        report = await stage.database.check(checksums=True, wait=10)
        (finding,) = report.problems
        assert not report.is_well
        assert finding.severity is Severity.ERROR
        assert "replicas differ" in finding.text
        told = finding.text.removeprefix("replicas differ: ").split("; ")
        assert sorted("," in servers.split(": ")[0] for servers in told) == [False, True]
        assert [servers for servers in told if servers.startswith(f"{victim}: ")], told
        document = report.document()["checksums"]
        assert (document["tablets"], document["equal"]) == (TABLETS, TABLETS - 1)

    play(story)


@pytest.mark.soak
def test_rows_kept_for_a_comparison_that_nobody_makes_are_let_go_of() -> None:
    """Also those of a mark that is read from the log after a restart."""

    async def story(stage: Stage) -> None:
        await stage.write(0, 10)
        tablet_id = stage.tablet_ids[0]
        driver = stage.world.client("driver")
        marked = None
        for name in stage.cluster.tservers * 3:
            try:
                order = MarkReplica(tablet_id)
                address = stage.world.server(name).info.address
                marked = await driver.peers.call(address, MARK_REPLICA, order, timeout_s=5.0)
                break
            except StelaeError:  # it does not lead
                await asyncio.sleep(0.1)
        assert marked is not None

        def kept() -> list[int]:
            found = [t for name in stage.cluster.tservers for t in stage.tablets(name)]
            return [t.machine.marked_index for t in found if t.tablet_id == tablet_id]

        index = marked.body.index
        await stage.world.wait_until(lambda: kept() == [index] * 3, 10.0, "all keep the mark")
        for name in stage.cluster.tservers:
            stage.world.crash(name)
        await stage.world.wait_until(lambda: kept() == [index] * 3, 60.0, "they keep it anew")
        await asyncio.sleep(MARK_KEPT_S + 1.0)
        assert kept() == [0] * 3
        report = await stage.database.check(checksums=True, wait=10)
        assert report.is_well, texts(report)

    play(story)


def test_a_comparison_survives_a_change_of_leader() -> None:
    """What cannot be compared at one mark is compared at the next; a dead server is a warning."""

    async def story(stage: Stage) -> None:
        await stage.write(0, 10)
        checks = asyncio.create_task(stage.database.check(checksums=True, wait=10))
        tablet = next(
            t for n in stage.cluster.tservers for t in stage.tablets(n) if t.replica.is_leader
        )
        try:
            await tablet.replica.transfer_leadership(None, 5.0)
        except RetryLater:
            await asyncio.sleep(0)
        report = await checks
        assert report.is_well, texts(report)

    play(story)
