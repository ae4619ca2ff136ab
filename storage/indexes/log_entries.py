"""The index entries of a log's live rows, straight from its segments: for whoever merges a log
without holding the tablet.

Of each segment only the indexed column and the key are read, of the rows that the merge has let
live, as the table's present schema shows them. What comes out is, range by range, what the tablet
itself would tell of its rows once it has loaded the same log. Pure; may run off the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from stelae.core.schema.indexes import END, IndexDefinition
from stelae.core.schema.schema import COLUMN_ID_KEY, TableSchema, constant_array
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.indexes.runs import Run, sorted_alike
from stelae.storage.kernels.api import Bools
from stelae.storage.kernels.default import default_index_kernels
from stelae.storage.kernels.index_api import IndexKernels

Range: TypeAlias = tuple[bytes, bytes]
"""From the first on, below the second (`END`: no bound)."""
SORTED_BYTES_MAX = 1 << 30
"""Of entries that are sorted together; more become several runs."""


class LogEntries:
    """One index of a table, as it is made from a log."""

    def __init__(
        self, schema: TableSchema, index: IndexDefinition, kernels: IndexKernels | None = None
    ) -> None:
        self._schema = schema
        self._codec = EntryCodec(schema, index, kernels)
        self._kernels = kernels
        self.column_ids: tuple[int, ...] = tuple([self._id(name) for name in self._codec.columns])
        """Of what is read: the indexed column and the key."""

    def _id(self, name: str) -> int:
        place: int = self._schema.arrow.get_field_index(name)
        return self._schema.column_ids[place]

    def of_segment(self, batch: pa.RecordBatch, live: Bools) -> pa.BinaryArray:
        """The entries of a segment's live rows, in log order. ``batch`` has the stored columns with
        `column_ids`, among others; a column that it lacks was added to the table later.

        Raises:
            InvalidArgument: over 2 GiB in all.
        """
        if not live.all():
            batch = batch.filter(pa.array(live))
        return self._codec.encode_batch(self._shown(batch))

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = {_column_id(field): place for place, field in enumerate(batch.schema)}
        arrays = []
        for name in self._codec.columns:
            place = places.get(self._id(name))
            if place is None:
                arrays.append(constant_array(self._schema.read_default(name), batch.num_rows))
            else:
                arrays.append(batch.column(place))
        return pa.RecordBatch.from_arrays(arrays, names=list(self._codec.columns))

    def partitions(
        self, segments: Iterable[pa.BinaryArray], ranges: Sequence[Range]
    ) -> list[list[pa.BinaryArray]]:
        """Of each range its entries of all segments: each array sorted, each entry in it once."""
        kernels = self._kernels or default_index_kernels()
        found: list[list[pa.BinaryArray]] = [[] for _ in ranges]
        for run in _sorted(segments, kernels):
            for place, (low, high) in enumerate(ranges):
                begin = run.find(low, kernels) if low else 0
                end = run.length if high == END else run.find(high, kernels)
                if begin < end:
                    found[place].append(run.entries().slice(begin, end - begin))
        return found


def _sorted(segments: Iterable[pa.BinaryArray], kernels: IndexKernels) -> Iterator[Run]:
    for together in _groups(segments):
        yield sorted_alike(pa.concat_arrays(together), 0, 0, kernels)


def _groups(segments: Iterable[pa.BinaryArray]) -> Iterator[list[pa.BinaryArray]]:
    together: list[pa.BinaryArray] = []
    size_bytes = 0
    for entries in segments:
        if together and size_bytes + entries.nbytes > SORTED_BYTES_MAX:
            yield together
            together, size_bytes = [], 0
        if len(entries):
            together.append(entries)
            size_bytes += entries.nbytes
    if together:
        yield together


def with_ids(batch: pa.RecordBatch, column_ids: Sequence[int]) -> pa.RecordBatch:
    """The stored columns of a segment that have these ids, as far as it has them."""
    places = {_column_id(field): place for place, field in enumerate(batch.schema)}
    found = [places[column_id] for column_id in column_ids if column_id in places]
    return batch.select([batch.schema.names[place] for place in found])


def _column_id(field: pa.Field) -> int:
    text = (field.metadata or {}).get(COLUMN_ID_KEY, b"")
    return int(text) if text.isdigit() else -1
