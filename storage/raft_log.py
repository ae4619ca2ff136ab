"""Format of a Raft log on disk: files of checksummed records, rolled by size. A pure codec.

A file holds consecutive entries and is named after its first index. Each record carries a CRC-32C
over header and body, and the index up to which the log was durable when it was written: a damaged
record is a *torn tail* (an append that a crash interrupted and nobody was told of; it is cut)
unless a later record proves that it had been durable, or a later file exists: `CorruptData`.

Invariant for the writer: a cut is durable before the next append, so that remnants of a cut suffix
can never follow new records. Design §6 (entry), §8; Kudu's ``wals/``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.replication import Entry, EntryKind

FORMAT_VERSION = 1
FILE_MAGIC = b"STRL"
RECORD_MAGIC = b"StRe"

_CRC = struct.Struct("<I")
_FILE_HEAD = struct.Struct("<4sBBH")  # magic, version, zero, bytes of the group id
_FILE_REST = struct.Struct("<Q")  # first index
_RECORD_HEAD = struct.Struct("<4sBBH")  # magic, version, kind, zero
_RECORD_REST = struct.Struct("<IQQQ")  # bytes of the body, term, index, durable index
RECORD_HEADER_BYTES = _RECORD_HEAD.size + _CRC.size + _RECORD_REST.size
_KINDS = {int(kind): kind for kind in EntryKind}
_NAME_PREFIX = "log-"


def log_file_name(first_index: int) -> str:
    """Name of the file whose first entry is ``first_index``; names sort like indexes."""
    return f"{_NAME_PREFIX}{first_index:020d}"


def parse_log_file_name(name: str) -> int | None:
    """The first index that ``name`` promises, or None if it is no log file's name."""
    digits = name.removeprefix(_NAME_PREFIX)
    if len(name) != len(_NAME_PREFIX) + 20 or digits == name or not digits.isdecimal():
        return None
    return int(digits)


def _checksum(*parts: bytes) -> bytes:
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return _CRC.pack(crc)


def encode_file_header(group_id: TabletId, first_index: int) -> bytes:
    """The beginning of a log file."""
    name = group_id.encode()
    head = _FILE_HEAD.pack(FILE_MAGIC, FORMAT_VERSION, 0, len(name))
    rest = _FILE_REST.pack(first_index)
    return head + _checksum(head, rest, name) + rest + name


def encode_record(entry: Entry, durable_index: int) -> bytes:
    """One entry as a record; the log was durable up to ``durable_index`` before this append."""
    head = _RECORD_HEAD.pack(RECORD_MAGIC, FORMAT_VERSION, int(entry.kind), 0)
    rest = _RECORD_REST.pack(len(entry.body), entry.term, entry.index, durable_index)
    body = entry.body
    return b"".join((head, _CRC.pack(crc32c(body, crc32c(head + rest))), rest, body))


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """What a log file holds. ``offsets`` are where its records begin; good bytes end at ``end``."""

    entries: tuple[Entry, ...]
    offsets: tuple[int, ...]
    end: int
    torn: bool


@dataclass(frozen=True, slots=True)
class _Record:
    entry: Entry
    durable_index: int
    end: int


def _file_header_end(where: str, group_id: TabletId, first_index: int, data: bytes) -> int | None:
    """Where the records begin; None if damaged. Raises CorruptData if another tablet's."""
    expected = encode_file_header(group_id, first_index)
    if data.startswith(expected):
        return len(expected)
    if len(data) < _FILE_HEAD.size + _CRC.size:
        return None
    magic, _, _, name_bytes = _FILE_HEAD.unpack_from(data)
    end = _FILE_HEAD.size + _CRC.size + _FILE_REST.size + name_bytes
    rest = data[_FILE_HEAD.size + _CRC.size : end]
    stored = data[_FILE_HEAD.size : _FILE_HEAD.size + _CRC.size]
    if magic == FILE_MAGIC and stored == _checksum(data[: _FILE_HEAD.size], rest):
        raise CorruptData(where, 0, f"not version {FORMAT_VERSION} of tablet {group_id}'s log")
    return None


def _read_record(where: str, data: bytes, offset: int) -> _Record | None:
    """The record at ``offset``, or None if there is no whole and undamaged one."""
    body_at = offset + RECORD_HEADER_BYTES
    if body_at > len(data) or not data.startswith(RECORD_MAGIC, offset):
        return None
    crc_at = offset + _RECORD_HEAD.size
    rest_at = crc_at + _CRC.size
    length, term, index, durable_index = _RECORD_REST.unpack_from(data, rest_at)
    end = body_at + length
    if end > len(data):
        return None
    if data[crc_at:rest_at] != _checksum(data[offset:crc_at], data[rest_at:end]):
        return None
    _, version, kind, _ = _RECORD_HEAD.unpack_from(data, offset)
    if version != FORMAT_VERSION or kind not in _KINDS:
        raise CorruptData(where, offset, f"record version {version}, kind {kind} is unknown")
    return _Record(Entry(term, index, _KINDS[kind], data[body_at:end]), durable_index, end)


def _proof_of_damage(where: str, data: bytes, offset: int, index: int) -> int | None:
    """Offset of a record after ``offset`` which shows that entry ``index`` was durable here."""
    found = data.find(RECORD_MAGIC, offset)
    while found >= 0:
        record = _read_record(where, data, found)
        if record is not None and record.durable_index >= index:
            return found
        found = data.find(RECORD_MAGIC, found + 1)
    return None


def decode_file(
    where: str, group_id: TabletId, first_index: int, data: bytes, *, newest: bool
) -> DecodedFile:
    """Decode a log file; ``where`` names it in errors. Only the ``newest`` file may be torn.

    A file whose header is torn decodes to nothing, with ``end`` 0.
    Raises CorruptData for any other damage.
    """
    offset = _file_header_end(where, group_id, first_index, data)
    if offset is None:
        _require_torn(where, data, 0, first_index, newest=newest)
        return DecodedFile((), (), 0, True)
    entries: list[Entry] = []
    offsets: list[int] = []
    expected, term = first_index, 0
    while offset < len(data):
        record = _read_record(where, data, offset)
        if record is None:
            _require_torn(where, data, offset, expected, newest=newest)
            return DecodedFile(tuple(entries), tuple(offsets), offset, True)
        entry = record.entry
        if entry.index != expected or entry.term < term:
            raise CorruptData(where, offset, f"{entry.op_id} after ({term}, {expected - 1})")
        entries.append(entry)
        offsets.append(offset)
        offset, expected, term = record.end, expected + 1, entry.term
    return DecodedFile(tuple(entries), tuple(offsets), offset, False)


def _require_torn(where: str, data: bytes, offset: int, index: int, *, newest: bool) -> None:
    if not newest:
        raise CorruptData(where, offset, f"entry {index} is damaged, and newer files follow")
    proof = _proof_of_damage(where, data, offset, index)
    if proof is not None:
        raise CorruptData(where, offset, f"entry {index} is damaged; {proof} shows it was durable")


def check_sequence(where: str, entries: Sequence[Entry]) -> None:
    """Raises CorruptData if the entries of all files have a gap or a falling term."""
    for before, after in itertools.pairwise(entries):
        if after.index != before.index + 1 or after.term < before.term:
            raise CorruptData(where, 0, f"{after.op_id} follows {before.op_id}")
