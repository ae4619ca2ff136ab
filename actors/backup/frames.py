"""The frame file of a disk medium: its layout, its records, and which frames are free.

Layout, in blocks of 4 KiB::

    superblock A | superblock B | extent | extent | ...
    extent:  for each of its frames a record block A and a record block B | the frames

A superblock says whose file it is and how many frames each extent has; the two are written in
turn, so that a torn one leaves the other (seed 003; RAMCloud's ``MultiFileStorage``). The file
grows by whole extents. A segment replica lies in a chain of frames, one for most; the **record** of
its first frame says what it is and up to which certificate it exists. Records too are written in
turn: a new certificate never overwrites the last durable one. A record is 512 bytes in a block of
its own, because a disk that tears a write may tear all of the physical sector. After a restart the
records alone tell what is held; they lie together, and frames are not read for it.

Invariants:
- ``sequence`` rises with every record written to one file, so of two the newer is known.
- No frame is claimed by two replicas: a freed frame is given out again, first in first out, only
  once the record that frees it is durable.

Pure: no I/O. `stelae.actors.backup.disk_medium` does that.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.backups import ReplicaState

BLOCK_BYTES = 4096
RECORD_BYTES = 512
SUPERBLOCKS_BYTES = 2 * BLOCK_BYTES
RECORD_BLOCKS_BYTES = 2 * BLOCK_BYTES
"""Per frame: its two record blocks."""
EXTENT_FRAMES = 16
EXTENTS_MAX = 512
"""What fits into a superblock. An extent cannot be made longer: its record blocks come first."""
RUNS_MAX = 32
"""Runs of adjacent frames in one chain: what fits into a record."""
TABLET_ID_BYTES_MAX = 64

_SUPERBLOCK_MAGIC = b"STELFRA1"
_RECORD_MAGIC = b"SFR1"
_CRC_BYTES = 4


class MediumSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One medium of a backup: a folder (``path``), or else memory."""

    name: str
    path: str | None = None
    """Relative to the server's data directory."""
    sync: Literal["always", "on_seal"] = "always"
    """``on_seal``: an append survives the death of the process, but not of the machine. What begins
    a segment and what ends it is synced in either case."""
    size_bytes: int | None = None
    """How large the frame file may grow (None: until the disk is full), or how much memory the
    replicas may take. Those in memory are lost when the process ends."""

    def __post_init__(self) -> None:
        if self.path is None and self.size_bytes is None:
            raise InvalidArgument(
                f"medium {self.name!r} needs a path (a folder) or a size (memory)"
            )


# ---- superblocks ----------------------------------------------------------------------------


class Superblock(msgspec.Struct, frozen=True, array_like=True):
    """Whose file this is, and its geometry."""

    generation: int
    server: ServerUuid
    cluster: str
    medium: str
    frame_bytes: int
    extents: tuple[int, ...]
    """Frames in each extent, in the order of the file."""
    boot: str = ""
    """Of the machine, when a server used the file last."""


_encode = msgspec.msgpack.Encoder().encode
_decode_superblock = msgspec.msgpack.Decoder(Superblock).decode


def _seal_block(magic: bytes, body: bytes, size: int) -> bytes:
    """``magic | crc | length | body``, padded with zeros; the CRC is over all that follows it."""
    rest = len(body).to_bytes(2, "little") + body
    block = magic + crc32c(rest).to_bytes(_CRC_BYTES, "little") + rest
    assert len(block) <= size, f"{len(block)} bytes do not fit a block of {size}"
    return block + bytes(size - len(block))


def _open_block(magic: bytes, block: memoryview) -> memoryview | None:
    """The body of a block, or None if it is not whole."""
    head = len(magic) + _CRC_BYTES
    if len(block) < head + 2 or block[: len(magic)] != magic:
        return None
    end = head + 2 + int.from_bytes(block[head : head + 2], "little")
    crc = int.from_bytes(block[len(magic) : head], "little")
    if end > len(block) or crc32c(block[head:end]) != crc:
        return None
    return block[head + 2 : end]


def encode_superblock(superblock: Superblock) -> bytes:
    """One block, to be written at `superblock_offset`."""
    return _seal_block(_SUPERBLOCK_MAGIC, _encode(superblock), BLOCK_BYTES)


def superblock_offset(generation: int) -> int:
    """Generations take turns between the two places."""
    return generation % 2 * BLOCK_BYTES


def has_both_superblocks(head: bytes) -> bool:
    """Whether both places in a file's first bytes have whole superblocks of the same content."""
    found = [newest_superblock(head[at : at + BLOCK_BYTES]) for at in (0, BLOCK_BYTES)]
    one, other = [each and msgspec.structs.replace(each, generation=0) for each in found]
    return one is not None and one == other


def newest_superblock(head: bytes) -> Superblock | None:
    """The newer of those superblocks in the file's first bytes that are whole; None: neither is."""
    newest: Superblock | None = None
    view = memoryview(head)
    for start in (0, BLOCK_BYTES):
        body = _open_block(_SUPERBLOCK_MAGIC, view[start : start + BLOCK_BYTES])
        if body is None:
            continue
        found = _decode_superblock(body)
        if newest is None or found.generation > newest.generation:
            newest = found
    return newest


# ---- records --------------------------------------------------------------------------------


class FrameRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a frame begins: a replica of a segment, or (``state`` None) nothing."""

    frame: int
    """Where the record belongs: one that was written elsewhere is no record."""
    sequence: int
    tablet_id: TabletId = TabletId("")
    segment_id: int = 0
    state: ReplicaState | None = None
    term: int = 0
    epoch: int = 0
    length: int = 0
    crc: int = 0
    """With ``length`` the certificate; of a SEALED replica the CRC-32C of the whole image."""
    settled: bool = False
    """The data was durable before this record was written; otherwise both were synced at once."""
    runs: tuple[int, ...] = ()
    """The chain: first frame and count of each run of adjacent frames, in order."""
    may_be_short: bool = False
    """Its machine has lost what was not synced, and it is open: see `ReplicaInfo`."""

    @property
    def key(self) -> tuple[TabletId, int]:
        return self.tablet_id, self.segment_id


_decode_record = msgspec.msgpack.Decoder(FrameRecord).decode


def encode_record(record: FrameRecord) -> bytes:
    """`RECORD_BYTES` bytes, to be written at `FrameLayout.record_offset`."""
    return _seal_block(_RECORD_MAGIC, _encode(record), RECORD_BYTES)


def decode_record(block: bytes | memoryview, frame: int) -> FrameRecord | None:
    """The record of ``frame`` in a record block; None if none is there whole."""
    body = _open_block(_RECORD_MAGIC, memoryview(block)[:RECORD_BYTES])
    if body is None:
        return None
    record = _decode_record(body)
    return record if record.frame == frame else None


def runs_of(frames: Sequence[int]) -> tuple[int, ...]:
    """The frames of a chain as (first, count) of each run, flattened."""
    runs: list[int] = []
    for frame in frames:
        if runs and runs[-2] + runs[-1] == frame:
            runs[-1] += 1
        else:
            runs += (frame, 1)
    return tuple(runs)


def frames_of(runs: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `runs_of`."""
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return tuple(itertools.chain.from_iterable(range(first, first + n) for first, n in pairs))


class FrameSlots(msgspec.Struct, frozen=True):
    """What the two record blocks of one frame hold, the newer first."""

    newest: FrameRecord | None
    older: FrameRecord | None
    newest_side: int
    """Which block (0 or 1) holds the newest."""


def read_slots(metadata: bytes, first_frame: int) -> list[FrameSlots]:
    """Take apart the record blocks of adjacent frames, as read from the file in one piece."""
    view = memoryview(metadata)
    slots: list[FrameSlots] = []
    for place in range(len(metadata) // RECORD_BLOCKS_BYTES):
        start = place * RECORD_BLOCKS_BYTES
        frame = first_frame + place
        a = decode_record(view[start : start + RECORD_BYTES], frame)
        b = decode_record(view[start + BLOCK_BYTES : start + BLOCK_BYTES + RECORD_BYTES], frame)
        if b is None or (a is not None and a.sequence > b.sequence):
            slots.append(FrameSlots(a, b, 0))
        else:
            slots.append(FrameSlots(b, a, 1))
    return slots


# ---- geometry -------------------------------------------------------------------------------


def _blocks(size_bytes: int) -> int:
    return (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def frame_bytes_for(segment_bytes: int) -> int:
    """Room for a segment and an eighth: the last entry overshoots, and images are a bit larger."""
    return _blocks(segment_bytes + segment_bytes // 8)


class FrameLayout:
    """Where everything lies in a file of given extents. Immutable."""

    def __init__(self, frame_bytes: int, extents: Sequence[int]) -> None:
        self.frame_bytes = frame_bytes
        self.extents = tuple(extents)
        self._first_frames: list[int] = []
        self._starts: list[int] = []
        frames, end = 0, SUPERBLOCKS_BYTES
        for count in self.extents:
            self._first_frames.append(frames)
            self._starts.append(end)
            frames += count
            end += count * (RECORD_BLOCKS_BYTES + frame_bytes)
        self.frame_count = frames
        self.file_bytes = end

    def metadata_range(self, extent: int) -> tuple[int, int, int]:
        """(offset, length, first frame) of an extent's record blocks."""
        length = self.extents[extent] * RECORD_BLOCKS_BYTES
        return self._starts[extent], length, self._first_frames[extent]

    def _locate(self, frame: int) -> tuple[int, int]:
        extent = bisect.bisect_right(self._first_frames, frame) - 1
        assert 0 <= frame < self.frame_count, f"frame {frame} of {self.frame_count}"
        return extent, frame - self._first_frames[extent]

    def record_offset(self, frame: int, side: int) -> int:
        extent, place = self._locate(frame)
        return self._starts[extent] + place * RECORD_BLOCKS_BYTES + side * BLOCK_BYTES

    def frame_offset(self, frame: int) -> int:
        extent, place = self._locate(frame)
        data = self._starts[extent] + self.extents[extent] * RECORD_BLOCKS_BYTES
        return data + place * self.frame_bytes

    def pieces(self, frames: Sequence[int], offset: int, length: int) -> list[tuple[int, int]]:
        """Where bytes [offset, offset + length) of a chain lie: (file offset, length) in order.

        Raises:
            CorruptData: the chain is shorter.
        """
        if offset + length > len(frames) * self.frame_bytes:
            raise CorruptData("frame file", offset, f"{length} bytes of {len(frames)} frames")
        pieces: list[tuple[int, int]] = []
        while length > 0:
            place, within = divmod(offset, self.frame_bytes)
            start = self.frame_offset(frames[place]) + within
            size = min(length, self.frame_bytes - within)
            if pieces and sum(pieces[-1]) == start:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + size)
            else:
                pieces.append((start, size))
            offset += size
            length -= size
        return pieces

    @property
    def may_grow(self) -> bool:
        """Whether the superblock has a place for another extent."""
        return len(self.extents) < EXTENTS_MAX

    @property
    def may_grow_little(self) -> bool:
        """Whether an extent may be smaller than there is room for. Half of the places are kept for
        ordinary ones: with small ones alone they would be used up for good."""
        return 2 * len(self.extents) < EXTENTS_MAX

    def next_extent(self, needed: int, limit_bytes: int | None) -> int:
        """Frames of the extent to add when ``needed`` are wanted at once; 0: no room for them.

        An eighth of what there is: a large file has few extents, a small one grows little.
        """
        if not self.may_grow:
            return 0
        count = max(EXTENT_FRAMES, self.frame_count // 8, needed)
        if limit_bytes is not None:
            room = max(0, limit_bytes - self.file_bytes)
            count = min(count, room // (RECORD_BLOCKS_BYTES + self.frame_bytes))
        return count if count >= needed else 0


class FrameAllocator:
    """Which frames are free. First freed, first used, so that old data stays longest."""

    def __init__(self, free: Iterable[int]) -> None:
        self._free = deque(free)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int, after: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Take frames to prolong the chain ``after``; None, and nothing taken, if it cannot be.

        The oldest free ones, or the lowest if those would cut the chain into too many runs.
        """
        if count > len(self._free):
            return None
        oldest = list(itertools.islice(self._free, count))
        if len(runs_of([*after, *oldest])) // 2 <= RUNS_MAX:
            for _ in oldest:
                self._free.popleft()
            return tuple(oldest)
        lowest = sorted(self._free)[:count]
        if len(runs_of([*after, *lowest])) // 2 > RUNS_MAX:
            return None
        gone = frozenset(lowest)
        self._free = deque(frame for frame in self._free if frame not in gone)
        return tuple(lowest)

    def release(self, frames: Iterable[int]) -> None:
        """Give frames back; the records that freed them must be durable."""
        self._free.extend(frames)
