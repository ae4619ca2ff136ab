"""A medium in a frame file: group commit of replicas on one disk.

Group commit: whatever changes in one turn of the event loop, or while a sync runs, is one batch
with one sync, in every replica of the medium. A batch writes at most one record per replica, and
the next batch begins after its sync; so of a frame's two records the older one is always durable
with its data, whatever a crash does to the newer one. The sync is not handed to a thread: for small
data the hop costs more than the sync. Large data is written in pieces of 1 MiB with a group commit
after each: a stall of the loop is 1–2 ms, and small appends of other replicas ride on the same
syncs.

Source: RAMCloud's ``MultiFileStorage`` and ``BackupReplicaMetadata``; seed 003.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from stelae.actors.backup.frames import (
    RECORD_BLOCKS_BYTES,
    FrameAllocator,
    FrameLayout,
    FrameRecord,
    MediumSpec,
    Superblock,
    encode_record,
    encode_superblock,
    runs_of,
    superblock_offset,
)
from stelae.actors.backup.media import PIECE_BYTES, MeasuredRate
from stelae.actors.backup.replicas import NEVER, Batch, Facts, Replica, blob_size, skip_bytes
from stelae.core.buffers import BufferPool
from stelae.core.errors import CorruptData, DiskFailed, NoSpace, Overloaded
from stelae.core.messages.backup_loads import is_low, reserve_bytes
from stelae.core.messages.backups import ImagePlace, ReplicaState
from stelae.core.rpc import Blob
from stelae.core.runtime import File, Runtime, Space

AHEAD_BYTES = 512 << 10
"""How far zeros are written ahead of small appends."""
SMALL_BYTES = 64 << 10
LAZY_BYTES_MAX = 8 << 20
"""With sync ``on_seal``: what may wait for a sync before one is made anyway."""
KEPT_OF_DISK = 32
KEPT_BYTES_MAX = 256 << 20
"""Frame files leave one part in so many of a file system to other files, and at most so much."""
KEPT_BYTES = 48 << 20
"""Memory of large reads that is kept for the next ones."""


def room_beside_others(space: Space) -> int:
    """Bytes that frame files may still take of a file system. They leave some to other files: the
    masters and tablet servers of the machine write their logs there, too, and stop without room."""
    return max(0, space.free_bytes - min(space.total_bytes // KEPT_OF_DISK, KEPT_BYTES_MAX))


class FrameMedium:
    """Replicas in a frame file. `stelae.actors.backup.disk_opening` opens one."""

    is_lasting: ClassVar[bool] = True

    def __init__(
        self,
        spec: MediumSpec,
        runtime: Runtime,
        file: File,
        superblock: Superblock,
        *,
        server: str,
        unsynced_bytes_max: int,
    ) -> None:
        self.name = spec.name
        self.layout = FrameLayout(superblock.frame_bytes, superblock.extents)
        self.allocator = FrameAllocator(())
        self.next_side: dict[int, int] = {}
        """Per frame, which of its two record blocks to write next; absent: 0."""
        self.sequence = 0
        self.is_low = False
        self._spec = spec
        self._lazy = spec.sync == "on_seal"
        self._runtime = runtime
        self._file = file
        self._superblock = superblock
        self._is_copy_pending = False  # its copy is written and not synced
        self._server = server
        self._unsynced_bytes_max = unsynced_bytes_max
        self._unsynced_bytes = 0
        self._accepted_bytes = 0  # of writes under way
        self._used_frames = 0
        self._freed: list[int] = []
        self._touched: dict[Replica, None] = {}
        self._batch = Batch()
        self._work = asyncio.Event()
        self._growing = asyncio.Lock()
        self._buffers = BufferPool(KEPT_BYTES)
        self._rate = MeasuredRate()
        self._unsynced_records: dict[int, int] = {}
        """With sync ``on_seal``: by frame, the side of a record that is not durable yet."""

    # ---- space ------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self._used_frames * self.layout.frame_bytes

    @property
    def capacity_bytes(self) -> int:
        """Its size; without one the file system, of which other files are used as well."""
        return self._spec.size_bytes or self._file.space.total_bytes

    @property
    def free_bytes(self) -> int:
        """Free frames, and how far the file may still grow: to its size, or as the disk has room.

        Backups whose files lie on one disk each count all of what it has left.
        """
        room = room_beside_others(self._file.space)
        if self._spec.size_bytes is not None:
            room = min(room, max(0, self._spec.size_bytes - self.layout.file_bytes))
        further = room // (RECORD_BLOCKS_BYTES + self.layout.frame_bytes)
        if not self.layout.may_grow:  # the disk has room, and the file has no use for it
            further = 0
        free = self._frames_allowed(len(self.allocator) + len(self._freed) + further)
        return free * self.layout.frame_bytes

    def _frames_allowed(self, wanted: int) -> int:
        """How many of so many more may be used. A file stays as long as it is when its size is made
        smaller: what is free in it beyond that is not used any more."""
        if self._spec.size_bytes is None:
            return wanted
        most = self._spec.size_bytes // self.layout.frame_bytes
        return min(wanted, max(0, most - self._used_frames))

    @property
    def bytes_per_s(self) -> float:
        return self._rate.bytes_per_s

    def adopt(self, replicas: Sequence[Replica], free: Sequence[int]) -> None:
        """Take over what the opening of the file found."""
        self._used_frames = sum(len(replica.frames) for replica in replicas)
        self.allocator.release(free)

    async def note_boot(self, boot: str) -> None:
        """The file is used in this boot of the machine from now on."""
        old = self._superblock
        self._put_superblock(msgspec.structs.replace(old, generation=old.generation + 1, boot=boot))
        await self._file.sync()
        self.copy_superblock()

    def _put_superblock(self, superblock: Superblock) -> None:
        self._file.write_at(superblock_offset(superblock.generation), encode_superblock(superblock))
        self._superblock = superblock  # only now: after a failed write the other place still counts

    def copy_superblock(self) -> None:
        """Write the superblock, which is durable, to its other place as well: if one decays, the
        other knows every extent. Durable with the next sync; a tear leaves the first."""
        old = self._superblock
        self._put_superblock(msgspec.structs.replace(old, generation=old.generation + 1))
        self._is_copy_pending = True

    async def grow(self, needed: int = 1) -> None:
        """See to ``needed`` free frames: those being freed, else a further extent of the file.

        Raises:
            NoSpace: neither will do.
        """
        async with self._growing:
            if self._freed and len(self.allocator) < needed:
                await self.settle()
            if len(self.allocator) >= needed:
                return
            count = self._next_extent(needed)
            if count == 0:
                raise NoSpace(self._server, self.name)
            old = self._superblock
            layout = FrameLayout(old.frame_bytes, (*old.extents, count))
            try:
                self._file.preallocate(layout.file_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise NoSpace(self._server, self.name) from error
            if self._is_copy_pending:  # of two places that are written at once a crash tears both
                await self.settle()
            generation = old.generation + 1
            self._put_superblock(
                msgspec.structs.replace(old, generation=generation, extents=layout.extents)
            )
            start, length, _ = layout.metadata_range(len(layout.extents) - 1)
            self._file.write_at(start, bytes(length))  # see `_write_ahead`
            await self.settle()  # a frame is used once the superblock that has it is durable
            self.copy_superblock()
            first = self.layout.frame_count
            self.layout = layout
            self.allocator.release(range(first, layout.frame_count))

    def _next_extent(self, needed: int) -> int:
        """Frames of the extent to add; 0: there is no room for ``needed``.

        Of a file system's reserve no more is taken than is needed: frames of other backups, for
        deletes and survivors, come out of it as well. It is so as long as the file may have many
        small extents.
        """
        space, end = self._file.space, self.layout.file_bytes
        room = room_beside_others(space)
        reserve = reserve_bytes(space.total_bytes, self.layout.frame_bytes)
        for limit, in_reserve in ((end + max(0, room - reserve), False), (end + room, True)):
            bounded = min(limit, self._spec.size_bytes or limit)
            if count := self.layout.next_extent(needed, bounded):
                return needed if in_reserve and self.layout.may_grow_little else count
        return 0

    async def _make_room(self, replica: Replica, end: int) -> None:
        """Prolong the replica's chain so that it holds ``end`` bytes, or leave it as it is."""
        while (missing := -(-end // self.layout.frame_bytes) - len(replica.frames)) > 0:
            if self._frames_allowed(missing) < missing:
                raise NoSpace(self._server, self.name)
            taken = self.allocator.take(missing, replica.frames)
            if taken is not None:
                replica.frames += taken
                self._used_frames += missing
                frame_bytes = self.layout.frame_bytes
                self.is_low = is_low(self.capacity_bytes, self.free_bytes, frame_bytes)
                return
            if len(self.allocator) >= missing:  # enough, but in too many pieces
                await self.grow(len(self.allocator) + missing)
            else:
                await self.grow(missing)

    # ---- writing ----------------------------------------------------------------------------

    async def write(self, replica: Replica, offset: int, blobs: Sequence[Blob]) -> None:
        """See `Medium.write`. One call at a time for a replica."""
        size = blob_size(blobs)
        waiting_bytes = self._unsynced_bytes + self._accepted_bytes
        if waiting_bytes and waiting_bytes + size > self._unsynced_bytes_max:
            raise Overloaded(f"medium {self.name!r} of {self._server}", self._unsynced_bytes_max)
        self._accepted_bytes += size
        try:
            if offset + size > len(replica.frames) * self.layout.frame_bytes:
                await self._make_room(replica, offset + size)
            await self._write_pieces(replica, offset, skip_bytes(blobs, 0), size)
        except OSError as error:  # preallocated frames can fail too, where the disk is thin
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(self._server, self.name) from error
            raise DiskFailed(self._server, self.name, error.strerror or str(error)) from error
        finally:
            self._accepted_bytes -= size

    async def _write_pieces(
        self, replica: Replica, offset: int, views: list[memoryview], size: int
    ) -> None:
        if size <= PIECE_BYTES:
            self._put(replica, offset, views)
            return
        for piece in _pieces(views, PIECE_BYTES):
            self._put(replica, offset, [piece])
            offset += piece.nbytes
            await self.settle()

    def _put(self, replica: Replica, offset: int, views: list[memoryview]) -> None:
        size = sum(view.nbytes for view in views)
        pieces = self.layout.pieces(replica.frames, offset, size)
        if len(pieces) == 1:
            self._file.write_at(pieces[0][0], *views)
        else:
            rest = views
            for start, length in pieces:
                self._file.write_at(start, *_first(rest, length))
                rest = skip_bytes(rest, length)
        replica.written = max(replica.written, offset + size)
        replica.synced = min(replica.synced, offset)
        replica.unsynced_from = min(replica.unsynced_from, offset)
        self._touched[replica] = None
        self._unsynced_bytes += size
        if replica.written > replica.ready and size <= SMALL_BYTES and not self._lazy:
            self._write_ahead(replica)

    def _write_ahead(self, replica: Replica) -> None:
        """Write zeros where the next small appends will come.

        The first write to a block of a preallocated file changes the file system's metadata, and
        the sync after it has to wait for a commit of its journal, which costs several times what
        the sync of a block does that was written before.
        """
        room = len(replica.frames) * self.layout.frame_bytes - replica.written
        length = min(AHEAD_BYTES, room)
        for start, size in self.layout.pieces(replica.frames, replica.written, length):
            self._file.write_at(start, bytes(size))
        replica.ready = replica.written + length

    async def stage(self, replica: Replica, facts: Facts) -> Batch | None:
        """See `Medium.stage`.

        An image, which begins a chain and is large, is durable before its record is written, so
        that no start has to check it. So is what is closed where appends are not synced: its
        older record vouches for nothing.
        """
        # What begins a replica is durable on any medium: a head that is gone without a trace would
        # leave a log of which nobody knows the segments.
        lazy = self._lazy and facts.state is ReplicaState.OPEN and replica.wanted is not None
        first = facts.state is ReplicaState.SEALED or (self._lazy and not lazy)
        if first and facts.length > replica.synced:
            await self.settle()
        batch = self._batch
        batch.changes[replica] = replica.wanted = facts
        batch.needs_sync |= not lazy or self._unsynced_bytes >= LAZY_BYTES_MAX
        replica.batch = batch
        self._work.set()
        return batch

    async def settle(self) -> None:
        batch = self._batch
        batch.needs_sync = True
        self._work.set()
        await batch.wait()

    def free(self, replica: Replica) -> None:
        assert not replica.freed, "a replica is freed once"
        replica.freed = True
        replica.unsynced_from = NEVER
        self._touched.pop(replica, None)
        self._batch.changes[replica] = None
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await self._flush()

    async def _flush(self) -> None:
        """Write the records of one batch and sync; then tell those who wait for it.

        After a failed sync nobody is told anything any more: `run` ends, and so does the server.
        """
        batch, self._batch = self._batch, Batch()
        for replica, facts in batch.changes.items():
            self._write_record(replica, facts, synced=batch.needs_sync)
        if batch.needs_sync:
            await self._sync()
        for replica, facts in batch.changes.items():
            if facts is not None:
                replica.facts = facts
            if replica.batch is batch:
                replica.batch = None
        batch.finish()

    def _write_record(self, replica: Replica, facts: Facts | None, *, synced: bool) -> None:
        if not replica.frames:
            return  # freed before anything was written
        frame = replica.frames[0]
        self.sequence += 1
        if facts is None:
            record = FrameRecord(frame, self.sequence)
            self._freed.extend(replica.frames)
            self._used_frames -= len(replica.frames)
        else:
            settled = facts.length <= replica.synced
            record = make_record(replica, facts, self.sequence, settled=settled)
        side = self.next_side.get(frame, 0)
        if synced or not self._lazy:
            self.next_side[frame] = 1 - side
            self._unsynced_records.pop(frame, None)
        else:  # the other side has the last one that is durable, and keeps it
            self._unsynced_records[frame] = side
        self._file.write_at(self.layout.record_offset(frame, side), encode_record(record))

    async def _sync(self) -> None:
        targets = [(replica, replica.written) for replica in self._touched]
        for replica in self._touched:
            replica.unsynced_from = NEVER
        self._touched = {}
        freed, self._freed = self._freed, []
        records, self._unsynced_records = self._unsynced_records, {}
        covered_bytes = self._unsynced_bytes
        started = self._runtime.clock.monotonic()
        was_pending = self._is_copy_pending
        await self._file.sync()
        self._is_copy_pending &= not was_pending
        metrics = self._runtime.metrics
        took_s = self._runtime.clock.monotonic() - started
        self._rate.note(covered_bytes, took_s)
        metrics.observe("backup_sync_s", took_s)
        metrics.count("backup_syncs")
        self._unsynced_bytes -= covered_bytes
        for frame, side in records.items():
            if frame not in self._unsynced_records and self.next_side.get(frame, 0) == side:
                self.next_side[frame] = 1 - side
        for replica, written in targets:
            replica.synced = max(replica.synced, min(written, replica.unsynced_from))
        self.allocator.release(freed)

    # ---- reading ----------------------------------------------------------------------------

    async def read(self, replica: Replica, offset: int, length: int) -> Blob:
        """See `Medium.read`. If the replica was freed meanwhile, the bytes may be another's."""
        pieces = self.layout.pieces(replica.frames, offset, length)
        if length < PIECE_BYTES:
            data: Blob = b"".join(self._file.read_at(start, size) for start, size in pieces)
            got = len(data)
        else:
            read = self._runtime.offload(_read_pieces, self._file, pieces, self._buffers, length)
            started = self._runtime.clock.monotonic()
            data, got = await read
            self._rate.note(got, self._runtime.clock.monotonic() - started)
        if got < length:
            raise CorruptData(replica.where, offset + got, "the frame file ends here")
        return data

    def fill(self, replica: Replica, offset: int, buffer: memoryview) -> None:
        """See `Medium.fill`."""
        got = 0
        for start, size in self.layout.pieces(replica.frames, offset, len(buffer)):
            found = self._file.read_into(start, buffer[got : got + size])
            got += found
            if found < size:
                raise CorruptData(replica.where, offset + got, "the frame file ends here")

    def place_of(self, replica: Replica, length: int) -> ImagePlace | None:
        """See `Medium.place_of`."""
        return ImagePlace(self._file.place, tuple(self.layout.pieces(replica.frames, 0, length)))

    def close(self) -> None:
        self._file.close()


def make_record(replica: Replica, facts: Facts, sequence: int, *, settled: bool) -> FrameRecord:
    """The record that says ``facts`` of a replica with frames."""
    return FrameRecord(
        replica.frames[0],
        sequence,
        replica.tablet_id,
        replica.segment_id,
        facts.state,
        facts.term,
        facts.epoch,
        facts.length,
        facts.crc,
        settled,
        runs_of(replica.frames),
        replica.may_be_short,
    )


def _read_pieces(
    file: File, pieces: Sequence[tuple[int, int]], buffers: BufferPool, length: int
) -> tuple[memoryview, int]:
    """Read the pieces one after the other; also return how many bytes there were. May block."""
    data = buffers.take(length)
    got = 0
    for start, size in pieces:
        found = file.read_into(start, data[got : got + size])
        got += found
        if found < size:
            break
    return data, got


def _pieces(views: Sequence[memoryview], size: int) -> list[memoryview]:
    return [view[at : at + size] for view in views for at in range(0, view.nbytes, size)]


def _first(views: Sequence[memoryview], length: int) -> list[memoryview]:
    """The first ``length`` bytes of the views."""
    taken: list[memoryview] = []
    for view in views:
        if length <= 0:
            break
        taken.append(view[:length])
        length -= min(length, view.nbytes)
    return taken
