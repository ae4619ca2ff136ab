"""Single cells of Arrow arrays as wire values, straight from their buffers.

``array[i].as_py()`` costs half a microsecond and yields datetimes; a get of one row wants neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Cell = Callable[[int], Any]
"""The wire value (see `stelae.core.schema.values`) at a place of one array."""

_DTYPES: dict[int, type[np.generic]] = {
    pa.int8().id: np.int8,
    pa.int16().id: np.int16,
    pa.int32().id: np.int32,
    pa.int64().id: np.int64,
    pa.uint8().id: np.uint8,
    pa.uint16().id: np.uint16,
    pa.uint32().id: np.uint32,
    pa.uint64().id: np.uint64,
    pa.float32().id: np.float32,
    pa.float64().id: np.float64,
    pa.date32().id: np.int32,
    pa.date64().id: np.int64,
    pa.timestamp("s").id: np.int64,
}


def number_type(kind: pa.DataType) -> np.dtype[Any] | None:
    """What an array's values are in memory, if they are plain numbers."""
    found = _DTYPES.get(kind.id)
    return None if found is None else np.dtype(found)


def cell_reader(array: pa.Array) -> Cell:
    """A function from place to wire value, for any plain type; others come as ``as_py`` does."""
    kind = array.type
    if array.null_count == len(array):
        return lambda _: None
    buffers = array.buffers()
    offset = array.offset
    if kind.id in _DTYPES:
        # A memoryview's item is a plain Python number, and its getter a bare C method.
        read: Cell = _values(buffers[1], _DTYPES[kind.id], offset).data.__getitem__
    elif pa.types.is_boolean(kind):
        read = _bit_reader(buffers[1], offset)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        read = _bytes_reader(buffers[1], buffers[2], offset, text=pa.types.is_string(kind))
    else:
        return lambda i: array[i].as_py()
    if not array.null_count:
        return read
    valid = _bit_reader(buffers[0], offset)
    return lambda i: read(i) if valid(i) else None


def _values(buffer: pa.Buffer, dtype: type[np.generic], offset: int) -> np.ndarray[Any, Any]:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype, count=buffer.size // size - offset, offset=offset * size)


def _bit_reader(buffer: pa.Buffer, offset: int) -> Cell:
    bits = memoryview(buffer).cast("B")

    def bit(i: int) -> bool:
        i += offset
        return bool(bits[i >> 3] >> (i & 7) & 1)

    return bit


def _bytes_reader(offsets: pa.Buffer, data: pa.Buffer | None, offset: int, *, text: bool) -> Cell:
    starts = _values(offsets, np.int32, offset).data
    content = memoryview(data).cast("B") if data is not None else memoryview(b"")
    if text:
        return lambda i: str(content[starts[i] : starts[i + 1]], "utf-8")
    return lambda i: bytes(content[starts[i] : starts[i + 1]])


def row_reader(batch: pa.RecordBatch) -> Callable[[int], tuple[Any, ...]]:
    """A function from row number to the row's wire values."""
    cells = [cell_reader(column) for column in batch.columns]
    return lambda i: tuple([cell(i) for cell in cells])
