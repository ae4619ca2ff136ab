"""What a tablet does for its table's indexes, whatever its durability (SLIK's order of a write).

1. `prepare`: the entries that a call's rows need are registered as **pending**, and put in, but for
   those of rows that are there, written in this term: they are in, and no pending one is taken out.
2. The tablet writes the rows in one turn of its loop, or refuses them. This watches: what the rows
   had before, and nobody needs any more, is to be taken out, but for what is pending: that call
   needs it, or cleans up when it fails.
3. `settle`: the call is over. Of what it has put in, that is to be taken out which neither the
   rows that are there nor another pending call need.

Removals follow in the background (`stelae.actors.tserver.indexes.removals`). The rules for stamps,
epochs and fills are those of `stelae.core.messages.indexes`. Everything here is in memory, and lost
with the tablet: whoever brings it back is in a new epoch, and has the indexlets compare.

Of a group the leader alone does this, from the moment on at which it has applied all that came
before its term: of every command after that it knows by itself what is pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from stelae.actors.tserver.indexes.removals import IndexRemovals, Removal
from stelae.actors.tserver.indexes.routes import IndexRoutes, Locate
from stelae.core.config.settings import Settings
from stelae.core.errors import Overloaded, StelaeError, TabletNotReady
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.indexes import TabletStamp, epoch_of
from stelae.core.messages.rows import WriteOp
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks, all_or_first_error
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.indexes.log_entries import LogEntries
from stelae.storage.indexes.runs import Run
from stelae.storage.kernels.default import default_index_kernels
from stelae.storage.rows.gather import Located, Snapshot
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.row_entries import (
    Few,
    FewSeen,
    Many,
    ManySeen,
    TableCodecs,
    check_here,
    entries_of_few,
    lacking,
    located_entries,
    new_entries,
    new_entries_of_batch,
    rows_of,
    seen_before,
    sorted_entries,
    without,
)
from stelae.storage.segments.layout import Row

INSERT_SHARE = 0.9
"""Of a call's time, in which its entries must be in; the rest is for the row."""


class IndexedTablet(Protocol):
    """What is asked of the tablet."""

    tablet_id: TabletId

    @property
    def index_memory(self) -> TabletMemory: ...

    @property
    def index_term(self) -> int:
        """The term in which it may write now; 0: it may not."""

    def index_committed(self) -> int:
        """Up to which entry of the log everything is committed."""


class Ticket:
    """One call, from the moment its entries are pending until it is settled."""

    __slots__ = ("few", "is_alone", "keys", "many", "schema_version", "sequence", "term")

    def __init__(self, sequence: int, schema_version: int, term: int) -> None:
        self.sequence = sequence
        self.schema_version = schema_version
        self.term = term
        self.keys: list[Row] | pa.RecordBatch = []
        self.few: dict[IndexId, tuple[bytes, ...]] = {}
        self.many: Many = {}
        self.is_alone = False
        """None of its keys is there twice: once its rows are written, they need all it put in."""


class FillSource(NamedTuple):
    """Everything of one moment, for an indexlet:
    `stelae.storage.rows.row_entries.tablet_entries`."""

    codec: EntryCodec
    snapshot: Snapshot
    log_entries: LogEntries
    """Makes entries of rows that are not here."""
    pending: list[pa.BinaryArray]
    stamp: TabletStamp
    sequence: int


class IndexWrites:
    """See the module. Also a `RowWatcher` of the tablet's memory."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        tablet: IndexedTablet,
        table_id: TableId,
        schema: TableSchema,
        locate: Locate,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._tablet = tablet
        self._codecs = TableCodecs(schema)
        self._routes = IndexRoutes(runtime, tasks, locate, table_id, tablet.tablet_id, self._stamp)
        self._sequence = 0
        self._term = 0
        self._first_version = 1 << 63
        """Rows of this version or above were written in this term, with their entries put in, or
        before there was the index, which then was filled from them."""
        self._inserting: dict[int, None] = {}
        """Sequences of calls whose entries are not in yet, ascending."""
        self._few: dict[IndexId, dict[bytes, int]] = {}
        """Pending entries of small calls, and of how many calls, by index."""
        self._bulk: dict[int, Ticket] = {}
        """Pending large calls, by sequence."""
        self._bytes = 0
        self._removals: IndexRemovals | None = None

    # ---- life ---------------------------------------------------------------------------------

    @property
    def codecs(self) -> TableCodecs:
        """Of the schema that the tablet has now."""
        schema = self._tablet.index_memory.schema
        if schema is not self._codecs.schema:
            self._codecs = TableCodecs(schema)
        return self._codecs

    def begin(self) -> None:
        """The tablet may write, in a term in which it did not before; or does it already."""
        term = self._tablet.index_term
        if not term or term == self._term or not self.codecs.codecs or self._routes.is_closed:
            return
        self._term, self._first_version = term, self._tablet.index_memory.next_version
        removals = self._removals = self._removals_of(term)
        self._tasks.spawn(self._remove(removals), f"index removals of {self._tablet.tablet_id[:8]}")

    def _removals_of(self, term: int) -> IndexRemovals:
        return IndexRemovals(
            self._runtime,
            self._routes,
            lambda: self._stamp_of(term),
            self._may_send,
            lambda index_id: index_id in self.codecs.codecs,
        )

    async def tell_loss(self, term: int) -> None:
        """Return once no indexlet answers any more before it has compared what the tablet has in
        this term, in which it does not serve yet: rows may be back whose entries were taken out."""
        await self._removals_of(term).announce(may_lack=True)

    async def _remove(self, removals: IndexRemovals) -> None:
        """Until the term is another one, or the tablet is closed."""
        work = self._tasks.spawn(removals.run(), "removals")
        try:
            while self._removals is removals and self._tablet.index_term == self._term:
                await self._runtime.clock.sleep(self._settings.heartbeat_s)
        finally:
            work.cancel()

    def close(self) -> None:
        """The tablet ends."""
        self._routes.is_closed = True
        self._removals = None

    def under_way(self) -> str:
        """What is pending, or waits to be taken out; empty: nothing."""
        few = sum([len(pending) for pending in self._few.values()])
        waiting = "" if self._removals is None else self._removals.waiting()
        if not (few or self._bulk or self._inserting or waiting):
            return ""
        return (
            f"{few} pending entries, {len(self._bulk)} pending batches, {len(self._inserting)} "
            f"insertions; to be taken out: {waiting}"
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _stamp(self) -> TabletStamp:
        return self._stamp_of(self._term)

    def _stamp_of(self, term: int) -> TabletStamp:
        epoch = epoch_of(self._routes.change, term)
        first = next(iter(self._inserting), self._sequence + 1)
        return TabletStamp(self._routes.number, epoch, first)

    def _may_send(self, removal: Removal) -> bool:
        is_over = next(iter(self._inserting), self._sequence + 1) > removal.sequence
        return is_over and removal.log_index <= self._tablet.index_committed()

    def wake(self) -> None:
        """Something more may be committed."""
        if self._removals is not None:
            self._removals.wake()

    # ---- before the row is written ------------------------------------------------------------

    def check_here(self, op: WriteOp, rows: Any, columns: Sequence[str]) -> None:
        """Raises RowsAbsent: rows that `prepare`, the write and `settle` look at are not here; as
        `prepare`: rows do not fit."""
        check_here(self._tablet.index_memory, self.codecs, op, rows, columns)

    async def prepare(
        self, op: WriteOp, rows: Any, columns: tuple[str, ...] | Any, timeout_s: float
    ) -> Ticket:
        """Register the entries that rows need, and put them in; to be followed by `settle`.

        ``rows`` and ``columns``: as `TabletMemory.execute` takes them. Raises as that does for rows
        that do not fit; RetryLater: surely nothing was written.
        """
        deadline = self._runtime.clock.monotonic() + INSERT_SHARE * timeout_s
        if self._bytes > self._settings.queue_bytes:
            what = f"index entries of tablet {self._tablet.tablet_id} under way, in bytes"
            raise Overloaded(what, self._settings.queue_bytes)
        codecs = self.codecs
        memory, term = self._tablet.index_memory, self._tablet.index_term
        few: Few = {}
        if isinstance(rows, pa.RecordBatch):
            many, is_alone = await self._runtime.offload(new_entries_of_batch, codecs, op, rows)
            ticket = Ticket(self._next(), codecs.schema.version, term)
            ticket.many, ticket.is_alone = many, is_alone
            ticket.keys = rows.select(list(codecs.schema.key))
        else:
            keys, few = new_entries(memory, codecs, op, rows, columns)
            ticket = Ticket(self._next(), codecs.schema.version, term)
            ticket.keys, ticket.few, ticket.is_alone = keys, few, len(keys) == 1
            few = lacking(memory, codecs, keys, few, self._first_version)
        self._register(ticket)
        try:
            await self._insert(ticket, few, deadline)
        except BaseException:
            self.settle(ticket, is_written=False)
            raise
        return ticket

    async def _insert(self, ticket: Ticket, few: Few, deadline: float) -> None:
        if not any(few.values()) and not ticket.many:
            return
        routes, version, sequence = self._routes, ticket.schema_version, ticket.sequence
        self._inserting[sequence] = None
        try:
            parts = [
                routes.insert(index_id, version, entries, sequence, deadline)
                for index_id, entries in few.items()
                if entries
            ]
            parts += [
                routes.insert_many(index_id, version, run, sequence, deadline)
                for index_id, run in ticket.many.items()
                if run.length
            ]
            if len(parts) == 1:
                await parts[0]
            elif parts:
                await all_or_first_error(parts)
        finally:
            del self._inserting[sequence]
            self.wake()

    def check(self, ticket: Ticket) -> None:
        """In the turn in which the row is written: raises TabletNotReady, surely not done, unless
        the indexes are those that the entries were made for, and the term is the one in which they
        were put in: who led meanwhile did not know that they are pending."""
        if ticket.schema_version != self._tablet.index_memory.schema.version:
            raise TabletNotReady(
                self._tablet.tablet_id, "altered just now: its indexes or defaults"
            )
        if ticket.term != self._tablet.index_term:
            state = "led anew since the index entries of the rows were put in"
            raise TabletNotReady(self._tablet.tablet_id, state)

    # ---- pending entries ----------------------------------------------------------------------

    def _register(self, ticket: Ticket) -> None:
        for index_id, entries in ticket.few.items():
            pending = self._few.setdefault(index_id, {})
            for entry in entries:
                pending[entry] = pending.get(entry, 0) + 1
                self._bytes += len(entry)
        if ticket.many:
            self._bulk[ticket.sequence] = ticket
            self._bytes += sum([run.nbytes for run in ticket.many.values()])

    def _unregister(self, ticket: Ticket) -> None:
        for index_id, entries in ticket.few.items():
            pending = self._few[index_id]
            for entry in entries:
                self._bytes -= len(entry)
                if pending[entry] > 1:
                    pending[entry] -= 1
                else:
                    del pending[entry]
        if self._bulk.pop(ticket.sequence, None) is not None:
            self._bytes -= sum([run.nbytes for run in ticket.many.values()])

    def _is_pending(self, index_id: IndexId, entry: bytes) -> bool:
        if entry in self._few.get(index_id, ()):
            return True
        return any([_has(ticket.many.get(index_id), entry) for ticket in self._bulk.values()])

    def _pending(self, index_id: IndexId) -> list[pa.BinaryArray]:
        """All pending entries of one index, at this moment."""
        found = [
            run.entries()
            for ticket in self._bulk.values()
            if (run := ticket.many.get(index_id)) is not None
        ]
        few = self._few.get(index_id)
        return [*found, pa.array(list(few), pa.binary())] if few else found

    # ---- when the row is written --------------------------------------------------------------

    def before(self, op: WriteOp, rows: Any, columns: Any) -> FewSeen | ManySeen | None:
        """As `RowWatcher.before`."""
        if not self._term or self._tablet.index_term != self._term:
            return None
        try:
            return seen_before(self._tablet.index_memory, self.codecs, op, rows, columns)
        except StelaeError:
            return None  # it cannot be written either, which says so

    def after(self, seen: FewSeen | ManySeen) -> None:
        """As `RowWatcher.after`: what rows had before, and have no more, is to go."""
        memory = self._tablet.index_memory
        if isinstance(seen, ManySeen):
            self._take_out_many(
                {i: _Old(codec, located=seen.located) for i, codec in seen.codecs.items()},
                memory.locate(seen.keys),
            )
            return
        now = rows_of(memory, seen.keys)
        for index_id, codec in seen.codecs.items():
            old = entries_of_few(codec, seen.keys, seen.rows)
            if old:
                self._take_out(index_id, old, entries_of_few(codec, seen.keys, now))

    def settle(self, ticket: Ticket, *, is_written: bool) -> None:
        """The call is over: what it put in, and nobody needs, is to go.

        ``is_written``: its rows were written in this very turn.
        """
        self._unregister(ticket)
        if (is_written and ticket.is_alone) or self._tablet.index_term != self._term:
            return
        memory = self._tablet.index_memory
        if isinstance(ticket.keys, pa.RecordBatch):
            old = {
                i: _Old(self.codecs.codecs[i], run=run)
                for i, run in ticket.many.items()
                if i in self.codecs.codecs
            }
            if old:
                self._take_out_many(old, memory.locate(ticket.keys))
            return
        if not ticket.few:
            return
        rows = rows_of(memory, ticket.keys)
        for index_id, entries in ticket.few.items():
            codec = self.codecs.codecs.get(index_id)
            if codec is not None:
                needed = entries_of_few(codec, ticket.keys, rows)
                self._take_out(index_id, entries, needed)

    def _take_out(self, index_id: IndexId, entries: Any, needed: list[bytes]) -> None:
        kept = set(needed)
        gone = [e for e in entries if e not in kept and not self._is_pending(index_id, e)]
        if gone and self._removals is not None:
            log_index = self._tablet.index_memory.last_index
            self._removals.put(Removal(index_id, self._next(), log_index, tuple(gone)))

    def _take_out_many(self, old: dict[IndexId, _Old], now: Located) -> None:
        """Which entries it is, is worked out off the loop, from what is noted in this turn."""
        if self._removals is None:
            return
        log_index = self._tablet.index_memory.last_index
        pending = {index_id: self._pending(index_id) for index_id in old}
        work = self._work_out(self._removals, old, now, pending, self._next(), log_index)
        if not self._routes.is_closed:
            self._tasks.spawn(work, "old index entries")

    async def _work_out(
        self,
        removals: IndexRemovals,
        old: dict[IndexId, _Old],
        now: Located,
        pending: dict[IndexId, list[pa.BinaryArray]],
        sequence: int,
        log_index: int,
    ) -> None:
        for index_id, each in old.items():
            try:
                run = await self._runtime.offload(each.superfluous, now, pending[index_id])
            except StelaeError:  # no worker has time: the indexlets find out by themselves
                self._runtime.metrics.count("index_removals_lost")
                removals.is_lossy = True
                removals.wake()
                continue
            if run.length:
                removals.put(Removal(index_id, sequence, log_index, (), run))

    # ---- fills --------------------------------------------------------------------------------

    async def ready_to_fill(self, timeout_s: float) -> None:
        """Know what the tablet is to its table. Raises RetryLater: not now."""
        if not self._routes.is_known:
            try:
                await self._routes.refresh(timeout_s)
            except TimeoutError:
                raise TabletNotReady(self._tablet.tablet_id, "waiting for the masters") from None
        if not self._routes.is_known:
            raise TabletNotReady(self._tablet.tablet_id, "not in its table's place yet")

    def fill_source(self, index_id: IndexId) -> FillSource:
        """What an indexlet is told, all of this turn; once it is durable. Raises TabletNotReady."""
        codec = self.codecs.codecs.get(index_id)
        if codec is None or not self._term or self._tablet.index_term != self._term:
            raise TabletNotReady(self._tablet.tablet_id, f"without index {index_id}")
        snapshot = self._tablet.index_memory.scan_snapshot()
        log_entries = LogEntries(self.codecs.schema, self.codecs.definition(index_id))
        return FillSource(
            codec, snapshot, log_entries, self._pending(index_id), self._stamp(), self._next()
        )


class _Old(NamedTuple):
    """Entries that may have become superfluous: of rows that were there, or of a call."""

    codec: EntryCodec
    located: Located | None = None
    run: Run | None = None

    def superfluous(self, now: Located, pending: list[pa.BinaryArray]) -> Run:
        """Those that the rows of ``now`` do not need, and that are not pending. Off the loop."""
        if self.located is not None:
            entries = located_entries(self.codec, self.located)
        else:
            assert self.run is not None
            entries = self.run.entries()
        return sorted_entries(without(entries, [located_entries(self.codec, now), *pending]))


def _has(run: Run | None, entry: bytes) -> bool:
    if run is None or not run.length:
        return False
    place = run.find(entry, default_index_kernels())
    return place < run.length and run.entry(place) == entry
