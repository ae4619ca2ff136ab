"""The segments of a tablet, the index over them, and access to rows by key or position.

A **position** is ``slot << 32 | row``; -1 is none. Shared by the writing side (`write`) and the
tablet itself; it knows nothing of versions to come, clients, or the log's commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import from_wire
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.hash_index import ROW_MASK, SLOT_SHIFT, HashIndex
from stelae.storage.rows.gather import pieces_of
from stelae.storage.segments.cells import row_reader
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.projection import Projection
from stelae.storage.segments.segment import Segment

NO_ROW = -1
_MAX_KEY_TEXT = 200


class RowStore:
    """Invariant: the index holds exactly the live rows of the segments."""

    __slots__ = (
        "_free_slots",
        "_layouts",
        "_projections",
        "codec",
        "head",
        "index",
        "layout",
        "order",
        "schema",
        "segments",
        "table",
    )

    def __init__(self, schema: TableSchema, table: str, codec: KeyCodec) -> None:
        self.schema = schema
        self.table = table
        self.codec = codec
        self.layout = Layout.of(schema)
        """Of the head."""
        self._layouts = [self.layout]
        self._projections: dict[Layout, Projection] = {}
        self.segments: list[Segment | None] = []
        """By slot."""
        self.order: list[Segment] = []
        """The same in the order of the log, in which they are scanned."""
        self._free_slots: list[int] = []
        self.head: Segment | None = None
        self.index = HashIndex()

    # ---- schemas ----

    def layout_of(self, stored: pa.Schema) -> Layout:
        """The layout of these stored columns, the same object each time.

        Raises:
            ValueError: they are not those of a segment of this table.
        """
        for layout in self._layouts:
            if layout.stored.equals(stored, check_metadata=True):
                return layout
        self._layouts.append(Layout(stored, self.schema.key))
        return self._layouts[-1]

    def projection(self, layout: Layout) -> Projection | None:
        """How rows of ``layout`` are shown in the columns of the schema; None: as they are."""
        if layout is self.layout:
            return None
        if layout not in self._projections:
            self._projections[layout] = Projection(layout, self.schema)
        return self._projections[layout]

    def use_schema(self, schema: TableSchema) -> None:
        """Show all rows in the columns of ``schema``. There is no open head."""
        self.schema = schema
        used = [segment.layout for segment in self.order]
        self._layouts = list(dict.fromkeys(used))
        self.layout = self.layout_of(schema.stored)
        self._projections = {}
        for segment in self.order:
            segment.show(self.projection(segment.layout))

    # ---- segments ----

    def free_slot(self) -> int:
        """A slot that no position names; `place` takes it."""
        return self._free_slots[-1] if self._free_slots else len(self.segments)

    def place(self, segment: Segment, before: Segment | None = None) -> None:
        """Have a segment in its slot, at the end of the log, or ``before`` another one."""
        if segment.slot == len(self.segments):
            self.segments.append(segment)
        else:
            assert self._free_slots.pop() == segment.slot, "the slot was free a moment ago"
            self.segments[segment.slot] = segment
        at = len(self.order) if before is None else self.order.index(before)
        self.order.insert(at, segment)

    def remove(self, segment: Segment) -> None:
        """Let go of a segment without live rows: no position names it any more."""
        assert segment.live_count == 0, f"segment {segment.segment_id} has live rows"
        self.order.remove(segment)
        self.segments[segment.slot] = None
        self._free_slots.append(segment.slot)

    def become(self, segments: Sequence[Segment]) -> None:
        """Have these segments alone, each in its place as a slot."""
        self.segments = list(segments)
        self.order = sorted(segments, key=lambda segment: segment.next_version)
        self._free_slots = []
        self.head = None

    def replace(self, old: Segment, new: Segment) -> None:
        """Have ``new``, with the same rows, in the place of ``old``."""
        self.segments[old.slot] = new
        self.order[self.order.index(old)] = new

    def segment(self, slot: int) -> Segment:
        """The segment in a slot; a dropped one is a broken invariant of the caller."""
        segment = self.segments[slot]
        assert segment is not None, f"slot {slot} was dropped"
        return segment

    # ---- one row ----

    def find(self, key_hash: int, key: Row) -> int:
        """The position of the key's row, or -1."""
        position = self.index.find_one(key_hash)
        if position < 0 or self.codec.exact or self.key_at(position) == key:
            return position
        for candidate in self.index.candidates(key_hash):
            if self.key_at(candidate) == key:
                return candidate
        return NO_ROW

    def key_at(self, position: int) -> Row:
        run, i = self.segment(position >> SLOT_SHIFT).run_of(position & ROW_MASK)
        return run.key(i)

    def row_at(self, position: int) -> Row:
        run, i = self.segment(position >> SLOT_SHIFT).run_of(position & ROW_MASK)
        return run.row(i)

    def version_at(self, position: int) -> int:
        run, i = self.segment(position >> SLOT_SHIFT).run_of(position & ROW_MASK)
        return run.version(i)

    def key_text(self, key: Row) -> str:
        """A key as people write it, for errors; cut when it is long."""
        values = [
            from_wire(value, field.type)
            for value, field in zip(key, self.schema.key_schema, strict=True)
        ]
        text = repr(values[0]) if len(values) == 1 else repr(tuple(values))
        return text if len(text) <= _MAX_KEY_TEXT else text[: _MAX_KEY_TEXT - 1] + "…"

    # ---- many rows ----

    def find_many(self, keys: pa.RecordBatch, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The position of each key's row, or -1. ``keys`` has the key columns, by name."""
        positions = self.index.find(hashes)
        if self.codec.exact:
            return positions
        for i in np.flatnonzero(self.differing(keys, positions)).tolist():
            positions[i] = self.find(int(hashes[i]), key_row(self.schema, keys, i))
        return positions

    def differing(self, keys: pa.RecordBatch, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where ``positions`` has a row, and that row's key is not the one in ``keys``."""
        differs = np.zeros(len(positions), np.bool_)
        at = np.flatnonzero(positions >= 0)
        if not len(at):
            return differs
        names = list(self.schema.key)
        for run, rows, which in pieces_of(self.segments, positions[at]):
            where = at if which is None else at[which]
            found = run.take(rows, names)
            asked = keys.select(names).take(pa.array(where))
            differs[where] = differing_keys(found, asked)
        return differs

    def versions_of(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The version of the row at each position; 0 where there is none (-1)."""
        versions = np.zeros(len(positions), np.uint64)
        at = np.flatnonzero(positions >= 0)
        for run, rows, which in pieces_of(self.segments, positions[at]):
            where = at if which is None else at[which]
            versions[where] = run.versions(rows)
        return versions

    def kill_many(self, positions: NDArray[np.int64]) -> None:
        """Mark the rows at these positions dead, each named once."""
        if not len(positions):
            return
        slots = positions >> SLOT_SHIFT
        rows = positions & ROW_MASK
        first = int(slots[0])
        if bool((slots == first).all()):
            self.segment(first).kill_many(rows)
            return
        for slot in np.unique(slots).tolist():
            self.segment(slot).kill_many(rows[slots == slot])


def differing_keys(left: pa.RecordBatch, right: pa.RecordBatch) -> NDArray[np.bool_]:
    """Row by row, whether two batches of the same columns (no nulls) differ anywhere."""
    differs = np.zeros(left.num_rows, np.bool_)
    for a, b in zip(left.columns, right.columns, strict=True):
        differs |= pc.not_equal(a, b).to_numpy(zero_copy_only=False)
    return differs


def key_row(schema: TableSchema, keys: pa.RecordBatch, i: int) -> tuple[Any, ...]:
    """The key in row ``i`` as wire values."""
    return row_reader(keys.slice(i, 1).select(list(schema.key)))(0)
