"""An image of which only the rows that are asked for are read.

An image says the checksums of its rows in blocks (`ImageMeta.block_crcs`), so that some rows can be
read and checked without all others. All of its rows have their places in memory that is reserved
and, but for the blocks that were read, never touched. What Arrow makes of that are the columns of
the whole image; who wants rows of them has these brought first.

Invariant: blocks are checked before anything in them is looked at.
Source: seed RAMCloud master recovery, phase 2 (objects on demand); Arrow IPC streaming format.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from stelae.core.errors import CorruptData
from stelae.core.rpc import Blob
from stelae.storage.image import BLOCK_BYTES, IMAGE_TRAILER_BYTES, ImageMeta, meta_range, read_meta

Read: TypeAlias = Callable[[int, int], Awaitable[Blob]]
"""Bytes of the image: (offset, length)."""
_Range: TypeAlias = tuple[int, int]
"""Of the image's bytes: (start, end)."""
_PREFIX_BYTES = 8
"""Before a message of an Arrow stream: a marker, and how long its metadata are."""


class PartialImage:
    """See the module."""

    __slots__ = ("_brought", "_crcs", "_memory", "batch", "held_bytes", "meta", "trailer", "where")

    batch: pa.RecordBatch
    """All rows; of those that were not brought, nothing is known."""

    def __init__(self, meta: ImageMeta, trailer: bytes, rows_length: int, where: str) -> None:
        self.meta = meta
        self.trailer = trailer
        self.where = where
        self.held_bytes = 0
        """Of blocks that were read."""
        self._crcs = np.frombuffer(meta.block_crcs, "<u4")
        if len(self._crcs) != -(-rows_length // BLOCK_BYTES):
            raise CorruptData(where, 0, f"{len(self._crcs)} checksums for {rows_length} bytes")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = memoryview(mmap.mmap(-1, rows_length, flags=flags))
        self._brought = np.zeros(len(self._crcs), np.bool_)

    @staticmethod
    async def open(read: Read, length: int, where: str) -> PartialImage | None:
        """Read what there is beside rows and summary; ``length`` is the whole image's. None: it is
        to be read whole, being of before, or of columns whose rows lie in more than one place.

        Raises:
            CorruptData: what was read does not match its checksum.
        """
        trailer = bytes(await read(length - IMAGE_TRAILER_BYTES, IMAGE_TRAILER_BYTES))
        rows_length, start, size = meta_range(trailer, length, where)
        meta = read_meta(trailer, await read(start, size), where)
        columns = meta.stored_columns(where)
        if not meta.block_crcs or columns is None:
            return None
        if not all(_is_plain(field.type) for field in columns):
            return None
        image = PartialImage(meta, trailer, rows_length, where)
        await image._open(read)
        return image

    async def _open(self, read: Read) -> None:
        """Read the metadata of both messages of the stream: of its schema and of its batch."""
        end = 0
        for _ in range(2):
            await self._bring_ranges(read, [(end, end + _PREFIX_BYTES)])
            end += _PREFIX_BYTES
            end += int.from_bytes(self._memory[end - 4 : end], "little")
            await self._bring_ranges(read, [(0, end)])
        try:
            with pa.ipc.open_stream(pa.py_buffer(self._memory)) as reader:
                self.batch = reader.read_next_batch()
        except (pa.ArrowInvalid, StopIteration, OSError) as error:
            raise CorruptData(self.where, 0, f"unreadable batch: {error}") from error
        if self.batch.num_rows != self.meta.row_count:
            text = f"{self.batch.num_rows} rows; {self.meta.row_count} were sealed"
            raise CorruptData(self.where, 0, text)

    async def bring(self, read: Read, parts: Iterable[tuple[int, int]]) -> None:
        """Have rows at hand: of each part (first row, end). Raises CorruptData."""
        spans = [(first, min(end, self.batch.num_rows)) for first, end in parts]
        start = pa.py_buffer(self._memory).address
        columns = [(column.type, column.buffers()) for column in self.batch.columns]
        wanted = [
            (buffer.address - start + at, buffer.address - start + to)
            for kind, buffers in columns
            for first, end in spans
            for buffer, at, to in _places(kind, buffers, first, end)
        ]
        await self._bring_ranges(read, wanted)
        texts = []
        for kind, buffers in columns:
            width = _offset_bytes(kind)
            if not width or buffers[2] is None:
                continue
            offsets = np.frombuffer(buffers[1], f"<i{width}")
            data = buffers[2].address - start
            texts += [(data + int(offsets[a]), data + int(offsets[b])) for a, b in spans]
        await self._bring_ranges(read, texts)

    async def _bring_ranges(self, read: Read, ranges: Sequence[_Range]) -> None:
        """Read and check the blocks of these bytes that are not here."""
        missing: dict[int, None] = {}
        for start, end in ranges:
            if not 0 <= start <= end <= self._memory.nbytes:
                raise CorruptData(self.where, start, f"no bytes up to {end} are here")
            if start < end:
                blocks = range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
                missing |= {block: None for block in blocks if not self._brought[block]}
        first = last = -2
        for block in [*sorted(missing), -2]:
            if block == last + 1:
                last = block
                continue
            if first >= 0:
                await self._read_blocks(read, first, last)
            first = last = block

    async def _read_blocks(self, read: Read, first: int, last: int) -> None:
        start = first * BLOCK_BYTES
        end = min((last + 1) * BLOCK_BYTES, self._memory.nbytes)
        data = memoryview(await read(start, end - start))
        for block in range(first, last + 1):
            at = block * BLOCK_BYTES - start
            part = data[at : at + BLOCK_BYTES]
            if crc32c(part) != self._crcs[block]:
                raise CorruptData(self.where, start + at, "bad checksum of a block of rows")
            self._memory[start + at : start + at + part.nbytes] = part
            self._brought[block] = True
            self.held_bytes += part.nbytes


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the values of some rows are one stretch of bytes, or two with their offsets."""
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return is_fixed or pa.types.is_fixed_size_binary(kind) or bool(_offset_bytes(kind))


def _offset_bytes(kind: pa.DataType) -> int:
    """Of each offset of a variable column; 0: it is none."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    return 8 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else 0


def _places(
    kind: pa.DataType, buffers: Sequence[pa.Buffer | None], first: int, end: int
) -> list[tuple[pa.Buffer, int, int]]:
    """Where rows are in a column: (buffer, start, end); of texts, their offsets."""
    validity, values = buffers[0], buffers[1]
    places = []
    if validity is not None:
        places.append((validity, first // 8, -(-end // 8)))
    if values is not None:
        width = _offset_bytes(kind)
        if width:
            places.append((values, first * width, (end + 1) * width))
        else:
            places.append((values, first * kind.bit_width // 8, -(-end * kind.bit_width // 8)))
    return places
