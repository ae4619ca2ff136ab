"""What a tablet server asks a backup while a tablet's rows are still being brought back."""

from __future__ import annotations

from typing import Any

from stelae.core.ids import TabletId
from stelae.core.messages.backups import ReplicaInfo
from stelae.core.rpc import Body, Method

SINGLE_ROWS_MAX = 16
"""Rows of a segment that are read one by one; the pieces of more are."""


class ImagePlace(Body, frozen=True):
    """Where an image lies in a file, for servers on the same machine (`Disk.open_near`)."""

    file: str
    pieces: tuple[tuple[int, int], ...]
    """One after the other: (offset in the file, length)."""


class ReadRows(Body, frozen=True):
    """Serve pieces of a SEALED replica: ``piece_rows`` rows each, the first one is number 0.

    The backup checks what it serves, or all of the image. Refused if there is no such replica, or
    it is in row form.
    """

    tablet_id: TabletId
    segment_id: int
    piece_rows: int
    pieces: tuple[int, ...]
    wants_place: bool = False
    """Also tell where the image lies."""


class ReadRowsReply(Body, frozen=True):
    """Blobs: a piece each, as an Arrow record batch without its schema."""

    trailer: bytes
    """The image's end, which tells it from any other."""
    crcs: tuple[int, ...]
    """CRC-32C of each piece."""
    place: ImagePlace | None = None
    """None: it was not asked for, or lies in no file."""


class ReadSingleRows(Body, frozen=True):
    """Serve some rows of a SEALED replica by themselves, at most `SINGLE_ROWS_MAX`.

    The backup checks the blocks of the image in which they lie. Refused as `ReadRows` is, and if
    the image is of before, or has columns whose values are not read one by one.
    """

    tablet_id: TabletId
    segment_id: int
    rows: tuple[int, ...]
    """Their numbers in the segment."""
    known: tuple[int, ...] = ()
    """Places of columns whose values the caller knows: they are told as None."""
    wants_place: bool = False
    """Also tell where the image lies."""


class ReadSingleRowsReply(Body, frozen=True):
    """They are in no blob: a frame's own checksum is enough for so little."""

    trailer: bytes
    """The image's end, which tells it from any other."""
    rows: tuple[tuple[int, tuple[Any, ...]], ...]
    """For each row its version, and the wire values of its columns."""
    place: ImagePlace | None = None
    """As in `ReadRowsReply`."""


class ReadPicked(Body, frozen=True):
    """Serve some rows of a SEALED replica, all of which is checked before.

    The blob has a bit for each of its rows, the lowest of each byte first: 1, it is wanted. Refused
    if there is no such replica, it is in row form, or has another number of rows.
    """

    tablet_id: TabletId
    segment_id: int
    row_count: int


class ReadPickedReply(Body, frozen=True):
    """The blob: these rows, as an Arrow record batch without its schema."""

    trailer: bytes
    """The image's end, which tells it from any other."""
    crc: int
    """CRC-32C of the blob."""


class LocateReplicas(Body, frozen=True):
    """Say where replicas lie: who is on the same machine reads them past the backup."""

    tablet_id: TabletId
    segments: tuple[int, ...]


class LocatedReplica(Body, frozen=True):
    info: ReplicaInfo
    place: ImagePlace
    trailer: bytes
    """Of an image: its end, which tells it from any other. Rows have a certificate for that."""


class LocateReplicasReply(Body, frozen=True):
    replicas: tuple[LocatedReplica, ...]
    """Those that are whole, and lie in a file; nothing is said of the others."""


LOCATE_REPLICAS = Method("backup.locate_replicas", LocateReplicas, LocateReplicasReply)
READ_ROWS = Method("backup.read_rows", ReadRows, ReadRowsReply)
READ_SINGLE_ROWS = Method("backup.read_single_rows", ReadSingleRows, ReadSingleRowsReply)
READ_PICKED = Method("backup.read_picked", ReadPicked, ReadPickedReply)
