"""What lies in the quarantine of one tserver: operators list and purge it, and old files go.

A replica that was deleted leaves its files there (`stelae.actors.tserver.tablet_store.store`).
Since when is noted in a file beside them, by the first look after the deletion: so they are there
for at least as long as they are said to be, by the server's wall clock. What is older than
``settings.quarantine_keep_s`` is removed, in the background. Design §8, §12.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from stelae.actors.tserver.tablet_store.store import Quarantined, TabletStore
from stelae.core.config.settings import Settings
from stelae.core.errors import NoSpace, StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import (
    LIST_QUARANTINE,
    PURGE_QUARANTINE,
    ListQuarantine,
    PurgeQuarantine,
    QuarantineEntry,
    QuarantineList,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime

SWEEP_S = 600.0
"""Between two looks for what is too old."""
SINCE = "since"
"""Name of the file that says when it was first seen."""


class Quarantine:
    """Of one server. `run` it beside the server."""

    def __init__(self, runtime: Runtime, settings: Settings, store: TabletStore) -> None:
        self._runtime = runtime
        self._keep_s = settings.quarantine_keep_s
        self._store = store

    def handlers(self) -> Handlers:
        return {LIST_QUARANTINE: self._on_list, PURGE_QUARANTINE: self._on_purge}

    async def run(self) -> None:
        """Remove what is too old, for ever. A disk that fails is noticed elsewhere."""
        while True:
            await self._runtime.clock.sleep(SWEEP_S)
            try:
                found = await self.entries()
                old = [e for e in found if self._keep_s and e.age_s >= self._keep_s]
                for entry in old:
                    await self._store.quarantine_purge(entry.tablet_id, entry.number)
                    self._runtime.metrics.count("quarantines_expired")
                self._runtime.metrics.gauge(
                    "quarantine_bytes", sum(e.size_bytes for e in found if e not in old)
                )
            except (StelaeError, OSError):
                self._runtime.metrics.count("quarantine_sweeps_failed")

    async def entries(self, tablet_id: TabletId | None = None) -> list[QuarantineEntry]:
        """What lies there, with its age. Raises OSError."""
        found = []
        for each in await self._store.quarantine_list(tablet_id):
            age_s = await self._age_s(each)
            found.append(
                QuarantineEntry(
                    each.tablet_id, each.number, each.table, each.folder, each.size_bytes, age_s
                )
            )
        return found

    async def _age_s(self, entry: Quarantined) -> float:
        """Since the first look; a deletion that is not committed has no age yet."""
        files, now = self._store.files, self._runtime.clock.now()
        path = files.quarantine_path(entry.tablet_id, entry.number, SINCE)
        async with self._store.lock(entry.tablet_id):
            since = decode_since(await files.read(path))
            if since is not None:
                return max(0.0, now - since)
            superblock = self._store.superblock(entry.tablet_id)
            if superblock is not None and entry.number <= superblock.generation:
                try:
                    await files.replace(path, encode_since(now))
                except NoSpace:
                    self._runtime.metrics.count("quarantine_ages_not_noted")
        return 0.0

    async def _on_list(self, call: Call[ListQuarantine]) -> Reply[QuarantineList]:
        return Reply(QuarantineList(tuple(await self.entries(call.body.tablet_id or None))))

    async def _on_purge(self, call: Call[PurgeQuarantine]) -> Reply[QuarantineList]:
        order = call.body
        purged = []
        for entry in await self.entries(order.tablet_id or None):
            if entry.age_s >= order.older_than_s:
                await self._store.quarantine_purge(entry.tablet_id, entry.number)
                purged.append(entry)
        return Reply(QuarantineList(tuple(purged)))


def encode_since(now: float) -> bytes:
    """The content of the file: a wall-clock time, and a checksum of it."""
    said = msgspec.msgpack.encode(now)
    return crc32c(said).to_bytes(4, "big") + said


def decode_since(data: bytes | None) -> float | None:
    """None if it is missing or damaged: its age then begins anew."""
    if data is None or len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    return msgspec.msgpack.decode(data[4:], type=float)
