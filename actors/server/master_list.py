"""To which masters a server heartbeats: those it was started with, and then those that lead.

The leader names all masters in each answer; the list is kept on disk, so that a server which starts
again finds masters that were added while it ran. Invariant: the list is never empty, and only a
leader's word takes a master off it; one that does not lead may name others, up to a bound.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData
from stelae.core.ids import Address
from stelae.core.records.records import MasterMember
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.storage.files.sealed import refuse_other_format

MASTER_LIST_FILE = "master-list"
KNOWN_MAX = 32
_HEAD = struct.Struct("<8sI")  # magic, CRC-32C of the rest
_MAGIC = b"STELMLS1"
_DECODER = msgspec.msgpack.Decoder(list[Address])

Beat = Callable[[Address], Coroutine[Any, Any, None]]


class MasterList:
    """The masters of one server, with a task for each that heartbeats to it."""

    def __init__(self, runtime: Runtime, tasks: Tasks, given: Sequence[Address]) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._addresses = list(given)
        self._beat: Beat | None = None
        self._beats: dict[Address, asyncio.Task[None]] = {}
        self._saving = asyncio.Lock()
        self._is_stored = True

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._addresses)

    async def begin(self, beat: Beat) -> None:
        """Start ``beat`` for each master: those on disk, and those that the server was given.

        Raises CorruptData.
        """
        try:
            stored = _decode(await self._runtime.disk.read(MASTER_LIST_FILE))
        except FileNotFoundError:
            stored = []
        self._addresses = list(dict.fromkeys([*stored, *self._addresses]))
        self._beat = beat
        self._follow()

    async def update(self, masters: Sequence[MasterMember]) -> bool:
        """The leader says that these are all masters; true if they are others than before."""
        named = [member.address for member in masters]
        if not named or not all(named):
            return False  # a leader that does not know yet where all of them listen says so later
        is_new = named != self._addresses
        if is_new:
            self._addresses = named
            self._follow()
        if is_new or not self._is_stored:
            await self._store()
        return is_new

    def hear_of(self, masters: Sequence[MasterMember]) -> bool:
        """A master that does not lead knows of these; true if some are new. A leader has the say.

        So a server finds the masters again that all were replaced while it was cut off.
        """
        new = [m.address for m in masters if m.address and m.address not in self._addresses]
        if not new or len(self._addresses) + len(new) > KNOWN_MAX:
            return False
        self._addresses += new
        self._follow()
        return True

    async def _store(self) -> None:
        """Without room on the disk the list holds in memory, and is stored with a later beat."""
        try:
            async with self._saving:
                data = _encode(self._addresses)
                await self._runtime.disk.replace(MASTER_LIST_FILE, data)
        except OSError:
            self._is_stored = False
            self._runtime.metrics.count("master_list_not_stored")
        else:
            self._is_stored = True

    def _follow(self) -> None:
        assert self._beat is not None, "begin first"
        for address in self._addresses:
            if address not in self._beats:
                task = self._tasks.spawn(self._beat(address), f"heartbeat {address}")
                self._beats[address] = task
        for address in [known for known in self._beats if known not in self._addresses]:
            del self._beats[address]  # its task sees that, and ends

    def has(self, address: Address) -> bool:
        """Whether that is still a master: the task that beats for it goes on."""
        return address in self._beats


def _encode(addresses: Sequence[Address]) -> bytes:
    body = msgspec.msgpack.encode(list(addresses))
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def _decode(data: bytes) -> list[Address]:
    if len(data) < _HEAD.size:
        raise CorruptData(MASTER_LIST_FILE, len(data), "the file is too short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    refuse_other_format(MASTER_LIST_FILE, data, _MAGIC)
    if magic != _MAGIC or crc32c(body) != crc:
        raise CorruptData(MASTER_LIST_FILE, 0, "the content does not match its checksum")
    return _DECODER.decode(body)
