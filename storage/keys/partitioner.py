"""Which tablet a row belongs to.

``number = range * buckets + bucket``. The bucket is cut from a hash of the hash columns that has
another seed than the index's, so that the rows of one tablet still spread over its whole
index. The range is the number of splits that are not above the row, in the order of Python
tuples of wire values: numbers by size, text by code points (as its UTF-8), bytes by bytes.

Clients and servers both compute this: it must never change.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.core.errors import InvalidArgument
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import WireRow, WireValue
from stelae.storage.kernels.api import I32, I64, Bools, Kernels
from stelae.storage.keys.codec import ColumnCodec, fixed_bits, is_variable

PARTITION_SEED = 0xD1B54A32D192ED03


class TabletRows(NamedTuple):
    """Rows of a batch that fall into one tablet, and where they stood in it, ascending."""

    batch: pa.RecordBatch
    rows: I64


class Partitioner:
    """Cuts keys and batches of one table by its partitioning."""

    def __init__(
        self, partitioning: Partitioning, schema: TableSchema, kernels: Kernels | None = None
    ) -> None:
        """Splits must be wire values of the range columns.

        Raises:
            InvalidArgument: the partitioning does not fit the key, or a split its column.
        """
        partitioning.check(schema.key)
        self.tablet_count = partitioning.tablet_count
        self._buckets = partitioning.buckets
        self._hash: ColumnCodec | None = None
        self._hash_places: tuple[int, ...] = ()
        self._ranges: _Ranges | None = None
        if partitioning.hash:
            names = partitioning.hash.columns
            fields = [schema.arrow.field(name) for name in names]
            self._hash = ColumnCodec(fields, PARTITION_SEED, kernels=kernels)
            self._hash_places = tuple(schema.key.index(name) for name in names)
        if partitioning.range:
            self._ranges = _Ranges(partitioning.range.columns, partitioning.range.splits, schema)

    def tablet_number(self, key: Sequence[WireValue]) -> int:
        """The tablet of one key, a tuple of wire values in key order. Plain Python, 1–2 µs."""
        number = 0
        if self._ranges is not None:
            number = self._ranges.one(key) * self._buckets
        if self._hash is not None:
            hashed = self._hash.hash_one([key[place] for place in self._hash_places])
            number += (hashed >> 32) * self._buckets >> 32
        return number

    def tablet_numbers(self, batch: pa.RecordBatch) -> I32:
        """The tablet of each row; ``batch`` has the key columns, by name, among others.

        Raises:
            InvalidArgument: a partition column has nulls or another type.
        """
        numbers = np.zeros(batch.num_rows, np.int64)
        if self._ranges is not None:
            numbers += self._ranges.batch(batch) * self._buckets
        if self._hash is not None:
            upper = self._hash.hash_batch(batch) >> np.uint64(32)
            buckets = (upper * np.uint64(self._buckets)) >> np.uint64(32)
            numbers += buckets.view(np.int64)
        return numbers.astype(np.int32)

    @staticmethod
    def split(batch: pa.RecordBatch, numbers: I32) -> dict[int, TabletRows]:
        """The rows of each tablet in their order, by ascending tablet number."""
        if batch.num_rows == 0:
            return {}
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            return {int(numbers[0]): TabletRows(batch, np.arange(batch.num_rows))}
        # 16 bits hold every tablet number, and NumPy sorts those by radix.
        order = np.argsort(numbers.astype(np.int16), kind="stable")
        ordered = batch.take(pa.array(order))
        counts = np.bincount(numbers)
        ends = np.cumsum(counts)
        return {
            number: TabletRows(
                ordered.slice(int(ends[number] - counts[number]), int(counts[number])),
                order[ends[number] - counts[number] : ends[number]],
            )
            for number in np.flatnonzero(counts).tolist()
        }


class _Ranges:
    """The ordered splits of a range partition."""

    def __init__(
        self, columns: Sequence[str], splits: Sequence[Sequence[Any]], schema: TableSchema
    ) -> None:
        self._fields = [schema.arrow.field(name) for name in columns]
        self._places = tuple(schema.key.index(name) for name in columns)
        self._splits: list[WireRow] = [tuple(split) for split in splits]
        self._columns: list[Any] = []
        for i, field in enumerate(self._fields):
            values = [split[i] for split in self._splits]
            try:
                array = pa.array(values, type=field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise InvalidArgument(f"splits of column {field.name!r}: {error}") from None
            if array.null_count:
                raise InvalidArgument(f"splits of column {field.name!r}: null is no key")
            self._columns.append(_ordered(array))

    def one(self, key: Sequence[WireValue]) -> int:
        return bisect.bisect_right(self._splits, tuple([key[place] for place in self._places]))

    def batch(self, batch: pa.RecordBatch) -> I64:
        columns = []
        for field in self._fields:
            column = batch.column(field.name)
            if column.type != field.type or column.null_count:
                raise InvalidArgument(
                    f"partition column {field.name!r} should be {field.type}, without nulls; "
                    f"it is {column.type} with {column.null_count} nulls"
                )
            columns.append(_ordered(column))
        if len(columns) == 1 and isinstance(columns[0], np.ndarray):
            return np.searchsorted(self._columns[0], columns[0], side="right")
        return self._bisect(columns, batch.num_rows)

    def _bisect(self, columns: list[Any], rows: int) -> I64:
        """Bisection of all rows at once: as many rounds as the number of splits has bits."""
        low = np.zeros(rows, np.int64)
        high = np.full(rows, len(self._splits), np.int64)
        for _ in range(len(self._splits).bit_length()):
            open_ = low < high
            middle = np.where(open_, (low + high) // 2, 0)
            reached = self._reached(columns, middle)
            low = np.where(open_ & reached, middle + 1, low)
            high = np.where(open_ & ~reached, middle, high)
        return low

    def _reached(self, columns: list[Any], splits: I64) -> Bools:
        """Whether each row is at or above the split that is named for it."""
        result: Bools = np.ones(len(splits), np.bool_)
        for column, bounds in zip(reversed(columns), reversed(self._columns), strict=True):
            bound = bounds.take(splits)
            if isinstance(column, np.ndarray):
                above, equal = column > bound, column == bound
            else:
                above = pc.greater(column, bound).to_numpy(zero_copy_only=False)
                equal = pc.equal(column, bound).to_numpy(zero_copy_only=False)
            result = above | (equal & result)
        return result


def _ordered(column: pa.Array) -> Any:
    """Fixed-width values as a NumPy array of their order; text and bytes as they are."""
    if is_variable(column.type):
        return column
    bits = fixed_bits(column)
    return bits if pa.types.is_uint64(column.type) else bits.view(np.int64)
