"""The snapshot of a replicated tablet, by reference: which images make up its rows, and the rest.

A manifest says everything about the tablet's state after log entry ``last``: the sealed segment
images that hold its rows (files in ``data/<tablet>/``, each with size and CRC-32C), and what is
not rows: results of clients' requests, the next version, the group's time, the table's record. It
is the data of the replica's Raft snapshot, and lies in the superblock; a tablet copy is sent it,
and then the images it names. Design §8.

Which images a manifest may leave out, `droppable` decides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.ids import OpId, TabletId
from stelae.core.records.records import TableRecord
from stelae.core.records.succession import NO_SUCCESSION, Succession
from stelae.core.rpc import Blob
from stelae.storage.entries.client_results import ClientRecord
from stelae.storage.rows.memory import SegmentStats
from stelae.storage.segments.image import Image

FORMAT_VERSION = 1
_MAGIC = b"STELMANI"
_HEAD = struct.Struct("<8sIQI")
"""Magic, format, bytes of the body, CRC-32C of what comes before it and of the body."""


class ImageFile(msgspec.Struct, frozen=True, array_like=True):
    """One image that a manifest names."""

    segment_id: int
    """Rises with time. Ids are a replica's own, and those of the one it was copied from; an id that
    no manifest named may be given again after a restart."""
    size_bytes: int
    crc: int
    """CRC-32C of the whole file."""
    row_count: int

    @property
    def name(self) -> str:
        """The file's name, in the tablet's folder below ``data/``."""
        return image_name(self.segment_id)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The state of a tablet after ``last``; rows are in the images."""

    tablet_id: TabletId
    last: OpId
    table: TableRecord | None
    """None: no command has said yet what table this is of."""
    next_version: int
    now_s: float
    """The group's time: see `stelae.storage.replicated.commands.GroupClock`."""
    clients: tuple[ClientRecord, ...]
    next_segment_id: int
    images: tuple[ImageFile, ...]
    """In the order of the log."""
    succession: Succession = NO_SUCCESSION

    @property
    def size_bytes(self) -> int:
        """Of all images: what a copy moves."""
        return sum(image.size_bytes for image in self.images)


def image_name(segment_id: int) -> str:
    """The file name of a segment's image; names sort as ids do."""
    return f"{segment_id:016x}.image"


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode, under a checksum of its own: it travels and lies in other records."""
    body = msgspec.msgpack.encode(manifest)
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(body), 0)[:-4]
    return b"".join((head, crc32c(body, crc32c(head)).to_bytes(4, "little"), body))


def decode_manifest(where: str, tablet_id: TabletId, data: bytes) -> Manifest:
    """Decode and check. Raises CorruptData; ``where`` names what it was read from."""
    manifest = _decode(where, data)
    if manifest.tablet_id != tablet_id:
        raise CorruptData(where, _HEAD.size, f"belongs to tablet {manifest.tablet_id}")
    return manifest


def images_of(where: str, data: bytes) -> tuple[ImageFile, ...]:
    """The images that a manifest names, of whichever tablet. Raises CorruptData."""
    return _decode(where, data).images


def _decode(where: str, data: bytes) -> Manifest:
    if len(data) < _HEAD.size:
        raise CorruptData(where, 0, f"{len(data)} bytes are no manifest")
    magic, version, length, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if magic != _MAGIC or length != len(body):
        raise CorruptData(where, 0, "no manifest of this length is here")
    if crc32c(body, crc32c(data[: _HEAD.size - 4])) != crc:
        raise CorruptData(where, _HEAD.size - 4, "bad checksum of a manifest")
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"{where}, manifest", str(version), str(FORMAT_VERSION))
    try:
        return msgspec.msgpack.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptData(where, _HEAD.size, str(error)) from error


def check_image(file: ImageFile, content: Blob, where: str) -> None:
    """Whether ``content`` is the file that a manifest names; about 0.1 ms per MiB.

    Raises:
        CorruptData: it is not.
    """
    view = memoryview(content)
    if view.nbytes != file.size_bytes:
        raise CorruptData(where, view.nbytes, f"the manifest says {file.size_bytes} bytes")
    if crc32c(view) != file.crc:
        raise CorruptData(where, 0, "its checksum is not the manifest's")


def open_image(
    file: ImageFile, tablet_id: TabletId, content: Blob, where: str, *, is_checked: bool = False
) -> Image:
    """Check and open an image that a manifest names. Reads are views into ``content``. Off the
    loop, if it is large. ``is_checked``: size and checksum were. Raises CorruptData."""
    if not is_checked:
        check_image(file, content, where)
    image = Image.open(content, where, check_rows=False)
    meta = image.meta
    found = (meta.tablet_id, meta.segment_id, meta.row_count)
    if found != (tablet_id, file.segment_id, file.row_count):
        raise CorruptData(where, 0, f"is of tablet, segment and rows {found}")
    return image


def describe_image(segment_id: int, content: pa.Buffer, row_count: int) -> ImageFile:
    """What a manifest says of an image that was just built. Off the loop, if it is large."""
    return ImageFile(segment_id, content.size, crc32c(content), row_count)


def droppable(segments: Sequence[SegmentStats]) -> list[bool]:
    """Which of a tablet's segments a manifest of this very state may leave out.

    The state of a key is its record (row or tombstone) with the highest version; a segment is
    filled in log order, so all records in it have higher versions than those in earlier ones. A
    segment with live rows stays. One without may go

    - if all earlier segments go too: a key whose newest record lies in these ends with a
      tombstone, and all its records are in them, so that nothing is left of it: absent, as before;
    - or if it has no tombstones: its rows were all overwritten or deleted by later records, and
      the newest of these stays, or goes by the first rule.

    Versions given later do not fall, as a manifest says the next one itself.

    Args:
        segments: those that are closed, in log order, with what is live of them now.
    """
    found = []
    prefix = True
    for segment in segments:
        dead = not segment.live_rows
        prefix = prefix and dead
        found.append(prefix or (dead and not segment.tombstones))
    return found
