"""Filling lost indexlets in the job that merges a tablet's log.

For each index that has indexlets to be filled: the indexed column and the key of live rows, from
backups; as entries, sorted, cut by the indexlets' ranges; handed to their owners (`OFFER_ENTRIES`)
once the tablet says that it was brought back from the same log. Nothing of it goes through Spark.

What fails here fails nothing else: an indexlet asks the tablet itself for what nobody has offered.
Source: design §9, §11; `stelae.core.messages.index_offers` says why an offer is right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, SegmentsMissing, StelaeError, TabletNotReady
from stelae.core.ids import Address, ServerUuid, segment_name
from stelae.core.messages.index_offers import (
    COMPARE_LOG,
    OFFER_ENTRIES,
    READ_COLUMNS,
    CompareLog,
    OfferEntries,
    ReadColumns,
)
from stelae.core.messages.indexes import PIECE_BYTES, TabletStamp, epoch_of
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexDefinition
from stelae.recovery.engine import IndexletTarget, RecoveryJob
from stelae.recovery.spark_log import CONCURRENT_FETCHES, LogSegment, from_any_replica
from stelae.storage.entries.entry import decode_batch, encode_batch
from stelae.storage.indexes.log_entries import LogEntries
from stelae.storage.kernels.api import Bools

COMPARE_S = 30.0
"""How long the tablet may take to load its log, and to be handed over."""
COMPARE_PAUSE_S = 0.05

_ENTRIES = pa.schema([pa.field("entry", pa.binary())])
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """What became of a tablet's part in lost indexlets."""

    indexlets: int = 0
    """Whose owners have all entries of this tablet."""
    entry_count: int = 0
    seconds: float = 0.0
    problem: str = ""


async def offer_indexes(
    runtime: Runtime,
    settings: Settings,
    job: RecoveryJob,
    segments: Sequence[LogSegment],
    live: Sequence[Bools],
) -> IndexOutcome:
    """Give all indexlets that are named in the job this tablet's entries."""
    if not job.indexlets:
        return IndexOutcome()
    began = time.perf_counter()
    offered = entries = 0
    try:
        made = [
            await _entries(runtime, settings, job, index, targets, segments, live)
            for index, targets in _by_index(job)
        ]
        await _compare(runtime, settings, job, segments)
        for targets, parts in made:
            calls = [
                _offer(runtime, settings, job, target, found)
                for target, found in zip(targets, parts, strict=True)
            ]
            entries += sum(await asyncio.gather(*calls))
            offered += len(calls)
    except StelaeError as error:
        logger.info("indexlets of tablet %s: %s", job.tablet.tablet_id, error)
        problem = str(error) or repr(error)
        return IndexOutcome(offered, entries, time.perf_counter() - began, problem)
    return IndexOutcome(offered, entries, time.perf_counter() - began)


async def promise_indexes(runtime: Runtime, settings: Settings, job: RecoveryJob) -> None:
    """Tell the indexlets that this tablet's entries come, as far as they are there already."""

    async def promise(target: IndexletTarget) -> None:
        try:
            await _send(runtime, settings, job, target, 0, 0, [])
        except StelaeError as error:
            logger.info("an indexlet was promised nothing: %s", error)

    await asyncio.gather(*(promise(target) for target in job.indexlets))


def _by_index(job: RecoveryJob) -> Iterator[tuple[IndexDefinition, list[IndexletTarget]]]:
    for index in job.table.schema.indexes:
        targets = [t for t in job.indexlets if t.indexlet.index_id == index.index_id]
        if targets:
            yield index, targets


async def _entries(
    runtime: Runtime,
    settings: Settings,
    job: RecoveryJob,
    index: IndexDefinition,
    targets: list[IndexletTarget],
    segments: Sequence[LogSegment],
    live: Sequence[Bools],
) -> tuple[list[IndexletTarget], list[list[pa.BinaryArray]]]:
    """Of each target the tablet's entries. Raises SegmentsMissing."""
    made = LogEntries(job.table.schema, index)
    turns = asyncio.Semaphore(CONCURRENT_FETCHES)

    async def one(segment: LogSegment, mask: Bools) -> pa.BinaryArray | None:
        if not mask.any():
            return None
        async with turns:
            rows = segment.rows
            if rows is None:
                rows = await _columns(runtime, settings, job, segment, made.column_ids)
            return await runtime.offload(made.of_segment, rows, mask)

    found = await asyncio.gather(*(one(s, m) for s, m in zip(segments, live, strict=True)))
    ranges = [(target.indexlet.low, target.indexlet.high) for target in targets]
    kept = [entries for entries in found if entries is not None]
    return targets, await runtime.offload(made.partitions, kept, ranges)


async def _columns(
    runtime: Runtime,
    settings: Settings,
    job: RecoveryJob,
    segment: LogSegment,
    column_ids: tuple[int, ...],
) -> pa.RecordBatch:
    """Some columns of a sealed segment: of the very image whose summary was merged."""
    source = segment.source
    request = ReadColumns(job.tablet.tablet_id, source.segment_id, column_ids)

    async def read(backup: ServerUuid, address: Address) -> pa.RecordBatch:
        reply = await runtime.peers.call(
            address,
            READ_COLUMNS,
            request,
            timeout_s=settings.call_timeout_s,
            destination=backup,
        )
        where = f"segment {segment_name(source.segment_id)} from {address}"
        info = reply.body.info
        if (info.crc, info.length) != (segment.info.crc, segment.info.length):
            raise CorruptData(where, 0, "another image than the one that was merged")
        batch = await runtime.offload(decode_batch, reply.blobs[0], where)
        if batch.num_rows != len(segment.summary):
            raise CorruptData(where, 0, f"{batch.num_rows} rows of {len(segment.summary)}")
        return batch

    found = await from_any_replica(runtime, settings, source, read)
    if found is None:
        name = segment_name(source.segment_id)
        raise SegmentsMissing(job.tablet.tablet_id, f"a readable replica of segment {name}")
    return found


async def _compare(
    runtime: Runtime, settings: Settings, job: RecoveryJob, segments: Sequence[LogSegment]
) -> None:
    """Raises StelaeError: the tablet has another log, another term, or does not say."""
    tablet = job.tablet
    counts = tuple([len(segment.summary) for segment in segments])
    deadline = runtime.clock.monotonic() + COMPARE_S
    while True:
        try:
            reply = await runtime.peers.call(
                job.owner.address,
                COMPARE_LOG,
                CompareLog(tablet.tablet_id, tablet.term, counts),
                timeout_s=settings.call_timeout_s,
                destination=job.owner.uuid,
            )
        except TabletNotReady:
            if runtime.clock.monotonic() > deadline:
                raise
            await runtime.clock.sleep(COMPARE_PAUSE_S)
            continue
        if not reply.body.is_same:
            raise TabletNotReady(tablet.tablet_id, "brought back from another replica of its head")
        return


async def _offer(
    runtime: Runtime,
    settings: Settings,
    job: RecoveryJob,
    target: IndexletTarget,
    found: Sequence[pa.BinaryArray],
) -> int:
    """Hand an indexlet its entries, piece by piece; how many they were."""
    pieces = [piece for entries in found for piece in _cut(entries)] or [pa.array([], pa.binary())]
    for number, piece in enumerate(pieces):
        batch = pa.RecordBatch.from_arrays([piece], schema=_ENTRIES)
        blobs = [encode_batch(batch)]
        await _send(runtime, settings, job, target, number, len(pieces), blobs)
    return sum(len(piece) for piece in pieces)


async def _send(
    runtime: Runtime,
    settings: Settings,
    job: RecoveryJob,
    target: IndexletTarget,
    piece: int,
    piece_count: int,
    blobs: list[Blob],
) -> None:
    tablet, indexlet = job.tablet, target.indexlet
    stamp = TabletStamp(tablet.number, epoch_of(tablet.change, tablet.term), 0)
    await runtime.peers.call(
        target.owner.address,
        OFFER_ENTRIES,
        OfferEntries(indexlet.indexlet_id, indexlet.term, stamp, piece, piece_count),
        timeout_s=settings.call_timeout_s,
        blobs=blobs,
        destination=target.owner.uuid,
    )


def _cut(entries: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """Pieces of about `PIECE_BYTES`."""
    step = max(1, PIECE_BYTES * len(entries) // max(1, entries.nbytes))
    for start in range(0, len(entries), step):
        yield entries.slice(start, step)
