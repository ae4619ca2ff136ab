"""Jobs of the Spark engine over real backups, without Spark around them, and engines that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.actors.tserver.tablet_log.recovery import Intake, fetch_segments, recovered_segments
from stelae.client.database import AsyncDatabase
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, TabletId
from stelae.core.messages.backups import INVENTORY, Inventory
from stelae.core.messages.catalog import GET_TABLE, GetTable
from stelae.core.messages.servers import SegmentSource
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Replicas
from stelae.core.schema.partition import hash_partition
from stelae.recovery.engine import RecoveryJob, SparkEngine, SparkState
from stelae.recovery.near_replicas import NearReplicas
from stelae.recovery.plan import plan_recovery
from stelae.recovery.spark_job import (
    TabletOutcome,
    encode_jobs,
    merge_group,
)
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_log import LogSegment, fetch_log
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Merged, Summary
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster

SETTINGS = Settings(
    heartbeat_s=0.05, lease_s=0.5, dead_after_s=0.6, raft_tick_s=0.02, segment_bytes=64 << 10
)
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
BY_NAME = pa.schema([pa.field("name", pa.string(), False), pa.field("n", pa.int32(), False)])

_NUMBERS = itertools.count()


@asynccontextmanager
async def loaded(root: Path, **options: Any) -> AsyncIterator[LocalCluster]:
    """A cluster with tables of exact and of inexact keys: several segments, overwrites, deletes."""
    async with local_cluster(root, settings=SETTINGS, **options) as cluster:
        db = cluster.database
        numbers = await db.create_table(
            "numbers", SCHEMA, key="id", partition=hash_partition("id", 2)
        )
        names = await db.create_table("names", BY_NAME, key=["name", "n"])
        for start in range(0, 4000, 500):
            ids = np.arange(start, start + 1500)
            await numbers.upsert(pa.table({"id": ids, "text": [f"{i} {start}" * 5 for i in ids]}))
            texts = [f"name {i}" * 8 for i in ids]
            await names.upsert(pa.table({"name": texts, "n": (ids % 3).astype("i4")}))
        await numbers.delete(list(range(100, 200)))
        await names.delete([("name 7" * 8, 1)])
        await numbers.upsert({"id": 150, "text": "again"})
        yield cluster


async def jobs_of(cluster: LocalCluster, name: str) -> list[RecoveryJob]:
    """What a recovery of each tablet would be told, from what the backups hold now."""
    peers = cluster.client_runtime("planner").peers
    located = await peers.call(
        cluster.master_addresses[0], GET_TABLE, GetTable(name), timeout_s=5.0
    )
    jobs = []
    durability = located.body.table.durability
    assert not isinstance(durability, Replicas)
    for location in located.body.tablets:
        tablet = location.tablet
        held = {}
        for backup in cluster.backups:
            request = Inventory((tablet.tablet_id,))
            reply = await peers.call(
                backup.info.address, INVENTORY, request, timeout_s=5.0, destination=backup.info.uuid
            )
            held[backup.info] = reply.body.logs[0]
        owner = next(t.info for t in cluster.tservers if t.info.uuid == tablet.owner)
        sources = plan_recovery(tablet, len(durability.media), held)
        jobs.append(RecoveryJob(located.body.table, tablet, sources, owner))
    return jobs


async def native_summaries(cluster: LocalCluster, job: RecoveryJob) -> list[Summary]:
    """The summaries as the tserver that takes over makes them."""
    runtime = cluster.client_runtime(f"native-{next(_NUMBERS)}")
    codec = KeyCodec(job.table.schema)
    fetched = await fetch_segments(runtime, SETTINGS, job.tablet.tablet_id, job.sources, Intake())
    assert any(one.tail is not None for one in fetched), "sealed segments come as tails"
    ids = itertools.count(1 << 40)
    found = await recovered_segments(runtime, fetched, ids.__next__, codec, job.tablet.term)
    return [segment.summary for segment in found]


async def fetch(runtime: Runtime, job: RecoveryJob) -> list[LogSegment]:
    """A log as a task reads it."""
    return await fetch_log(runtime, SETTINGS, job, NearReplicas(runtime))


def summaries_of(segments: Sequence[LogSegment]) -> list[Summary]:
    """What is merged of them."""
    return [segment.summary for segment in segments]


def assert_same(one: Merged, other: Merged) -> None:
    """Two merges are the same, element for element."""
    for mine, theirs in zip(one.index.entries(), other.index.entries(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(one.live) == len(other.live)
    for my_live, their_live in zip(one.live, other.live, strict=True):
        np.testing.assert_array_equal(my_live, their_live)
    assert one.next_version == other.next_version


def moved_away(source: SegmentSource, count: int) -> SegmentSource:
    """The same source, its first ``count`` replicas at an address where nobody listens."""
    gone = tuple((uuid, Address("127.0.0.1:1"), medium) for uuid, _, medium in source.replicas)
    return msgspec.structs.replace(source, replicas=(*gone[:count], *source.replicas[count:]))


# ---- whole recoveries -----------------------------------------------------------------------


class TaskEngine:
    """The Spark engine with its tasks run here: as threads, each with its own connections."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.link = ClusterLink(CLUSTER, cluster.master_addresses, SECRET, SETTINGS)
        self.calls = 0
        self.outcomes: list[TabletOutcome] = []
        self.state = SparkState(cores=2, start_s=0.0)

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        self.calls += 1
        outcomes = await asyncio.to_thread(merge_group, self.link, encode_jobs(jobs))
        self.outcomes += outcomes
        return {one.tablet_id: one.problem for one in outcomes if one.problem}


class FailingEngine(TaskEngine):
    """Spark is there, and every job fails."""

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        self.calls += 1
        raise StelaeError("the executors are gone")


async def contents(db: AsyncDatabase) -> dict[str, pa.Table]:
    """All rows of all tables with their versions, by key."""
    found = {}
    for name in ("numbers", "names"):
        table = await db.table(name)
        rows = await table.scan(with_versions=True)
        found[name] = rows.sort_by([(column, "ascending") for column in table.key])
    return found


async def recover_with(cluster: LocalCluster, engine: SparkEngine) -> dict[str, Any]:
    """Stop a tserver that has tablets; the status of their recovery once all are back."""
    cluster.masters[0].spark_engine = engine
    before = await contents(cluster.database)
    victim = max(cluster.tservers, key=lambda tserver: len(tserver.reports()))
    await victim.stop()
    assert await contents(cluster.database) == before
    numbers = await cluster.database.table("numbers")
    versions = await numbers.upsert([{"id": i, "text": "after"} for i in (1, 150, 9999)])
    assert versions.min() > before["numbers"]["_version"].to_numpy().max() // 4
    assert (await numbers.get(150)) == {"id": 150, "text": "after"}
    status = await cluster.database.status()
    return dict(status["recoveries"][0])
