"""The seal of small files that are replaced as a whole. A pure codec.

Magic, format version, length, CRC-32C over all of it, then a msgpack body. What does not check is
`CorruptData` with file and offset, never a default. Design §13.6.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData

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
    """Check and decode; ``where`` names the file. Raises CorruptData."""
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
