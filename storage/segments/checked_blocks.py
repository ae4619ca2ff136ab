"""Bytes of an image, read a block at a time into one buffer, and checked before they are shown.

For who needs a few bytes here and there: most of what is read needs no memory of its own. Blocks
of short values stay with the image, as they have those of many rows.

Invariant: what is shown is of a block that has the image's own checksum.
"""

from __future__ import annotations

from collections.abc import Callable

from stelae.core.rpc import Blob
from stelae.storage.segments.image import BLOCK_BYTES
from stelae.storage.segments.partial_image import PartialImage


class CheckedBlocks:
    """Those of one image, for one look at it: the block read last is taken to be as it was.

    ``fill`` reads the image's bytes from a place on into a buffer, whatever they are; what it
    raises is passed on. ``buffer`` has room for a block.
    """

    __slots__ = ("_buffer", "_fill", "_image", "_in_buffer")

    def __init__(
        self, image: PartialImage, fill: Callable[[int, memoryview], None], buffer: memoryview
    ) -> None:
        self._image = image
        self._fill = fill
        self._buffer = buffer
        self._in_buffer = -1

    def read(self, start: int, end: int) -> Blob:
        """Bytes of the image: see `stelae.storage.segments.image_rows.ReadBytes`. Raises
        CorruptData."""
        block = start // BLOCK_BYTES
        at = start - block * BLOCK_BYTES
        if at + end - start <= BLOCK_BYTES:
            return self.block(block)[at : at + end - start]
        parts = []
        for each in range(block, -(-end // BLOCK_BYTES)):
            first = each * BLOCK_BYTES
            parts.append(bytes(self.block(each)[max(0, start - first) : end - first]))
        return b"".join(parts)

    def block(self, block: int) -> memoryview:
        """A block, as long as no other one is asked for. Raises CorruptData."""
        held = self._image.block(block)
        if held is not None:
            return held
        buffer, place = self._buffer, block * BLOCK_BYTES
        length = min(BLOCK_BYTES, self._image.rows_length - place)
        if length < BLOCK_BYTES:
            buffer = buffer[: max(0, length)]
        if block != self._in_buffer:
            self._in_buffer = -1
            self._fill(place, buffer)
            self._image.check(block, buffer)
            self._image.offer(block, buffer)
            self._in_buffer = block
        return buffer
