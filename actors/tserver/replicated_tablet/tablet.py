"""One replica of a tablet with ``replicas(n)``: a Raft replica, its state machine, and the calls.

The leader proposes each write as a command; every replica executes it once it is committed, and the
leader answers with what came of it there. So everything in memory is committed, and nothing is ever
taken back. Reads are answered by a leader that has proved that it leads (by its lease, or by a
round of messages), or by any replica whose state is provably no older than the caller allows. No
lease of the masters is needed for either.

A leader's time goes on from that of the log (`GroupClock`). The first one of a new group proposes
what the catalog says of the table before anything else. Design §8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from stelae.actors.raft.host import RaftHost
from stelae.actors.raft.replica import Replica, RoleChange
from stelae.actors.raft.staleness import Freshness
from stelae.actors.raft.storage import ReplicaStorage
from stelae.actors.raft.types import tablet_replica_settings
from stelae.actors.tserver.replicated_tablet.flushes import TabletFlushes
from stelae.actors.tserver.replicated_tablet.indexing import ReplicatedIndexing
from stelae.actors.tserver.replicated_tablet.report import ReplicaReports
from stelae.actors.tserver.replicated_tablet.succession import ReplicatedSuccession
from stelae.actors.tserver.tablet.input import SMALL_BATCH_BYTES, read_rows
from stelae.actors.tserver.tablet.load_rate import LoadRate
from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.actors.tserver.tablet.small_writes import SmallWrite, is_small, one_by_one
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    NotLeader,
    OutOfMemory,
    Overloaded,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
    TooLarge,
)
from stelae.core.ids import OpId, ServerUuid
from stelae.core.messages.rows import (
    SMALL_ROW_BYTES_MAX,
    Get,
    GetMany,
    GetManyReply,
    GetReply,
    Write,
    WriteMany,
    WriteReply,
)
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Snapshot, first_configuration
from stelae.core.rpc import Call, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.storage.entries.outcomes import answer
from stelae.storage.files.superblock import NOTHING, StoredFile, Superblock
from stelae.storage.replicated.commands import (
    GroupClock,
    Stamp,
    encode_alter,
    encode_mark,
    encode_write,
)
from stelae.storage.replicated.manifest import decode_manifest, open_image
from stelae.storage.replicated.state_machine import TabletStateMachine
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image

P = ParamSpec("P")
T = TypeVar("T")
BUSY_PAUSE_S = 0.05
COMMAND_BYTES_MAX = 64 << 20
"""Of one write: it must fit into one message to each of the others."""
MARK_KEPT_S = 600.0
"""For which rows are kept aside for whoever compares replicas, if nobody asks for them."""


async def _become_task() -> None:
    """A prompt handler (`stelae.core.rpc.prompt`) is a task from its first wait on, and only tasks
    can wait with a timeout."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class ReplicatedTablet(ReplicatedSuccession, TabletReads, ReplicatedIndexing):
    """See the module. `start` it, and `close` it; if one of its ``tasks`` fails, it is broken."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        store: TabletStore,
        superblock: Superblock,
        *,
        on_news: Callable[[], None],
        on_copy_needed: Callable[[ServerUuid], None],
        host: RaftHost | None = None,
    ) -> None:
        """``superblock``: that of a ready tablet. ``on_news`` is called when its role, its leader
        or its members change. Raises CorruptData: it does not say of which table it is."""
        table = superblock.table
        if table is None:
            where = f"the superblock of tablet {superblock.tablet_id}"
            raise CorruptData(where, 0, "is ready, but names no table")
        self.tablet_id = superblock.tablet_id
        self.tasks = Tasks()
        self._runtime = runtime
        self._settings = settings
        self._store = store
        self._snapshot = superblock.snapshot
        self._machine = TabletStateMachine(self.tablet_id, table)
        self._machine.log_factor = settings.clean_log_factor
        self._schemas = self._machine.schemas
        self._memory = self._machine.memory
        self._flushes = TabletFlushes(
            runtime, store, self._machine, settings.segment_bytes, self._on_mark
        )
        self._mark_watch: asyncio.Task[None] | None = None
        self._on_news = on_news
        self._clock = GroupClock(0.0, 0.0)
        self._clock_term = -1
        """In which this replica leads, and stamps by `_clock`."""
        self._is_open = True
        self._has_started = False
        self._kept: tuple[int, OpId | None] = (0, None)
        """Term and end of the log of one whose rows could not be loaded."""
        self.replica = Replica(
            runtime,
            self.tasks,
            self.tablet_id,
            store.server,
            {},
            self._flushes,
            tablet_replica_settings(settings),
            snapshots=store.snapshots(self.tablet_id),
            host=host,
        )
        self._load = LoadRate()
        self.transfer = None
        self.began = {}
        self._reports = ReplicaReports(self.replica, self._machine, lambda: self.giving)
        self.replica.on_role_change(self._on_role_change)
        self.replica.on_copy_needed(on_copy_needed)
        self._freshness = Freshness(runtime, settings, self.replica)

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the images that the superblock names, and take part; the log's tail is executed as
        soon as it is known how much of it is committed. Raises CorruptData, OSError."""
        if self._snapshot is not None:
            try:
                images = await self._open_images(self._snapshot)
                await self._patiently(self._machine.load, self._snapshot.data, images)
            except (CorruptData, OSError):
                await self._look_at_log()
                raise
        await self.replica.start()
        self._has_started = True
        self.tasks.spawn(self._flushes.run(self.replica), f"flushes of {self.tablet_id}")

    async def _look_at_log(self) -> None:
        """Rows that are lost here are copied from others; what this replica has promised is not in
        them, and is known if the log and its metadata are whole."""
        storage = ReplicaStorage(
            self._runtime.disk,
            "",
            self.tablet_id,
            log_file_bytes=self._settings.segment_bytes,
            snapshots=self._store.snapshots(self.tablet_id),
        )
        try:
            loaded = await storage.load(first_configuration({}))
        except (CorruptData, OSError):
            self._runtime.metrics.count("tablet_logs_damaged")
            return
        finally:
            storage.close()
        last = loaded.snapshot.last if loaded.snapshot is not None else NOTHING
        ends = [entry.op_id for entry in loaded.entries[-1:]]
        self._kept = loaded.term_and_vote.term, max([last, *ends])

    async def _open_images(self, snapshot: Snapshot) -> list[Image]:
        where = f"the snapshot of tablet {self.tablet_id}"
        images = []
        for file in decode_manifest(where, self.tablet_id, snapshot.data).images:
            stored = StoredFile(file.name, file.size_bytes, file.crc)
            content = await self._store.read_image(self.tablet_id, stored)
            named = f"image {file.name}"
            opened = await self._patiently(
                open_image, file, self.tablet_id, content, named, is_checked=True
            )
            images.append(opened)
        return images

    async def _patiently(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Off the loop, when there is room for it."""
        while True:
            try:
                return await self._runtime.offload(work, *args, **kwargs)
            except Overloaded:
                await self._runtime.clock.sleep(BUSY_PAUSE_S)

    async def close(self) -> None:
        """Take part no more, and let go of log and rows. Whatever failed before is not raised."""
        self._is_open = False
        self._close_indexes()
        await self.replica.stop()
        try:
            await self.tasks.close()
        except Exception:  # seen already by whoever watches the tasks
            self._runtime.metrics.count("broken_tablets_closed")
        # Tablet and replica refer to each other: left to the collector, rows would stay for long.
        table = self._schemas.table
        self._memory = self._machine.memory = TabletMemory(table.schema, table.name)

    def fail(self, error: Exception) -> None:
        """Something else has found that this replica cannot go on: as if a task of it had."""

        async def found() -> None:
            raise error

        if self._is_open:
            self.tasks.spawn(found(), f"failure of {self.tablet_id}")

    @property
    def term(self) -> int:
        """Also once this is closed; 0: it is not known."""
        return self.replica.term if self._has_started else self._kept[0]

    @property
    def end_of_log(self) -> OpId | None:
        """What a tombstone has to keep, also once this is closed; None: it is not known."""
        return self.replica.core.end_of_log if self._has_started else self._kept[1]

    @property
    def memory_bytes(self) -> int:
        """Of rows and index."""
        return self._memory.memory_bytes

    @property
    def live_bytes(self) -> int:
        """Of them, what cleaning cannot free."""
        return self._memory.live_bytes

    def clean_soon(self) -> None:
        """Memory is low here."""
        if self._has_started:
            self._flushes.clean_soon()

    def tell_memory(self, over: tuple[int, int] | None) -> None:
        """Of this server: (used, limit) in bytes while it has none left for more rows."""
        if self._has_started:
            self.replica.core.memory_over = over

    def no_room(self) -> OutOfMemory | None:
        """What this leader refuses rows with as long as a follower has no memory for them: it has
        to take all that is committed, so it cannot refuse anything by itself."""
        leader = self.replica.core.leader if self._has_started else None
        over = leader.memory_over() if leader is not None else None
        if over is None:
            return None
        uuid, used_bytes, limit_bytes = over
        peer = self.replica.core.configuration.peer(uuid)
        return OutOfMemory(peer.name if peer and peer.name else uuid, used_bytes, limit_bytes)

    @property
    def machine(self) -> TabletStateMachine:
        """To look at: checksums, what was applied."""
        return self._machine

    async def flush(self) -> None:
        """Make everything applied durable outside of the log. Raises as `TabletFlushes.flush`."""
        await self._flushes.flush(self.replica)

    def report(self) -> TabletReport:
        """For heartbeats."""
        now_s = self._runtime.clock.monotonic()
        return self._reports.report(self._load_per_s(now_s), now_s)

    def _load_per_s(self, now_s: float) -> float:
        """Of a leader; the others do what it does, and need no rate of their own."""
        if self.replica.is_leader:
            return self._load.look(self.calls, now_s)
        self._load.stop()
        return 0.0

    # ---- leading ----------------------------------------------------------------------------

    def _on_role_change(self, change: RoleChange) -> None:
        if change.ready and self._clock_term != change.term:
            self._clock_term = change.term
            now_s = self._runtime.clock.monotonic()
            self._clock = GroupClock(self._machine.now_s, now_s)
            if not self._machine.is_founded:
                self.tasks.spawn(self._found(change.term), f"found {self.tablet_id}")
            self.begin_indexing()
        self._on_news()

    def _stamp(self) -> Stamp:
        return self._clock.stamp(self._runtime.clock.monotonic(), self._settings.client_expiry_s)

    async def _found(self, term: int) -> None:
        """Say in the log what table this is of, unless another has said so."""
        settings, replica = self._settings, self.replica
        while replica.is_leader and replica.term == term and not self._machine.is_founded:
            command = encode_alter(self._schemas.table, self._stamp())
            try:
                await replica.propose(command, settings.call_timeout_s)
            except StelaeError:
                self._runtime.metrics.count("foundings_repeated")
                await self._runtime.clock.sleep(settings.raft_tick_s)

    def _check_leading(self) -> None:
        """Raises NotLeader, TabletNotReady, TabletNotHere unless commands may be proposed here."""
        replica = self.replica
        if not self._is_open:
            raise TabletNotHere(self.tablet_id, "this server any more")
        if not replica.is_leader:
            raise NotLeader(replica.uuid, replica.term, replica.leader_address or "")
        if not replica.leader_ready or self._clock_term != replica.term:
            raise TabletNotReady(self.tablet_id, "led anew, and what came before is being applied")

    async def alter(self, table: TableRecord, timeout_s: float) -> TabletReport:
        """The catalog has this record of the table; returns once that is in the log, and applied.

        Raises NotLeader, TabletNotReady, Overloaded, and OutcomeUnknown: it may come yet.
        """
        self._check_leading()
        known = self._schemas.table
        newer = table.schema.version > known.schema.version or table.generation > known.generation
        if newer or not self._machine.is_founded:
            self._altering = (self.replica.term, max(table.schema.version, known.schema.version))
            await self.replica.propose(encode_alter(table, self._stamp()), timeout_s)
            self.begin_indexing()
        return self.report()

    # ---- comparing replicas -----------------------------------------------------------------

    async def mark(self, timeout_s: float) -> int:
        """Have every replica keep its rows aside at one index of the log, which is returned.

        Raises NotLeader, TabletNotReady, Overloaded, and OutcomeUnknown: it may come yet.
        """
        self._check_leading()
        index = await self.replica.propose(encode_mark(self._stamp()), timeout_s)
        assert isinstance(index, int), "the outcome of a mark"
        return index

    def forget_mark(self, index: int) -> None:
        """Let go of the rows that were kept aside there."""
        if self._machine.marked_index == index:
            self._machine.unmark()

    def _on_mark(self) -> None:
        """A mark was applied, perhaps one of long ago, read from the log after a restart."""
        if self._mark_watch is None:
            name = f"mark of {self.tablet_id}"
            self._mark_watch = self.tasks.spawn(self._forget_marks(), name)

    async def _forget_marks(self) -> None:
        while index := self._machine.marked_index:
            await self._runtime.clock.sleep(MARK_KEPT_S)
            self.forget_mark(index)
        self._mark_watch = None

    # ---- writes -----------------------------------------------------------------------------

    async def read_rows(self, call: Call[Write]) -> Any:
        """The call's rows, checked as far as they can be without looking at the tablet's. Raises
        as `stelae.actors.tserver.tablet.input.read_rows`, and like `write` if this does not
        lead."""
        self._check_leading()
        return await read_rows(self._runtime, self._schemas, self._machine.known, call)

    async def write(self, call: Call[Write], rows: Any, refusal: StelaeError | None) -> WriteReply:
        """Carry out one call's rows, atomically and once; answered when a majority has them.

        ``rows`` are what `read_rows` made of the call; ``refusal`` is what new writes are refused
        with just now: a repeated one gets its first answer all the same.
        """
        request = call.body
        self._check_leading()
        known = self._machine.known(request.request)
        if known is not None:
            return answer(known)
        if refusal is not None:
            raise refusal
        self._check_open()
        if self._schemas.present.indexes:
            return await self._write_indexed(call, rows)
        present = self._schemas.present.version
        command = await self._command_of(call, rows)
        if present != self._schemas.present.version and self._schemas.present.indexes:
            raise TabletNotReady(self.tablet_id, "altered just now: it has an index")
        outcome = await self.replica.propose(command, call.timeout_s)
        assert isinstance(outcome, bytes), "the outcome of a write"
        return answer(outcome)

    async def _command_of(self, call: Call[Write], rows: Any) -> bytes | SmallWrite:
        """Raises InvalidArgument, TooLarge and the like: it cannot be carried out."""
        request = call.body
        size_bytes = self._machine.check_write(request, rows)
        if is_small(request, size_bytes):
            version = request.schema_version or self._schemas.present.version
            return SmallWrite(request, (request.request,), self._stamp(), version, size_bytes)
        command = await self._command(call, rows)
        limit = min(COMMAND_BYTES_MAX, self._settings.queue_bytes)
        if len(command) > limit:
            what = f"a write to table {self._schemas.table.name!r}"
            raise TooLarge(what, len(command), limit)
        return command

    async def write_many(
        self, call: Call[WriteMany], refusal: StelaeError | None
    ) -> tuple[bytes, ...]:
        """Carry out calls of one row each; all in one entry of the log, if none is in doubt."""
        many = call.body
        self._check_leading()
        self._check_open()
        size_bytes = self._machine.check_many(many) if refusal is None else 0
        if not 0 < size_bytes <= SMALL_ROW_BYTES_MAX * len(many.rows):
            return await one_by_one(self, call, refusal)
        if self._schemas.present.indexes:
            found = await self._write_many_indexed(call, size_bytes)
            return await one_by_one(self, call, refusal) if found is None else found
        version = many.schema_version or self._schemas.present.version
        command = SmallWrite(many, many.requests, self._stamp(), version, size_bytes)
        outcomes = await self.replica.propose(command, call.timeout_s)
        assert isinstance(outcomes, tuple) or len(many.requests) == 1, "the outcomes of calls"
        return outcomes if isinstance(outcomes, tuple) else (outcomes,)

    async def _command(self, call: Call[Write], rows: Any) -> bytes:
        version = call.body.schema_version or self._schemas.present.version
        stamp, stream = self._stamp(), call.blobs[0] if call.blobs else None
        if stream is None or stream.nbytes <= 16 * SMALL_BATCH_BYTES:
            return encode_write(call.body, rows, stream, schema_version=version, stamp=stamp)
        return await self._runtime.offload(
            encode_write, call.body, rows, stream, schema_version=version, stamp=stamp
        )

    # ---- reads ------------------------------------------------------------------------------

    async def _committed(self, index: int, timeout_s: float) -> None:
        """Nothing is applied before it is committed."""

    async def _may_read(self, max_staleness_s: float, timeout_s: float) -> None:
        """Return when this replica may answer, which it then does in the same turn of the loop.

        Raises NotLeader, DeadlineExpired, Overloaded, TabletNotHere; TooStale where the caller
        allows age.
        """
        if not self._is_open:
            raise TabletNotHere(self.tablet_id, "this server any more")
        if max_staleness_s < 0:
            if self._is_proved():
                return
            await _become_task()
            await self.replica.read_barrier(timeout_s)
        elif self._freshness.staleness_s() > max_staleness_s:
            await _become_task()
            await self._freshness.prove(max_staleness_s, timeout_s)
        if not self._is_open:
            raise TabletNotHere(self.tablet_id, "this server any more")

    def _is_proved(self) -> bool:
        """Whether nobody else can lead now, and all that was committed is applied."""
        log = self.replica.core.log
        return self.replica.lease_valid() and log.commit_index <= log.applied_index

    async def get(self, call: Call[Get]) -> Reply[GetReply]:
        """Read rows by key."""
        await self._may_read(call.body.max_staleness_s, call.timeout_s)
        return await super().get(call)

    async def get_many(self, call: Call[GetMany]) -> Reply[GetManyReply]:
        """Read many rows by key."""
        await self._may_read(call.body.max_staleness_s, call.timeout_s)
        return await super().get_many(call)
