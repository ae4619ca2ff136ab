"""One tablet with a single copy of its rows: memory, its log, and the calls on both.

The write path has no await between its check and its append: a write is checked against memory,
applied, encoded and put into the head in one turn of the event loop, and then waits until the log
says that it counts. Whom the log asks is its durability's affair
(`stelae.actors.tserver.tablet_log.interface`). Reads are in `stelae.actors.tserver.tablet.reads`.

If the log is fenced, memory may hold rows that were never acknowledged; the tablet is then given
up as a whole (FAILED), never repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.owned_tablet.indexing import OwnedIndexing
from stelae.actors.tserver.owned_tablet.inheriting import Inheriting
from stelae.actors.tserver.owned_tablet.loading import LoadingTablet
from stelae.actors.tserver.owned_tablet.requests import OwnedRequests
from stelae.actors.tserver.owned_tablet.succession import OwnedSuccession
from stelae.actors.tserver.row_loading.loader import RemoteRows
from stelae.actors.tserver.row_loading.missing_rows import MissingRows
from stelae.actors.tserver.row_loading.spark_merge import MergeOffer
from stelae.actors.tserver.tablet.cleaning import TabletCleaning
from stelae.actors.tserver.tablet.input import payload_of, read_rows
from stelae.actors.tserver.tablet.load_rate import LoadRate
from stelae.actors.tserver.tablet.small_writes import one_by_one
from stelae.actors.tserver.tablet.transfer import report_of
from stelae.actors.tserver.tablet_log.interface import MakeLog
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    Overloaded,
    RowExists,
    RowNotFound,
    StelaeError,
    TabletNotHere,
    VersionMismatch,
)
from stelae.core.ids import RequestId, ServerUuid
from stelae.core.messages.rows import Write, WriteMany, WriteReply
from stelae.core.messages.servers import RecoveryEngine, SegmentSource, TabletProgress, TabletReport
from stelae.core.records.losses import versions_from
from stelae.core.records.records import TableRecord, TabletRecord
from stelae.core.records.succession import SuccessionStage
from stelae.core.records.timelines import TimelineSource
from stelae.core.rpc import Blob, Call
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.core.schema.durability import Segments
from stelae.core.schema.shares import share_of
from stelae.core.tasks import Tasks
from stelae.storage.entries.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    encode_entry,
    encode_prologue,
    entry_length,
)
from stelae.storage.entries.outcomes import answer, done, refused
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.segments.image import Image
from stelae.storage.segments.remote import RowsAbsent
from stelae.storage.segments.shares import merge_share


class Tablet(OwnedRequests, OwnedSuccession, LoadingTablet, OwnedIndexing):
    """A tablet in one term, from its opening to its end at this server."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        table: TableRecord,
        record: TabletRecord,
        make_log: MakeLog,
        tasks: Tasks,
        intake: Intake,
    ) -> None:
        self.tablet_id = record.tablet_id
        self.term = record.term
        self.progress = TabletProgress.OPENING
        self.tasks = Tasks(tasks)
        self._runtime = runtime
        self._settings = settings
        self._intake = intake
        self.merge_offer = MergeOffer(runtime)
        self._schemas = TabletSchemas(record.tablet_id, table)
        self._schema = table.schema
        self._altered = asyncio.Event()
        self._problem = ""
        self._phases: list[tuple[str, float]] = []
        self._memory = TabletMemory(table.schema, table.name)
        self._certificates = CertificateBuilder()
        self._slots: dict[int, int] = {}
        self._objects: dict[int, ObjectHandle] = {}
        self._first_head = 0
        self._load = LoadRate()
        self.share = share_of(record.number, table.partitioning.tablet_count)
        self.is_volatile = table.durability == Segments(())
        self.has_lost = record.kept is not None
        is_end_lost = record.kept is not None and record.kept.skips_versions
        self._skips_versions = is_end_lost or (self.is_volatile and self.term > 1)
        self.began = {}
        self.keeps_tombstones = False
        self._log = make_log(self.tasks, self._seal, self._on_fenced)
        self.cleaning = TabletCleaning(runtime, settings, self)
        world = (runtime, settings, self._log.members, intake, self.tasks)
        self._remote = RemoteRows(*world, record.tablet_id, self)
        self._missing = MissingRows(*world[:2], self._log.members, self._remote, self)
        self._inheriting = Inheriting(runtime, settings, self, self._remote, self._roll_now)

    # ---- life -------------------------------------------------------------------------------

    async def open(self, sources: Sequence[SegmentSource], engine: RecoveryEngine) -> None:
        """Bring the log back, open a head of this term, and be PREPARED; or FAILED, saying why.

        From then on nothing that the old owner may still do makes a difference.
        """
        try:
            with self._intake.opening():
                await self._recover(sources, engine)
                await self._wait_schema()
            if any(source.may_be_short for source in sources):
                self.has_lost = self._skips_versions = True
            if self._skips_versions:
                self._memory.next_version = max(self._memory.next_version, versions_from(self.term))
            self._log.start()
            # Heads that an alter begins meanwhile wait for the end of this one, which may have to
            # wait for the hand-over: until then the masters register no epoch of it.
            self._first_head = self._roll()
            started = self._runtime.clock.monotonic()
            await self._log.wait_opened(self._first_head)
            self._phase("replicate", started)
            await self._tell_loss()
        except StelaeError as error:
            self._on_fenced(error)
            return
        if self.progress is TabletProgress.OPENING:
            self.progress = TabletProgress.PREPARED

    def serve(self) -> None:
        """The catalog says that this server owns the tablet in this term."""
        if self.progress is TabletProgress.PREPARED:
            self.progress = TabletProgress.SERVING
            self._log.hand_over()
            self.begin_indexing()
            self._begin_loading()

    def learn(self, timeline: TimelineSource) -> None:
        """The masters know that its log is on these safekeepers now."""
        self._log.learn(timeline)

    async def close(self) -> None:
        """Stop all work; waiting calls end as they do when a server dies."""
        self._log.fail(TabletNotHere(self.tablet_id, "this server any more"))
        self._close_indexes()
        self._remote.close()
        await self.tasks.close()
        # Tablet and log refer to each other: else rows would stay for long.
        self._memory = TabletMemory(self._schema, self._table.name)
        self._log.let_go()
        self._objects.clear()

    def _on_fenced(self, error: StelaeError) -> None:
        if self.progress is not TabletProgress.FAILED:
            self.progress = TabletProgress.FAILED
            self._problem = str(error)
            self._remote.close()
            self._log.fail(error)

    @property
    def memory_bytes(self) -> int:
        """Of rows and index, and of log entries that backups may yet be sent."""
        return self._memory.memory_bytes + self._log.content_bytes + self._remote.held_bytes

    def holders(self) -> list[list[ServerUuid]]:
        """Of each segment the backups that hold all of it, the newest one last."""
        return self._log.holders if self.progress is TabletProgress.SERVING else []

    def report(self) -> TabletReport:
        return TabletReport(
            self.tablet_id,
            self.term,
            self.progress,
            self._problem or self._log.waits_for or self._remote.waits_for,
            self._memory.row_count,
            self.memory_bytes,
            self._log.segment_count,
            self._log.under_replicated,
            tuple(self._phases),
            self._first_head,
            self._schema.version,
            self._table.renames,
            load_per_s=self._load.look(self.calls, self._runtime.clock.monotonic())
            if self.progress is TabletProgress.SERVING
            else 0.0,
            timeline_generation=self._log.timeline_generation,
            succession=report_of(self.succession, self.transfer),
            cleaning=self.cleaning.report() if self.may_clean() else None,
            remote_bytes=self._remote.left_bytes,
            remote_bytes_at_first=self._remote.total_bytes,
            loaded_s=self._remote.loaded_s,
            shortage=self._log.shortage,
            lacks=self._log.lacks or self._missing.lacks,
            in_memory_only=self._missing.in_memory_only,
            is_whole=self.progress is TabletProgress.SERVING and not self._log.inherits,
            unreached=() if self.progress is TabletProgress.FAILED else self._log.unreached,
        )

    @property
    def _table(self) -> TableRecord:
        """What the catalog says of its table, as far as was heard here."""
        return self._schemas.table

    # ---- schema -----------------------------------------------------------------------------

    def alter(self, table: TableRecord) -> None:
        """The catalog has this record of the table. A segment has one schema: a head ends here.

        What waits for replicas goes on as before; older segments are shown in the new columns.
        """
        changed = self._schemas.adopt(table)
        self._memory.rename(self._table.name)
        if not changed or self.progress is TabletProgress.FAILED:
            return
        had_head = self._memory.has_head
        self._schema = table.schema
        self._memory.use_schema(table.schema)
        if had_head:
            self._roll()
        self._altered.set()
        if self.progress is TabletProgress.SERVING:
            self.begin_indexing()

    async def _wait_schema(self) -> None:
        """Wait for the masters' word of a schema that the former owner wrote with already: this
        one was told to open the tablet before. With the older one, updates would lose columns."""
        while self._schema.version < self._memory.newest_schema_version:
            self._altered.clear()
            await self._altered.wait()

    def _phase(self, name: str, started: float) -> float:
        now = self._runtime.clock.monotonic()
        self._phases.append((name, now - started))
        return now

    # ---- recovery ---------------------------------------------------------------------------

    async def _recover(self, sources: Sequence[SegmentSource], engine: RecoveryEngine) -> None:
        """Take the log's rows back into memory.

        All their segments are in the log, and so in the next digest, before this returns.
        """
        if engine is RecoveryEngine.SPARK and sources and self._log.is_on_backups:
            self.merge_offer.expect()
        runtime, now = self._runtime, self._runtime.clock.monotonic()
        found = await self._log.read(sources, self._memory.codec)
        if not found:
            return
        now, segments = self._phase("read", now), [each.rows for each in found]
        summaries = [segment.summary for segment in segments]
        merged = await self.merge_offer.wait(summaries)
        if merged is None:
            merged = await runtime.offload(merge_share, summaries, self.share)
        now = self._phase("merge", now)
        self._memory.adopt(segments, merged, now)
        self._log.committed_index = self._memory.last_index
        await self._take_over(found, merged)
        self._phase("install", now)

    # ---- the head and sealing ---------------------------------------------------------------

    def _roll(self) -> int:
        """Open the next head, and return its id. Its prologue says everything that a recovery needs
        beside rows."""
        memory, segment = self._memory, self._log.next_id()
        self._forget_clients()
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
            forgot_below=memory.forgot_below,
            facts=memory.facts(),
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
        return segment

    async def _seal(self, segment: int) -> pa.Buffer:
        """Build a closed segment's image, put it into shared memory, and hold that from now on."""
        runtime, slot = self._runtime, self._slots.pop(segment)
        built = await runtime.offload(
            self._memory.seal, slot, self._table.table_id, self.tablet_id, self.term
        )
        handle, buffer = await runtime.objects.move(built)
        where = f"the image of segment {segment}"
        image = Image.open(buffer, where, check_rows=False)
        self._memory.install_sealed(slot, image)
        self._objects[segment] = handle
        self.cleaning.sealed()
        return buffer

    # ---- writes -----------------------------------------------------------------------------

    async def write(self, call: Call[Write], rows: Any, refusal: StelaeError | None) -> WriteReply:
        """Carry out one call's rows, atomically and once, and wait until they are durable.

        ``rows`` are what `read_rows` made of the call; ``refusal`` is what new writes are refused
        with just now: a repeated one gets its first answer all the same.
        """
        clock = self._runtime.clock
        deadline, held = clock.monotonic() + call.timeout_s, list[object]()
        while True:
            left_s = deadline - clock.monotonic()
            if self._needs_entries(call.body.request, refusal):  # since a wait, maybe
                self._check_open()
                self._check_room()
                return await self._write_indexed(call, rows, deadline)
            try:
                index, outcome = self._try_write(call, rows, refusal)
                break
            except RowsAbsent as absent:
                held[:] = await self.bring(absent, left_s)
        await self._committed(index, left_s)
        return answer(outcome)

    def _needs_entries(self, request: RequestId, refusal: StelaeError | None) -> bool:
        """Whether the call is to be carried out, and entries of its rows go before them."""
        return bool(self._schema.indexes) and refusal is None and self._known(request) is None

    def _try_write(
        self, call: Call[Write], rows: Any, refusal: StelaeError | None
    ) -> tuple[int, bytes]:
        """What the call comes to, and the entry that has to count before it is told; in one turn.

        Raises RowsAbsent: nothing was done; all of it is to be looked at again with these rows.
        """
        request = call.body
        known = self._known(request.request)
        if known is not None:
            return known.index, known.result.outcome
        if refusal is not None:
            raise refusal
        self._check_open()
        self._check_room()
        index = self._memory.last_index + 1
        columns: Sequence[str] = request.columns
        if request.schema_version != self._schema.version:
            view = self._schemas.view(request.schema_version)
            if view is not None:
                rows, columns = view.write(request.op, rows, columns)
        self.check_share(request.op, rows, columns)
        return index, self._execute(request, rows, columns, index, call.blobs)

    def _check_room(self) -> None:
        self._log.check()
        if self._log.pending_bytes > self._settings.queue_bytes:
            raise Overloaded(
                f"tablet {self.tablet_id}'s queue in bytes", self._settings.queue_bytes
            )

    def _execute(
        self,
        request: Write,
        rows: Any,
        columns: Sequence[str],
        index: int,
        blobs: Sequence[memoryview],
    ) -> bytes:
        """Check, apply, encode and append in one turn of the loop; return the outcome.

        A refusal is logged as well: a late copy of the request must not be carried out after its
        client was told that it was refused.
        """
        memory = self._memory
        first_version, count, kind = memory.next_version, 0, EntryKind.ROWS
        payload: Blob = b""
        shared_bytes = 0
        try:
            executed = memory.execute(request.op, rows, request.if_versions or None, index, columns)
        except (RowExists, RowNotFound, VersionMismatch) as error:
            outcome = refused(error)
            memory.last_index = index
        else:
            first_version, count, kind = executed.first_version, executed.row_count, executed.kind
            outcome = done(first_version, count)
            payload, shared_bytes = payload_of(executed, rows, blobs)
        now = self._runtime.clock.monotonic()
        result = memory.results.record(request.request, outcome, index, now)
        entry = Entry(self.term, index, kind, first_version, count, (result,), payload)
        self._append(entry, shared_bytes)
        return outcome

    def _append(self, entry: Entry, shared_bytes: int = 0) -> None:
        buffers = encode_entry(entry)
        certificate = self._certificates.extend(buffers[0], entry_length(buffers[0]))
        head_bytes = self._log.append(buffers, certificate, entry.index, shared_bytes)
        if head_bytes >= self._settings.segment_bytes:
            self._roll()

    async def write_many(
        self, call: Call[WriteMany], refusal: StelaeError | None
    ) -> tuple[bytes, ...]:
        """Carry out calls of one row each; all in one entry of the log, if none is in doubt."""
        if self._schema.indexes and refusal is None:
            outcomes = await self._write_many_indexed(call)
            return await one_by_one(self, call, refusal) if outcomes is None else outcomes
        outcomes = self._write_together(call.body) if refusal is None else None
        if outcomes is None:
            return await one_by_one(self, call, refusal)
        await self._committed(self._memory.last_index, call.timeout_s)
        return outcomes

    def _write_together(self, many: WriteMany) -> tuple[bytes, ...] | None:
        """What each came to. None: nothing was done, and what is the matter shows one by one."""
        memory, index = self._memory, self._memory.last_index + 1
        is_open = self._succession.stage is SuccessionStage.OPEN
        has_room = self._log.pending_bytes <= self._settings.queue_bytes
        if not (is_open and has_room and many.schema_version == self._schema.version):
            return None
        if not memory.results.are_new(many.requests):
            return None
        try:
            self._log.check()
            self.check_share(many.op, many.rows, many.columns)
            executed = memory.execute(many.op, many.rows, None, index, many.columns)
        except (StelaeError, RowsAbsent):
            return None
        first, count = executed.first_version, executed.row_count
        outcomes = tuple([done(first + i, 1) for i in range(count)])
        now, record = self._runtime.clock.monotonic(), memory.results.record
        given = zip(many.requests, outcomes, strict=True)
        results = tuple([record(request, outcome, index, now) for request, outcome in given])
        entry = Entry(self.term, index, executed.kind, first, count, results, executed.payload())
        self._append(entry)
        return outcomes

    async def read_rows(self, call: Call[Write]) -> Any:
        """The call's rows, checked as far as they can be without looking at the tablet's. Raises
        as `stelae.actors.tserver.tablet.input.read_rows` does."""
        return await read_rows(self._runtime, self._schemas, self._known, call)

    # ---- what cleaning asks for ---------------------------------------------------------------

    @property
    def table(self) -> TableRecord:
        return self._table
