"""What a recovery task reads of a tablet's log: the summary of each segment, from any replica.

Knows neither Spark nor Ray. Source: design §9; seed RAMCloud master recovery (partial replay from
summaries).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, SegmentsMissing, StelaeError
from stelae.core.ids import Address, ServerUuid, segment_name
from stelae.core.messages.backups import (
    READ_SUMMARIES,
    Certified,
    ReadSummaries,
    ReplicaInfo,
    ReplicaState,
)
from stelae.core.messages.servers import SegmentSource
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.recovery.engine import RecoveryJob
from stelae.recovery.near_replicas import NearReplicas
from stelae.storage.entries.entry import read_entries
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Summary
from stelae.storage.segments.image import read_tail
from stelae.storage.segments.recovered import RecoveredSegment

CONCURRENT_FETCHES = 8
ROUNDS = 3
"""How often all replicas of a segment are asked before the tablet is given up."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSegment:
    """One segment of a log, as far as a merge needs it."""

    source: SegmentSource
    info: ReplicaInfo
    """Of the replica that was read."""
    summary: Summary
    rows: pa.RecordBatch | None
    """All of them, where the segment is in row form; else they stay where they are."""
    size_bytes: int
    """That were fetched."""


async def fetch_log(
    runtime: Runtime, settings: Settings, job: RecoveryJob, near: NearReplicas
) -> list[LogSegment]:
    """The segments of a log in the order of its sources: what lies on this machine past the
    backups, and all else from them.

    Raises:
        SegmentsMissing: none of a segment's replicas could be read; the message names them all.
    """
    codec = KeyCodec(job.table.schema)
    turns = asyncio.Semaphore(CONCURRENT_FETCHES)

    async def fetch(place: int, source: SegmentSource) -> LogSegment | None:
        if place in found:
            return found[place]

        async def read(backup: ServerUuid, address: Address) -> LogSegment:
            reply = await runtime.peers.call(
                address,
                READ_SUMMARIES,
                ReadSummaries(job.tablet.tablet_id, (source.segment_id,)),
                timeout_s=settings.call_timeout_s,
                destination=backup,
            )
            info, blob = reply.body.infos[0], reply.blobs[0]
            where = f"segment {segment_name(source.segment_id)} from {address}"
            return await runtime.offload(read_summary, source, info, blob, codec, where)

        async with turns:
            return await from_any_replica(runtime, settings, source, read)

    found = await _read_near(runtime, job, near, codec)
    fetched = await asyncio.gather(*(fetch(*each) for each in enumerate(job.sources)))
    missing = [s.segment_id for s, f in zip(job.sources, fetched, strict=True) if f is None]
    if missing:
        names = ", ".join(segment_name(segment) for segment in missing)
        raise SegmentsMissing(job.tablet.tablet_id, f"a readable replica of segments {names}")
    return [one for one in fetched if one is not None]


async def _read_near(
    runtime: Runtime, job: RecoveryJob, near: NearReplicas, codec: KeyCodec
) -> dict[int, LogSegment]:
    """By their places among the sources."""
    replicas = await near.read(job.tablet.tablet_id, job.sources)

    def check() -> dict[int, LogSegment]:
        checked: dict[int, LogSegment] = {}
        for place, one in replicas.items():
            source = job.sources[place]
            try:
                checked[place] = read_summary(source, one.info, one.data, codec, one.where)
            except CorruptData as error:
                unlike.append(error)
        return checked

    unlike: list[CorruptData] = []
    checked = await runtime.offload(check)
    if unlike:
        runtime.metrics.count("near_replicas_unlike", len(unlike))
        logger.info("read from backups instead: %s", unlike[0])
    return checked


async def from_any_replica(
    runtime: Runtime,
    settings: Settings,
    source: SegmentSource,
    read: Callable[[ServerUuid, Address], Awaitable[T]],
) -> T | None:
    """What ``read`` makes of the first replica that can be read; None: of none of them.

    A random one first, so that backups share the load. Of the head, replicas may differ in what no
    client was told of; there the order of the plan is kept, the longest first (`Tablet` compares
    row counts with those of the rows it has loaded).
    """
    replicas = list(source.replicas)
    if not source.is_head:
        runtime.rng.shuffle(replicas)
    for _ in range(ROUNDS):
        for backup, address, _medium in replicas:
            try:
                return await read(backup, address)
            except StelaeError as error:
                logger.info("another replica is read: %s", error)
                runtime.metrics.count("summary_reads_failed")
        await runtime.clock.sleep(settings.heartbeat_s)
    return None


def read_summary(
    source: SegmentSource, info: ReplicaInfo, data: Blob, codec: KeyCodec, where: str
) -> LogSegment:
    """Check and read what a backup serves of a segment: an image's tail, or certified rows, which
    say themselves what schema they have.

    Raises:
        CorruptData: a checksum does not match.
    """
    size_bytes = memoryview(data).nbytes
    if info.state is ReplicaState.SEALED:
        return LogSegment(source, info, read_tail(data, where).summary, None, size_bytes)
    certificate = Certified(info.length, info.crc)
    found = RecoveredSegment.from_entries(read_entries(data, certificate, where), codec, where)
    return LogSegment(source, info, found.summary, found.batch, size_bytes)
