"""Records of a log file, and how its end is told from damage. A pure codec.

Each record is one entry and carries a CRC-32C over header and body, and the index up to which the
log was durable when it was written: a damaged record is a *torn tail* (an append that a crash
interrupted and nobody was told of; it is cut) unless a later record proves that it had been
durable, a later file exists, or the caller knows it: `CorruptData`. Shared by the logs of replicas
(`stelae.storage.files.raft_log`) and of timelines (`stelae.storage.files.wal_log`). Design §6
(entry), §8, §10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry, EntryKind

FORMAT_VERSION = 1
RECORD_MAGIC = b"StRe"

_CRC = struct.Struct("<I")
_FILE_HEAD = struct.Struct("<4sBBH")  # magic, version, zero, bytes of the group id
_RECORD_HEAD = struct.Struct("<4sBBH")  # magic, version, kind, zero
_RECORD_REST = struct.Struct("<IQQQ")  # bytes of the body, term, index, durable index
RECORD_HEADER_BYTES = _RECORD_HEAD.size + _CRC.size + _RECORD_REST.size
_KINDS = {int(kind): kind for kind in EntryKind}


def _checksum(*parts: bytes) -> bytes:
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return _CRC.pack(crc)


# ---- the beginning of a file ----------------------------------------------------------------


class FileHeader:
    """Format of the beginning of a log file: whose log it is, and some numbers."""

    def __init__(self, magic: bytes, numbers: struct.Struct) -> None:
        """``magic`` has four bytes."""
        self._magic = magic
        self._numbers = numbers

    def encode(self, group_id: TabletId, *numbers: int) -> bytes:
        name = group_id.encode()
        head = _FILE_HEAD.pack(self._magic, FORMAT_VERSION, 0, len(name))
        rest = self._numbers.pack(*numbers)
        return head + _checksum(head, rest, name) + rest + name

    def end(self, where: str, data: bytes, group_id: TabletId, *numbers: int) -> int | None:
        """Where the records begin; None if damaged. Raises CorruptData if another log's."""
        expected = self.encode(group_id, *numbers)
        if data.startswith(expected):
            return len(expected)
        if len(data) < _FILE_HEAD.size + _CRC.size:
            return None
        magic, version, _, name_bytes = _FILE_HEAD.unpack_from(data)
        end = _FILE_HEAD.size + _CRC.size + self._numbers.size + name_bytes
        rest = data[_FILE_HEAD.size + _CRC.size : end]
        stored = data[_FILE_HEAD.size : _FILE_HEAD.size + _CRC.size]
        if magic == self._magic and stored == _checksum(data[: _FILE_HEAD.size], rest):
            if version != FORMAT_VERSION:
                raise UnknownFormat(where, str(version), str(FORMAT_VERSION))
            raise CorruptData(where, 0, f"is not the log of tablet {group_id}, or not this part")
        return None


# ---- records --------------------------------------------------------------------------------


def encode_record_header(entry: Entry, durable_index: int) -> bytes:
    """What stands before the body; the log was durable to ``durable_index`` before this append."""
    head = _RECORD_HEAD.pack(RECORD_MAGIC, FORMAT_VERSION, int(entry.kind), 0)
    rest = _RECORD_REST.pack(len(entry.body), entry.term, entry.index, durable_index)
    return b"".join((head, _CRC.pack(crc32c(entry.body, crc32c(head + rest))), rest))


def encode_record(entry: Entry, durable_index: int) -> bytes:
    """One entry as a record."""
    return encode_record_header(entry, durable_index) + entry.body


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
        found = f"{version} with kind {kind}"
        known = f"{FORMAT_VERSION} with kinds {', '.join(map(str, _KINDS))}"
        raise UnknownFormat(f"{where}, record at {offset}", found, known)
    return _Record(Entry(term, index, _KINDS[kind], data[body_at:end]), durable_index, end)


def decode_records(
    where: str,
    data: bytes,
    offset: int | None,
    first_index: int,
    *,
    newest: bool,
    durable_index: int = 0,
    stop_index: int | None = None,
) -> DecodedFile:
    """Decode the records from ``offset`` on (None: the header is damaged; they count as torn).

    Only the ``newest`` file may be torn, and only above ``durable_index``. What comes from
    ``stop_index`` on is not looked at. Raises CorruptData for any other damage.
    """
    if offset is None:
        _require_torn(where, data, 0, first_index, newest=newest, durable_index=durable_index)
        return DecodedFile((), (), 0, True)
    entries: list[Entry] = []
    offsets: list[int] = []
    expected, term = first_index, 0
    while offset < len(data) and expected != stop_index:
        record = _read_record(where, data, offset)
        if record is None:
            _require_torn(where, data, offset, expected, newest=newest, durable_index=durable_index)
            return DecodedFile(tuple(entries), tuple(offsets), offset, True)
        entry = record.entry
        if entry.index != expected or entry.term < term:
            raise CorruptData(where, offset, f"{entry.op_id} after ({term}, {expected - 1})")
        entries.append(entry)
        offsets.append(offset)
        offset, expected, term = record.end, expected + 1, entry.term
    return DecodedFile(tuple(entries), tuple(offsets), offset, False)


def decode_range(where: str, data: bytes, at: int, first_index: int) -> list[Entry]:
    """Entries of whole records that lie at ``at`` of a file. Raises CorruptData for any damage."""
    entries: list[Entry] = []
    offset = 0
    while offset < len(data):
        record = _read_record(where, data, offset)
        expected = first_index + len(entries)
        if record is None or record.entry.index != expected:
            raise CorruptData(where, at + offset, f"entry {expected} is damaged")
        entries.append(record.entry)
        offset = record.end
    return entries


def _require_torn(
    where: str, data: bytes, offset: int, index: int, *, newest: bool, durable_index: int
) -> None:
    if index <= durable_index:
        raise CorruptData(where, offset, f"entry {index} is damaged, and {durable_index} counts")
    if not newest:
        raise CorruptData(where, offset, f"entry {index} is damaged, and newer files follow")
    proof = _proof_of_damage(where, data, offset, index)
    if proof is not None:
        raise CorruptData(where, offset, f"entry {index} is damaged; {proof} shows it was durable")


def _proof_of_damage(where: str, data: bytes, offset: int, index: int) -> int | None:
    """Offset of a record after ``offset`` which shows that entry ``index`` was durable here."""
    found = data.find(RECORD_MAGIC, offset)
    while found >= 0:
        record = _read_record(where, data, found)
        if record is not None and record.durable_index >= index:
            return found
        found = data.find(RECORD_MAGIC, found + 1)
    return None


def check_no_gap(where: str, before: Entry, after: Entry) -> None:
    """Raises CorruptData if one entry cannot follow the other: a gap, or a falling term."""
    if after.index != before.index + 1 or after.term < before.term:
        raise CorruptData(where, 0, f"{after.op_id} follows {before.op_id}")


def numbered_name(prefix: str, *numbers: int) -> str:
    """A file name that sorts like its numbers."""
    return "-".join((prefix, *(f"{number:020d}" for number in numbers)))


def parse_numbered_name(prefix: str, count: int, name: str) -> Sequence[int] | None:
    """The ``count`` numbers of such a name, or None if it is none."""
    found, *digits = name.split("-")
    if found != prefix or len(digits) != count:
        return None
    if not all(len(each) == 20 and each.isdecimal() for each in digits):
        return None
    numbers = [int(each) for each in digits]
    return numbers if max(numbers) < 1 << 64 else None
