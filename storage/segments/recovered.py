"""Segments as a recovery finds them, sealed or in row form, made into one shape for the merge.

A segment that died in row form is turned into the batch its sealing would have made, so that
everything after (merge, adoption, sealing) knows one form only. Implements design §9, recovery
steps 2 and 3; the results of clients' requests come back on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.rpc import Blob
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, RowKind
from stelae.core.schema.values import rows_to_batch
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    Result,
    decode_batch,
    decode_prologue,
    decode_rows,
)
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Summary
from stelae.storage.segments.image import Image, ImageMeta, Tail, summarize
from stelae.storage.segments.layout import Layout, Row, versions_from


def imported_batch(payload: Blob, layout: Layout) -> pa.RecordBatch:
    """A batch that `changes_since` of a tablet's memory made, in stored columns of ``layout``.

    Raises:
        CorruptData: it is none, or of another schema.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise CorruptData("an import", 0, f"no Arrow stream: {error}") from error
    if not batch.schema.equals(layout.stored):
        raise CorruptData("an import", 0, f"columns {batch.schema}, not {layout.stored}")
    if batch.column(VERSION_COLUMN).null_count or batch.column(OP_COLUMN).null_count:
        raise CorruptData("an import", 0, "rows without a version or a kind")
    versions = batch.column(VERSION_COLUMN).to_numpy()
    if len(versions) and (not versions[0] or bool((versions[1:] <= versions[:-1]).any())):
        raise CorruptData("an import", 0, "versions do not rise")
    return pa.RecordBatch.from_arrays(batch.columns, schema=layout.stored)


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """One segment of a log that is being recovered."""

    meta: ImageMeta
    batch: pa.RecordBatch | None
    """All rows in log order, columns of `TableSchema.stored` as the segment was begun with. None:
    only the summary is here."""
    summary: Summary
    size_bytes: int
    prologue: Prologue | None = None
    """None for a sealed segment: its image has no need of one."""
    results: tuple[Result, ...] = ()
    """Those of its prologue, then those of its entries."""
    trailer: bytes = b""
    """Of a segment without its rows: the end of the image that they are in."""
    columns: pa.Schema | None = None
    """Of such a segment: the columns that it has."""

    @property
    def stored(self) -> pa.Schema:
        """Its columns, as it says itself."""
        if self.batch is not None:
            return self.batch.schema
        assert self.columns is not None, "a segment has columns"
        return self.columns

    @staticmethod
    def from_tail(tail: Tail, size_bytes: int, columns: pa.Schema) -> RecoveredSegment:
        """A sealed segment whose rows come later; its image has ``size_bytes``."""
        return RecoveredSegment(
            tail.meta, None, tail.summary, size_bytes, trailer=tail.trailer, columns=columns
        )

    @staticmethod
    def from_image(image: Image) -> RecoveredSegment:
        """A segment that was sealed."""
        return RecoveredSegment(image.meta, image.batch, image.summary(), image.buffer.size)

    @staticmethod
    def from_entries(entries: Iterable[Entry], codec: KeyCodec, where: str) -> RecoveredSegment:
        """A segment in row form, from its certified entries; the first is its prologue, which
        says what schema the others have.

        Raises:
            CorruptData: the entries are not such a segment's.
        """
        reader = _Reader(where)
        for entry in entries:
            reader.read(entry)
        return reader.finish(codec)


class _Reader:
    """Collects the entries of one segment in row form.

    Rows of small entries are gathered and made columnar together: one by one they would take 50
    times as long, and recovery waits for it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._read_layout: Layout | None = None
        self._prologue: Prologue | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._rows: list[Row] = []
        self._kinds = bytearray()
        self._ranges: list[tuple[int, int]] = []
        """(first version, row count) of each entry whose rows are in ``_rows``."""
        self._results: list[Result] = []
        self._first_index = 0
        self._last_index = 0
        self._next_version = 0
        self._row_count = 0

    def read(self, entry: Entry) -> None:
        if (self._prologue is None) != (entry.kind is EntryKind.PROLOGUE):
            raise CorruptData(self._where, 0, "a segment has one prologue, and begins with it")
        if entry.kind is EntryKind.PROLOGUE:
            self._prologue = decode_prologue(entry.payload, self._where)
            self._next_version = self._prologue.safe_version
            self._read_layout = _layout_of(self._prologue, self._where)
            self._results += self._prologue.results
            return
        self._results += entry.results
        self._first_index = self._first_index or entry.index
        self._last_index = entry.index
        if not entry.row_count:
            self._next_version = max(self._next_version, entry.first_version)
            return
        if entry.first_version < self._next_version:
            raise self._corrupt(entry, f"version {entry.first_version} after {self._next_version}")
        if entry.kind is EntryKind.IMPORT:
            found, self._next_version = self._read_import(entry)
        else:
            found = (self._read_rows if entry.kind is EntryKind.ROWS else self._read_batch)(entry)
            self._next_version = entry.first_version + entry.row_count
        if found != entry.row_count:
            raise self._corrupt(entry, f"{found} of {entry.row_count} rows")
        self._row_count += entry.row_count

    @property
    def _layout(self) -> Layout:
        assert self._read_layout is not None, "entries come after their prologue"
        return self._read_layout

    def _corrupt(self, entry: Entry, reason: str) -> CorruptData:
        return CorruptData(self._where, 0, f"entry {entry.index}: {reason}")

    def _read_rows(self, entry: Entry) -> int:
        kinds, rows = decode_rows(entry.payload, self._where)
        self._rows += rows
        self._kinds += kinds
        self._ranges.append((entry.first_version, len(rows)))
        return len(rows)

    def _read_batch(self, entry: Entry) -> int:
        self._flush_rows()
        batch = decode_batch(entry.payload, self._where)
        deleted = entry.kind is EntryKind.TOMBSTONES
        kind = RowKind.TOMBSTONE if deleted else RowKind.ROW
        kinds = np.full(batch.num_rows, kind, np.uint8)
        versions = versions_from(entry.first_version, batch.num_rows)
        self._pieces.append(self._layout.store(batch, kinds, versions))
        return int(batch.num_rows)

    def _read_import(self, entry: Entry) -> tuple[int, int]:
        """How many rows, and one more than the highest of their versions."""
        self._flush_rows()
        try:
            batch = imported_batch(entry.payload, self._layout)
        except CorruptData as error:
            raise self._corrupt(entry, str(error)) from error
        versions = batch.column(VERSION_COLUMN).to_numpy()
        if not len(versions) or int(versions[0]) != entry.first_version:
            raise self._corrupt(entry, "other versions than it says")
        self._pieces.append(batch)
        return len(versions), int(versions[-1]) + 1

    def _flush_rows(self) -> None:
        if not self._rows:
            return
        try:
            batch = rows_to_batch(self._rows, self._layout.columns)
        except InvalidArgument as error:
            raise CorruptData(self._where, 0, f"rows are not the table's: {error}") from error
        kinds = np.frombuffer(bytes(self._kinds), np.uint8)
        first, counts = np.array(self._ranges, np.uint64).T
        starts = np.cumsum(counts) - counts
        versions = np.arange(len(kinds), dtype=np.uint64) + np.repeat(
            first - starts, counts.astype(np.int64)
        )
        self._pieces.append(self._layout.store(batch, kinds, versions))
        self._rows, self._kinds, self._ranges = [], bytearray(), []

    def finish(self, codec: KeyCodec) -> RecoveredSegment:
        prologue = self._prologue
        if prologue is None:
            raise CorruptData(self._where, 0, "a segment without a prologue")
        self._flush_rows()
        if self._pieces:
            batch = pa.concat_batches(self._pieces)
        else:
            batch = pa.RecordBatch.from_pylist([], schema=self._layout.stored)
        meta = ImageMeta(
            prologue.table_id,
            prologue.tablet_id,
            prologue.segment_id,
            prologue.term,
            self._first_index,
            self._last_index,
            self._row_count,
            self._next_version,
            prologue.schema.version,
        )
        return RecoveredSegment(
            meta, batch, summarize(batch, codec), batch.nbytes, prologue, tuple(self._results)
        )


def _layout_of(prologue: Prologue, where: str) -> Layout:
    """The layout of a segment's rows, from its own word."""
    try:
        return Layout.of(prologue.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptData(where, 0, f"the prologue's schema is none: {error}") from error
