"""Some rows of a segment, as if all of it were here: those that a part of a split tablet may want.

The segment lies in the log of the tablet that was split. Rows of other shares are never asked for,
nor are those that were dead when the part was recovered; so they are not fetched. Positions stay
what they are in the segment.

Invariant: nothing is shown at the number of a row that was not picked, but in `batches`, where the
mask of whoever reads says that it is dead. Source: `docs/decisions.md`, §41.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.storage.kernels.api import I64, U8, Bools
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.runs import SealedRun


class Picks:
    """Which rows of a segment are wanted: a bit for each. Immutable."""

    __slots__ = ("bits", "count", "row_count")

    def __init__(self, wanted: Bools) -> None:
        self.bits: U8 = np.packbits(wanted, bitorder="little")
        self.row_count = len(wanted)
        self.count = int(np.count_nonzero(wanted))

    @property
    def mask(self) -> Bools:
        return mask_of(self.bits, self.row_count)

    @property
    def rows(self) -> I64:
        """Their numbers, ascending."""
        return np.flatnonzero(self.mask)

    def share_of(self, size_bytes: int) -> int:
        """About what these rows take of something that all rows take."""
        return size_bytes * self.count // max(1, self.row_count)


def mask_of(bits: U8, row_count: int) -> Bools:
    """The mask of so many rows that were packed as bits, the lowest of each byte first."""
    return np.unpackbits(bits, count=row_count, bitorder="little").view(np.bool_)


class PickedRun(SealedRun):
    """The rows that were picked, under the numbers that they have in their segment."""

    __slots__ = ("_rows",)

    def __init__(self, layout: Layout, batch: pa.RecordBatch, rows: I64) -> None:
        """``batch``: the picked rows alone; ``rows``: their numbers, ascending."""
        super().__init__(layout, batch)
        self._rows = rows

    def _places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        places = np.searchsorted(self._rows, rows)
        is_there = len(self._rows) > 0 and (self._rows.take(places, mode="clip") == rows).all()
        assert is_there or not len(rows), "only rows that were picked are asked for"
        return places

    def _place(self, i: int) -> int:
        return int(self._places(np.array([i], np.int64))[0])

    def row(self, i: int) -> Row:
        return super().row(self._place(i))

    def key(self, i: int) -> Row:
        return super().key(self._place(i))

    def version(self, i: int) -> int:
        return super().version(self._place(i))

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return super().versions(self._places(rows))

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``."""
        return super().take(self._places(rows), names)

    def spread(self, columns: pa.RecordBatch, row_count: int) -> pa.RecordBatch:
        """Columns of the picked rows, of which there are some, as of all rows; see `batches`."""
        return columns.take(self._shown_at(row_count))

    def _shown_at(self, row_count: int) -> pa.Array:
        places = np.searchsorted(self._rows, np.arange(row_count))
        return pa.array(np.minimum(places, len(self._rows) - 1))

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As many rows as the segment has, as (0, batch): a row that is not here is shown as
        another one, for it is dead to all who read."""
        if not len(self._rows):
            return
        yield 0, self.batch.take(self._shown_at(row_count))
