"""Small whole files of a replica: consensus metadata and the state machine's snapshot. Pure codecs.

Both are replaced atomically, and sealed: magic, format version, CRC-32C, length, then msgpack. What
does not check is `CorruptData`, never a default. Design §8 (``consensus-meta/``); Kudu's cmeta.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.replication import Configuration, Snapshot, TermAndVote

FORMAT_VERSION = 1
_HEAD = struct.Struct("<8sIQ")  # magic, version, bytes of the body
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEAD.size + _CRC.size
METADATA_MAGIC = b"STELCMET"
SNAPSHOT_MAGIC = b"STELSNAP"

T = TypeVar("T")


class ConsensusMetadata(msgspec.Struct, frozen=True, array_like=True):
    """Term, vote and committed configuration of one replica."""

    group_id: TabletId
    term_and_vote: TermAndVote
    configuration: Configuration


class StoredSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot with the group it belongs to."""

    group_id: TabletId
    snapshot: Snapshot


def _seal(magic: bytes, body: bytes) -> bytes:
    head = _HEAD.pack(magic, FORMAT_VERSION, len(body))
    crc = crc32c(body, crc32c(head))
    return b"".join((head, _CRC.pack(crc), body))


def _unseal(where: str, magic: bytes, data: bytes, kind: type[T]) -> T:
    if len(data) < HEADER_BYTES:
        raise CorruptData(where, 0, f"{len(data)} bytes are too few for a header")
    found_magic, version, length = _HEAD.unpack_from(data)
    body = data[HEADER_BYTES:]
    if length != len(body):
        raise CorruptData(where, 8, f"body has {len(body)} bytes, header says {length}")
    crc = crc32c(body, crc32c(data[: _HEAD.size]))
    if data[_HEAD.size : HEADER_BYTES] != _CRC.pack(crc):
        raise CorruptData(where, _HEAD.size, "checksum does not match")
    if found_magic != magic or version != FORMAT_VERSION:
        raise CorruptData(where, 0, f"is {found_magic!r} version {version}, not {magic!r}")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptData(where, HEADER_BYTES, str(error)) from error


def encode_consensus_metadata(metadata: ConsensusMetadata) -> bytes:
    """Encode for an atomic replace."""
    return _seal(METADATA_MAGIC, msgspec.msgpack.encode(metadata))


def decode_consensus_metadata(where: str, group_id: TabletId, data: bytes) -> ConsensusMetadata:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    metadata = _unseal(where, METADATA_MAGIC, data, ConsensusMetadata)
    if metadata.group_id != group_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {metadata.group_id}")
    return metadata


def encode_snapshot(group_id: TabletId, snapshot: Snapshot) -> bytes:
    """Encode for an atomic replace."""
    return _seal(SNAPSHOT_MAGIC, msgspec.msgpack.encode(StoredSnapshot(group_id, snapshot)))


def decode_snapshot(where: str, group_id: TabletId, data: bytes) -> Snapshot:
    """Decode and check; ``where`` names the file. Raises CorruptData."""
    stored = _unseal(where, SNAPSHOT_MAGIC, data, StoredSnapshot)
    if stored.group_id != group_id:
        raise CorruptData(where, HEADER_BYTES, f"belongs to tablet {stored.group_id}")
    return stored.snapshot
