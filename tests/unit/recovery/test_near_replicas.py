"""Logs of this machine that are read past the backups, from the files that these write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.backup.holdings import Holdings
from stelae.core.buffers import BufferPool
from stelae.core.ids import TabletId
from stelae.core.messages.backups import READ_SUMMARIES, ReadSummaries
from stelae.recovery.engine import RecoveryJob
from stelae.recovery.near_replicas import NearReplica, NearReplicas
from stelae.recovery.spark_log import fetch_log
from stelae.runtime.near_files import CachedFile
from stelae.runtime.real import RealRuntime
from stelae.storage.keys.merge import merge
from tests.unit.recovery.spark_jobs import SETTINGS, assert_same, jobs_of, loaded, summaries_of
from tests.until import until_async

fill_cached = CachedFile.fill_cached
READ_TIMEOUT_S = 60.0


def count(runtime: RealRuntime, name: str) -> float:
    """Of a metric, whatever its labels."""
    counts: dict[Any, float] = runtime.metrics.counts  # type: ignore[attr-defined]
    return sum(amount for (found, _), amount in counts.items() if found == name)


@pytest.mark.parametrize("pool", [None, BufferPool(1 << 20)])
async def test_what_is_read_past_the_backups_is_what_they_serve(
    tmp_path: Path, pool: BufferPool | None
) -> None:
    """Tails of images and rows of heads, byte for byte; memory of before serves as well."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("near")
        near = NearReplicas(runtime, pool)
        jobs = await jobs_of(cluster, "names")
        assert any(job.sources for job in jobs)
        for job in jobs:

            async def read(job: RecoveryJob = job) -> dict[int, NearReplica] | None:
                found = await near.read(job.tablet.tablet_id, job.sources)
                return found if found.keys() == set(range(len(job.sources))) else None

            # The kernel may have dropped a file from memory: another look takes other replicas.
            found = await until_async(read, READ_TIMEOUT_S, "all is read past the backups")
            for place, replica in found.items():
                source = job.sources[place]
                backup, address, _ = source.replicas[0]
                reply = await runtime.peers.call(
                    address,
                    READ_SUMMARIES,
                    ReadSummaries(job.tablet.tablet_id, (source.segment_id,)),
                    timeout_s=5.0,
                    destination=backup,
                )
                assert replica.info.segment_id == source.segment_id
                assert bytes(replica.data) == bytes(memoryview(reply.blobs[0]))


def flipped(where: float) -> Callable[..., bool]:
    """Reads of which one bit is wrong, so far into what is read."""

    def fill(self: CachedFile, offset: int, buffer: memoryview) -> bool:
        is_here = fill_cached(self, offset, buffer)
        buffer[int(where * (len(buffer) - 1))] ^= 4
        return is_here

    return fill


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.97, 1.0])
async def test_what_is_not_as_the_backup_says_is_read_from_the_backup(
    tmp_path: Path, where: float
) -> None:
    """In a summary, its meta or its end, or in rows: no wrong byte is believed."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        for job in await jobs_of(cluster, "names"):
            right = await fetch_log(runtime, SETTINGS, job, NearReplicas(runtime))
            with patch.object(CachedFile, "fill_cached", flipped(where)):
                found = await fetch_log(runtime, SETTINGS, job, NearReplicas(runtime))
            assert_same(merge(summaries_of(found)), merge(summaries_of(right)))
        assert count(runtime, "near_replicas_unlike") > 0


async def test_the_frames_of_another_image_are_not_taken_for_this_one(tmp_path: Path) -> None:
    """Its checksums fit each other, but its end is not the one that the backup has told."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        job = (await jobs_of(cluster, "numbers"))[0]
        sealed = [source.segment_id for source in job.sources if source.sealed]
        place_of = Holdings.place_of

        def misled(self: Holdings, replica: Any) -> Any:
            other = sealed[sealed.index(replica.segment_id) - 1]
            return place_of(self, self.find(TabletId(replica.tablet_id), other) or replica)

        sources = [source for source in job.sources if source.sealed]
        with patch.object(Holdings, "place_of", misled):
            found = await NearReplicas(runtime).read(job.tablet.tablet_id, sources)
        assert len(sealed) > 1
        assert found == {}


async def test_a_backup_whose_files_are_not_here_is_not_asked_again(tmp_path: Path) -> None:
    """One whose files are here, but not in memory just now, is."""
    async with loaded(tmp_path) as cluster:
        runtime = cluster.client_runtime("task")
        job = (await jobs_of(cluster, "numbers"))[0]
        near, asked = NearReplicas(runtime), []
        locate = Holdings.locate

        async def noted(self: Holdings, *which: Any) -> Any:
            asked.append(which)
            return await locate(self, *which)

        with patch.object(Holdings, "locate", noted):
            with patch.object(CachedFile, "fill_cached", lambda *given: False):
                assert await near.read(job.tablet.tablet_id, job.sources) == {}
            assert await near.read(job.tablet.tablet_id, job.sources) != {}
            with patch.object(type(runtime.disk), "open_near", lambda *given: None):
                while len(near._far) < 2:
                    assert await near.read(job.tablet.tablet_id, job.sources) == {}
            before = len(asked)
            assert await near.read(job.tablet.tablet_id, job.sources) == {}
            assert len(asked) == before
