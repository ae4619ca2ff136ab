"""Bytes of data that rows have, and rows cut into calls by them.

An average says little: a dictionary's values take an index each until they are written out, and a
few rows may have most of the bytes. Calls are bounded in bytes, so cuts go by each row's own size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.core.errors import TooLarge
from stelae.core.schema.schema import MAX_ROW_BYTES

_OFFSET_BYTES = 4
"""Bytes of a value next to its data: its offset. Values of fixed width have none; bits of validity
are not counted, as they are there or not by chance."""


def check_row_sizes(batch: pa.RecordBatch) -> None:
    """Raise `TooLarge` if a row is above `MAX_ROW_BYTES`."""
    if batch.nbytes <= MAX_ROW_BYTES:
        return
    # Every batch passes here several times: the largest values are found without an array of sizes.
    if sum([_largest_bytes(column) for column in batch.columns]) <= MAX_ROW_BYTES:
        return
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += value_sizes(column)
    largest = int(sizes.argmax())
    if sizes[largest] > MAX_ROW_BYTES:
        raise TooLarge(f"row {largest} of the call", int(sizes[largest]), MAX_ROW_BYTES)


def _largest_bytes(column: pa.Array) -> int:
    """Bytes of data of the largest value of a column."""
    width = _fixed_bytes(column.type)
    if width is not None:
        return width
    if _has_length(column.type):
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    return int(value_sizes(column).max(initial=0))


def size_cuts(rows: pa.Table | pa.RecordBatch, bytes_max: int) -> list[tuple[int, int]]:
    """Rows in order as (first row, number of rows): each part has up to ``bytes_max`` bytes once
    its dictionaries are written out, and one row at least. Depends on the rows' values alone."""
    before = _bytes_before(rows)
    if before is None:
        return cuts_of(row_sizes(rows), bytes_max)
    # Bisection instead of a pass over the rows: a load is cut before its first call is sent.
    cuts: list[tuple[int, int]] = []
    first, counts = 0, range(rows.num_rows + 1)
    while first < rows.num_rows:
        limit = before(first) + bytes_max
        end = max(first + 1, bisect_right(counts, limit, lo=first, key=before) - 1)
        cuts.append((first, end - first))
        first = end
    return cuts


def _bytes_before(rows: pa.Table | pa.RecordBatch) -> Callable[[int], int] | None:
    """Return the bytes of the first n rows as a function of n, where no pass over the rows is
    needed: in columns of one chunk, of fixed width or of text or bytes without nulls."""
    fixed_bytes, offsets = 0, []
    for column in rows.columns if rows.num_rows else ():
        if isinstance(column, pa.ChunkedArray):
            if column.num_chunks != 1:
                return None
            column = column.chunk(0)
        width = _fixed_bytes(column.type)
        if width is not None:
            fixed_bytes += width
        elif _has_length(column.type) and not column.null_count:
            fixed_bytes += _OFFSET_BYTES
            offsets.append(_offsets(column))
        else:
            return None
    return lambda n: n * fixed_bytes + sum([int(each[n]) - int(each[0]) for each in offsets])


def _offsets(column: pa.Array) -> NDArray[np.int32] | NDArray[np.int64]:
    """The offsets of a column of text or bytes with a row at least, shape (rows + 1,)."""
    kind: Any = column.type
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    width: Any = np.dtype(np.int64 if is_large else np.int32)
    start_bytes = width.itemsize * column.offset
    found: NDArray[Any] = np.frombuffer(column.buffers()[1], width, len(column) + 1, start_bytes)
    return found


def row_sizes(rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each row, with what values of every depth take next to their data."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if chunks:
            sizes += np.concatenate([value_sizes(chunk, _OFFSET_BYTES) for chunk in chunks])
    return sizes


def cuts_of(sizes: NDArray[np.int64], bytes_max: int) -> list[tuple[int, int]]:
    """As `size_cuts`, of rows with these sizes."""
    ends = np.cumsum(sizes)
    cuts: list[tuple[int, int]] = []
    first = before = 0
    while first < len(ends):
        end = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        cuts.append((first, end - first))
        first, before = end, int(ends[end - 1])
    return cuts


def value_sizes(column: pa.Array, beside: int = 0) -> NDArray[np.int64]:
    """Bytes of data of each value of a column, and ``beside`` for it and for each value within it,
    but for values of fixed width; of a dictionary's value those of the value that it stands for."""
    if isinstance(column, pa.ExtensionArray):
        return value_sizes(column.storage, beside)
    width = _fixed_bytes(column.type)
    if width is not None:
        return np.full(len(column), width, np.int64)
    return _data_sizes(column, beside) + beside


def _fixed_bytes(kind: Any) -> int | None:
    """Bytes of each value of a type of fixed width; None: the values of this type differ."""
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return -(-int(kind.bit_width) // 8)
    return None


def _data_sizes(column: pa.Array, beside: int) -> NDArray[np.int64]:
    kind: Any = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if kind in (pa.string_view(), pa.binary_view()):
        column, kind = column.cast(pa.large_binary()), pa.large_binary()
    if _has_length(kind):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return lengths.to_numpy().astype(np.int64)  # type: ignore[no-any-return]
    if pa.types.is_dictionary(kind):
        return _taken(column)
    if pa.types.is_struct(kind) and kind.num_fields:
        return np.sum([value_sizes(child, beside) for child in column.flatten()], axis=0)  # type: ignore[no-any-return]
    return _sizes_of_lists(column, beside)


def _sizes_of_lists(column: pa.Array, beside: int) -> NDArray[np.int64]:
    """Of lists of any kind; of other types as Arrow counts each value."""
    kind: Any = column.type
    if pa.types.is_fixed_size_list(kind):
        first, count = column.offset * kind.list_size, len(column) * kind.list_size
        inner = value_sizes(column.values, beside)[first : first + count]
        return inner.reshape(len(column), kind.list_size).sum(axis=1)  # type: ignore[no-any-return]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = column.offsets.to_numpy()
        inner = column.values  # the whole child, to which offsets refer
        before = np.concatenate(([0], np.cumsum(value_sizes(inner, beside))))
        return before[offsets[1:]] - before[offsets[:-1]]  # type: ignore[no-any-return]
    return np.array([column.slice(i, 1).nbytes for i in range(len(column))], np.int64)


def _has_length(kind: pa.DataType) -> bool:
    is_small = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_small or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _taken(column: pa.Array) -> NDArray[np.int64]:
    """The sizes of a dictionary's values where they are used."""
    sizes = pa.array(value_sizes(column.dictionary))
    used = pc.fill_null(pc.take(sizes, column.indices), 0)
    return used.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
