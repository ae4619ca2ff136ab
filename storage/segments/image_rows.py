"""Single rows of an image, as wire values, read from no more than the blocks in which they lie.

Who needs one row needs a block of each of its columns, and copies some bytes out of each. So the
blocks need no memory of their own: one buffer serves for all of them, and nothing is decoded but
the row. Columns whose values `stelae.storage.segments.cells` cannot read from bytes are not read
like that.

Source: Arrow columnar format; seed RAMCloud master recovery, phase 2 (objects on demand).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeAlias

import pyarrow as pa

from stelae.core.rpc import Blob
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.storage.segments.cells import number_type
from stelae.storage.segments.layout import Row
from stelae.storage.segments.partial_image import PartialImage

ReadBytes: TypeAlias = Callable[[int, int], Blob]
"""The image's bytes from a place up to another, checked. They are looked at before the next are
asked for. What it raises is passed on."""
_Cell: TypeAlias = Callable[[ReadBytes, int], Any]
_CODES = {
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
}
"""What `struct` calls the types that numpy calls so."""


def comes_in_rows(columns: pa.Schema) -> bool:
    """Whether rows of these columns can be read one by one, whatever is in them."""
    return all(_is_read(field.type) for field in columns)


class ImageRows:
    """The rows of one image."""

    __slots__ = ("_cells", "_version")

    def __init__(self, cells: list[_Cell], version: _Cell) -> None:
        self._cells = cells
        self._version = version

    @staticmethod
    def of(image: PartialImage, known: Mapping[int, Callable[[int], Any]]) -> ImageRows | None:
        """Of an image that is open. None: its rows are not to be read one by one. ``known``: by
        their places, columns whose values are had from elsewhere."""
        found = [
            _known(known[place]) if place in known else _cell(image, column)
            for place, column in enumerate(image.batch.columns[:-2])
        ]
        cells = [cell for cell in found if cell is not None]
        version = _number(image.place_of(image.batch.column(VERSION_COLUMN).buffers()[1]), "Q")
        return ImageRows(cells, version) if len(cells) == len(found) else None

    def row(self, read: ReadBytes, i: int) -> Row:
        """The wire values of row ``i`` in the user's columns. Raises what ``read`` does."""
        return tuple([cell(read, i) for cell in self._cells])

    def version(self, read: ReadBytes, i: int) -> int:
        """The version of row ``i``. Raises what ``read`` does."""
        return int(self._version(read, i))


def _is_read(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return is_text or pa.types.is_boolean(kind) or number_type(kind) is not None


def _cell(image: PartialImage, column: pa.Array) -> _Cell | None:
    """What reads a value of a column: as `cells.cell_reader` of all of it would."""
    if column.null_count == len(column):
        return lambda read, i: None
    kind, buffers = column.type, column.buffers()
    start = image.place_of(buffers[1])
    dtype = number_type(kind)
    if dtype is not None:
        cell = _number(start, _CODES[dtype.str[1:]])
    elif pa.types.is_boolean(kind):
        cell = _bit(start)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = image.place_of(buffers[2]) if buffers[2] is not None and buffers[2].size else 0
        cell = _text(start, data) if pa.types.is_string(kind) else _bytes(start, data)
    else:
        return None
    if not column.null_count:
        return cell
    valid = _bit(image.place_of(buffers[0]))
    return lambda read, i: cell(read, i) if valid(read, i) else None


def _known(value: Callable[[int], Any]) -> _Cell:
    return lambda read, i: value(i)


def _number(start: int, code: str) -> _Cell:
    form = Struct("<" + code)
    size, unpack = form.size, form.unpack

    def number(read: ReadBytes, i: int) -> Any:
        at = start + i * size
        return unpack(read(at, at + size))[0]

    return number


def _bit(start: int) -> _Cell:
    def bit(read: ReadBytes, i: int) -> bool:
        at = start + (i >> 3)
        return bool(memoryview(read(at, at + 1))[0] >> (i & 7) & 1)

    return bit


_ENDS = Struct("<ii")


def _bytes(offsets: int, data: int) -> _Cell:
    unpack = _ENDS.unpack

    def content(read: ReadBytes, i: int) -> bytes:
        at = offsets + 4 * i
        first, end = unpack(read(at, at + 8))
        return bytes(read(data + first, data + end)) if first < end else b""

    return content


def _text(offsets: int, data: int) -> _Cell:
    unpack = _ENDS.unpack

    def text(read: ReadBytes, i: int) -> str:
        at = offsets + 4 * i
        first, end = unpack(read(at, at + 8))
        return str(read(data + first, data + end), "utf-8") if first < end else ""

    return text
