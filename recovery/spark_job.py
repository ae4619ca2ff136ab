"""The recovery job: tablets' summaries merged by tasks of the whole cluster, results installed.

One task for each executor core, each with a group of tablets. A task reads the summaries, past the
backups where they lie on its machine, finds which rows win, as the native engine would, and hands
that to the tserver that takes the tablet over, which meanwhile reads the same (`INSTALL_MERGE`,
fenced by the term). Then it gives lost indexlets what the tablet has for them
(`stelae.recovery.spark_indexes`).
Only counts, times and errors go through Spark: rows through its JVM cost four times as much.

What a task does may be done twice: a second result changes nothing, and one of an earlier term is
refused. Source: design §9; seed RAMCloud master recovery (partial replay from summaries).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.core.buffers import BufferPool
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.servers import INSTALL_MERGE, InstallMerge
from stelae.core.runtime import Runtime
from stelae.recovery.engine import RecoveryJob
from stelae.recovery.near_replicas import NearReplicas
from stelae.recovery.spark_indexes import IndexOutcome, offer_indexes, promise_indexes
from stelae.recovery.spark_link import ClusterLink, connected
from stelae.recovery.spark_log import fetch_log
from stelae.storage.kernels.api import Bools
from stelae.storage.keys.merge import winners_as_bits
from stelae.storage.keys.winners import find_winners

CONCURRENT_TABLETS = 4
"""Of one task: some wait until the tablet itself can be compared with, for indexlets."""
CONCURRENT_MERGES = 2
"""Of one task, which has one core: one log is read while another is merged."""
POOL_BYTES = 256 << 20
"""Memory that is used for one tablet after the other: its first touch is what costs (§20)."""
logger = logging.getLogger(__name__)
encode_jobs = msgspec.msgpack.Encoder().encode
_decode_jobs = msgspec.msgpack.Decoder(tuple[RecoveryJob, ...]).decode


@dataclass(frozen=True, slots=True)
class TabletOutcome:
    """What became of one tablet in the job. ``problem`` empty: its merge is installed."""

    tablet_id: TabletId
    row_count: int = 0
    winner_count: int = 0
    summary_bytes: int = 0
    fetch_s: float = 0.0
    merge_s: float = 0.0
    install_s: float = 0.0
    problem: str = ""
    indexes: IndexOutcome = field(default_factory=IndexOutcome)


# ---- the driver's side ----------------------------------------------------------------------


def group_jobs(jobs: Sequence[RecoveryJob], groups: int) -> list[tuple[RecoveryJob, ...]]:
    """Deal jobs out to at most ``groups`` tasks of about the same size, none of them empty.

    Largest first, each to the group that has least so far.
    """
    count = min(groups, len(jobs))
    dealt: list[list[RecoveryJob]] = [[] for _ in range(count)]
    sizes = [0] * count
    for job in sorted(jobs, key=lambda job: (-job.size_bytes, job.tablet.tablet_id)):
        smallest = min(range(count), key=lambda place: (sizes[place], place))
        dealt[smallest].append(job)
        sizes[smallest] += max(job.size_bytes, 1)
    return [tuple(group) for group in dealt]


def run_job(
    spark: Any, link: ClusterLink, jobs: Sequence[RecoveryJob], cores: int
) -> list[TabletOutcome]:
    """Run the job on a Spark session and wait for it; an outcome for each tablet. Blocks.

    Raises whatever Spark raises; the caller bounds the time.
    """
    return run_groups(spark, link, [encode_jobs(group) for group in group_jobs(jobs, cores)])


def run_groups(spark: Any, link: ClusterLink, groups: Sequence[bytes]) -> list[TabletOutcome]:
    """One task for each group of jobs (`encode_jobs`), all at once. Blocks.

    An RDD, not a DataFrame: nothing is analysed, optimised or compiled for a job that is always the
    same. The groups are the RDD's elements, so a task gets its own one only.
    """

    def task(own: Iterable[bytes]) -> Iterator[TabletOutcome]:
        for group in own:
            yield from merge_group(link, group)

    return list(spark.sparkContext.parallelize(groups, len(groups)).mapPartitions(task).collect())


# ---- the task's side ------------------------------------------------------------------------


def merge_group(link: ClusterLink, group: bytes) -> list[TabletOutcome]:
    """Recover a group of tablets (`encode_jobs`); an outcome for each."""
    jobs = _decode_jobs(group)
    with connected(link) as (runtime, run):
        return run(merge_tablets(runtime, link.settings, jobs))


class _Means:
    """What the tablets of a task have in common."""

    def __init__(self, runtime: Runtime) -> None:
        self.pool = BufferPool(POOL_BYTES)
        self.near = NearReplicas(runtime, self.pool)
        self.turns = asyncio.Semaphore(CONCURRENT_MERGES)
        self.merging = asyncio.Lock()


async def merge_tablets(
    runtime: Runtime, settings: Settings, jobs: Sequence[RecoveryJob]
) -> list[TabletOutcome]:
    """Merge and install each tablet; what fails, fails alone and is named in its outcome."""
    turns = asyncio.Semaphore(CONCURRENT_TABLETS)
    means = _Means(runtime)

    async def one(job: RecoveryJob) -> TabletOutcome:
        async with turns:
            try:
                return await _merge_tablet(runtime, settings, job, means)
            except StelaeError as error:
                return TabletOutcome(job.tablet.tablet_id, problem=str(error) or repr(error))

    return list(await asyncio.gather(*(one(job) for job in jobs)))


async def _merge_tablet(
    runtime: Runtime, settings: Settings, job: RecoveryJob, means: _Means
) -> TabletOutcome:
    promising = asyncio.ensure_future(promise_indexes(runtime, settings, job))
    try:
        return await _merge_promised(runtime, settings, job, means)
    finally:
        promising.cancel()  # as a rule it has ended long ago; nobody waits for it


async def _merge_promised(
    runtime: Runtime, settings: Settings, job: RecoveryJob, means: _Means
) -> TabletOutcome:
    async with means.turns:
        began = time.perf_counter()
        segments = await fetch_log(runtime, settings, job, means.near)
        fetched = time.perf_counter()
        summaries = [segment.summary for segment in segments]
        async with means.merging:
            live = await runtime.offload(find_winners, summaries, means.pool)
        done = time.perf_counter()
        await install(runtime, settings, job, live)
        installed = time.perf_counter()
    indexes = await offer_indexes(runtime, settings, job, segments, live)
    return TabletOutcome(
        job.tablet.tablet_id,
        row_count=sum(len(segment.summary) for segment in segments),
        winner_count=sum(int(np.count_nonzero(mask)) for mask in live),
        summary_bytes=sum(segment.size_bytes for segment in segments),
        fetch_s=fetched - began,
        merge_s=done - fetched,
        install_s=installed - done,
        indexes=indexes,
    )


async def install(
    runtime: Runtime, settings: Settings, job: RecoveryJob, live: Sequence[Bools]
) -> None:
    """Tell which rows won to the tserver that takes the tablet over."""
    counts = tuple([len(mask) for mask in live])
    await runtime.peers.call(
        job.owner.address,
        INSTALL_MERGE,
        InstallMerge(job.tablet.tablet_id, job.tablet.term, counts),
        timeout_s=settings.call_timeout_s,
        blobs=[pa.py_buffer(winners_as_bits(live))],
        destination=job.owner.uuid,
    )
