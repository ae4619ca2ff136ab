"""The superblock: what a server has of one tablet, as one small file. Pure codec and transitions.

Invariant: each transition of a tablet (created, flushed, deleted, copying, copied, rolled back) is
the replacement of this one file, whose ``generation`` grows with each; everything else on disk is
made before it, or rolled forward or back from it. A deleted or copying tablet keeps, as its
``tombstone``, the last OpId that it had in its log, because its vote depends on it. Implements the
states of the seed ("Tablet Copy design", deletion and start-up); design §8 (``tablet-meta/``).
"""

from __future__ import annotations

import re

import msgspec

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Snapshot
from stelae.storage.files.sealed import HEADER_BYTES, seal, unseal

SUPERBLOCK_MAGIC = b"STELSUPR"
QUARANTINE = "quarantine"
NOTHING = OpId(0, 0)
"""The tombstone of a replica that never had an entry: it may vote for anyone."""

_TABLET_ID = re.compile(r"[A-Za-z0-9_]{1,64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """One immutable file in ``data/<tablet>/``; ``crc`` is the CRC-32C of all of it."""

    name: str
    size_bytes: int
    crc: int


class Superblock(msgspec.Struct, frozen=True):
    """One tablet on one server."""

    tablet_id: TabletId
    state: DataState
    generation: int
    """Grows with each replacement of this file."""
    table: TableRecord | None
    """The table as it was when this replica was created or copied; newer ones are in the snapshot
    and in the log. None where it was never known."""
    snapshot: Snapshot | None
    """Of a ready tablet: what its files hold. None: the log holds everything."""
    tombstone: OpId | None
    """Of a deleted or copying one: the last OpId that was in its log. None: that is not known any
    more, and it must not vote. Of a ready one None: its log tells."""
    forever: bool = False
    """The whole table is gone: no copy may bring this tablet back."""
    quarantine: str = ""
    """Of a deleted one: the folder that its files went to."""


def check_tablet_id(tablet_id: str) -> None:
    """Raises InvalidArgument unless the id can be the name of files."""
    if not _TABLET_ID.fullmatch(tablet_id):
        raise InvalidArgument(f"{tablet_id!r} is not the id of a tablet")


def check_stored_file(file: StoredFile) -> None:
    """Raises InvalidArgument unless it can be a file in the folder of a tablet."""
    usable = _FILE_NAME.fullmatch(file.name) and not file.name.endswith(".tmp")
    if not usable or file.size_bytes < 0:
        raise InvalidArgument(f"{file.name!r} of {file.size_bytes} bytes is no file of a tablet")


# ---- the file -------------------------------------------------------------------------------


def encode_superblock(superblock: Superblock) -> bytes:
    """Encode for an atomic replace."""
    return seal(SUPERBLOCK_MAGIC, msgspec.msgpack.encode(superblock))


def decode_superblock(where: str, tablet_id: TabletId, data: bytes) -> Superblock:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    superblock = unseal(where, SUPERBLOCK_MAGIC, data, Superblock)
    if superblock.tablet_id != tablet_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {superblock.tablet_id}")
    problem = _problem(superblock)
    if problem:
        raise CorruptData(where, HEADER_BYTES, f"is {superblock.state.value}, but {problem}")
    return superblock


def _problem(superblock: Superblock) -> str:
    """Why no transition can have made this; empty if one can."""
    state = superblock.state
    if state is DataState.READY and superblock.tombstone is not None:
        return "has a tombstone"
    if state is not DataState.READY and superblock.snapshot is not None:
        return "has a snapshot"
    if state is not DataState.DELETED and (superblock.forever or superblock.quarantine):
        return "says that it was deleted"
    return ""


# ---- quarantine -----------------------------------------------------------------------------


def quarantine_folder(tablet_id: TabletId, number: int) -> str:
    """Where the files of a tablet go whose deletion is generation ``number``."""
    return f"{QUARANTINE}/{tablet_id}-{number}"


def parse_quarantine(name: str) -> tuple[TabletId, int] | None:
    """Tablet and number of a folder in ``quarantine/``; None if it is not one of ours."""
    tablet_id, dash, digits = name.rpartition("-")
    if not dash or not digits.isdecimal() or not _TABLET_ID.fullmatch(tablet_id):
        return None
    return TabletId(tablet_id), int(digits)


# ---- transitions ----------------------------------------------------------------------------


def created(tablet_id: TabletId, table: TableRecord) -> Superblock:
    """A new, empty tablet."""
    return Superblock(tablet_id, DataState.READY, 1, table, None, None)


def flushed(before: Superblock, snapshot: Snapshot) -> Superblock:
    """``snapshot`` counts from now on; the log up to it is no longer needed."""
    assert before.state is DataState.READY, f"flush of a tablet that is {before.state}"
    assert before.snapshot is None or before.snapshot.last <= snapshot.last, "a flush goes back"
    return msgspec.structs.replace(before, generation=before.generation + 1, snapshot=snapshot)


def deleted(before: Superblock, last: OpId | None, *, forever: bool) -> Superblock:
    """A ready tablet is a tombstone now; ``last`` was the last OpId in its log, None: unknown."""
    assert before.state is DataState.READY, f"deletion of a tablet that is {before.state}"
    flushed_to = before.snapshot.last if before.snapshot is not None else NOTHING
    assert last is None or last >= flushed_to, f"{last} is older than its snapshot"
    generation = before.generation + 1
    folder = quarantine_folder(before.tablet_id, generation)
    return Superblock(
        before.tablet_id, DataState.DELETED, generation, before.table, None, last, forever, folder
    )


def tombstone_of_failed(tablet_id: TabletId, generation: int, *, forever: bool) -> Superblock:
    """The tombstone of a tablet whose files cannot be believed: it never votes."""
    folder = quarantine_folder(tablet_id, generation)
    return Superblock(tablet_id, DataState.DELETED, generation, None, None, None, forever, folder)


def deleted_unseen(tablet_id: TabletId) -> Superblock:
    """The tombstone, for good, of a tablet that was never here: no late copy shall make it."""
    return Superblock(tablet_id, DataState.DELETED, 1, None, None, NOTHING, True)


def deleted_for_good(before: Superblock) -> Superblock:
    """A tombstone whose table is gone."""
    assert before.state is DataState.DELETED
    return msgspec.structs.replace(before, generation=before.generation + 1, forever=True)


def copying(before: Superblock | None, tablet_id: TabletId, table: TableRecord) -> Superblock:
    """A copy begins, onto a tombstone or onto nothing.

    The tombstone stays, as the copy may have to be rolled back; the quarantine is forgotten,
    because what lies in the tablet's folders from now on is the copy's own.
    """
    if before is None:
        return Superblock(tablet_id, DataState.COPYING, 1, table, None, NOTHING)
    assert before.state is DataState.DELETED, f"copy onto a tablet that is {before.state}"
    assert not before.forever, "a tablet deleted for good comes back"
    generation = before.generation + 1
    return Superblock(tablet_id, DataState.COPYING, generation, table, None, before.tombstone)


def copied(before: Superblock, table: TableRecord, snapshot: Snapshot | None) -> Superblock:
    """The copy is complete: the tablet is ready."""
    assert before.state is DataState.COPYING, f"end of a copy of a tablet that is {before.state}"
    generation = before.generation + 1
    return Superblock(before.tablet_id, DataState.READY, generation, table, snapshot, None)


def rolled_back(before: Superblock, *, forever: bool = False) -> Superblock:
    """The copy was given up: a tombstone (again), the same as before."""
    assert before.state is DataState.COPYING, f"roll-back of a tablet that is {before.state}"
    generation = before.generation + 1
    return Superblock(
        before.tablet_id,
        DataState.DELETED,
        generation,
        before.table,
        None,
        before.tombstone,
        forever,
    )
