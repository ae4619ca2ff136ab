"""Format of a Raft log on disk: files of checksummed records, rolled by size. A pure codec.

A file holds consecutive entries and is named after its first index; records and what of them a
crash may have torn are `stelae.storage.log_records`' affair.

Invariant for the writer: a cut is durable before the next append, so that remnants of a cut suffix
can never follow new records. Design §6 (entry), §8; Kudu's ``wals/``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from stelae.core.ids import TabletId
from stelae.core.replication import Entry
from stelae.storage.log_records import (
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


def check_sequence(where: str, entries: Sequence[Entry]) -> None:
    """Raises CorruptData if the entries of all files have a gap or a falling term."""
    for before, after in itertools.pairwise(entries):
        check_no_gap(where, before, after)
