"""The giving end of a pull: a timeline as it is at one point, held while it is read.

Invariants: what a manifest says was durable when it was made, of one history; its files stay until
it is released, and a cut of the log, which could mix two histories, ends it. An evicted timeline is
read where it was offloaded to, and stays evicted. Neon RFC 035, pull_timeline and "Integration
with evicted timelines"; design §10.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from stelae.actors.safekeeper.timeline_store.eviction import TimelineEviction
from stelae.actors.safekeeper.timeline_store.files import TimelineFiles
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.errors import CopyOver, CorruptData, TabletNotReady
from stelae.core.records.timelines import TimelineSnapshot, WalFile
from stelae.core.rpc import Blob
from stelae.storage.files.wal_log import parse_wal_name


class HeldSnapshot:
    """One snapshot of a timeline. `take` first; `release` in the end."""

    def __init__(
        self, timeline: Timeline, files: TimelineFiles, eviction: TimelineEviction
    ) -> None:
        self._timeline = timeline
        self._files = files
        self._eviction = eviction
        self._snapshot: TimelineSnapshot | None = None
        self._fetched: tuple[str, memoryview] | None = None
        """The offloaded file that was read last."""

    @property
    def snapshot(self) -> TimelineSnapshot:
        assert self._snapshot is not None
        return self._snapshot

    async def take(self) -> TimelineSnapshot:
        """Make the manifest, and hold what it names. Raises CopyOver if the log is cut meanwhile,
        and CorruptData."""
        timeline = self._timeline
        async with timeline.changing():
            timeline.holds[self] = timeline.base_lsn + 1
            control = timeline.control
            acceptor = msgspec.structs.replace(timeline.acceptor, term_history=timeline.history)
            last, away, log = timeline.last, control.evicted, timeline.log
            found = [(file.name, file.end) for file in log.index.files if file.end] if log else []
        self._snapshot = TimelineSnapshot(
            control.tablet_id,
            acceptor,
            control.base_lsn,
            last,
            control.cut,
            tuple(offloaded.file for offloaded in away.files) if away is not None else (),
        )
        files = []
        for name, size_bytes in found:
            data = await self._read(WalFile(str(name), size_bytes, 0), 0, size_bytes)
            files.append(WalFile(str(name), size_bytes, await self._files.offload(crc32c, data)))
        if away is None:
            self._snapshot = msgspec.structs.replace(self._snapshot, files=tuple(files))
        return self._snapshot

    async def read(self, file: WalFile, offset: int, length: int) -> Blob:
        """A piece of one of its files; shorter at the end. Raises CopyOver, CorruptData."""
        if file not in self.snapshot.files or offset < 0:
            raise CopyOver(f"of {self._timeline.tablet_id}: it has no {file.name}")
        return await self._read(file, offset, min(length, file.size_bytes - offset))

    async def _read(self, file: WalFile, offset: int, length: int) -> Blob:
        timeline = self._timeline
        self._check()
        name = parse_wal_name(file.name)
        assert name is not None
        if timeline.log is not None:
            data = await timeline.log.read_piece(name, offset, length)
            self._check()
            if data is None or len(data) != length:
                raise CorruptData(file.name, offset, "is no longer what the manifest says")
            return data
        if self._fetched is None or self._fetched[0] != file.name:
            away = timeline.control.evicted
            offloaded = [each for each in away.files if each.file == file] if away else []
            if not offloaded:
                raise CopyOver(f"of {timeline.tablet_id}: {file.name} is on its way")
            self._fetched = (file.name, memoryview(await self._eviction.fetch(offloaded[0])))
        return self._fetched[1][offset : offset + length]

    def _check(self) -> None:
        """Raises CopyOver if the log is another one by now."""
        timeline = self._timeline
        try:
            timeline.check()
        except TabletNotReady as error:
            raise CopyOver(f"of {timeline.tablet_id}: {error}") from error
        if self not in timeline.holds or timeline.control.cut != self.snapshot.cut:
            raise CopyOver(f"of {timeline.tablet_id}, whose log was cut meanwhile")

    def release(self) -> None:
        """Let go; again is fine."""
        self._timeline.holds.pop(self, None)
        self._fetched = None
