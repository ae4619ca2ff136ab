"""The lowest term that a backup accepts for each log, promised durably to the masters.

A promise outlives the process: it is in the ``fences`` file before it is answered, and only rises.
A write of a higher term raises the fence too, in memory; across a restart the terms in the
replicas' records do the same. That it is lost if those replicas are freed and the backup then
restarts does no harm: who owns the higher term was let in by masters that had fenced enough
backups first, so an older owner gets no write acknowledged by all of its replicas any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, StaleTerm
from stelae.core.ids import TabletId
from stelae.core.runtime import Disk

FENCES_FILE = "fences"
_MAGIC = b"STELFNC1"
_HEAD_BYTES = len(_MAGIC) + 4


class Fences:
    """Terms by log. `check` and `observe` are for every write; `promise` for the masters."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._terms: dict[TabletId, int] = {}
        self._promised: dict[TabletId, int] = {}
        self._durable: dict[TabletId, int] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Raises `CorruptData` if there is a file and it is damaged."""
        try:
            data = await self._disk.read(FENCES_FILE)
        except FileNotFoundError:
            return
        body = data[_HEAD_BYTES:]
        crc = int.from_bytes(data[len(_MAGIC) : _HEAD_BYTES], "little")
        if data[: len(_MAGIC)] != _MAGIC or crc32c(body) != crc:
            raise CorruptData(f"file {FENCES_FILE}", 0, "bad checksum")
        self._promised = msgspec.msgpack.decode(body, type=dict[TabletId, int])
        self._durable = dict(self._promised)
        self._terms = dict(self._promised)

    def term(self, log: TabletId) -> int:
        """Lower terms are refused."""
        return self._terms.get(log, 0)

    def check(self, log: TabletId, term: int) -> None:
        """Raises `StaleTerm` if ``term`` is fenced off; its text begins with "term"."""
        fence = self._terms.get(log, 0)
        if term < fence:
            raise StaleTerm(f"term of tablet {log}", term, fence)

    def observe(self, log: TabletId, term: int) -> None:
        """A write of ``term`` was accepted: refuse lower ones from now on."""
        if term > self._terms.get(log, 0):
            self._terms[log] = term

    async def promise(self, logs: Iterable[tuple[TabletId, int]]) -> None:
        """Raise fences, at once in memory, and durably before the return."""
        wanted = dict(logs)
        for log, term in wanted.items():
            self.observe(log, term)
            if term > self._promised.get(log, 0):
                self._promised[log] = term
        async with self._writing:
            if all(self._durable.get(log, 0) >= term for log, term in wanted.items()):
                return
            promised = dict(sorted(self._promised.items()))
            body = msgspec.msgpack.encode(promised)
            head = _MAGIC + crc32c(body).to_bytes(4, "little")
            await self._disk.replace(FENCES_FILE, head + body)
            self._durable = promised

    def forget(self, log: TabletId) -> None:
        """The tablet is deleted; its id is never used again. The file follows when next written."""
        for terms in (self._terms, self._promised, self._durable):
            terms.pop(log, None)
