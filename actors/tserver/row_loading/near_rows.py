"""Rows of remote segments whose images lie on this machine: read past the backup that has them.

A backup that has served a piece says where the image lies. If that can be opened from here, the
next pieces are read from the file itself: no message, no other process, nobody to wait for. Only
what the kernel has in memory is read; for all else the backup is asked, which brings it there. The
backup knows nothing of these reads: the frames may be another segment's by now. So nothing is
believed but by the checksums of the image whose summary was merged; where one does not fit, the
image is forgotten, and the backup, when it is asked the next time, finds out what is the matter.

Invariant: a block is checked against its image's own checksum before anything in it is looked at,
and rows have the versions of the summary's (`stelae.storage.segments.remote`). What is held is
bounded: the images that were not asked for the longest are let go of, with their pieces.
Source: HDFS "short-circuit local reads" (HDFS-347); seed RAMCloud master recovery, phase 2.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from stelae.core.errors import CorruptData
from stelae.core.ids import ServerUuid, segment_name
from stelae.core.messages.backups import ImagePlace
from stelae.core.runtime import NearFile, Runtime
from stelae.storage.segments.checked_blocks import CheckedBlocks
from stelae.storage.segments.image import BLOCK_BYTES
from stelae.storage.segments.image_rows import ImageRows
from stelae.storage.segments.layout import Row
from stelae.storage.segments.partial_image import PartialImage, Range
from stelae.storage.segments.remote import Piece, RemoteRun
from stelae.storage.segments.runs import SealedRun

KEPT_BYTES = 32 << 20
"""Of one tablet's images, in blocks that were read."""
TURN_BYTES = 1 << 20
"""Read in one turn of the event loop; then others have theirs."""
PIECE_COSTS_BYTES = 4096
"""So much a piece counts at least: it takes its time, also where its blocks are here."""


class _NotCachedError(Exception):
    """Bytes do not lie in memory: whoever needs them asks the backup."""


class Taken(NamedTuple):
    """What came of some pieces."""

    pieces: dict[int, Piece]
    """By number: shown, for as long as they are held."""
    far: list[int]
    """Not to be had from here."""
    later: list[int]
    """To be had, perhaps, in another turn."""
    read_bytes: int


@dataclass(slots=True)
class _Near:
    """An image here, and the pieces that it has given."""

    image: PartialImage
    file: NearFile
    place: ImagePlace
    rows: SealedRun | None = None
    """All of the image's, once it is open."""
    pieces: list[Piece] = field(default_factory=list)
    starts: list[int] = field(init=False)
    """In the image, of each part of the place; then the image's end."""
    single: ImageRows | None = None
    """Its rows one by one, once it is open; none: they are read in pieces only."""

    def __post_init__(self) -> None:
        self.starts = [0, *accumulate([size for _, size in self.place.pieces])]

    def read(self, offset: int, length: int) -> bytes | None:
        """Bytes of the image, if all of them lie in memory."""
        found: list[bytes] = []
        start = 0
        for at, size in self.place.pieces:
            if start < offset + length and offset < start + size:
                first = max(offset, start)
                count = min(offset + length, start + size) - first
                data = self.file.read_cached(at + first - start, count)
                if data is None:
                    return None
                found.append(data)
            start += size
        data = found[0] if len(found) == 1 else b"".join(found)
        return data if len(data) == length else None

    def row(self, number: int, buffer: memoryview) -> Row:
        """A row, by way of a buffer for blocks. Raises CorruptData, _NotCachedError."""
        assert self.single is not None, "it is open, and its rows are read one by one"
        return self.single.row(CheckedBlocks(self.image, self.fill, buffer).read, number)

    def fill(self, place: int, buffer: memoryview) -> None:
        """Read bytes of the image, whatever they are. Raises _NotCachedError."""
        starts, end = self.starts, place + len(buffer)
        if end > starts[-1]:
            raise _NotCachedError
        piece = bisect_right(starts, place) - 1
        while place < end:
            last = min(end, starts[piece + 1])
            at = self.place.pieces[piece][0] + place - starts[piece]
            if not self.file.fill_cached(at, buffer[: last - place]):
                raise _NotCachedError
            buffer = buffer[last - place :]
            place, piece = last, piece + 1

    def put(self, ranges: Sequence[Range]) -> bool:
        """Read and check blocks; false: some do not lie in memory. Raises CorruptData."""
        for start, length in ranges:
            data = self.read(start, length)
            if data is None:
                return False
            self.image.put(start, data)
        return True


class NearRows:
    """Those of one tablet."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._images: dict[RemoteRun, _Near] = {}
        """The one that was used last comes last."""
        self._files: dict[str, NearFile | None] = {}
        """By place; None: not to be read from here."""
        self._far: dict[ServerUuid, None] = {}
        """Backups whose files cannot be read from here."""
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._is_closed = False

    @property
    def held_bytes(self) -> int:
        return sum([near.image.held_bytes for near in self._images.values()])

    def wants_place(self, run: RemoteRun, backup: ServerUuid) -> bool:
        """Whether that backup is to say where the image lies: to look it up takes it as long as to
        read a row."""
        return run not in self._images and backup not in self._far

    def knows(self, run: RemoteRun) -> bool:
        """Whether it is known where the image lies."""
        return run in self._images

    def found(self, run: RemoteRun, place: ImagePlace, backup: ServerUuid) -> None:
        """A backup has said where the image lies."""
        if run in self._images or run.is_here or self._is_closed:
            return
        if place.file not in self._files:
            self._files[place.file] = self._runtime.disk.open_near(place.file)
        file = self._files[place.file]
        if file is None:
            self._far[backup] = None
        image = None if file is None else run.partial_image(f"{place.file}, {_name(run)}")
        if file is not None and image is not None:
            self._images[run] = _Near(image, file, place)

    def take_row(self, run: RemoteRun, number: int) -> Piece | None:
        """Show one row, if it can be had from here."""
        near = self._images.get(run)
        if near is None:
            return None
        try:
            if not self._open(run, near) or near.single is None:
                return None
            before = near.image.held_bytes
            row = near.row(number, self._buffer)
        except _NotCachedError:
            return None
        except CorruptData:
            self._forget(run)
            return None
        if near.image.held_bytes != before:
            self._images.pop(run)
            self._images[run] = near  # the one that was used last comes last
            self._let_go()
        self._runtime.metrics.count("near_rows_read")
        return run.show_row(number, row)

    def _forget(self, run: RemoteRun) -> None:
        """The frames are another's, or damaged: the backup is to say which."""
        self._images.pop(run, None)
        self._runtime.metrics.count("near_rows_unlike")

    @staticmethod
    def _open(run: RemoteRun, near: _Near) -> bool:
        """Whether the image is open. Raises CorruptData."""
        if near.rows is not None:
            return True
        while ranges := near.image.lacks_to_open():
            if not near.put(ranges):
                return False
        near.rows = run.rows_in(near.image)
        near.single = run.single_rows(near.image)
        return True

    def take(self, run: RemoteRun, numbers: Sequence[int], limit_bytes: int = TURN_BYTES) -> Taken:
        """Show pieces that can be had from here, until about so many bytes were read: at least one,
        as each turn is to have come further."""
        near = self._images.pop(run, None)
        if near is None:
            return Taken({}, list(numbers), [], 0)
        pieces: dict[int, Piece] = {}
        read_bytes, is_here = 0, True
        try:
            for number in numbers:
                if pieces and read_bytes >= limit_bytes:
                    break
                before = near.image.held_bytes
                piece = self._take(run, near, number)
                read_bytes += max(near.image.held_bytes - before, PIECE_COSTS_BYTES)
                if piece is None:
                    is_here = False
                    break
                pieces[number] = piece
        except CorruptData:
            self._forget(run)
            is_here = False
        else:
            self._images[run] = near
            self._let_go()
        if pieces:
            self._runtime.metrics.count("near_pieces_read", len(pieces))
        rest = list(numbers[len(pieces) :])
        return Taken(pieces, [] if is_here else rest, rest if is_here else [], read_bytes)

    async def take_in_turns(
        self, run: RemoteRun, numbers: Sequence[int], has_time: Callable[[], bool]
    ) -> AsyncIterator[tuple[int, Piece]]:
        """Show pieces that can be had from here, some in each turn of the event loop, so that
        others have theirs in between; the rest is left to who looks next."""
        left = list(numbers)
        while left and not run.is_here:
            await asyncio.sleep(0)
            if not has_time():
                return
            taken = self.take(run, left)
            for found in taken.pieces.items():
                yield found
            left = taken.later

    def _take(self, run: RemoteRun, near: _Near, number: int) -> Piece | None:
        image = near.image
        if not self._open(run, near) or near.rows is None:
            return None
        before, is_all = image.held_bytes, False
        rows = [run.rows_of(number)]
        while not is_all:
            missing, is_all = image.lacks(rows)
            if missing and not near.put(missing):
                return None
        piece = run.show_piece(number, image, near.rows, image.held_bytes - before)
        near.pieces.append(piece)
        return piece

    def _let_go(self) -> None:
        kept = self.held_bytes
        while kept > KEPT_BYTES and len(self._images) > 1:
            kept -= self._images.pop(next(iter(self._images))).image.held_bytes

    def drop(self, run: RemoteRun) -> None:
        """All rows of it are here."""
        self._images.pop(run, None)

    def close(self) -> None:
        """Nothing is read any more."""
        self._is_closed = True
        self.clear()

    def clear(self) -> None:
        """All rows are here."""
        self._images.clear()
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()


def _name(run: RemoteRun) -> str:
    return f"segment {segment_name(run.segment_id)}"
