"""All rows of one tablet in memory: log segments, the hash index over them, clients' results.

The state is determined by the log: every row ever written in order, with rising versions; the
index says which row of a key is the newest. Nothing here does I/O or reads a clock; nothing is
asynchronous. `TabletMemory.execute` checks everything first, then changes everything: nothing is
half done when it raises. Implements design §5 (operations), §6 (log and memory), §9 (adoption).

Invariants: the index holds exactly the live rows; a row's position stays valid until its segment
is dropped; versions rise in log order and are never given twice, also across recovery.

Readers see rows before they are committed; each answer names the log index to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.messages.rows import WriteOp
from stelae.core.rpc import Blob
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.client_results import ClientResults
from stelae.storage.entries.entry import EntryKind
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.hash_index import ROW_MASK, SLOT_SHIFT
from stelae.storage.keys.merge import Merged, merge
from stelae.storage.rows.gather import Located, Snapshot, pieces_of
from stelae.storage.rows.shapes import Shape
from stelae.storage.rows.store import RowStore
from stelae.storage.rows.tablet_segments import SegmentStats, TabletSegments
from stelae.storage.rows.transfer import Changes, changes_since, install
from stelae.storage.rows.write import Executed, group_payload, write_batch, write_rows
from stelae.storage.segments.image import Image, ImageMeta, build_image
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.recovered import RecoveredSegment, imported_batch
from stelae.storage.segments.remote import Piece, RemoteSegment
from stelae.storage.segments.segment import Segment

__all__ = ["Executed", "Found", "SegmentStats", "TabletMemory", "group_payload"]

_MAX_SHAPES = 64


class Found(NamedTuple):
    """A row that was found: wire values of all columns, its version, its entry's log index."""

    row: Row
    version: int
    index: int  # type: ignore[assignment]  # tuple.index is not missed


class RowWatcher(Protocol):
    """Whoever looks at rows before and after they are written, in the same turn."""

    def before(
        self, op: WriteOp, rows: Sequence[Any] | pa.RecordBatch, columns: Sequence[str]
    ) -> object | None:
        """What `execute` was given. None: `after` need not be called."""

    def after(self, seen: Any) -> None:
        """They were written; not called if they were refused. ``seen``: what `before` gave."""


class TabletMemory(TabletSegments):
    """See the module. Belongs to one event loop; what may run off it says so."""

    def __init__(self, schema: TableSchema, table: str, codec: KeyCodec | None = None) -> None:
        """An empty tablet without a head. ``codec`` is for tests."""
        self.schema = schema
        """The present one; older segments are shown in its columns."""
        self.table = table
        self.codec = codec or KeyCodec(schema)
        super().__init__(schema, table, self.codec)
        self.results = ClientResults()
        self.next_version = 1
        """The version the next row gets; the safe version of the next prologue."""
        self.last_index = 0
        """Log index of the newest write."""
        self.last_delete_index = 0
        """Log index of the newest entry with a tombstone: who finds no row waits for it."""
        self.watcher: RowWatcher | None = None
        """Told of every write that is carried out."""
        self._shapes: dict[tuple[WriteOp, tuple[str, ...]], Shape] = {}

    # ---- segments ----

    def new_head(self, segment_id: int) -> int:
        """Open a new head and close the one before; return the new head's slot."""
        store = self._store
        self.close_head()
        slot = store.free_slot()
        version = self.schema.version
        store.head = Segment(store.layout, slot, segment_id, self.next_version, version)
        store.place(store.head)
        self._count_closed()
        return slot

    def close_head(self) -> None:
        """Close the head, if one is open; `new_head` comes before the next write."""
        if self._store.head is not None:
            self._store.head.closed = True
            self._written_bytes += self._store.head.bytes
            self._store.head = None
            self._count_closed()

    @property
    def has_head(self) -> bool:
        """Whether a head is open."""
        return self._store.head is not None

    def use_schema(self, schema: TableSchema) -> None:
        """Read and write in the columns of another version of the table's schema from now on.

        A segment has one schema: the head is closed, and nothing is written before `new_head`.
        Positions, versions, tombstones and the index stay as they are: the key never changes.
        """
        assert schema.key == self.schema.key, "the key is the same in every version"
        self.close_head()
        self.schema = schema
        self._shapes.clear()
        self._store.use_schema(schema)
        self._count_closed()

    @property
    def newest_schema_version(self) -> int:
        """Of those that segments in memory were written with; 0: there are none."""
        return max([s.schema_version for s in self._store.order], default=0)

    def rename(self, table: str) -> None:
        """Call the table ``table`` in errors from now on."""
        self.table = self._store.table = table
        self._shapes.clear()

    def seal(self, slot: int, table_id: str, tablet_id: str, term: int) -> pa.Buffer:
        """Build the image of a closed segment; changes nothing, may run off the loop."""
        segment = self._store.segment(slot)
        meta = ImageMeta(
            table_id,
            tablet_id,
            segment.segment_id,
            term,
            segment.first_index,
            segment.last_index,
            segment.row_count,
            segment.next_version,
            segment.schema_version,
        )
        return build_image(segment.stored(), meta, self.codec)

    def install_sealed(self, slot: int, image: Image) -> None:
        """Hold a closed segment as its image. All its entries must be committed."""
        segment = self._store.segment(slot)
        assert segment.closed, "the head is not sealed"
        assert image.meta.segment_id == segment.segment_id, "the image is of another segment"
        segment.become_columnar(image.batch, image.buffer.size, sealed=True)
        self._count_closed()

    @property
    def remote(self) -> list[RemoteSegment]:
        """Segments whose rows are not here yet: what needs them raises `RowsAbsent`, changing
        nothing. Until there are none, nothing is to be cleaned or to change hands."""
        return [s for s in self._store.segments if isinstance(s, RemoteSegment)]

    def arrive(self, remote: RemoteSegment, whole: Piece) -> None:
        """Its rows are here to stay."""
        assert self._store.segments[remote.slot] is remote, "a segment arrives once"
        self._store.replace(remote, remote.arrived(whole))
        self._count_closed()

    # ---- to and from another tablet ----

    def changes_since(
        self, version: int, limit_bytes: int, began_at: int | None = None
    ) -> Changes | None:
        """About so many bytes of what there is from ``version`` on
        (`stelae.storage.rows.transfer`).

        ``began_at``: what `forgettings` was when the receiver had nothing at all, and has got all
        since from here. None: it cannot be brought up to date, as it may have rows whose tombstones
        are forgotten, or has what was never here.
        """
        missed = 1 < version < self.forgot_below and began_at != self.forgettings
        if version > self.next_version or missed:
            return None
        self.finish_moves()
        return changes_since(self._store, version, self.next_version, limit_bytes)

    def import_changes(self, batch: pa.RecordBatch | None, next_version: int, index: int) -> None:
        """Take what another tablet's `changes_since` gave, as log entry ``index``; this one's next
        version was where that began. ``batch``: checked, by `imported_batch`."""
        assert next_version >= self.next_version, "versions rise"
        if batch is not None and batch.num_rows and install(self._store, batch, index):
            self.last_delete_index = index
        self.next_version = next_version
        self.last_index = index

    def imported_batch(self, payload: Blob) -> pa.RecordBatch:
        """Raises CorruptData: it holds no rows in the columns that this tablet stores."""
        return imported_batch(payload, self._store.layout)

    # ---- writing ----

    def execute(
        self,
        op: WriteOp,
        rows: Sequence[Any] | pa.RecordBatch,
        if_versions: Sequence[int] | None,
        index: int,
        columns: Sequence[str] = (),
    ) -> Executed:
        """Carry out one call's rows in order, all or none, as (part of) log entry ``index``.

        ``rows``: tuples of wire values of ``columns`` (empty: all; DELETE: the key columns), or a
        batch that `check_batch` has passed, whose columns say themselves. Columns left out: INSERT
        and UPSERT write their defaults or null, UPDATE keeps what is there.
        ``if_versions``: for each row the version its key must have at its turn; 0: absent.

        Raises:
            VersionMismatch: a condition does not hold; conditions come before the next two.
            RowExists, RowNotFound: INSERT met a row, UPDATE met none.
            InvalidArgument: INSERT was given a key twice; a value or column does not fit.
            ColumnNotFound, TooLarge: as they say.
        """
        if not len(rows):
            self.last_index = index  # the call has its entry in the log all the same
            return Executed(EntryKind.ROWS, self.next_version, 0)
        seen = None if self.watcher is None else self.watcher.before(op, rows, columns)
        if isinstance(rows, pa.RecordBatch):
            conditions = _conditions(if_versions, rows.num_rows)
            executed = write_batch(self._store, op, rows, conditions, self.next_version, index)
        else:
            if if_versions is not None and len(if_versions) not in (0, len(rows)):
                raise InvalidArgument(f"{len(if_versions)} if_versions for {len(rows)} rows")
            executed = write_rows(
                self._store,
                op,
                self.shape(op, columns),
                rows,
                if_versions or None,
                self.next_version,
                index,
            )
        self.next_version += executed.row_count
        self.last_index = index
        if op is WriteOp.DELETE:
            self.last_delete_index = index
        if seen is not None and self.watcher is not None:
            self.watcher.after(seen)
        return executed

    def shape(self, op: WriteOp, columns: Sequence[str]) -> Shape:
        """What rows of ``columns`` look like. Raises as `Shape` does."""
        known = (op, tuple(columns))
        shape = self._shapes.get(known)
        if shape is None:
            deletes = op is WriteOp.DELETE
            names = columns or (self.schema.key if deletes else self.schema.arrow.names)
            partial = deletes or op is WriteOp.UPDATE
            shape = Shape(self.schema, self.table, names, partial=partial, only_key=deletes)
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[known] = shape
        return shape

    def check_rows(self, op: WriteOp, rows: Sequence[Any], columns: Sequence[str]) -> int:
        """Whether rows as they came from a client can be written with ``op``, and about how many
        bytes they take. Raises as `execute` does for what is wrong whatever the tablet holds;
        repeated keys it does not look for."""
        return self.shape(op, columns).check(rows)[1] if len(rows) else 0

    # ---- reading ----

    def check_keys(self, keys: Sequence[Any]) -> Sequence[Row]:
        """Keys as they came from a client, as what `get` takes.

        Raises:
            InvalidArgument, TooLarge: some of them are no keys of this table.
        """
        return self.shape(WriteOp.DELETE, ()).check(keys)[0]

    def get(self, key: Row) -> Found | None:
        """The row of a key (wire values in key order).

        Answer once ``index`` is committed; for None, once `last_delete_index` is.
        """
        store = self._store
        position = store.find(self.codec.hash_one(key), key)
        if position < 0:
            return None
        row = position & ROW_MASK
        segment = store.segment(position >> SLOT_SHIFT)
        run, i = segment.run_of(row)
        return Found(run.row(i), run.version(i), segment.log_index(row))

    def locate(self, keys: pa.RecordBatch) -> Located:
        """Find the rows of many keys; `Located.gather` then reads them, off the loop if wanted.

        ``keys``: the key columns, by name, without nulls. A key may recur.
        """
        store = self._store
        positions = store.find_many(keys, self.codec.hash_batch(keys))
        found = np.flatnonzero(positions >= 0)
        at = positions[found]
        index = self.last_delete_index if len(found) < keys.num_rows else 0
        index = max(index, self._newest_index(at))
        return Located(self.schema, found.astype(np.int32), pieces_of(store.segments, at), index)

    def _newest_index(self, positions: NDArray[np.int64]) -> int:
        newest = 0
        for segment in self._store.order:
            if not segment.sealed and len(positions):
                low = segment.slot << SLOT_SHIFT
                inside = positions[(positions >= low) & (positions <= low | ROW_MASK)]
                if len(inside):
                    newest = max(newest, segment.log_index(int(inside.max()) & ROW_MASK))
        return newest

    def get_many(
        self, keys: pa.RecordBatch, columns: Sequence[str] = ()
    ) -> tuple[pa.RecordBatch, NDArray[np.int32], int]:
        """(the rows found, with ``_version``; which keys they are of; the index to wait for)."""
        self.schema.check_columns(columns, self.table)
        located = self.locate(keys)
        return located.gather(columns), located.found, located.index

    def scan_snapshot(self) -> Snapshot:
        """All rows as of now, to be read off the loop; costs about a microsecond a segment."""
        return Snapshot(self._store.order, self.schema, self.table, self.last_index)

    # ---- recovery ----

    def adopt(
        self,
        segments: Sequence[RecoveredSegment],
        merged: Merged | None,
        now_s: float,
    ) -> None:
        """Become the state that a recovered log determines; segment i takes slot i.

        In any order, and any segment twice; what was here before is forgotten. ``merged`` is
        `merge` of the summaries in the same order (None: made here; it takes a while, and may be
        made off the loop). No head is open afterwards.

        Raises:
            CorruptData: a segment's columns are not those of a segment of this table.
        """
        if merged is None:
            merged = merge([segment.summary for segment in segments])
        assert len(merged.live) == len(segments), "the merge is of other segments"
        store = self._store
        adopted: list[Segment] = []
        self._moves = []
        self.results = ClientResults()
        for slot, (recovered, live) in enumerate(zip(segments, merged.live, strict=True)):
            meta = recovered.meta
            layout = _layout(store, recovered)
            if recovered.batch is None:
                segment: Segment = RemoteSegment(layout, slot, recovered, live, self.codec.seed)
            else:
                version = meta.schema_version
                segment = Segment(layout, slot, meta.segment_id, meta.next_version, version)
                segment.load(recovered, live)
            segment.show(store.projection(layout))
            adopted.append(segment)
            self.results.restore(recovered.results, now_s)
        store.become(adopted)
        self._count_closed()
        store.index = merged.index
        seen = [segment.meta.next_version for segment in segments]
        self.next_version = max(1, merged.next_version, *seen)
        self.last_index = max((segment.meta.last_index for segment in segments), default=0)
        self.last_delete_index = 0
        words = [segment.prologue for segment in segments if segment.prologue is not None]
        self.forgot_below = max([word.forgot_below for word in words], default=0)


def _layout(store: RowStore, recovered: RecoveredSegment) -> Layout:
    try:
        return store.layout_of(recovered.stored)
    except ValueError as error:
        where = f"segment {recovered.meta.segment_id}"
        raise CorruptData(where, 0, f"not a segment of this table: {error}") from error


def _conditions(if_versions: Sequence[int] | None, row_count: int) -> NDArray[np.int64] | None:
    if if_versions is None or not len(if_versions):
        return None
    if len(if_versions) != row_count:
        raise InvalidArgument(f"{len(if_versions)} if_versions for {row_count} rows")
    try:
        return np.asarray(if_versions, np.int64)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgument(f"if_versions: {error}") from error
