"""Blobs that safekeepers offload to a backup: files of timelines that nobody has used for long.

Each lies in a folder of its own, ``blobs/<tablet>/<safekeeper>-<number>-<file>/``, written aside
and moved into place, so that what is there is whole; its checksum lies before it, and is checked at
each read. Invariants: durable, then answered; a name is used once. Neon RFC 035, "Integration with
evicted timelines"; design §10.
"""

from __future__ import annotations

import asyncio
import errno
import re
import struct
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from crc32c import crc32c

from stelae.core.errors import CorruptData, InvalidArgument, NoSpace, TooLarge
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import (
    DELETE_BLOBS,
    GET_BLOB,
    LIST_BLOBS,
    LIST_MAX,
    PUT_BLOB,
    BlobFound,
    BlobNames,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
)
from stelae.core.rpc import EMPTY, Blob, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime

BLOBS = "blobs"
ARRIVING = "blobs-arriving"
CONTENT = "content"
BLOB_BYTES_MAX = 100 << 20
PUTS_MAX = 4
_HEAD = struct.Struct("<8sIQ")  # magic, CRC-32C of the rest, its length
_MAGIC = b"STELBLOB"
_NAME = re.compile(r"([0-9]{1,18})/([A-Za-z0-9_]{1,64})/([0-9]{1,18})/([A-Za-z0-9_.-]{1,100})")
_FOLDER = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([A-Za-z0-9_.-]{1,100})")


class BackupBlobs:
    """The blobs of one backup. `load` first."""

    def __init__(self, runtime: Runtime, server: str) -> None:
        """``server`` is how errors call this backup."""
        self._runtime = runtime
        self._server = server
        self._names: dict[str, None] = {}
        self._arrived = 0
        self._lock = asyncio.Lock()
        self._puts = asyncio.Semaphore(PUTS_MAX)
        self.arrival: Callable[[], AbstractContextManager[None]] = nullcontext
        """While a blob comes in. Raises RetryLater: none may."""

    async def load(self) -> None:
        """Find what is there, and remove what did not arrive whole. Raises OSError."""
        disk = self._runtime.disk
        await disk.remove_folder(ARRIVING)
        for folder in await disk.folders(BLOBS):
            for name in await disk.folders(f"{BLOBS}/{folder}"):
                found = _FOLDER.fullmatch(name)
                if found is not None:
                    self._names[f"{found[1]}/{folder}/{found[2]}/{found[3]}"] = None

    def handlers(self) -> Handlers:
        return {
            PUT_BLOB: self._on_put,
            GET_BLOB: self._on_get,
            DELETE_BLOBS: self._on_delete,
            LIST_BLOBS: self._on_list,
        }

    @property
    def tablets(self) -> list[TabletId]:
        """Of whose timelines there is something."""
        return sorted({TabletId(name.split("/")[1]) for name in self._names})

    # ---- calls ------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._names)

    async def _on_put(self, call: Call[PutBlob]) -> Reply[Empty]:
        with self.arrival():
            return await self._put(call)

    async def _put(self, call: Call[PutBlob]) -> Reply[Empty]:
        name = call.body.name
        folder = _folder_of(name)
        if len(call.blobs) != 1:
            raise InvalidArgument(f"blob {name}: {len(call.blobs)} pieces")
        data = call.blobs[0]
        if data.nbytes > BLOB_BYTES_MAX:
            raise TooLarge(f"blob {name}", data.nbytes, BLOB_BYTES_MAX)
        async with self._puts:
            if await self._runtime.offload(crc32c, data) != call.body.crc:
                raise InvalidArgument(f"blob {name}: its bytes are not those of its checksum")
            self._arrived += 1
            aside = f"{ARRIVING}/{self._arrived}"
            head = _HEAD.pack(_MAGIC, call.body.crc, data.nbytes)
            content = await self._runtime.offload(_joined, head, data)
            await self._write(aside, content)
        async with self._lock:
            if name not in self._names:
                await self._runtime.disk.move(aside, folder)
                self._names[name] = None
                return EMPTY
        await self._runtime.disk.remove_folder(aside)
        if memoryview(await self._read(name)).tobytes() != bytes(data):
            raise InvalidArgument(f"blob {name} is here already, with another content")
        return EMPTY

    async def _write(self, folder: str, content: Blob) -> None:
        try:
            await self._runtime.disk.write(f"{folder}/{CONTENT}", content)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            await self._runtime.disk.remove_folder(folder)
            raise NoSpace(self._server, "disk") from error

    async def _on_get(self, call: Call[GetBlob]) -> Reply[BlobFound]:
        if call.body.name not in self._names:
            return Reply(BlobFound(False))
        return Reply(BlobFound(True), [await self._read(call.body.name)])

    async def _read(self, name: str) -> Blob:
        """Raises CorruptData."""
        where = f"{_folder_of(name)}/{CONTENT}"
        try:
            data = memoryview(await self._runtime.disk.read(where))
        except OSError as error:
            raise CorruptData(f"{self._server}, {where}", 0, f"cannot be read: {error}") from error
        body = data[_HEAD.size :]
        if data.nbytes >= _HEAD.size:
            magic, crc, length = _HEAD.unpack_from(data)
            is_whole = magic == _MAGIC and length == body.nbytes
            if is_whole and await self._runtime.offload(crc32c, body) == crc:
                return body
        raise CorruptData(f"{self._server}, {where}", 0, "checksum does not match")

    async def _on_delete(self, call: Call[DeleteBlobs]) -> Reply[Empty]:
        for name in call.body.names:
            folder = _folder_of(name)
            async with self._lock:
                self._names.pop(name, None)
                await self._runtime.disk.remove_folder(folder)
        return EMPTY

    async def _on_list(self, call: Call[ListBlobs]) -> Reply[BlobNames]:
        prefix = f"{call.body.safekeeper_id}/"
        limit = min(max(1, call.body.limit), LIST_MAX)
        names = sorted(name for name in self._names if name.startswith(prefix))
        start = bisect_right(names, call.body.after)
        return Reply(BlobNames(tuple(names[start : start + limit]), start + limit < len(names)))

    async def drop(self, tablet_id: TabletId) -> None:
        """Forget all of a timeline whose tablet was deleted."""
        async with self._lock:
            names = [name for name in self._names if name.split("/")[1] == tablet_id]
            for name in names:
                del self._names[name]
            if names:
                await self._runtime.disk.remove_folder(f"{BLOBS}/{tablet_id}")


def _folder_of(name: str) -> str:
    """Raises InvalidArgument."""
    found = _NAME.fullmatch(name)
    if found is None or ".." in name or found[4].startswith("."):
        raise InvalidArgument(f"{name!r} is no name of a blob")
    return f"{BLOBS}/{found[2]}/{found[1]}-{found[3]}-{found[4]}"


def _joined(head: bytes, data: memoryview) -> bytes:
    return head + bytes(data)
