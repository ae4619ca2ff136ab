"""Rows of sealed replicas that a backup serves while tablets are being brought back.

Of an image only the blocks are read, and checked, that have rows which are asked for
(`stelae.storage.segments.partial_image`); an image of before, or of columns that are in more
pieces, whole. What was read stays in memory for a while, as its neighbours will be asked for as
well. Bounded: the images that were not asked for the longest are let go of. Of rows by themselves
only blocks of short values stay.

Source: seed RAMCloud master recovery, phase 2 (objects on demand); design §9.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass, field
from functools import partial

from crc32c import crc32c

from stelae.actors.backup.holdings import REPLY_BYTES_MAX, Holdings
from stelae.actors.backup.replicas import Facts, Replica
from stelae.core.errors import CorruptData, InvalidArgument, TabletNotReady, TooLarge
from stelae.core.ids import TabletId, segment_name
from stelae.core.messages.backups import (
    READ_ROWS,
    READ_SINGLE_ROWS,
    SINGLE_ROWS_MAX,
    ReadReplica,
    ReadRows,
    ReadRowsReply,
    ReadSingleRows,
    ReadSingleRowsReply,
    ReplicaState,
)
from stelae.core.rpc import Call, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.storage.segments.checked_blocks import CheckedBlocks
from stelae.storage.segments.image import BLOCK_BYTES, Image
from stelae.storage.segments.image_rows import ImageRows
from stelae.storage.segments.partial_image import PartialImage
from stelae.storage.segments.remote import cut_piece

KEPT_BYTES = 64 << 20
KEPT_S = 20.0
"""Images that nobody asks for are let go of after as long as that."""
PIECES_MAX = 4096


@dataclass(slots=True)
class _Opened:
    """An image that was checked, and the replica that it was read from."""

    replica: Replica
    image: Image | PartialImage
    used: float
    single: dict[tuple[int, ...], ImageRows | None] = field(default_factory=dict)
    """What reads rows by themselves, by the columns that are known already."""

    @property
    def held_bytes(self) -> int:
        image = self.image
        return int(image.held_bytes if isinstance(image, PartialImage) else image.buffer.size)

    def rows(self, known: tuple[int, ...]) -> ImageRows | None:
        """What reads its rows by themselves; None: nothing does."""
        if not isinstance(self.image, PartialImage):
            return None
        if known not in self.single:
            self.single.clear()  # all readers of a tablet know the same
            self.single[known] = ImageRows.of(self.image, dict.fromkeys(known, _untold))
        return self.single[known]


def _untold(_: int) -> None:
    """Of a value that the reader knows."""


class ServedRows:
    """See the module."""

    def __init__(self, runtime: Runtime, holdings: Holdings) -> None:
        self._runtime = runtime
        self._holdings = holdings
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._opened: dict[tuple[TabletId, int], _Opened] = {}
        """The one that was used last comes last."""
        self._locks: weakref.WeakValueDictionary[tuple[TabletId, int], asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()

    def handlers(self) -> Handlers:
        return {READ_ROWS: self._read_rows, READ_SINGLE_ROWS: self._read_single_rows}

    @prompt
    async def _read_rows(self, call: Call[ReadRows]) -> Reply[ReadRowsReply]:
        request = call.body
        opened = self._find(request) or await self._open(request)
        image = opened.image
        count = image.meta.row_count
        last = max(request.pieces, default=0)
        if request.piece_rows < 1 or min(request.pieces, default=0) < 0:
            raise InvalidArgument(f"pieces {request.pieces} of {request.piece_rows} rows")
        if len(request.pieces) > PIECES_MAX or last * request.piece_rows >= max(1, count):
            raise InvalidArgument(f"{len(request.pieces)} pieces up to {last}, of {count} rows")
        if isinstance(image, PartialImage):
            await self._bring(request, opened.replica, image)
        pieces = [cut_piece(image.batch, number, request.piece_rows) for number in request.pieces]
        size_bytes = sum(piece.size for piece in pieces)
        if size_bytes > REPLY_BYTES_MAX:
            raise TooLarge("rows asked for at once", size_bytes, REPLY_BYTES_MAX)
        crcs = tuple([crc32c(piece) for piece in pieces])
        place = self._holdings.place_of(opened.replica) if request.wants_place else None
        return Reply(ReadRowsReply(image.trailer, crcs, place), pieces)

    @prompt
    async def _read_single_rows(self, call: Call[ReadSingleRows]) -> Reply[ReadSingleRowsReply]:
        request = call.body
        opened = self._find(request) or await self._open(request)
        image, numbers = opened.image, request.rows
        count = image.meta.row_count
        if not 0 < len(numbers) <= SINGLE_ROWS_MAX or not 0 <= min(numbers) <= max(numbers) < count:
            raise InvalidArgument(f"rows {numbers[:SINGLE_ROWS_MAX]} of {count}")
        rows = opened.rows(request.known)
        if rows is None or not isinstance(image, PartialImage):
            raise InvalidArgument(f"rows of {opened.replica.where} come in pieces only")
        blocks = CheckedBlocks(image, partial(self._holdings.fill, opened.replica), self._buffer)
        read, before = blocks.read, image.held_bytes
        try:
            found = tuple([(rows.version(read, i), rows.row(read, i)) for i in numbers])
        except CorruptData:
            self._holdings.note_damage(opened.replica)
            raise
        if image.held_bytes != before:
            self._let_go()
        place = self._holdings.place_of(opened.replica) if request.wants_place else None
        return Reply(ReadSingleRowsReply(image.trailer, found, place))

    async def _bring(self, request: ReadRows, replica: Replica, image: PartialImage) -> None:
        size, before = request.piece_rows, image.held_bytes
        parts = [(number * size, (number + 1) * size) for number in request.pieces]
        try:
            await image.bring(partial(self._holdings.read_ranges, replica), parts)
        except CorruptData:
            self._holdings.note_damage(replica)
            raise
        if image.held_bytes != before:
            self._let_go()

    def _find(self, request: ReadRows | ReadSingleRows) -> _Opened | None:
        """The image, if it is open and still what this backup holds."""
        key = request.tablet_id, request.segment_id
        opened = self._opened.get(key)
        if opened is None:
            return None
        del self._opened[key]
        if opened.replica.freed or self._holdings.find(*key) is not opened.replica:
            return None
        opened.used = self._runtime.clock.monotonic()
        self._opened[key] = opened
        return opened

    async def _open(self, request: ReadRows | ReadSingleRows) -> _Opened:
        """Open an image; whoever else wants it meanwhile waits for that."""
        key = request.tablet_id, request.segment_id
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            found = self._find(request)
            if found is not None:
                return found
            replica, facts = self._holdings.readable(*key)
            if facts.state is not ReplicaState.SEALED:
                raise InvalidArgument(f"{replica.where} is not sealed here")
            try:
                image = await self._open_image(replica, facts)
            except CorruptData:
                self._holdings.note_damage(replica)
                raise
            opened = _Opened(replica, image, self._runtime.clock.monotonic())
            if not replica.freed:
                self._opened[key] = opened
                self._let_go()
            return opened

    async def _open_image(self, replica: Replica, facts: Facts) -> Image | PartialImage:
        read = partial(self._holdings.read_ranges, replica)
        some = await PartialImage.open(read, facts.length, replica.where)
        if some is not None:
            return some
        key = replica.tablet_id, replica.segment_id
        _, data = await self._holdings.read(ReadReplica(*key))
        if replica.freed:
            raise TabletNotReady(key[0], f"having segment {segment_name(key[1])} replaced")
        return await self._runtime.offload(Image.open, data, replica.where, check_rows=False)

    async def expire(self) -> None:
        """Let go of what nobody asks for any more; for ever."""
        while True:
            await self._runtime.clock.sleep(KEPT_S / 2)
            limit = self._runtime.clock.monotonic() - KEPT_S
            kept = {key: opened for key, opened in self._opened.items() if opened.used >= limit}
            self._opened = kept

    def _let_go(self) -> None:
        kept = sum(opened.held_bytes for opened in self._opened.values())
        while kept > KEPT_BYTES and len(self._opened) > 1:
            kept -= self._opened.pop(next(iter(self._opened))).held_bytes
