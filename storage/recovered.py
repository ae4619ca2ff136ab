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

from stelae.core.errors import CorruptData
from stelae.core.schema import RowKind, TableSchema
from stelae.core.values import rows_to_batch
from stelae.storage.entry import (
    Entry,
    EntryKind,
    Prologue,
    Result,
    decode_batch,
    decode_prologue,
    decode_rows,
)
from stelae.storage.image import Image, ImageMeta, summarize
from stelae.storage.keys import KeyCodec
from stelae.storage.layout import Layout, versions_from
from stelae.storage.merge import Summary


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """One segment of a log that is being recovered."""

    meta: ImageMeta
    batch: pa.RecordBatch
    """All rows in log order, columns of `TableSchema.stored`."""
    summary: Summary
    size_bytes: int
    prologue: Prologue | None = None
    """None for a sealed segment: its image has no need of one."""
    results: tuple[Result, ...] = ()
    """Those of its prologue, then those of its entries."""

    @staticmethod
    def from_image(image: Image) -> RecoveredSegment:
        """A segment that was sealed."""
        return RecoveredSegment(image.meta, image.batch, image.summary(), image.buffer.size)

    @staticmethod
    def from_entries(
        entries: Iterable[Entry], codec: KeyCodec, schema: TableSchema, where: str
    ) -> RecoveredSegment:
        """A segment in row form, from its certified entries; the first is its prologue.

        Raises:
            CorruptData: the entries are not such a segment's.
        """
        reader = _Reader(schema, where)
        for entry in entries:
            reader.read(entry)
        return reader.finish(codec)


class _Reader:
    """Collects the entries of one segment in row form."""

    def __init__(self, schema: TableSchema, where: str) -> None:
        self._where = where
        self._layout = Layout(schema)
        self._prologue: Prologue | None = None
        self._pieces: list[pa.RecordBatch] = []
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
            self._results += self._prologue.results
            return
        self._results += entry.results
        self._first_index = self._first_index or entry.index
        self._last_index = entry.index
        if entry.row_count:
            self._read_rows(entry)

    def _read_rows(self, entry: Entry) -> None:
        if entry.first_version < self._next_version:
            raise CorruptData(
                self._where,
                0,
                f"entry {entry.index}: version {entry.first_version} after {self._next_version}",
            )
        if entry.kind is EntryKind.ROWS:
            kind_bytes, rows = decode_rows(entry.payload, self._where)
            kinds = np.frombuffer(kind_bytes, np.uint8)
            batch = rows_to_batch(rows, self._layout.columns)
        else:
            batch = decode_batch(entry.payload, self._where)
            deleted = entry.kind is EntryKind.TOMBSTONES
            kind = RowKind.TOMBSTONE if deleted else RowKind.ROW
            kinds = np.full(batch.num_rows, kind, np.uint8)
        if batch.num_rows != entry.row_count:
            raise CorruptData(
                self._where, 0, f"entry {entry.index}: {batch.num_rows} of {entry.row_count} rows"
            )
        versions = versions_from(entry.first_version, entry.row_count)
        self._pieces.append(self._layout.store(batch, kinds, versions))
        self._next_version = entry.first_version + entry.row_count
        self._row_count += entry.row_count

    def finish(self, codec: KeyCodec) -> RecoveredSegment:
        prologue = self._prologue
        if prologue is None:
            raise CorruptData(self._where, 0, "a segment without a prologue")
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
