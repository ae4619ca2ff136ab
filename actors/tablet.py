"""One tablet with ``segments(…)`` durability: rows in memory, its log, and the calls on both.

The write path has no await between its check and its append: a write is checked against memory,
applied, encoded and put into the head in one turn of the event loop, and then waits until all
replicas have it. Reads see applied rows, and wait until what they saw is committed: a reader never
learns what a crash could take back (RAMCloud RAM-840).

If the log is fenced, memory may hold rows that were never acknowledged; the tablet is then given
up as a whole (FAILED), never repaired.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.actors.membership import Membership
from stelae.actors.replica_census import ReplicaCensus
from stelae.actors.segment_log import RaiseEpoch, SegmentLog
from stelae.actors.tablet_recovery import FetchedSegment, fetch_segments
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    RetryElsewhere,
    RowExists,
    RowNotFound,
    StelaeError,
    TabletNotHere,
    VersionMismatch,
    decode_error,
    encode_error,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages import (
    Get,
    GetMany,
    GetManyReply,
    GetReply,
    RecoveryEngine,
    Scan,
    SegmentSource,
    TabletProgress,
    TabletReport,
    Write,
    WriteOp,
    WriteReply,
)
from stelae.core.records import TableRecord, TabletRecord
from stelae.core.rpc import Reply
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.schema import VERSION_COLUMN, TableSchema
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.core.values import check_batch
from stelae.storage.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    encode_entry,
    encode_prologue,
    entry_length,
)
from stelae.storage.gather import read_schema
from stelae.storage.image import Image
from stelae.storage.keys import KeyCodec
from stelae.storage.merge import Merged, merge
from stelae.storage.recovered import RecoveredSegment
from stelae.storage.tablet import TabletMemory

_encode = msgspec.msgpack.Encoder().encode
_decode_reply = msgspec.msgpack.Decoder(WriteReply).decode
_DONE, _REFUSED = b"\0", b"\1"
_SMALL_BATCH_BYTES = 64 << 10
MERGE_PATIENCE_S = 180.0
"""A tablet that nobody brings a merge from Spark is merged here after this time: the leader gives
up earlier, so it is for leaders that are lost with what they had under way."""


class Tablet:
    """A tablet in one term, from its opening to its end at this server."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        *,
        table: TableRecord,
        record: TabletRecord,
        raise_epoch: RaiseEpoch,
        tasks: Tasks,
    ) -> None:
        self.tablet_id = record.tablet_id
        self.term = record.term
        self.progress = TabletProgress.OPENING
        self.tasks = Tasks(tasks)
        self._runtime = runtime
        self._settings = settings
        self._table = table
        self._schema = table.schema
        self._problem = ""
        self._phases: list[tuple[str, float]] = []
        self._memory = TabletMemory(table.schema, table.name)
        self._merge_offered: asyncio.Future[Merged | None] | None = None
        self._certificates = CertificateBuilder()
        self._slots: dict[int, int] = {}
        self._objects: dict[int, ObjectHandle] = {}
        self._first_head = 0
        self._log = SegmentLog(
            runtime,
            settings,
            members,
            self.tasks,
            tablet_id=record.tablet_id,
            term=record.term,
            media=table.durability.media,
            raise_epoch=raise_epoch,
            build_image=self._seal,
            on_failed=self._on_fenced,
        )

    # ---- life -------------------------------------------------------------------------------

    async def open(self, sources: Sequence[SegmentSource], engine: RecoveryEngine) -> None:
        """Bring the log back, open a head of this term, and be PREPARED; or FAILED, saying why.

        What the old owner left in row form (its head above all) is sealed on all replicas, as new
        segments, before this returns: from the hand-over on, open replicas of earlier terms are
        ignored. Under new ids, because two recoveries may read different ends of one old head.
        """
        try:
            rewritten = await self._recover(sources, engine)
            self._log.start()
            self._roll()
            self._first_head = self._log.head.segment_id
            started = self._runtime.clock.monotonic()
            await self._log.wait_until(lambda: self._log.head.is_opened)
            await self._log.wait_until(lambda: self._log.are_sealed(rewritten))
            self._phase("replicate", started)
        except StelaeError as error:
            self._on_fenced(error)
            return
        if self.progress is TabletProgress.OPENING:
            self.progress = TabletProgress.PREPARED

    def serve(self) -> None:
        """The catalog says that this server owns the tablet in this term."""
        if self.progress is TabletProgress.PREPARED:
            self.progress = TabletProgress.SERVING
            census = ReplicaCensus(self._log, self._table.durability.media)
            self.tasks.spawn(census.run(), f"{self.tablet_id[:8]}/census")

    async def close(self) -> None:
        """Stop all work on the tablet; waiting calls end as they do when a server dies."""
        self._log.fail(TabletNotHere(self.tablet_id, "this server any more"))
        await self.tasks.close()
        self._objects.clear()

    def _on_fenced(self, error: StelaeError) -> None:
        if self.progress is not TabletProgress.FAILED:
            self.progress = TabletProgress.FAILED
            self._problem = str(error)
            self._log.fail(error)

    @property
    def memory_bytes(self) -> int:
        return self._memory.memory_bytes

    def holders(self) -> list[list[ServerUuid]]:
        """Of each segment the backups that hold all of it; the head's are last."""
        if self.progress is not TabletProgress.SERVING:
            return []
        return [segment.holders for segment in self._log.segments]

    def report(self) -> TabletReport:
        return TabletReport(
            self.tablet_id,
            self.term,
            self.progress,
            self._problem,
            self._memory.row_count,
            self._memory.memory_bytes,
            len(self._log.digest),
            sum(1 for segment in self._log.segments if segment.missing_replicas),
            tuple(self._phases),
            self._first_head,
        )

    def _phase(self, name: str, started: float) -> float:
        now = self._runtime.clock.monotonic()
        self._phases.append((name, now - started))
        return now

    # ---- recovery ---------------------------------------------------------------------------

    async def _recover(self, sources: Sequence[SegmentSource], engine: RecoveryEngine) -> list[int]:
        """Take the log's rows back into memory; return the segments made of those in row form.

        All of them are in the log, and so in the next digest, before this returns.
        """
        if not sources:
            return []
        if engine is RecoveryEngine.SPARK:
            self._merge_offered = asyncio.get_running_loop().create_future()
        now = self._runtime.clock.monotonic()
        fetched = await fetch_segments(self._runtime, self._settings, self.tablet_id, sources)
        now = self._phase("read", now)
        segments = []
        for one in fetched:
            new_id = one.source.segment_id if one.image is not None else self._log.next_id()
            segments.append(
                await self._runtime.offload(
                    _recovered, one, new_id, self._memory.codec, self._schema
                )
            )
        merged = await self._offered([len(segment.summary) for segment in segments])
        if merged is None:
            merged = await self._runtime.offload(merge, [s.summary for s in segments])
        now = self._phase("merge", now)
        self._memory.adopt(segments, merged, now)
        self._log.committed_index = self._memory.last_index
        rewritten = []
        for slot, (one, segment) in enumerate(zip(fetched, segments, strict=True)):
            new_id = segment.meta.segment_id
            if one.image is not None:
                self._log.adopt(new_id, one.image.buffer, one.holders, one.source.epoch)
                continue
            self._slots[new_id] = slot
            self._log.adopt(new_id, await self._seal(new_id), [], 0)
            rewritten.append(new_id)
        self._phase("install", now)
        return rewritten

    async def _offered(self, row_counts: Sequence[int]) -> Merged | None:
        """The merge that Spark makes of segments with so many rows; None: merge here after all.

        Replicas of a head may differ in rows that were never acknowledged: a merge of another
        replica than the one that was loaded here is of no use.
        """
        if self._merge_offered is None:
            return None
        try:
            async with asyncio.timeout(MERGE_PATIENCE_S):
                merged = await self._merge_offered
        except TimeoutError:
            self._runtime.metrics.count("merges_not_offered")
            return None
        if merged is not None and [len(live) for live in merged.live] != list(row_counts):
            self._runtime.metrics.count("merges_of_other_replicas")
            return None
        return merged

    def merge_here(self) -> None:
        """Spark will not merge the summaries: do not wait for it any longer."""
        if self._merge_offered is not None and not self._merge_offered.done():
            self._merge_offered.set_result(None)

    def offer_merge(self, next_version: int, blobs: Sequence[memoryview]) -> None:
        """Take the merge that Spark made of the summaries; later offers change nothing."""
        if self._merge_offered is None or self._merge_offered.done():
            return
        if len(blobs) < 2:
            raise InvalidArgument("a merge has hashes, positions and a mask for each segment")
        hashes, positions, *live = blobs
        self._merge_offered.set_result(
            Merged(
                np.frombuffer(hashes, np.uint64),
                np.frombuffer(positions, np.int64),
                [np.frombuffer(mask, np.bool_) for mask in live],
                next_version,
            )
        )

    # ---- the head and sealing ---------------------------------------------------------------

    def _roll(self) -> None:
        """Open the next head: its prologue says everything that a recovery needs beside rows."""
        memory, segment = self._memory, self._log.next_id()
        memory.results.expire(self._runtime.clock.monotonic(), self._settings.client_expiry_s)
        self._slots[segment] = memory.new_head(segment)
        prologue = Prologue(
            table_id=self._table.table_id,
            tablet_id=self.tablet_id,
            segment_id=segment,
            term=self.term,
            digest=(*self._log.digest, segment),
            safe_version=memory.next_version,
            schema=self._schema,
            results=memory.results.snapshot(),
        )
        self._certificates = CertificateBuilder()
        entry = Entry(
            self.term,
            memory.last_index,
            EntryKind.PROLOGUE,
            memory.next_version,
            0,
            (),
            encode_prologue(prologue),
        )
        buffers = encode_entry(entry)
        certificate = self._certificates.extend(buffers[0], entry_length(buffers[0]))
        self._log.open_head(segment, buffers, certificate)

    async def _seal(self, segment: int) -> pa.Buffer:
        """Build a closed segment's image, put it into shared memory, and hold that from now on."""
        runtime, slot = self._runtime, self._slots.pop(segment)
        built = await runtime.offload(
            self._memory.seal, slot, self._table.table_id, self.tablet_id, self.term
        )
        handle = await runtime.objects.put(built)
        buffer = await runtime.objects.get(handle)
        where = f"the image of segment {segment}"
        image = Image.open(buffer, where, check_rows=False)
        self._memory.install_sealed(slot, image)
        self._objects[segment] = handle
        return buffer

    # ---- writes -----------------------------------------------------------------------------

    async def write(self, request: Write, blobs: Sequence[memoryview]) -> WriteReply:
        """Carry out one call's rows, atomically and once, and wait until they are durable."""
        rows: Any = request.rows
        if blobs:
            rows = await self._read_batch(request, blobs[0])
        known = self._memory.results.check(request.request)
        if known is not None:
            await self._committed(known.index)
            return _answer(known.result.outcome)
        if self._log.pending_bytes > self._settings.queue_bytes:
            raise Overloaded(
                f"tablet {self.tablet_id}'s queue in bytes", self._settings.queue_bytes
            )
        index = self._memory.last_index + 1
        outcome = self._execute(request, rows, index, blobs)
        await self._committed(index)
        return _answer(outcome)

    def _execute(self, request: Write, rows: Any, index: int, blobs: Sequence[memoryview]) -> bytes:
        """Check, apply, encode and append in one turn of the loop; return the outcome.

        A refusal is logged as well: a late copy of the request must not be carried out after its
        client was told that it was refused.
        """
        memory = self._memory
        first_version, count, kind = memory.next_version, 0, EntryKind.ROWS
        payload: Any = b""
        try:
            executed = memory.execute(
                request.op, rows, request.if_versions or None, index, request.columns
            )
        except (RowExists, RowNotFound, VersionMismatch) as error:
            outcome = _REFUSED + encode_error(error)
            memory.last_index = index
        else:
            first_version, count, kind = executed.first_version, executed.row_count, executed.kind
            outcome = _DONE + _encode(WriteReply(first_version, count))
            reusable = blobs and executed.batch is rows
            payload = blobs[0] if reusable else executed.payload()
        now = self._runtime.clock.monotonic()
        result = memory.results.record(request.request, outcome, index, now)
        entry = Entry(self.term, index, kind, first_version, count, (result,), payload)
        buffers = encode_entry(entry)
        certificate = self._certificates.extend(buffers[0], entry_length(buffers[0]))
        self._log.append(buffers, certificate, index)
        if self._log.head.length >= self._settings.segment_bytes:
            self._roll()
        return outcome

    async def _read_batch(self, request: Write, blob: memoryview) -> pa.RecordBatch:
        columns: tuple[str, ...] | None = request.columns or None
        if request.op is WriteOp.DELETE:
            columns = self._schema.key
        if blob.nbytes <= _SMALL_BATCH_BYTES:
            return _decode_rows(blob, self._schema, self._table.name, columns)
        return await self._runtime.offload(
            _decode_rows, blob, self._schema, self._table.name, columns
        )

    async def _committed(self, index: int) -> None:
        """Wait until entry ``index`` counts. If the log was fenced, nobody here knows whether it
        does: the retry, at the new owner, will be told."""
        try:
            await self._log.wait_committed(index)
        except RetryElsewhere as error:
            raise OutcomeUnknown(
                f"tablet {self.tablet_id}", "write or read", self._settings.append_timeout_s
            ) from error

    # ---- reads ------------------------------------------------------------------------------

    async def get(self, request: Get) -> Reply[GetReply]:
        """Read rows by key; for tables that are not plain, as `get_many` does."""
        memory = self._memory
        self._schema.check_columns(request.columns, self._table.name)
        places = [self._schema.arrow.get_field_index(name) for name in request.columns]
        rows: list[tuple[tuple[Any, ...], int] | None] = []
        newest = 0
        for key in request.keys:
            found = memory.get(key)
            if found is None:
                newest = max(newest, memory.last_delete_index)
                rows.append(None)
                continue
            newest = max(newest, found.index)
            row = tuple([found.row[place] for place in places]) if places else found.row
            rows.append((row, found.version))
        if newest > self._log.committed_index:
            await self._committed(newest)
        return Reply(GetReply(tuple(rows)))

    async def get_many(self, request: GetMany, blobs: Sequence[memoryview]) -> Reply[GetManyReply]:
        """Read many rows by key: rows found with versions, and which keys they belong to."""
        memory = self._memory
        self._schema.check_columns(request.columns, self._table.name)
        if not blobs:
            raise InvalidArgument("get_many needs its keys as an Arrow stream")
        keys = _decode_rows(blobs[0], self._schema, self._table.name, self._schema.key)
        located = memory.locate(keys)
        columns = request.columns or tuple(self._schema.arrow.names)
        encoded = await self._runtime.offload(_encode_found, located, columns)
        if located.index > self._log.committed_index:
            await self._committed(located.index)
        return Reply(GetManyReply(len(located.found)), [encoded, memoryview(located.found.data)])

    async def scan(self, request: Scan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows at this point of the log that match, as batches to be read off the loop."""
        snapshot = self._memory.scan_snapshot()
        batches = snapshot.batches(
            request.columns, request.where, request.limit, with_versions=request.with_versions
        )
        if snapshot.index > self._log.committed_index:
            await self._committed(snapshot.index)
        names = list(request.columns or self._schema.arrow.names)
        if request.with_versions:
            names.append(VERSION_COLUMN)
        return read_schema(self._schema, names), batches


def _recovered(
    one: FetchedSegment, new_id: int, codec: KeyCodec, schema: TableSchema
) -> RecoveredSegment:
    """A fetched segment in the form of the merge; one in row form gets a new id."""
    if one.image is not None:
        return RecoveredSegment.from_image(one.image)
    found = RecoveredSegment.from_entries(one.entries, codec, schema, one.where)
    meta = msgspec.structs.replace(found.meta, segment_id=new_id)
    return dataclasses.replace(found, meta=meta)


def _answer(outcome: bytes) -> WriteReply:
    """What a request came to: its reply, or the refusal raised."""
    if outcome[:1] == _REFUSED:
        raise decode_error(outcome[1:])
    return _decode_reply(memoryview(outcome)[1:])


def _decode_rows(
    blob: memoryview, schema: TableSchema, table: str, columns: tuple[str, ...] | None
) -> pa.RecordBatch:
    """One batch out of an Arrow IPC stream, checked against the table. May run off the loop."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise InvalidArgument(f"not an Arrow IPC stream of one batch: {error}") from error
    return check_batch(batch, schema, columns=columns, table=table, validate=True)


def _encode_found(located: Any, columns: Sequence[str]) -> pa.Buffer:
    rows = located.gather(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()
