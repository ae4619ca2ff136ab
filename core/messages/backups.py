"""Messages of tservers, masters and recovery jobs to backups.

The last of them are asked while a tablet serves and its rows are still being brought back.
"""

from __future__ import annotations

import enum
import sys
from typing import Any

from stelae.core.ids import TabletId
from stelae.core.records.losses import SegmentFacts
from stelae.core.rpc import Body, Empty, Method

APPENDS_MAX = 64
"""Of one `WriteReplicas`."""


class Certified(Body, frozen=True):
    """What of a replica exists: its first ``length`` bytes, whose entry headers have this CRC."""

    length: int
    crc: int


class ReplicaState(enum.StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    """Complete, in the row form it was appended in."""
    SEALED = "sealed"
    """Complete, in columnar form (`stelae.storage.segments.image`)."""


class WriteReplica(Body, frozen=True):
    """Write to a replica of a segment in row form, and answer once its medium has it durably.

    The blob(s) are the bytes from ``offset``. Creates the replica when ``offset`` is 0 and there
    is none (``create``); then the bytes hold the segment's prologue. Repeated or overlapping writes
    of the same content change nothing; a gap is refused (`InvalidArgument`). ``certificate`` is the
    commit point: nothing beyond the last one exists. A replica that is being copied gets none until
    the last piece (``certificate`` None), and does not exist before. A higher ``epoch`` than the
    replica's raises it; a lower one is refused. A closed replica accepts a repeated close only.
    """

    tablet_id: TabletId
    term: int
    segment_id: int
    epoch: int
    medium: str
    offset: int
    certificate: Certified | None
    create: bool = False
    close: bool = False


class WriteReplicaReply(Body, frozen=True):
    is_low: bool = False
    """Whether the medium has its reserve left, and no more. Heartbeats tell it too late for rows
    that come in fast."""


class WriteReplicas(Body, frozen=True):
    """Writes to replicas on one medium, each with one blob, at most `APPENDS_MAX`: each is carried
    out as a `WriteReplica` by itself, and all are answered once what was taken of them is durable.
    """

    writes: tuple[WriteReplica, ...]


class WriteReplicasReply(Body, frozen=True):
    errors: tuple[bytes, ...]
    """Of each write why it was refused, by `encode_error`; empty: it was not, and is durable."""


class SealReplica(Body, frozen=True):
    """Replace a replica by its columnar form, or bring one where none was, in one atomic step.

    The blob is the whole image.
    """

    tablet_id: TabletId
    term: int
    segment_id: int
    epoch: int
    medium: str


class ReplicaInfo(Body, frozen=True):
    segment_id: int
    term: int
    epoch: int
    state: ReplicaState
    medium: str
    length: int
    """Bytes of the image, or of the certified rows."""
    crc: int
    digest: tuple[int, ...] = ()
    """Of an OPEN replica: the segment ids in its prologue's digest."""
    facts: tuple[SegmentFacts, ...] = ()
    """Of an OPEN replica: what its prologue says of these segments."""
    may_be_short: bool = False
    """Of an OPEN replica on a medium that syncs ``on_seal``: its machine may have lost the end of
    it, though it was acknowledged."""


class LogInventory(Body, frozen=True):
    tablet_id: TabletId
    fence: int
    """Writes of a lower term are refused."""
    replicas: tuple[ReplicaInfo, ...]
    damaged: tuple[int, ...] = ()
    """Segments whose replica here was found to be damaged: lost, but for its frames."""
    heads_from: int = 0
    """Heads before this one are closed for good, and what they name may be freed."""


class FenceLogs(Body, frozen=True):
    """Durably refuse every term below the one given, then say what is held of each log."""

    logs: tuple[tuple[TabletId, int], ...]


class Inventory(Body, frozen=True):
    """Say what is held of these logs, or of all."""

    logs: tuple[TabletId, ...] = ()


class InventoryReply(Body, frozen=True):
    logs: tuple[LogInventory, ...]


class ReadReplica(Body, frozen=True):
    """Read bytes of a replica: the image, or the rows up to the certificate. The blob is they."""

    tablet_id: TabletId
    segment_id: int
    offset: int = 0
    length: int = 0
    """0: to the end."""
    verify: bool = False
    """What was read before was damaged: look again, and if it is, do not offer it any more."""


class ReadReplicaReply(Body, frozen=True):
    info: ReplicaInfo


class ReadSummaries(Body, frozen=True):
    """Serve the summaries of segments. Blobs: one per segment, the summary part of a SEALED image;
    for row forms, which have none, the rows up to the certificate."""

    tablet_id: TabletId
    segments: tuple[int, ...]


class ReadSummariesReply(Body, frozen=True):
    infos: tuple[ReplicaInfo, ...]


ANY_EPOCH = sys.maxsize
"""Higher than any epoch of a replica."""


class FreeReplicas(Body, frozen=True):
    """Free replicas of segments; unknown ones are fine. Refused below the fence."""

    tablet_id: TabletId
    term: int
    segments: tuple[int, ...]
    heads_from: int = 0
    """Heads before this one are closed for good: a late write does not open one of them again."""
    epochs: tuple[int, ...] = ()
    """Highest epoch to be freed, of each of ``segments``; empty: any. A message that comes late
    frees no replica that was made later, in a higher epoch."""


class DropLogs(Body, frozen=True):
    """Free everything held of these tablets, which the catalog says are deleted."""

    logs: tuple[TabletId, ...]


WRITE_REPLICA = Method("backup.write_replica", WriteReplica, WriteReplicaReply)
WRITE_REPLICAS = Method("backup.write_replicas", WriteReplicas, WriteReplicasReply)
SEAL_REPLICA = Method("backup.seal_replica", SealReplica, Empty)
FENCE_LOGS = Method("backup.fence_logs", FenceLogs, InventoryReply)
INVENTORY = Method("backup.inventory", Inventory, InventoryReply)
READ_REPLICA = Method("backup.read_replica", ReadReplica, ReadReplicaReply)
READ_SUMMARIES = Method("backup.read_summaries", ReadSummaries, ReadSummariesReply)
FREE_REPLICAS = Method("backup.free_replicas", FreeReplicas, Empty)
DROP_LOGS = Method("backup.drop_logs", DropLogs, Empty)


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
