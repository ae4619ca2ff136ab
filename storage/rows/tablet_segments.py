"""The segments of one tablet's memory: what they take, and how some give way to a survivor.

Memory alone is meant here; in what order the log lets go of segments is its affair
(`stelae.actors.tserver.tablet.cleaning`). Invariant: segments stand in the order of the log, and
every live row is live in one of them, at every moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from stelae.core.records.losses import SegmentFacts
from stelae.core.schema.schema import TableSchema
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.rows.store import RowStore
from stelae.storage.rows.survivors import Move, Parent, Survivor
from stelae.storage.segments.segment import Segment

_ALL_ROWS = 1 << 40


class SegmentStats(NamedTuple):
    """What the cleaner and status want to know of a segment."""

    slot: int
    segment_id: int
    sealed: bool
    bytes: int
    row_count: int
    live_rows: int
    dead_rows: int
    """Overwritten and deleted rows, and tombstones."""
    closed: bool
    tombstones: int
    memory_bytes: int
    schema_version: int
    next_version: int
    was_written: bool
    """Whether it ever had rows."""


class TabletSegments:
    """See the module. Belongs to one event loop."""

    next_version: int

    def __init__(self, schema: TableSchema, table: str, codec: KeyCodec) -> None:
        """None yet."""
        self.forgot_below = 0
        """Tombstones with versions below may have been forgotten: see `changes_since`."""
        self.forgettings = 0
        """So often some were, since this object was made."""
        self._store = RowStore(schema, table, codec)
        self._moves: list[Move] = []
        self._closed_bytes = 0
        self._written_bytes = 0  # in heads that were closed

    # ---- size ----

    @property
    def row_count(self) -> int:
        """Live rows."""
        return len(self._store.index)

    @property
    def memory_bytes(self) -> int:
        """Of rows, masks and index, about."""
        head = self._store.head
        growing = 0 if head is None else head.memory_bytes
        return self._closed_bytes + growing + self._store.index.nbytes

    @property
    def segment_count(self) -> int:
        """Segments in memory, the head included."""
        return len(self._store.order)

    @property
    def live_bytes(self) -> int:
        """Of live rows and the index, about: what cleaning cannot free."""
        closed = self._store.order
        rows = [s.memory_bytes * s.live_count // s.row_count for s in closed if s.row_count]
        return sum(rows) + self._store.index.nbytes

    def _count_closed(self) -> None:
        # Kept, so that each write may ask for memory_bytes whatever the number of segments.
        store = self._store
        self._closed_bytes = sum([s.memory_bytes for s in store.order if s is not store.head])

    @property
    def log_bytes(self) -> int:
        """What the log holds of all segments, about."""
        return sum([segment.bytes for segment in self._store.order])

    @property
    def head_bytes(self) -> int:
        """About what the rows of the head take in the log."""
        head = self._store.head
        return 0 if head is None else head.bytes

    @property
    def head_memory_bytes(self) -> int:
        """What the rows of the head take in memory, where small calls are held as they came."""
        head = self._store.head
        return 0 if head is None else head.memory_bytes

    @property
    def written_bytes(self) -> int:
        """Of rows that came since this object was made, about."""
        return self._written_bytes + self.head_bytes

    @property
    def head_row_count(self) -> int:
        """Rows in the head, tombstones and dead ones included."""
        head = self._store.head
        return 0 if head is None else head.row_count

    def facts(self) -> tuple[SegmentFacts, ...]:
        """What the next head says of the segments before it."""
        return tuple(
            segment.facts()
            for segment in self._store.segments
            if segment is not None and segment.closed
        )

    def statistics(self) -> list[SegmentStats]:
        """One for each segment in memory, in the order of the log."""
        return [
            SegmentStats(
                segment.slot,
                segment.segment_id,
                segment.sealed,
                segment.bytes,
                segment.row_count,
                segment.live_count,
                segment.row_count - segment.live_count,
                segment.closed,
                segment.tombstone_count,
                segment.memory_bytes,
                segment.schema_version,
                segment.next_version,
                segment.first_index > 0,
            )
            for segment in self._store.order
        ]

    def segments_in_order(self) -> list[Segment]:
        """All of them, in the order of the log."""
        return self._store.order

    # ---- letting go ----

    def drop(self, slot: int) -> None:
        """Forget a closed segment without live rows, whose tombstones nobody needs: no segment of
        the log has an older row of their keys."""
        segment = self._store.segment(slot)
        assert segment.closed, "the head is not dropped"
        self._store.remove(segment)
        self._forget(segment.next_version if segment.tombstone_count else 0)
        self._count_closed()

    def _forget(self, below: int) -> None:
        """Tombstones with versions below are forgotten; 0: none is."""
        if below:
            self.forgot_below = max(self.forgot_below, below)
            self.forgettings += 1

    # ---- cleaning (`stelae.storage.rows.cleaning`) ----

    def parents(self, slots: Sequence[int]) -> list[Parent]:
        """Sealed segments that are to be cleaned, as of now."""
        return [Parent.of(self._store.segment(slot)) for slot in slots]

    def earlier(self, slot: int) -> list[Parent]:
        """All segments before that one in the log. Those without a filter are to get one."""
        store = self._store
        return [Parent.of(each) for each in store.order[: store.order.index(store.segment(slot))]]

    def hold(self, parent: Parent, keys: KeyFilter) -> KeyFilter:
        """Note the keys that the log has in a segment; the first word of that counts."""
        segment = parent.segment
        if segment.held is None:
            segment.held = keys
            segment.memory_bytes += keys.size_bytes
            self._count_closed()
        return segment.held

    def begin_move(
        self,
        slots: Sequence[int],
        survivor: Survivor,
        segment_id: int,
        batch: pa.RecordBatch,
        size_bytes: int,
        log_bytes: int = 0,
    ) -> Move:
        """Put ``batch``, the survivor's rows, in the place of neighbours; `Move.step` does it.

        ``log_bytes``: the segment stays what it is in the log, with so many bytes; else it is new.
        """
        store = self._store
        parents = [store.segment(slot) for slot in slots]
        first, last = parents[0], parents[-1]
        target = None
        if batch.num_rows or log_bytes:
            version = first.schema_version
            slot, next_version = store.free_slot(), last.next_version
            target = Segment(first.layout, slot, segment_id, next_version, version)
            target.first_index = min([p.first_index for p in parents if p.first_index], default=0)
            target.last_index = max([parent.last_index for parent in parents])
            target.held = first.held if log_bytes else None
            target.take_over(batch, size_bytes, log_bytes or size_bytes)
            target.show(store.projection(first.layout))
            store.place(target, first)
        self._forget(survivor.forgot_below)
        move = Move(store, parents, target, survivor)
        self._moves.append(move)
        self._count_closed()
        return move

    def step(self, move: Move, rows_max: int) -> bool:
        """Move so many rows; whether it is over."""
        if not move.step(rows_max):
            return False
        if move in self._moves:
            self._moves.remove(move)
            self._count_closed()
        return True

    def finish_moves(self) -> None:
        """For who wants each segment whole."""
        for move in list(self._moves):
            while not self.step(move, _ALL_ROWS):
                continue
