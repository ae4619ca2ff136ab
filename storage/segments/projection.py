"""Rows of segments begun under an earlier schema, shown in the table's present columns.

By column id: what the segment has no column for shows its read default, and what the table has no
column for any more is not seen. Nothing is copied but constants; a segment's own form stays, for
its image. Segments of the present schema are not wrapped, and cost nothing more.

Implements design §5 (schema change); Kudu's ``RowProjector`` is the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema, constant_array
from stelae.core.schema.values import batch_to_rows
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.runs import OwnRun

PIECE_ROWS = 1 << 16
"""Of a segment shown at a time: constants take memory while they are looked at."""


class Projection:
    """From the columns of one layout to those of a schema."""

    def __init__(self, source: Layout, target: TableSchema) -> None:
        places = {column_id: place for place, column_id in enumerate(source.column_ids)}
        self._places = [places.get(column_id, -1) for column_id in target.column_ids]
        columns = target.stored
        self._stored = columns
        self._sources: dict[str, str | None] = {
            field.name: source.columns.field(place).name if place >= 0 else None
            for field, place in zip(columns, self._places, strict=False)
        }
        self._sources |= {OP_COLUMN: OP_COLUMN, VERSION_COLUMN: VERSION_COLUMN}
        self._constants = {name: target.read_default(name) for name in target.arrow.names}
        constants = [constant_array(value, 1) for value in self._constants.values()]
        one = pa.RecordBatch.from_arrays(constants, names=target.arrow.names)
        self._values = batch_to_rows(one)[0]

    def row(self, row: Row) -> Row:
        """A row of the source in the target's columns."""
        values = self._values
        return tuple([row[p] if p >= 0 else values[i] for i, p in enumerate(self._places)])

    def sources(self, names: Sequence[str]) -> list[str]:
        """The source's columns that columns ``names`` of the target are made from."""
        found = (self._sources[name] for name in names)
        return [name for name in found if name is not None]

    def batch(self, batch: pa.RecordBatch, names: Sequence[str], row_count: int) -> pa.RecordBatch:
        """Columns ``names`` of the target, from a batch of (at least) their `sources`."""
        arrays = []
        for name in names:
            source = self._sources[name]
            if source is not None:
                arrays.append(batch.column(source))
            else:
                arrays.append(constant_array(self._constants[name], row_count))
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self._stored.field(name) for name in names])
        )

    @property
    def names(self) -> list[str]:
        """All stored columns of the target."""
        return list(self._stored.names)


class ProjectedRun:
    """A run of an earlier schema's segment, in the columns of the present one."""

    __slots__ = ("_projection", "own")

    def __init__(self, own: OwnRun, projection: Projection) -> None:
        self.own = own
        """The run in its segment's own columns."""
        self._projection = projection

    def row(self, i: int) -> Row:
        return self._projection.row(self.own.row(i))

    def key(self, i: int) -> Row:
        return self.own.key(i)

    def version(self, i: int) -> int:
        return self.own.version(i)

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self.own.versions(rows)

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        projection = self._projection
        sources = projection.sources(names)
        own = self.own.take(rows, sources) if sources else pa.record_batch({})
        return projection.batch(own, names, len(rows))

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The first ``row_count`` rows in stored form, as (first row, batch)."""
        projection = self._projection
        for start, batch in self.own.batches(row_count):
            for offset in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(offset, PIECE_ROWS)
                shown = projection.batch(piece, projection.names, piece.num_rows)
                yield start + offset, shown


Run: TypeAlias = OwnRun | ProjectedRun
"""A run in its segment's own columns, or in those of a later schema."""
