"""The Spark engine's tasks, over real TCP and real backups, without Spark around them.

What Spark adds (placing tasks) is shown by ``tests/cluster/test_spark.py``; what becomes of rows
when the engine fails, by `tests.unit.recovery.test_spark_engines`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stelae.actors.tserver.tablet_log.recovery import Intake, fetch_segments
from stelae.core.errors import SegmentsMissing
from stelae.core.schema.schema import RowKind
from stelae.recovery.spark_job import (
    merge_tablets,
)
from stelae.storage.keys.merge import Merged, Summary, merge
from stelae.storage.keys.winners import find_winners
from tests.unit.recovery.spark_jobs import (
    SETTINGS,
    assert_same,
    fetch,
    jobs_of,
    loaded,
    moved_away,
    native_summaries,
    summaries_of,
)


@pytest.mark.parametrize("table", ["numbers", "names"])
async def test_both_engines_make_the_same_merge_of_the_same_log(tmp_path: Path, table: str) -> None:
    """Summaries alone, fetched by a task, give what the rows at the tserver give."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        jobs = await jobs_of(cluster, table)
        assert any(len(job.sources) > 2 for job in jobs)
        assert any(not source.sealed for job in jobs for source in job.sources)
        for job in jobs:
            segments = await fetch(runtime, job)
            summaries, size_bytes = summaries_of(segments), sum(s.size_bytes for s in segments)
            native = await native_summaries(cluster, job)
            assert [len(s) for s in summaries] == [len(s) for s in native]
            assert 0 < size_bytes < job.size_bytes
            assert_same(merge(summaries), merge(native))


def replayed(summaries: Sequence[Summary]) -> dict[object, int]:
    """Plain Python, in the order of the log: the version of each key that lives."""
    rows: dict[object, int] = {}
    for summary in summaries:
        keys = summary.hashes if summary.keys is None else summary.keys
        kinds = [0] * len(summary) if summary.kinds is None else summary.kinds.tolist()
        versions = summary.versions_of(slice(None)).tolist()
        for key, version, kind in zip(keys.tolist(), versions, kinds, strict=True):
            if kind == RowKind.ROW:
                rows[key] = version
            else:
                rows.pop(key, None)
    return rows


def kept(merged: Merged, summaries: Sequence[Summary]) -> dict[object, int]:
    """The version of each key that a merge keeps."""
    rows: dict[object, int] = {}
    for position in merged.index.entries()[1].tolist():
        summary, row = summaries[position >> 32], position & 0xFFFFFFFF
        keys = summary.hashes if summary.keys is None else summary.keys
        key = keys[row].as_py() if isinstance(keys, pa.Array) else int(keys[row])
        assert key not in rows
        rows[key] = summary.version_of(row)
    return rows


@pytest.mark.parametrize("table", ["numbers", "names"])
async def test_a_log_out_of_order_and_doubled_is_to_both_engines_what_it_is_in_order(
    tmp_path: Path, table: str
) -> None:
    """Native, Spark's and plain Python: the same keys live, with the same versions."""
    async with loaded(tmp_path) as cluster:
        runtime, rng = cluster.client_runtime("task"), random.Random(table)
        for job in await jobs_of(cluster, table):
            in_order = await native_summaries(cluster, job)
            expected = replayed(in_order)
            assert expected
            assert sum(len(each) for each in in_order) > len(expected) + 100, "much was replaced"
            assert kept(merge(in_order), in_order) == expected
            highest = merge(in_order).next_version
            for _ in range(3):
                sources = [*job.sources, *rng.sample(job.sources, rng.randint(1, len(job.sources)))]
                rng.shuffle(sources)
                mixed = replace(job, sources=tuple(sources))
                by_spark = summaries_of(await fetch(runtime, mixed))
                native = await native_summaries(cluster, mixed)
                assert_same(merge(by_spark), merge(native))
                for mine, theirs in zip(find_winners(by_spark), merge(native).live, strict=True):
                    np.testing.assert_array_equal(mine, theirs)
                assert kept(merge(by_spark), by_spark) == expected
                assert merge(native).next_version == highest


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
        assert_same(merge(summaries_of(await fetch(runtime, early))), merge(native))
        assert_same(merge(native), merge(summaries_of(await fetch(runtime, job))))


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


async def test_a_replica_that_is_gone_is_answered_for_by_the_next(tmp_path: Path) -> None:
    """One reachable replica of each segment is enough, whichever it is."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        job = (await jobs_of(cluster, "names"))[0]
        whole = summaries_of(await fetch(runtime, job))
        partly = replace(job, sources=tuple(moved_away(source, 1) for source in job.sources))
        found = summaries_of(await fetch(runtime, partly))
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
            await fetch(runtime, lost)
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
