"""The Spark engine's tasks, over real TCP and real backups, without Spark around them.

What Spark adds (placing tasks) is shown by ``tests/cluster/test_spark.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stelae.actors.tablet_recovery import Intake, fetch_segments, recovered_segments
from stelae.client.database import AsyncDatabase
from stelae.core.errors import SegmentsMissing, StelaeError
from stelae.core.ids import Address, TabletId
from stelae.core.messages import (
    GET_TABLE,
    INVENTORY,
    OPEN_TABLET,
    GetTable,
    Inventory,
    OpenTablet,
    RecoveryEngine,
    SegmentSource,
)
from stelae.core.partition import hash_partition
from stelae.core.settings import Settings
from stelae.recovery.engine import RecoveryJob, SparkEngine, SparkState
from stelae.recovery.plan import plan_recovery
from stelae.recovery.spark_job import (
    TabletOutcome,
    encode_jobs,
    install,
    merge_group,
    merge_tablets,
)
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_log import LogSegment, fetch_log
from stelae.storage.keys import KeyCodec
from stelae.storage.merge import Merged, Summary, merge

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster

SETTINGS = Settings(
    heartbeat_s=0.05, lease_s=0.5, dead_after_s=0.6, raft_tick_s=0.02, segment_bytes=64 << 10
)
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
BY_NAME = pa.schema([pa.field("name", pa.string(), False), pa.field("n", pa.int32(), False)])


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
    for location in located.body.tablets:
        tablet = location.tablet
        held = {}
        for backup in cluster.backups:
            request = Inventory((tablet.tablet_id,))
            reply = await peers.call(backup.info.address, INVENTORY, request, timeout_s=5.0)
            held[backup.info] = reply.body.logs[0]
        owner = next(t.info for t in cluster.tservers if t.info.uuid == tablet.owner)
        sources = plan_recovery(tablet, len(located.body.table.durability.media), held)
        jobs.append(RecoveryJob(located.body.table, tablet, sources, owner))
    return jobs


async def native_summaries(cluster: LocalCluster, job: RecoveryJob) -> list[Summary]:
    """The summaries as the tserver that takes over makes them."""
    runtime = cluster.client_runtime(f"native-{job.tablet.number}")
    codec = KeyCodec(job.table.schema)
    fetched = await fetch_segments(runtime, SETTINGS, job.tablet.tablet_id, job.sources, Intake())
    assert any(one.tail is not None for one in fetched), "sealed segments come as tails"
    ids = itertools.count(1 << 40)
    found = await recovered_segments(runtime, fetched, ids.__next__, codec, job.tablet.term)
    return [segment.summary for segment in found]


def summaries_of(segments: Sequence[LogSegment]) -> list[Summary]:
    """What is merged of them."""
    return [segment.summary for segment in segments]


def assert_same(one: Merged, other: Merged) -> None:
    """Two merges are the same, element for element."""
    np.testing.assert_array_equal(one.hashes, other.hashes)
    np.testing.assert_array_equal(one.positions, other.positions)
    assert len(one.live) == len(other.live)
    for mine, theirs in zip(one.live, other.live, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one.next_version == other.next_version


@pytest.mark.parametrize("table", ["numbers", "names"])
async def test_both_engines_make_the_same_merge_of_the_same_log(tmp_path: Path, table: str) -> None:
    """Summaries alone, fetched by a task, give what the rows at the tserver give."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        jobs = await jobs_of(cluster, table)
        assert any(len(job.sources) > 2 for job in jobs)
        assert any(not source.sealed for job in jobs for source in job.sources)
        for job in jobs:
            segments = await fetch_log(runtime, SETTINGS, job)
            summaries, size_bytes = summaries_of(segments), sum(s.size_bytes for s in segments)
            native = await native_summaries(cluster, job)
            assert [len(s) for s in summaries] == [len(s) for s in native]
            assert 0 < size_bytes < job.size_bytes
            assert_same(merge(summaries), merge(native))


async def test_what_is_sealed_after_it_was_planned_for_is_merged_all_the_same(
    tmp_path: Path,
) -> None:
    """A segment that was closed by then is an image when it is fetched, and comes whole."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        job = (await jobs_of(cluster, "names"))[0]
        late = next(n for n, source in enumerate(job.sources) if source.sealed)
        sources = list(job.sources)
        sources[late] = msgspec.structs.replace(sources[late], sealed=False)
        early = replace(job, sources=tuple(sources))
        native = await native_summaries(cluster, early)
        assert_same(merge(summaries_of(await fetch_log(runtime, SETTINGS, early))), merge(native))
        assert_same(merge(native), merge(summaries_of(await fetch_log(runtime, SETTINGS, job))))


async def test_an_image_that_comes_back_is_held_in_shared_memory(tmp_path: Path) -> None:
    """As one sealed here is: its rows are read from the buffer that its handle keeps alive."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("owner")
        job = (await jobs_of(cluster, "names"))[0]
        whole = msgspec.structs.replace(SETTINGS, metadata_first=False)
        fetched = await fetch_segments(runtime, whole, job.tablet.tablet_id, job.sources, Intake())
        images = [one for one in fetched if one.image is not None]
        assert images
        for one in images:
            assert one.handle is not None
            assert one.image is not None
            held = await runtime.objects.get(one.handle)
            assert one.image.buffer.address == held.address
            assert one.image.meta.segment_id == one.source.segment_id


def moved_away(source: SegmentSource, count: int) -> SegmentSource:
    """The same source, its first ``count`` replicas at an address where nobody listens."""
    gone = tuple((uuid, Address("127.0.0.1:1"), medium) for uuid, _, medium in source.replicas)
    return msgspec.structs.replace(source, replicas=(*gone[:count], *source.replicas[count:]))


async def test_a_replica_that_is_gone_is_answered_for_by_the_next(tmp_path: Path) -> None:
    """One reachable replica of each segment is enough, whichever it is."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        job = (await jobs_of(cluster, "names"))[0]
        whole = summaries_of(await fetch_log(runtime, SETTINGS, job))
        partly = replace(job, sources=tuple(moved_away(source, 1) for source in job.sources))
        found = summaries_of(await fetch_log(runtime, SETTINGS, partly))
        assert_same(merge(found), merge(whole))


async def test_a_segment_that_nobody_has_is_named_and_fails_its_tablet_alone(
    tmp_path: Path,
) -> None:
    """The outcome of that tablet says what is missing; others of the task are installed."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        jobs = await jobs_of(cluster, "numbers")
        lost = replace(jobs[0], sources=tuple(moved_away(s, 2) for s in jobs[0].sources))
        with pytest.raises(SegmentsMissing, match="readable replica"):
            await fetch_log(runtime, SETTINGS, lost)
        outcomes = await merge_tablets(runtime, SETTINGS, [lost, *jobs[1:]])
        assert "readable replica" in outcomes[0].problem
        assert [outcome.problem for outcome in outcomes[1:]] == [""] * (len(jobs) - 1)
        assert all(outcome.row_count for outcome in outcomes[1:])


async def test_a_merge_of_another_term_is_refused(tmp_path: Path) -> None:
    """A job that was overtaken by a new owner, or a new term, changes nothing."""
    async with loaded(tmp_path) as cluster:
        job = (await jobs_of(cluster, "names"))[0]
        late = replace(job, tablet=msgspec.structs.replace(job.tablet, term=job.tablet.term - 1))
        outcomes = await merge_tablets(cluster.client_runtime("task"), SETTINGS, [late])
        assert outcomes[0].problem


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


class PartlyFailingEngine(TaskEngine):
    """Spark installs all tablets but one of each job."""

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        done = await super().__call__(jobs[1:])
        return {**done, jobs[0].tablet.tablet_id: "its task was lost"}


class OtherReplicaEngine(TaskEngine):
    """Spark merges a head replica with one row less than the tserver has loaded."""

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        self.calls += 1
        runtime = self.runtime
        for job in jobs:
            *before, last = summaries_of(await fetch_log(runtime, SETTINGS, job))
            but_one = slice(len(last) - 1)
            versions, kinds = last.versions_of(but_one), last.kinds_of(but_one)
            keys = None if last.keys is None else last.keys[:-1]
            shorter = Summary(last.hashes[:-1], versions, kinds, keys)
            await install(runtime, SETTINGS, job, merge([*before, shorter]))
        return {}

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.runtime = cluster.client_runtime("other")


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


@pytest.mark.parametrize(
    ("kind", "calls", "outcomes"),
    [
        (TaskEngine, 1, [("spark", "done")]),
        (FailingEngine, 2, [("spark", "failed"), ("native", "done")]),
        (PartlyFailingEngine, 2, [("spark", "partly failed"), ("native", "done")]),
        (OtherReplicaEngine, 1, [("spark", "done")]),
    ],
)
async def test_every_row_and_version_is_back_whatever_becomes_of_the_spark_engine(
    tmp_path: Path, kind: type[TaskEngine], calls: int, outcomes: list[tuple[str, str]]
) -> None:
    """Tablets that Spark fails twice, or merges from another replica, come back natively."""
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        engine = kind(cluster)
        recovery = await recover_with(cluster, engine)
        assert engine.calls == calls
        assert [(use["engine"], use["outcome"]) for use in recovery["engines"]] == outcomes
        assert recovery["engine"] == outcomes[-1][0]
        for use in recovery["engines"]:
            assert use["took_s"] > 0
            assert use["expected_s"][use["engine"]] > 0
            assert bool(use["problem"]) == bool(use["failed"])
        assert recovery["engines"][0]["retries"] == calls - 1
        assert recovery["state"] == "done"


STEPS = ("nothing", "fetched", "merged", "one is installed", "all are installed")


class StepEngine(TaskEngine):
    """Its first calls end with an error once they have come so far; the others succeed."""

    def __init__(self, cluster: LocalCluster, step: str, failures: int, start_s: float) -> None:
        super().__init__(cluster)
        self.runtime = cluster.client_runtime("step")
        self.step, self.failures, self.start_s = step, failures, start_s

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        self.calls += 1
        fails = self.calls <= self.failures
        merges = {}
        if fails and self.step == "nothing":
            self._fail()
        for job in jobs:
            summaries = summaries_of(await fetch_log(self.runtime, SETTINGS, job))
            if fails and self.step == "fetched":
                self._fail()
            merges[job.tablet.tablet_id] = merge(summaries)
        if fails and self.step == "merged":
            self._fail()
        for job in jobs:
            await install(self.runtime, SETTINGS, job, merges[job.tablet.tablet_id])
            if fails and self.step == "one is installed":
                self._fail()
        if fails:
            self._fail()
        return {}

    def _fail(self) -> None:
        self.state = SparkState(cores=2, start_s=self.start_s)
        raise StelaeError("an executor was lost")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_job_that_ends_early_is_run_again_and_then_left_to_the_owners(
    tmp_path: Path, step: str, failures: int
) -> None:
    """Wherever it ends: nothing is taken in twice, and no recovery begins anew."""
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        engine = StepEngine(cluster, step, failures, start_s=0.0)
        recovery = await recover_with(cluster, engine)
        assert engine.calls == 2
        first = recovery["engines"][0]
        assert (first["retries"], first["problem"]) == (1, "an executor was lost")
        if failures == 1:
            assert [(use["engine"], use["outcome"]) for use in recovery["engines"]] == [
                ("spark", "done")
            ]
        assert {record.term for record in cluster.masters[0].catalog.tablets.values()} <= {1, 2}
        assert sum(len(tserver.reports()) for tserver in cluster.tservers[:2]) > 0


async def test_a_session_that_is_gone_is_not_asked_again(tmp_path: Path) -> None:
    """Another one takes half a minute to start: the owners merge at once."""
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        engine = StepEngine(cluster, "merged", 1, start_s=30.0)
        recovery = await recover_with(cluster, engine)
        assert engine.calls == 1
        assert [(use["engine"], use["retries"]) for use in recovery["engines"]] == [
            ("spark", 0),
            ("native", 0),
        ]


class HangingEngine(TaskEngine):
    """Spark never answers; the jobs that it was given are kept."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.given: asyncio.Future[Sequence[RecoveryJob]] = (
            asyncio.get_running_loop().create_future()
        )

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        self.calls += 1
        self.given.set_result(jobs)
        return await asyncio.get_running_loop().create_future()


async def test_a_tserver_that_is_told_to_open_natively_waits_for_spark_no_more(
    tmp_path: Path,
) -> None:
    """A new leader may choose the other engine for the same term: the order is repeated so."""
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        engine = cluster.masters[0].spark_engine = HangingEngine(cluster)
        before = await contents(cluster.database)
        await max(cluster.tservers, key=lambda tserver: len(tserver.reports())).stop()
        peers = cluster.client_runtime("leader").peers
        for job in await asyncio.wait_for(engine.given, 10.0):
            order = OpenTablet(job.table, job.tablet, job.sources, RecoveryEngine.NATIVE)
            await peers.call(job.owner.address, OPEN_TABLET, order, timeout_s=5.0)
        assert await contents(cluster.database) == before


async def test_spark_that_never_answers_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience follows what was expected of it; then the owners merge what they have."""
    monkeypatch.setattr("stelae.actors.recovery_rounds.SPARK_PATIENCE_S", 0.2)
    monkeypatch.setattr("stelae.actors.recovery_rounds.SPARK_SLACK", 0.0)
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        engine = HangingEngine(cluster)
        recovery = await recover_with(cluster, engine)
        assert engine.calls == 1
        spark, native = recovery["engines"]
        assert (spark["outcome"], spark["problem"]) == ("failed", "no end after 0.2 s")
        assert (native["engine"], native["outcome"]) == ("native", "done")


class LostLeaderEngine(TaskEngine):
    """Spark takes the order, and the leader that gave it is gone: nobody says anything any more."""

    async def __call__(self, jobs: Sequence[RecoveryJob]) -> Mapping[TabletId, str]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody waits for this")


async def test_owners_whom_nobody_tells_anything_merge_when_their_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader may be lost with what it had under way, and the next one does not order it again."""
    rounds = "stelae.actors.recovery_rounds"
    monkeypatch.setattr(f"{rounds}.SPARK_PATIENCE_S", 0.2)
    monkeypatch.setattr(f"{rounds}.SPARK_SLACK", 0.0)
    monkeypatch.setattr(f"{rounds}.OWNERS_LONGER_S", 0.2)
    monkeypatch.setattr(f"{rounds}.RecoveryRounds._go_on_natively", _say_nothing)
    async with loaded(tmp_path, engine="spark", tservers=2) as cluster:
        recovery = await recover_with(cluster, LostLeaderEngine(cluster))
        assert recovery["state"] == "done"
        counted = [tserver._runtime.metrics for tserver in cluster.tservers]
        assert sum(m.counts.get(("merges_not_offered", ()), 0) for m in counted) > 0  # type: ignore[attr-defined]


async def _say_nothing(*what: Any) -> None:
    return None
