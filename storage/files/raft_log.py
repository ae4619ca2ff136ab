"""Format of a Raft log on disk: files of checksummed records, rolled by size. A pure codec.

A file holds consecutive entries and is named after its first index; records and what of them a
crash may have torn are `stelae.storage.files.log_records`' affair. Of what was written last a note
tells, in two slots of a small file beside the log: up to which entry it was durable. A log that
ends before that is damaged.

Invariant for the writer: a cut is durable before the next append, so that remnants of a cut suffix
can never follow new records. Design §6 (entry), §8; Kudu's ``wals/``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry
from stelae.storage.files.log_records import (
    DecodedFile,
    FileHeader,
    check_no_gap,
    decode_records,
    encode_record,
    numbered_name,
    parse_numbered_name,
)

__all__ = [
    "DecodedFile",
    "check_sequence",
    "decode_file",
    "encode_file_header",
    "encode_record",
    "log_file_name",
    "parse_log_file_name",
]

_HEADER = FileHeader(b"STRL", struct.Struct("<Q"))  # first index
_NAME_PREFIX = "log"
NOTE_NAME = "notes"
NOTE_SLOT_BYTES = 512
_NOTE_MAGIC = b"StRn"
_NOTE = struct.Struct("<4sIQQ")  # magic, checksum, number, index
_NOTE_REST = struct.Struct("<QQ")


def log_file_name(first_index: int) -> str:
    """Name of the file whose first entry is ``first_index``; names sort like indexes."""
    return numbered_name(_NAME_PREFIX, first_index)


def parse_log_file_name(name: str) -> int | None:
    """The first index that ``name`` promises, or None if it is no log file's name."""
    numbers = parse_numbered_name(_NAME_PREFIX, 1, name)
    return numbers[0] if numbers is not None else None


def encode_file_header(group_id: TabletId, first_index: int) -> bytes:
    """The beginning of a log file."""
    return _HEADER.encode(group_id, first_index)


def decode_file(
    where: str, group_id: TabletId, first_index: int, data: bytes, *, newest: bool
) -> DecodedFile:
    """Decode a log file; ``where`` names it in errors. Only the ``newest`` file may be torn.

    A file whose header is torn decodes to nothing, with ``end`` 0.
    Raises CorruptData for any other damage.
    """
    offset = _HEADER.end(where, data, group_id, first_index)
    return decode_records(where, data, offset, first_index, newest=newest)


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """The ``number``-th note: the log was durable up to ``index``."""

    number: int
    index: int


def _note_checksum(group_id: TabletId, note: Note) -> int:
    return crc32c(group_id.encode(), crc32c(_NOTE_REST.pack(note.number, note.index)))


def encode_note(group_id: TabletId, note: Note) -> bytes:
    """For one slot."""
    return _NOTE.pack(_NOTE_MAGIC, _note_checksum(group_id, note), note.number, note.index)


def decode_notes(group_id: TabletId, data: bytes) -> list[Note]:
    """What the slots of a file hold; those that are torn, or empty, are left out."""
    notes = []
    for offset in (0, NOTE_SLOT_BYTES):
        if offset + _NOTE.size > len(data):
            break
        magic, checksum, number, index = _NOTE.unpack_from(data, offset)
        note = Note(number, index)
        if magic == _NOTE_MAGIC and checksum == _note_checksum(group_id, note):
            notes.append(note)
    return notes


def check_sequence(where: str, entries: Sequence[Entry]) -> None:
    """Raises CorruptData if the entries of all files have a gap or a falling term."""
    for before, after in itertools.pairwise(entries):
        check_no_gap(where, before, after)
