"""Runs: stretches of a segment's rows in log order, each held in one form.

A run numbers its rows from 0 on. Rows of small calls are tuples, those of a bulk call one batch,
and those of a sealed segment one batch of stored columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.schema.schema import VERSION_COLUMN, RowKind
from stelae.core.schema.values import rows_to_batch
from stelae.storage.segments.cells import cell_reader, row_reader
from stelae.storage.segments.layout import Layout, Row, versions_from


class OwnRun(Protocol):
    """A run in its segment's own columns."""

    def row(self, i: int) -> Row: ...

    def key(self, i: int) -> Row: ...

    def version(self, i: int) -> int: ...

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]: ...

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        ...

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The first ``row_count`` rows in stored form, as (first row, batch)."""
        ...


class RowRun:
    """Rows of small calls as tuples; grows while it is a head's last run."""

    __slots__ = ("_converted", "_layout", "first_version", "kinds", "rows")

    def __init__(self, layout: Layout, first_version: int) -> None:
        self._layout = layout
        self.first_version = first_version
        self.rows: list[Row] = []
        self.kinds = bytearray()
        self._converted: tuple[tuple[pa.RecordBatch, ...], int] = ((), 0)

    def row(self, i: int) -> Row:
        return self.rows[i]

    def key(self, i: int) -> Row:
        row = self.rows[i]
        return tuple([row[p] for p in self._layout.key_positions])

    def version(self, i: int) -> int:
        return self.first_version + i

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return rows.astype(np.uint64) + np.uint64(self.first_version)

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        picked = [self.rows[i] for i in rows.tolist()]
        kinds = np.zeros(len(picked), np.uint8)
        versions = self.versions(rows)
        batch = rows_to_batch(picked, self._layout.columns)
        return self._layout.store(batch, kinds, versions).select(list(names))

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The first ``row_count`` rows in stored form, as (first row, batch); safe off the loop.

        What was converted once is kept, in pieces each less than half of the one before, so that
        scans of a growing head convert each row a few times at most. Two scans at once may both
        convert the same rows; either's outcome is kept, whole.
        """
        pieces, done = self._converted
        if done < row_count:
            new = self._convert(done, row_count)
            kept = list(pieces)
            while kept and kept[-1].num_rows < 2 * new.num_rows:
                new = pa.concat_batches([kept.pop(), new])
            pieces, done = (*kept, new), row_count
            self._converted = (pieces, done)
        start = 0
        for piece in pieces:
            if start >= row_count:
                return
            yield start, piece.slice(0, min(piece.num_rows, row_count - start))
            start += piece.num_rows

    def _convert(self, start: int, end: int) -> pa.RecordBatch:
        batch = rows_to_batch(self.rows[start:end], self._layout.columns)
        kinds = np.frombuffer(bytes(self.kinds[start:end]), np.uint8)
        versions = versions_from(self.first_version + start, end - start)
        return self._layout.store(batch, kinds, versions)


class BatchRun:
    """Rows of one bulk call: a batch of all columns, or of the key columns of deleted rows."""

    __slots__ = ("_batch", "_key", "_kind", "_layout", "_row", "first_version")

    def __init__(
        self, layout: Layout, batch: pa.RecordBatch, kind: RowKind, first_version: int
    ) -> None:
        self._layout = layout
        self._batch = batch
        self._kind = kind
        self.first_version = first_version
        self._row: Callable[[int], Row] | None = None
        self._key: Callable[[int], Row] | None = None

    def row(self, i: int) -> Row:
        if self._row is None:
            self._row = row_reader(self._batch)
        return self._row(i)

    def key(self, i: int) -> Row:
        if self._key is None:
            self._key = row_reader(self._batch.select(list(self._layout.key)))
        return self._key(i)

    def version(self, i: int) -> int:
        return self.first_version + i

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return rows.astype(np.uint64) + np.uint64(self.first_version)

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        wanted = [name for name in names if name != VERSION_COLUMN]
        batch = self._batch.select(wanted).take(pa.array(rows))
        if VERSION_COLUMN in names:
            versions = self.versions(rows)
            batch = batch.append_column(VERSION_COLUMN, pa.array(versions)).select(list(names))
        return batch

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The first ``row_count`` rows in stored form, as (first row, batch)."""
        kinds = np.full(row_count, self._kind, np.uint8)
        versions = versions_from(self.first_version, row_count)
        yield 0, self._layout.store(self._batch.slice(0, row_count), kinds, versions)


class SealedRun:
    """All rows of a segment, as one batch of `TableSchema.stored` columns."""

    __slots__ = ("_columns", "_key", "_layout", "_row", "_version", "batch")

    def __init__(self, layout: Layout, batch: pa.RecordBatch) -> None:
        self._layout = layout
        self.batch = batch
        self._row: Callable[[int], Row] | None = None
        self._key: Callable[[int], Row] | None = None
        self._version: Callable[[int], int] | None = None

    def row(self, i: int) -> Row:
        if self._row is None:
            self._row = row_reader(self.batch.select(self._layout.columns.names))
        return self._row(i)

    def key(self, i: int) -> Row:
        if self._key is None:
            self._key = row_reader(self.batch.select(list(self._layout.key)))
        return self._key(i)

    def version(self, i: int) -> int:
        if self._version is None:
            self._version = cell_reader(self.batch.column(VERSION_COLUMN))
        return self._version(i)

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        column: NDArray[np.uint64] = self.batch.column(VERSION_COLUMN).to_numpy()
        return column[rows]

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        return self.batch.select(list(names)).take(pa.array(rows))

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows, as (0, batch): the segment's own buffers."""
        yield 0, self.batch.slice(0, row_count)
