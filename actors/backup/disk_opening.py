"""Opening a frame file: which replicas there are, after whatever ended the last process.

The records alone tell (one read per extent). Data is read in two cases: where data and record
went to the disk in one sync, the bytes that the record's certificate added must bear it out, else
a crash tore that append and the record before it, which was acknowledged, holds; and of an image
the trailer is checked. Where a seal was under way, both forms may be there: the image wins if its
trailer is whole (roll forward), else the rows (roll back).

Whatever was rejected is overwritten before the file is used, and everything is synced: what this
start reports to a recovery must not vanish at the next.

Source: seed 003; RAMCloud's ``MultiFileStorage::loadAllMetadata``, and ``BackupReplicaMetadata``.
"""

from __future__ import annotations

import logging

import msgspec

from stelae.actors.backup.disk_medium import FrameMedium
from stelae.actors.backup.frames import (
    EXTENT_FRAMES,
    RECORD_BLOCKS_BYTES,
    SUPERBLOCKS_BYTES,
    FrameLayout,
    FrameRecord,
    FrameSlots,
    MediumSpec,
    Superblock,
    encode_record,
    encode_superblock,
    frame_bytes_for,
    frames_of,
    has_both_superblocks,
    newest_superblock,
    read_slots,
    superblock_offset,
)
from stelae.actors.backup.media import PIECE_BYTES
from stelae.actors.backup.replicas import Facts, Replica, certify
from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import Certified, ReplicaState
from stelae.core.runtime import Disk, File, Runtime
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES, summary_range

logger = logging.getLogger(__name__)

FRAME_FILE = "frames"


async def open_frame_medium(
    spec: MediumSpec,
    runtime: Runtime,
    disk: Disk,
    *,
    server: ServerUuid,
    server_name: str,
    cluster: str,
    segment_bytes: int,
    unsynced_bytes_max: int,
) -> tuple[FrameMedium, list[Replica]]:
    """Open (or make) the frame file of ``spec`` and find its replicas.

    An existing file keeps the frame size it was made with.

    Raises:
        CorruptData: the file is another server's, or damaged beyond what a crash does.
    """
    assert spec.path is not None, "a medium with a folder"
    await disk.settle()  # what is read from here on is durable, even if only the process had died
    # An absolute path has a disk of its own, whose root is this server's folder there.
    folder = "" if spec.path.startswith("/") else f"{spec.path.rstrip('/')}/"
    file = await disk.open(f"{folder}{FRAME_FILE}")
    await file.sync()
    head = file.read_at(0, SUPERBLOCKS_BYTES)
    superblock = newest_superblock(head)
    where = f"frame file of medium {spec.name!r} of {server_name}"
    if superblock is None:
        superblock = Superblock(
            1, server, cluster, spec.name, frame_bytes_for(segment_bytes), (), disk.boot
        )
        _check_no_records_from(file, FrameLayout(superblock.frame_bytes, ()), where)
        file.write_at(superblock_offset(1), encode_superblock(superblock))
        await file.sync()
    found = (superblock.server, superblock.cluster, superblock.medium)
    if found != (server, cluster, spec.name):
        raise CorruptData(where, 0, f"belongs to {found}, not to {(server, cluster, spec.name)}")
    medium = FrameMedium(
        spec,
        runtime,
        file,
        superblock,
        server=server_name,
        unsynced_bytes_max=unsynced_bytes_max,
    )
    _check_no_records_from(file, medium.layout, where)
    synced, same_boot = spec.sync == "always", superblock.boot == disk.boot
    opening = _Opening(
        runtime, file, medium, where, trusts_older=synced, may_be_short=not (synced or same_boot)
    )
    replicas = await opening.run()
    if any(head) and not has_both_superblocks(head):
        # A crash cut the second one short, or one decayed: what the other says is enough.
        logger.warning("%s: one of its two superblocks is missing; it is written again", where)
        medium.copy_superblock()
        await file.sync()  # before the next one is written to the other place
    if not same_boot:  # only now: what may be short is marked
        await medium.note_boot(disk.boot)
    return medium, replicas


def _check_no_records_from(file: File, layout: FrameLayout, where: str) -> None:
    """No record lies where the next extent would be: else the superblock that had it is gone.

    A torn superblock never had a frame in use; one that decayed may have.
    """
    metadata = file.read_at(layout.file_bytes, EXTENT_FRAMES * RECORD_BLOCKS_BYTES)
    for slots in read_slots(metadata, layout.frame_count):
        if slots.newest is not None:
            raise CorruptData(where, layout.file_bytes, "records of frames of no known extent")


class _Opening:
    """One pass over the records of a file."""

    def __init__(
        self,
        runtime: Runtime,
        file: File,
        medium: FrameMedium,
        where: str,
        *,
        trusts_older: bool,
        may_be_short: bool,
    ) -> None:
        self._runtime = runtime
        self._file = file
        self._medium = medium
        self._layout = medium.layout
        self._where = where
        self._trusts_older = trusts_older
        """Appends are synced one by one, so the older of two records is durable with its data."""
        self._may_be_short = may_be_short
        """Appends are not synced, and the machine has lost some since, perhaps."""
        self._claims: dict[tuple[str, int], list[FrameRecord]] = {}
        self._repairs: list[FrameRecord] = []

    async def run(self) -> list[Replica]:
        for extent in range(len(self._layout.extents)):
            offset, length, first_frame = self._layout.metadata_range(extent)
            metadata = await self._runtime.offload(self._file.read_at, offset, length)
            for place, slots in enumerate(read_slots(metadata, first_frame)):
                if slots.newest is not None:
                    await self._judge(first_frame + place, slots, slots.newest)
        winners = [await self._choose(claims) for claims in self._claims.values()]
        replicas = [self._adopt(record) for record in winners if record is not None]
        used: dict[int, None] = {}
        for replica in replicas:
            for frame in replica.frames:
                if frame in used:
                    raise CorruptData(self._where, frame, f"frame {frame} is claimed twice")
                used[frame] = None
        await self._repair()
        free = [frame for frame in range(self._layout.frame_count) if frame not in used]
        self._medium.adopt(replicas, free)
        return replicas

    async def _judge(self, frame: int, slots: FrameSlots, newest: FrameRecord) -> None:
        """Find the record of a frame that holds, if one does, and enter its claim."""
        medium = self._medium
        medium.sequence = max(medium.sequence, newest.sequence)
        medium.next_side[frame] = 1 - slots.newest_side
        if newest.state is None:
            return
        older = slots.older
        if older is not None and (older.state is None or older.key != newest.key):
            older = None
        held: FrameRecord | None = newest
        if not await self._is_borne_out(newest, older if self._trusts_older else None):
            held = older
            if held is not None and not self._trusts_older:
                held = held if await self._is_borne_out(held, None) else None
            medium.next_side[frame] = slots.newest_side  # the one that holds must stay
            repaired = FrameRecord(frame, 0)
            if held is not None:
                repaired = msgspec.structs.replace(held, settled=True)
            self._repairs.append(repaired)
            self._runtime.metrics.count("backup_torn_appends")
        if held is not None and self._may_be_short and held.state is ReplicaState.OPEN:
            held = msgspec.structs.replace(held, may_be_short=True)
            self._repairs = [each for each in self._repairs if each.frame != frame]
            self._repairs.append(msgspec.structs.replace(held, settled=True))
        if held is not None:
            self._claims.setdefault(held.key, []).append(held)

    async def _is_borne_out(self, record: FrameRecord, older: FrameRecord | None) -> bool:
        """Whether the data past ``older`` is what the record's certificate says."""
        if record.settled:
            return True
        base = Certified(0, 0)
        if older is not None and older.length <= record.length:
            base = Certified(older.length, older.crc)
        data = await self._read(record, base.length, record.length - base.length)
        try:
            if len(data) < PIECE_BYTES:
                found = certify(base, data, self._where)
            else:
                found = await self._runtime.offload(certify, base, data, self._where)
        except UnknownFormat:
            raise  # it is whole, and would be freed if it counted as damaged
        except CorruptData:
            return False
        return found == Certified(record.length, record.crc)

    async def _read(self, record: FrameRecord, offset: int, length: int) -> bytes:
        pieces = self._layout.pieces(frames_of(record.runs), offset, length)
        parts = [await self._runtime.offload(self._file.read_at, *piece) for piece in pieces]
        return b"".join(parts)

    async def _choose(self, claims: list[FrameRecord]) -> FrameRecord | None:
        """Of several replicas of one segment the newest that holds; the others are freed."""
        claims.sort(key=lambda record: record.sequence, reverse=True)
        chosen: FrameRecord | None = None
        for record in claims:
            if chosen is None and await self._is_whole(record):
                chosen = record
            else:
                self._repairs.append(FrameRecord(record.frame, 0))
        return chosen

    async def _is_whole(self, record: FrameRecord) -> bool:
        if record.state is not ReplicaState.SEALED:
            return True
        start = max(0, record.length - IMAGE_TRAILER_BYTES)
        try:
            trailer = await self._read(record, start, record.length - start)
            summary_range(trailer, record.length, self._where)
        except UnknownFormat:
            raise  # as above: not damaged
        except CorruptData:
            self._runtime.metrics.count("backup_damaged_images")
            return False
        return True

    def _adopt(self, record: FrameRecord) -> Replica:
        assert record.state is not None
        replica = Replica(record.tablet_id, record.segment_id, self._medium.name)
        replica.facts = replica.wanted = Facts(
            record.term, record.epoch, record.state, record.length, record.crc
        )
        replica.written = replica.synced = record.length
        replica.frames = frames_of(record.runs)
        replica.may_be_short = record.may_be_short
        return replica

    async def _repair(self) -> None:
        if not self._repairs:
            return
        medium = self._medium
        for record in self._repairs:
            medium.sequence += 1
            side = medium.next_side[record.frame]
            medium.next_side[record.frame] = 1 - side
            block = encode_record(msgspec.structs.replace(record, sequence=medium.sequence))
            self._file.write_at(self._layout.record_offset(record.frame, side), block)
        await self._file.sync()
