"""The configuration store's rows in files of the runtime's disk, and all of them in memory.

Each key has one file with all its rows, a checksum before them, and each swap replaces it in one
atomic, durable step. So a crash and a restart are real where the disk is: in the simulated world.

Implements seed 004 ("configuration storage"); interface: `stelae.actors.cas_store.backends`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import msgspec
from crc32c import crc32c

from stelae.actors.cas_store.backends import Row, Swap
from stelae.core.errors import CorruptData
from stelae.core.runtime import Disk
from stelae.storage.files.sealed import refuse_other_format

FOLDER = "configurations"
_MAGIC = b"STELCAS1"
_HEAD = struct.Struct("<8sI")  # magic, CRC-32C of the rest
_decoder = msgspec.msgpack.Decoder(list[Row])


class FilesBackend:
    """See `Backend`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._rows_by_key: dict[str, list[Row]] = {}
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Read what there is. Raises CorruptData."""
        rows_by_key: dict[str, list[Row]] = {}
        for name in await self._disk.list(FOLDER):
            path = f"{FOLDER}/{name}"
            rows = _decode(await self._disk.read(path), path)
            rows_by_key[rows[0].key] = rows
        self._rows_by_key = dict(sorted(rows_by_key.items()))

    async def close(self) -> None:
        self._rows_by_key = {}

    async def get(self, key: str) -> Row | None:
        rows = self._rows_by_key.get(key)
        return rows[-1] if rows else None

    async def swap(self, row: Row) -> Swap:
        async with self._lock:
            rows = self._rows_by_key.get(row.key, [])
            if row.revision != len(rows) + 1:
                known = 0 < row.revision <= len(rows)
                done = known and rows[row.revision - 1].is_same_write(row)
                return Swap(done, rows[-1] if rows else None)
            rows = [*rows, row]
            await self._disk.replace(f"{FOLDER}/{row.key.encode().hex()}", _encode(rows))
            self._rows_by_key[row.key] = rows
            return Swap(True, row)

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        keys = sorted(k for k in self._rows_by_key if k > after and k.startswith(prefix))
        return [self._rows_by_key[key][-1] for key in keys[:limit]]

    async def history(self, key: str, after_revision: int, limit: int) -> Sequence[Row]:
        return self._rows_by_key.get(key, [])[after_revision : after_revision + limit]


def _encode(rows: list[Row]) -> bytes:
    body = msgspec.msgpack.encode(rows)
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def _decode(data: bytes, path: str) -> list[Row]:
    if len(data) < _HEAD.size:
        raise CorruptData(path, len(data), "the file is too short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    refuse_other_format(path, data, _MAGIC)
    if magic != _MAGIC:
        raise CorruptData(path, 0, "these are no configurations")
    if crc32c(body) != crc:
        raise CorruptData(path, _HEAD.size, "the content does not match its checksum")
    try:
        rows = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, _HEAD.size, str(error)) from error
    if not rows or [row.revision for row in rows] != [*range(1, len(rows) + 1)]:
        raise CorruptData(path, _HEAD.size, "a revision is missing")
    return rows
