"""What becomes of rows whatever becomes of the Spark engine that a recovery has asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.servers import (
    OPEN_TABLET,
    OpenTablet,
    RecoveryEngine,
)
from stelae.recovery.engine import RecoveryJob, SparkState
from stelae.recovery.spark_job import (
    install,
)
from stelae.storage.keys.merge import Summary
from stelae.storage.keys.winners import find_winners
from tests.cluster_fixture import LocalCluster
from tests.unit.recovery.spark_jobs import (
    SETTINGS,
    FailingEngine,
    TaskEngine,
    contents,
    fetch,
    loaded,
    recover_with,
    summaries_of,
)


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
            *before, last = summaries_of(await fetch(runtime, job))
            but_one = slice(len(last) - 1)
            versions, kinds = last.versions_of(but_one), last.kinds_of(but_one)
            keys = None if last.keys is None else last.keys[:-1]
            shorter = Summary(last.hashes[:-1], versions, kinds, keys)
            await install(runtime, SETTINGS, job, find_winners([*before, shorter]))
        return {}

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.runtime = cluster.client_runtime("other")


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
            summaries = summaries_of(await fetch(self.runtime, job))
            if fails and self.step == "fetched":
                self._fail()
            merges[job.tablet.tablet_id] = find_winners(summaries)
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
        never: asyncio.Future[Mapping[TabletId, str]] = asyncio.get_running_loop().create_future()
        return await never


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
            await peers.call(
                job.owner.address, OPEN_TABLET, order, timeout_s=5.0, destination=job.owner.uuid
            )
        assert await contents(cluster.database) == before


async def test_spark_that_never_answers_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience follows what was expected of it; then the owners merge what they have."""
    monkeypatch.setattr("stelae.actors.master.leader.recovery.SPARK_PATIENCE_S", 0.2)
    monkeypatch.setattr("stelae.actors.master.leader.recovery.SPARK_SLACK", 0.0)
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
    rounds = "stelae.actors.master.leader.recovery"
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
