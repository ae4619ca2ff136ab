"""An image of which only the rows that are asked for are read.

An image says the checksums of its rows in blocks (`ImageMeta.block_crcs`), so that some rows can be
read and checked without all others. All of its rows have their places in memory that is reserved
and, but for the blocks that were read, never touched. What Arrow makes of that are the columns of
the whole image; who wants rows of them has these brought first.

Where the columns lie is worked out once; a look for rows that follow others is then a few sums.

Invariant: blocks are checked before anything in them is looked at.
Source: seed RAMCloud master recovery, phase 2 (objects on demand); Arrow IPC streaming format.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from stelae.core.errors import CorruptData
from stelae.core.rpc import Blob
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.storage.segments.image import (
    BLOCK_BYTES,
    IMAGE_TRAILER_BYTES,
    ImageMeta,
    meta_range,
    read_meta,
)

Range: TypeAlias = tuple[int, int]
"""Of the image's bytes: (offset, length)."""
Read: TypeAlias = Callable[[Sequence[Range]], Awaitable[Sequence[Blob]]]
"""Bytes of the image, each of some ranges."""
DENSE_BYTES = 16
"""Of a column's value: a block has those of a thousand rows then."""
_PREFIX_BYTES = 8
"""Before a message of an Arrow stream: a marker, and how long its metadata are."""


class _Stretch(NamedTuple):
    """Where the values of one buffer of a column lie in the image."""

    start: int
    bits: int
    """Of each row."""
    more: int
    """Values behind the last row's that are needed too: an offset more than rows."""


class _Texts(NamedTuple):
    """A column's bytes, which its offsets point into."""

    start: int
    offsets: NDArray[Any]
    offsets_start: int
    width: int
    """Of an offset, in bytes."""


class PartialImage:
    """See the module."""

    __slots__ = (
        "_brought",
        "_crcs",
        "_dense",
        "_memory",
        "_start",
        "_stretches",
        "_texts",
        "batch",
        "held_bytes",
        "is_open",
        "meta",
        "trailer",
        "versions",
        "where",
    )

    batch: pa.RecordBatch
    """All rows, once it is open; of those that were not brought, nothing is known."""
    versions: NDArray[np.uint64]
    """Theirs."""

    def __init__(self, meta: ImageMeta, trailer: bytes, rows_length: int, where: str) -> None:
        self.meta = meta
        self.trailer = trailer
        self.where = where
        self.held_bytes = 0
        """Of blocks that were read."""
        self.is_open = False
        self._crcs: list[int] = np.frombuffer(meta.block_crcs, "<u4").tolist()
        if len(self._crcs) != -(-rows_length // BLOCK_BYTES):
            raise CorruptData(where, 0, f"{len(self._crcs)} checksums for {rows_length} bytes")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = memoryview(mmap.mmap(-1, rows_length, flags=flags))
        self._start = int(pa.py_buffer(self._memory).address)
        self._brought = bytearray(len(self._crcs))
        self._dense = bytearray(len(self._crcs))
        """One for each block: 1, it has values of a thousand rows and more."""
        self._stretches: list[_Stretch] = []
        self._texts: list[_Texts] = []

    @staticmethod
    async def open(read: Read, length: int, where: str) -> PartialImage | None:
        """Read what there is beside rows and summary; ``length`` is the whole image's. None: it is
        to be read whole, being of before, or of columns whose rows lie in more than one place.

        Raises:
            CorruptData: what was read does not match its checksum.
        """
        (end,) = await read([(length - IMAGE_TRAILER_BYTES, IMAGE_TRAILER_BYTES)])
        trailer = bytes(end)
        _, start, size = meta_range(trailer, length, where)
        (data,) = await read([(start, size)])
        meta = read_meta(trailer, data, where)
        image = PartialImage.of(meta, trailer, length, where)
        if image is None:
            return None
        while ranges := image.lacks_to_open():
            for (start, _), data in zip(ranges, await read(ranges), strict=True):
                image.put(start, data)
        return image

    @staticmethod
    def of(meta: ImageMeta, trailer: bytes, length: int, where: str) -> PartialImage | None:
        """The same of what is known already; blocks are still to be put until it is open."""
        columns = meta.stored_columns(where)
        if not meta.block_crcs or columns is None:
            return None
        if not all(_is_plain(field.type) for field in columns):
            return None
        rows_length, _, _ = meta_range(trailer, length, where)
        return PartialImage(meta, trailer, rows_length, where)

    # ---- opening ----------------------------------------------------------------------------

    def lacks_to_open(self) -> list[Range]:
        """What is to be put before it is open. Nothing: it is, as the metadata of both messages of
        the stream are here, that of its schema and that of its batch. Raises CorruptData."""
        if self.is_open:
            return []
        end = 0
        for _ in range(2):
            missing = self._missing([(end, end + _PREFIX_BYTES)])
            if missing:
                return missing
            end += _PREFIX_BYTES
            end += int.from_bytes(self._memory[end - 4 : end], "little")
        missing = self._missing([(0, end)])
        if not missing:
            self._open()
        return missing

    def _open(self) -> None:
        try:
            with pa.ipc.open_stream(pa.py_buffer(self._memory)) as reader:
                batch = reader.read_next_batch()
        except (pa.ArrowInvalid, StopIteration, OSError) as error:
            raise CorruptData(self.where, 0, f"unreadable batch: {error}") from error
        if batch.num_rows != self.meta.row_count:
            text = f"{batch.num_rows} rows; {self.meta.row_count} were sealed"
            raise CorruptData(self.where, 0, text)
        for column in batch.columns:
            self._note_places(column.type, column.buffers())
        self.batch, self.is_open = batch, True
        self.versions = batch.column(VERSION_COLUMN).to_numpy()

    def place_of(self, buffer: pa.Buffer) -> int:
        """Where a buffer of `batch` lies in the image."""
        return int(buffer.address) - self._start

    def _note_places(self, kind: pa.DataType, buffers: Sequence[pa.Buffer | None]) -> None:
        """Note where a column lies. An empty buffer lies nowhere: Arrow's own may be anywhere."""
        validity, values = buffers[0], buffers[1]
        if validity is not None and validity.size:
            self._stretches.append(_Stretch(self.place_of(validity), 1, 0))
        for buffer in buffers[:2]:
            if (
                buffer is not None
                and buffer.size
                and buffer.size <= DENSE_BYTES * self.meta.row_count
            ):
                self._note_dense(buffer)
        if values is None or not values.size:
            return
        width = _offset_bytes(kind)
        bits = 8 * width if width else kind.bit_width
        self._stretches.append(_Stretch(self.place_of(values), bits, 1 if width else 0))
        data = buffers[2] if width else None
        if data is not None and data.size:  # else no row has any text
            offsets = np.frombuffer(values, f"<i{width}")
            places = self.place_of(data), self.place_of(values)
            self._texts.append(_Texts(places[0], offsets, places[1], width))

    def _note_dense(self, buffer: pa.Buffer) -> None:
        start = self.place_of(buffer)
        for block in range(start // BLOCK_BYTES, -(-(start + buffer.size) // BLOCK_BYTES)):
            self._dense[block] = 1

    # ---- rows -------------------------------------------------------------------------------

    async def bring(self, read: Read, parts: Iterable[tuple[int, int]]) -> None:
        """Have rows at hand: of each part (first row, end). Raises CorruptData."""
        spans, is_all = list(parts), False
        while not is_all:
            missing, is_all = self.lacks(spans)
            if missing:
                for (start, _), data in zip(missing, await read(missing), strict=True):
                    self.put(start, data)

    def lacks(self, parts: Iterable[tuple[int, int]]) -> tuple[list[Range], bool]:
        """What is to be put before rows are at hand (of each part: first row, end), and whether
        that is all: offsets have to be here to tell where texts are. Raises CorruptData."""
        count, brought, is_all = self.meta.row_count, self._brought, True
        wanted: list[tuple[int, int]] = []
        for first, end in parts:
            end = min(end, count)
            for at, bits, more in self._stretches:
                wanted.append((at + first * bits // 8, at + -(-(end + more) * bits // 8)))
            for at, offsets, offsets_at, width in self._texts:
                block = (offsets_at + first * width) // BLOCK_BYTES
                last = (offsets_at + (end + 1) * width - 1) // BLOCK_BYTES
                if 0 in brought[block : last + 1]:
                    is_all = False
                else:
                    wanted.append((at + int(offsets[first]), at + int(offsets[end])))
        return self._missing(wanted), is_all

    def lacks_columns(self, names: Iterable[str]) -> list[Range]:
        """What is to be put before all rows' values of some columns are at hand, once it is open.
        Raises CorruptData."""
        start, wanted = pa.py_buffer(self._memory).address, list[tuple[int, int]]()
        for name in names:
            for buffer in self.batch.column(name).buffers():
                if buffer is not None and buffer.size:
                    wanted.append((buffer.address - start, buffer.address - start + buffer.size))
        return self._missing(wanted)

    def _missing(self, ranges: Sequence[tuple[int, int]]) -> list[Range]:
        """The blocks of these bytes (start, end) that are not here; neighbours in one."""
        brought, size = self._brought, len(self._memory)
        missing: list[int] = []
        for start, end in ranges:
            if not 0 <= start <= end <= size:
                raise CorruptData(self.where, start, f"no bytes up to {end} are here")
            block, after = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
            if start < end and 0 in brought[block:after]:
                missing += [each for each in range(block, after) if not brought[each]]
        found: list[Range] = []
        for block in sorted(set(missing)):
            start = block * BLOCK_BYTES
            length = min(BLOCK_BYTES, size - start)
            if found and sum(found[-1]) == start:
                found[-1] = (found[-1][0], found[-1][1] + length)
            else:
                found.append((start, length))
        return found

    @property
    def rows_length(self) -> int:
        """Bytes that blocks are of."""
        return len(self._memory)

    def check(self, block: int, data: Blob) -> None:
        """Whether bytes are this block of the image. Raises CorruptData: they are not."""
        if crc32c(data) != self._crcs[block]:
            at = block * BLOCK_BYTES
            raise CorruptData(self.where, at, "bad checksum of a block of rows")

    def block(self, block: int) -> memoryview | None:
        """A block that is here; None: it is not."""
        place = block * BLOCK_BYTES
        return self._memory[place : place + BLOCK_BYTES] if self._brought[block] else None

    def offer(self, block: int, data: Blob) -> None:
        """Keep a block that was checked, if it is worth it: of columns with short values, where
        the next rows that are wanted will be in the same blocks."""
        if self._dense[block]:
            self._take(block, data)

    def _take(self, block: int, data: Blob) -> None:
        if not self._brought[block]:  # nobody else has had it read meanwhile
            place, size = block * BLOCK_BYTES, memoryview(data).nbytes
            self._memory[place : place + size] = data
            self.held_bytes += size
            self._brought[block] = 1

    def put(self, start: int, blob: Blob) -> None:
        """Check whole blocks, and take them. Raises CorruptData: this one, and those after it, are
        not taken."""
        data = memoryview(blob)
        for at in range(0, len(data), BLOCK_BYTES):
            part, block = data[at : at + BLOCK_BYTES], (start + at) // BLOCK_BYTES
            self.check(block, part)
            self._take(block, part)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the values of some rows are one stretch of bytes, or two with their offsets."""
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return is_fixed or pa.types.is_fixed_size_binary(kind) or bool(_offset_bytes(kind))


def _offset_bytes(kind: pa.DataType) -> int:
    """Of each offset of a variable column; 0: it is none."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    return 8 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else 0
