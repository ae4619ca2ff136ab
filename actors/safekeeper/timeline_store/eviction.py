"""Eviction: the WAL of an idle timeline is offloaded, and comes back when it is needed.

Invariants: what is offloaded counts from one replacement of the control file on, and what is here
from another; the WAL lies whole in one of the two places at any time. The names of blobs are in the
control file before there are any, so that those which a crash leaves are known and deleted. While
its WAL is away, a timeline votes and changes its configuration as ever. Neon RFC 035, "Integration
with evicted timelines"; design §10.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from stelae.actors.safekeeper.timeline_store.host import TimelineHost
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.server.uncancellable import carry_through
from stelae.core.errors import InvalidArgument, StelaeError, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.records.timelines import WalFile
from stelae.core.rpc import Blob
from stelae.core.tasks import Tasks
from stelae.storage.files.timeline_control import (
    EvictedLog,
    OffloadedFile,
    blobs_forgotten,
    brought_back,
    evicted,
    offloading,
)
from stelae.storage.files.wal_log import WalName

logger = logging.getLogger(__name__)


class Offload(Protocol):
    """A place for immutable blobs, each under a name that is used once. Raises StelaeError."""

    async def put(self, name: str, data: Blob, crc: int) -> None:
        """Durable when it returns; again with the same content is fine. ``crc``: CRC-32C."""
        ...

    async def get(self, name: str) -> Blob:
        """All of it, unchecked. Raises CorruptData if it is not there."""
        ...

    async def delete(self, name: str) -> None:
        """Absent is fine."""
        ...


class EvictionHost(TimelineHost, Protocol):
    """The store whose timelines are evicted."""

    tasks: Tasks


@dataclass(frozen=True, slots=True)
class _Plan:
    """An eviction that has begun, and how the timeline was then."""

    log: TimelineLog
    uses: int
    base_lsn: int
    files: Sequence[tuple[WalName, int, str]]
    """Name, size, and name of the blob."""


class TimelineEviction:
    """Evicts the timelines of a store, and brings them back."""

    def __init__(self, store: EvictionHost, blobs: Offload | None) -> None:
        self._store = store
        self._files = store.files
        self._blobs = blobs

    @property
    def blobs(self) -> Offload:
        """Raises InvalidArgument if there is none."""
        if self._blobs is None:
            raise InvalidArgument(f"{self._store.name} has nothing to offload timelines to")
        return self._blobs

    # ---- away -------------------------------------------------------------------------------

    async def evict(self, timeline: Timeline) -> bool:
        """See `TimelineStore.evict`."""
        work = self._evict(timeline, self.blobs)
        return await carry_through(self._store.tasks, work, "eviction", timeline.fail)

    async def _evict(self, timeline: Timeline, blobs: Offload) -> bool:
        async with timeline.residence:
            await self._delete_stale(timeline.tablet_id)
            plan = await self._begin(timeline)
            if plan is None:
                return timeline.is_evicted
            offloaded = []
            for name, size_bytes, blob in plan.files:
                data = await plan.log.read_piece(name, 0, size_bytes)
                if data is None or len(data) != size_bytes:
                    return False  # it was cut or trimmed meanwhile
                crc = await self._files.offload(crc32c, data)
                await blobs.put(blob, data, crc)
                offloaded.append(OffloadedFile(WalFile(str(name), size_bytes, crc), blob))
            return await self._commit(timeline, plan, tuple(offloaded))

    async def _begin(self, timeline: Timeline) -> _Plan | None:
        async with timeline.changing():
            log, control = timeline.log, timeline.control
            if log is None or timeline.holds or not log.is_idle:
                return None
            uses = timeline.uses  # before the wait: what is written during it is not in `files`
            prefix = f"{self._store.safekeeper}/{control.tablet_id}/{control.number + 1}"
            files = [
                (file.name, file.end, f"{prefix}/{file.name}")
                for file in log.index.files
                if file.end
            ]
            await timeline.commit(offloading(control, tuple(blob for _, _, blob in files)))
            return _Plan(log, uses, control.base_lsn, files)

    async def _commit(
        self, timeline: Timeline, plan: _Plan, offloaded: tuple[OffloadedFile, ...]
    ) -> bool:
        async with timeline.changing():
            is_used = timeline.uses != plan.uses or timeline.holds or not plan.log.is_idle
            if is_used or timeline.log is not plan.log or timeline.base_lsn != plan.base_lsn:
                return False
            log = EvictedLog(timeline.history, timeline.last, offloaded)
            timeline.set_aside()
            try:
                await timeline.commit(evicted(timeline.control, log))
            except StelaeError:
                timeline.resume(plan.log)
                raise
            timeline.resume(None)
            await plan.log.close(TabletNotReady(timeline.tablet_id, "evicted"))
            await self._files.remove_wal(timeline.tablet_id, timeline.control.incarnation)
            return True

    # ---- and back ---------------------------------------------------------------------------

    async def bring_back(self, timeline: Timeline) -> None:
        """Make an evicted timeline resident; done already: nothing changes."""
        work = self._bring_back(timeline)
        await carry_through(self._store.tasks, work, "return of a timeline", timeline.fail)

    async def _bring_back(self, timeline: Timeline) -> None:
        async with timeline.residence:
            if timeline.log is not None:
                return
            timeline.check()
            away = timeline.control.evicted
            assert away is not None
            incarnation = self._store.next_incarnation(timeline.tablet_id)
            try:
                for offloaded in away.files:
                    data = await self.fetch(offloaded)
                    await self._files.write_wal_file(
                        timeline.tablet_id, incarnation, offloaded.file, data
                    )
                await self._files.name_wal_files(timeline.tablet_id, incarnation)
                await self._return(timeline, away, incarnation)
            except StelaeError:
                await self._files.remove_wal(timeline.tablet_id, incarnation)
                raise
            with self._later(timeline.tablet_id):
                await self._delete_stale(timeline.tablet_id)

    async def _return(self, timeline: Timeline, away: EvictedLog, incarnation: int) -> None:
        async with timeline.changing():
            assert timeline.control.evicted is away
            after = brought_back(timeline.control, incarnation)
            log = self._store.make_log(after)
            await log.load(after.cut, timeline.acceptor.commit_lsn)
            await timeline.commit(after)
            timeline.resume(log)

    async def fetch(self, offloaded: OffloadedFile) -> Blob:
        """The content of an offloaded file, checked. Raises CorruptData."""
        data = await self.blobs.get(offloaded.blob)
        await self._files.check_content(f"blob {offloaded.blob}", offloaded.file, data)
        return data

    # ---- what is left -----------------------------------------------------------------------

    async def delete_stale(self, tablet_id: TabletId) -> None:
        """Delete blobs that do not count; without an `Offload` they stay noted."""
        if self._blobs is not None and self._store.control(tablet_id).stale_blobs:
            work = self._delete_stale_alone(tablet_id)
            await self._store.carried(tablet_id, work, "deletion of blobs")

    async def try_delete_stale(self, tablet_id: TabletId) -> None:
        """The same at the end of a change that has happened already."""
        with self._later(tablet_id):
            await self.delete_stale(tablet_id)

    @contextmanager
    def _later(self, tablet_id: TabletId) -> Iterator[None]:
        """It is known which blobs they are: another time will do."""
        try:
            yield
        except StelaeError as error:
            logger.warning("blobs of timeline %s are not deleted yet: %s", tablet_id, error)

    async def _delete_stale_alone(self, tablet_id: TabletId) -> None:
        async with self._store.residence(tablet_id):
            await self._delete_stale(tablet_id)

    async def _delete_stale(self, tablet_id: TabletId) -> None:
        """While nothing of the timeline is being offloaded."""
        stale = self._store.control(tablet_id).stale_blobs
        for blob in stale:
            await self.blobs.delete(blob)
        if stale:
            async with self._store.lock(tablet_id):
                control = self._store.control(tablet_id)
                await self._store.replace(blobs_forgotten(control, stale))
