"""The seal of small files that are replaced as a whole. A pure codec.

Magic, format version, length, CRC-32C over all of it, then a msgpack body. What does not check is
`CorruptData` with file and offset, never a default; a whole file of another version of the format
is `UnknownFormat`. Design §13.6.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, UnknownFormat

FORMAT_VERSION = 1
_HEAD = struct.Struct("<8sIQ")  # magic, version, bytes of the body
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEAD.size + _CRC.size

T = TypeVar("T")


def seal(magic: bytes, body: bytes) -> bytes:
    """The content of a file with that body; ``magic`` has eight bytes."""
    head = _HEAD.pack(magic, FORMAT_VERSION, len(body))
    crc = crc32c(body, crc32c(head))
    return b"".join((head, _CRC.pack(crc), body))


def unseal(where: str, magic: bytes, data: bytes, kind: type[T]) -> T:
    """Check and decode; ``where`` names the file. Raises CorruptData, UnknownFormat."""
    if len(data) < HEADER_BYTES:
        raise CorruptData(where, 0, f"{len(data)} bytes are too few for a header")
    found_magic, version, length = _HEAD.unpack_from(data)
    body = data[HEADER_BYTES:]
    if length != len(body):
        raise CorruptData(where, 8, f"body has {len(body)} bytes, header says {length}")
    crc = crc32c(body, crc32c(data[: _HEAD.size]))
    if data[_HEAD.size : HEADER_BYTES] != _CRC.pack(crc):
        raise CorruptData(where, _HEAD.size, "checksum does not match")
    if found_magic != magic:
        raise CorruptData(where, 0, f"is {found_magic!r} version {version}, not {magic!r}")
    if version != FORMAT_VERSION:
        raise UnknownFormat(where, str(version), str(FORMAT_VERSION))
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptData(where, HEADER_BYTES, str(error)) from error


def refuse_other_format(where: str, data: bytes, *known: bytes) -> None:
    """Raise UnknownFormat if ``data`` begins as ``known`` does but for the last byte of its magic,
    which is the version of formats without a field of their own for it."""
    found = bytes(data[: len(known[0])])
    if len(found) == len(known[0]) and found[:-1] == known[0][:-1] and found not in known:
        versions = sorted(magic[-1:].decode() for magic in known)
        raise UnknownFormat(where, found[-1:].decode("ascii", "replace"), ", ".join(versions))
