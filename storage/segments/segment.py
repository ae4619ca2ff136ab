"""Segments in memory: an open one as runs of rows and batches, a sealed one as one batch.

A **run** is a stretch of rows in log order held in one form. Rows keep their row number for good:
sealing swaps a segment's runs for one columnar run with all rows in place, dead ones and
tombstones included. Which rows are live is a mask of bytes beside the runs. All rows of a segment
are of one schema; once the table has another, its runs show theirs in that one's columns.

Invariants: live_count is the number of ones in the mask; a tombstone is never live; a mask handed
to a snapshot is never written again (the next kill copies it).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.records.losses import SegmentFacts
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, RowKind
from stelae.storage.kernels.api import U64
from stelae.storage.keys.bloom_filter import KeyFilter
from stelae.storage.segments.image import ImageMeta
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.projection import ProjectedRun, Projection, Run
from stelae.storage.segments.runs import BatchRun, OwnRun, RowRun, SealedRun

_OBJECT_BYTES = 48
"""About what one Python value of a row costs in the head."""


class Recovered(Protocol):
    """What `Segment.load` needs of a `RecoveredSegment`."""

    @property
    def meta(self) -> ImageMeta: ...
    @property
    def batch(self) -> pa.RecordBatch | None: ...
    @property
    def size_bytes(self) -> int: ...


class Segment:
    """One segment of a tablet: its runs, its live mask, and where its entries are in the log."""

    def __init__(
        self, layout: Layout, slot: int, segment_id: int, next_version: int, schema_version: int
    ) -> None:
        self.layout = layout
        """Of its rows, under the schema that it was begun with."""
        self.schema_version = schema_version
        self._projection: Projection | None = None
        self.slot = slot
        self.segment_id = segment_id
        self.runs: list[Run] = []
        self._starts: list[int] = []
        self.row_count = 0
        self.live_count = 0
        self.tombstone_count = 0
        self.bytes = 0
        """Of its rows, as Arrow or image: what the log holds of it, about."""
        self.memory_bytes = 0
        self.held: KeyFilter | None = None
        """Of all keys of which the log has rows in this segment; None: of those in memory."""
        self.next_version = next_version
        self.closed = False
        self.sealed = False
        self.first_index = 0
        self.last_index = 0
        self._live: bytearray | None = bytearray()
        """One byte per row; None: all are live."""
        self._live_shared = False
        self._mark_rows: list[int] = []
        self._mark_indexes: list[int] = []

    def facts(self) -> SegmentFacts:
        """What later heads of the log say of it."""
        return SegmentFacts(self.segment_id, self.row_count, self.bytes, self.next_version)

    # ---- rows ----

    def append_rows(
        self, rows: Sequence[Row], kinds: bytes, size_bytes: int, first_version: int, index: int
    ) -> None:
        """Append rows of a small call; the live ones are those of kind ROW."""
        self._mark(index)
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, RowRun) or last.first_version + len(last.rows) != first_version:
            last = RowRun(self.layout, first_version)
            self._starts.append(self.row_count)
            self.runs.append(last)
        last.rows += rows
        last.kinds += kinds
        live = kinds.translate(_LIVE_OF_KIND)
        assert self._live is not None, "an open head has its mask"
        self._live += live
        count, live_count = len(rows), live.count(1)
        self.live_count += live_count
        self.tombstone_count += count - live_count
        self.bytes += size_bytes + 9 * count
        self.memory_bytes += size_bytes + count * (self.layout.width + 1) * _OBJECT_BYTES
        self.row_count += count
        self.next_version = first_version + count

    def append_batch(
        self, batch: pa.RecordBatch, kind: RowKind, first_version: int, index: int
    ) -> None:
        """Append the rows of a bulk call."""
        self._mark(index)
        count = batch.num_rows
        self._starts.append(self.row_count)
        self.runs.append(BatchRun(self.layout, batch, kind, first_version))
        assert self._live is not None, "an open head has its mask"
        if kind is RowKind.ROW:
            self._live += b"\1" * count
            self.live_count += count
        else:
            self._live += bytes(count)
            self.tombstone_count += count
        size_bytes = batch.nbytes
        self.bytes += size_bytes + 9 * count
        self.memory_bytes += size_bytes + count
        self.row_count += count
        self.next_version = first_version + count

    def append_stored(self, batch: pa.RecordBatch, kind: RowKind, index: int) -> None:
        """Append rows of another tablet: stored columns, with whatever versions they have."""
        self._mark(index)
        count = batch.num_rows
        self._starts.append(self.row_count)
        self.runs.append(SealedRun(self.layout, batch))
        assert self._live is not None, "an open head has its mask"
        self._live += b"\1" * count if kind is RowKind.ROW else bytes(count)
        if kind is RowKind.ROW:
            self.live_count += count
        else:
            self.tombstone_count += count
        self.bytes += batch.nbytes
        self.memory_bytes += batch.nbytes + count
        self.row_count += count
        self.next_version = int(batch.column(VERSION_COLUMN)[count - 1].as_py()) + 1

    def become_columnar(self, batch: pa.RecordBatch, size_bytes: int, *, sealed: bool) -> None:
        """Hold all rows as one batch of stored columns; row numbers and the mask stay."""
        assert batch.num_rows == self.row_count, "sealing keeps every row in its place"
        self.runs = [self._shown(SealedRun(self.layout, batch))]
        self._starts = [0]
        self.bytes = size_bytes
        self.closed = True
        self.sealed = sealed
        if self.live_count == self.row_count:
            self._live = None
        self.memory_bytes = size_bytes + (len(self._live) if self._live is not None else 0)

    def load(self, recovered: Recovered, live: NDArray[np.bool_]) -> None:
        """Take over a recovered segment's rows, of which ``live`` are so; all are committed."""
        meta, batch = recovered.meta, recovered.batch
        assert batch is not None, "a segment whose rows are elsewhere is remote"
        self.row_count = batch.num_rows
        self.first_index = meta.first_index
        self.last_index = meta.last_index
        self.live_count = int(np.count_nonzero(live))
        self.tombstone_count = int(np.count_nonzero(batch.column(OP_COLUMN).to_numpy()))
        if self.live_count < self.row_count:  # else a mask is of no use: see below
            self._live = bytearray(live.view(np.uint8))
        self.become_columnar(batch, recovered.size_bytes, sealed=True)

    def take_over(self, batch: pa.RecordBatch, size_bytes: int, log_bytes: int) -> None:
        """Hold the rows that are to be moved here, none of which is live yet; all are committed.

        ``log_bytes``: what the log holds of this segment, which may be more than these rows.
        """
        self.row_count = batch.num_rows
        self.tombstone_count = int(np.count_nonzero(batch.column(OP_COLUMN).to_numpy()))
        self._live = bytearray(self.row_count)
        self.become_columnar(batch, size_bytes, sealed=True)
        self.bytes = log_bytes
        self.memory_bytes += 0 if self.held is None else self.held.size_bytes

    def show(self, projection: Projection | None) -> None:
        """Show the rows in a later schema's columns from now on; None: in their own.

        Runs handed out before stay as they were. The segment is closed.
        """
        assert self.closed, "an open head has the table's schema"
        self._projection = projection
        self.runs = [self._shown(_own(run)) for run in self.runs]

    def _shown(self, own: OwnRun) -> Run:
        return own if self._projection is None else ProjectedRun(own, self._projection)

    def run_of(self, row: int) -> tuple[Run, int]:
        """The run that holds a row, and the row's number in it."""
        runs = self.runs
        if len(runs) == 1:
            return runs[0], row
        i = bisect_right(self._starts, row) - 1
        return runs[i], row - self._starts[i]

    def runs_of(self, rows: NDArray[np.int64]) -> Iterator[tuple[Run, NDArray[np.int64], Any]]:
        """Group rows by run: (run, row numbers in it, which of ``rows`` they are)."""
        if len(self.runs) == 1:
            yield self.runs[0], rows, slice(None)
            return
        starts = np.array(self._starts, np.int64)
        which = np.searchsorted(starts, rows, side="right") - 1
        for i in np.unique(which).tolist():
            at = np.flatnonzero(which == i)
            yield self.runs[i], rows[at] - starts[i], at

    def known_hashes(self) -> U64 | None:
        """Of the keys of all rows, where these are not here; None: they are."""
        return None

    def stored(self) -> pa.RecordBatch:
        """All rows as one contiguous batch of the segment's own stored columns. It is closed."""
        assert self.closed, "an open head is still growing"
        batches = [batch for run, _, count in self.parts() for _, batch in _own(run).batches(count)]
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=self.layout.stored)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def parts(self) -> list[tuple[Run, int, int]]:
        """(run, its first row, its row count) of every run, as of now."""
        ends = [*self._starts, self.row_count][1:]
        return [
            (run, start, end - start)
            for run, start, end in zip(self.runs, self._starts, ends, strict=True)
        ]

    # ---- what is live ----

    def _writable(self) -> bytearray:
        live = self._live
        if live is None:
            live = self._live = bytearray(b"\1") * self.row_count
            self.memory_bytes += self.row_count
        elif self._live_shared:
            live = self._live = bytearray(live)
        self._live_shared = False
        return live

    def kill(self, row: int) -> None:
        """Mark a live row dead."""
        live = self._live
        if live is None or self._live_shared:
            live = self._writable()
        assert live[row], "a row dies once"
        live[row] = 0
        self.live_count -= 1

    def kill_many(self, rows: NDArray[np.int64]) -> None:
        """Mark live rows dead, each named once."""
        if len(rows):
            mask = np.frombuffer(self._writable(), np.uint8)
            mask[rows] = 0
            self.live_count -= len(rows)

    def revive_many(self, rows: NDArray[np.int64]) -> None:
        """Mark dead rows live, each named once: they were moved here."""
        if len(rows):
            mask = np.frombuffer(self._writable(), np.uint8)
            mask[rows] = 1
            self.live_count += len(rows)

    def settle(self) -> None:
        """All rows that are moved here have come: without dead ones, the mask is of no use."""
        if self._live is not None and self.live_count == self.row_count:
            self._live, self._live_shared = None, False
            self.memory_bytes -= self.row_count

    def are_live(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows are live just now."""
        if self._live is None:
            return np.ones(len(rows), np.bool_)
        return np.frombuffer(self._live, np.bool_)[rows]

    def live_mask(self) -> bytes | bytearray | None:
        """The mask as of now, which no later kill changes; None: all rows are live."""
        if self._live is None or self.live_count == self.row_count:
            return None
        if not self.closed:
            return bytes(self._live)  # appends resize the mask of an open head in place
        self._live_shared = True
        return self._live

    def live_between(self, first: int, last: int) -> NDArray[np.bool_] | None:
        """Which of these rows are live just now; None: all."""
        if self._live is None:
            return None
        return np.frombuffer(self._live, np.bool_)[first:last].copy()

    # ---- the log ----

    def _mark(self, index: int) -> None:
        if index != self.last_index:
            self._mark_rows.append(self.row_count)
            self._mark_indexes.append(index)
            self.last_index = index
            if not self.first_index:
                self.first_index = index

    def log_index(self, row: int) -> int:
        """The log index of the entry that wrote a row; 0 once the segment is sealed."""
        if self.sealed:
            return 0
        return self._mark_indexes[bisect_right(self._mark_rows, row) - 1]


def _own(run: Run) -> OwnRun:
    return run.own if isinstance(run, ProjectedRun) else run


_LIVE_OF_KIND = bytes(1 if kind == RowKind.ROW else 0 for kind in range(256))
