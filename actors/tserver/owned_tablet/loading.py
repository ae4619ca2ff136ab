"""A tablet that is served while rows of it are still with backups, since it was recovered.

Reads and writes look for rows in memory as ever. Where some are absent, nothing was done: they are
fetched, and all is looked at again, as if the call had only come now.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from stelae.actors.tserver.owned_tablet.inheriting import Inheriting
from stelae.actors.tserver.row_loading.loader import RemoteRows
from stelae.actors.tserver.row_loading.missing_rows import MissingRows
from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.actors.tserver.tablet_log.interface import FoundSegment, TabletLog
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.errors import NoSpace, TabletNotHere
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletProgress
from stelae.core.runtime import ObjectHandle
from stelae.core.tasks import Tasks
from stelae.storage.keys.merge import Merged
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.remote import Piece, RemoteRun, RemoteSegment, RowsAbsent
from stelae.storage.segments.shares import picks_of

WHAT_HELPS = (
    "rows are refused until the cleaner has freed some, deletes are taken; delete rows, free their "
    "disks, or add backups (`stelae check` shows how full each one is)"
)


class LoadingTablet(TabletReads):
    """What `Tablet` does about rows that are not in its memory."""

    _remote: RemoteRows
    _inheriting: Inheriting
    _missing: MissingRows
    _objects: dict[int, ObjectHandle]
    _slots: dict[int, int]
    _log: TabletLog
    _intake: Intake

    tasks: Tasks
    progress: TabletProgress
    keeps_tombstones: bool
    may_serve: Callable[[TabletId], object]
    """The tablet that is served from here. Raises RetryLater: none is at this moment."""

    @abstractmethod
    def _roll(self) -> int:
        """Begin another head."""

    @property
    def is_loading(self) -> bool:
        """Whether rows are elsewhere yet, or not the tablet's own: nothing is cleaned, and nothing
        changes hands."""
        return self._remote.is_loading or self._inheriting.is_busy

    def _begin_loading(self) -> None:
        """It is served: have what is elsewhere brought, and made its own."""
        name = self.tablet_id[:8]
        if self.is_loading:
            self.tasks.spawn(self._remote.run(), f"{name}/loading")
            self.tasks.spawn(self._inheriting.keep_log(), f"{name}/keep log")
            self.tasks.spawn(self._missing.run(), f"{name}/missing")
        if self._inheriting.is_busy:
            self.tasks.spawn(self._inheriting.run(), f"{name}/inheriting")

    def load_gently(self, bytes_per_s: float) -> None:
        """Bring rows back at most so fast that nobody waits for; 0: as is set."""
        self._remote.load_bytes_per_s = bytes_per_s or self._remote.load_bytes_per_s

    @property
    def lacks_memory(self) -> bool:
        """Whether rows stay elsewhere because they do not fit into this server's memory."""
        return self.is_loading and self._remote.lacks_memory and not self._remote.is_closed

    async def _take_over(self, found: Sequence[FoundSegment], merged: Merged) -> None:
        """Have all segments that memory has adopted in the log; their rows may come later."""
        remote = {segment.slot: segment for segment in self._memory.remote}
        for slot, each in enumerate(found):
            if each.log:
                picks = picks_of(each.rows.summary, merged.live[slot], self.share)
                self._inheriting.add(each.segment_id, picks)
                if slot in remote:
                    remote[slot].remote.picks = picks
            if slot in remote:
                await self._log.adopt(each, self._remote.add(remote[slot], each))
                continue
            if each.handle is not None:
                self._objects[each.segment_id] = each.handle
            if each.image is None:
                self._slots[each.segment_id] = slot
            await self._log.adopt(each)

    async def bring(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]:
        """As `RemoteRows.bring`; once it returns the tablet may still be served from here."""
        held = await self._remote.bring(absent, timeout_s)
        if self.may_serve(self.tablet_id) not in (None, self):
            raise TabletNotHere(self.tablet_id, "this server in that term")
        return held

    async def remote_columns(
        self, run: RemoteRun, column_ids: tuple[int, ...], timeout_s: float
    ) -> pa.RecordBatch:
        """As `RemoteRows.columns`."""
        return await self._remote.columns(run, column_ids, timeout_s)

    def holding_loads(self) -> AbstractContextManager[None]:
        """As `Intake.opening`."""
        return self._intake.opening()

    def arrived(
        self,
        segment: RemoteSegment,
        whole: Piece,
        handle: ObjectHandle | None,
        damaged: Sequence[ServerUuid],
    ) -> None:
        """The rows of a segment are here: it is an ordinary sealed one from now on."""
        assert whole.image is not None, "all rows of a segment come as its image"
        self._memory.arrive(segment, whole)
        if handle is not None:
            self._objects[segment.segment_id] = handle
        self._log.arrived(segment.segment_id, whole.image, damaged)

    def no_room(self) -> NoSpace | None:
        """Why no more rows are taken: what is left of backups' disks is for the cleaner."""
        medium = self._log.short_medium
        return NoSpace("each of too many backups", medium, WHAT_HELPS) if medium else None

    # ---- what cleaning asks for ---------------------------------------------------------------

    def may_clean(self) -> bool:
        """Whether it is served, and all of its rows are in memory: until then, what looks dead may
        be what is yet to be fetched."""
        return self.progress is TabletProgress.SERVING and not self.is_loading

    def may_compact(self) -> bool:
        """Whether dead rows may be dropped from its memory: also while rows are elsewhere, which
        can last for as long as memory is full of dead ones."""
        return self.progress is TabletProgress.SERVING

    def elsewhere(self) -> frozenset[int]:
        """Segments whose rows are not here yet, or not in its own log."""
        if not self.is_loading:
            return frozenset()
        remote = [each.segment_id for each in self._memory.remote]
        return self._inheriting.segments.union(remote)

    @property
    def memory(self) -> TabletMemory:
        return self._memory

    @property
    def log(self) -> TabletLog:
        return self._log

    @property
    def live_bytes(self) -> int:
        """Of its memory: what cleaning cannot free."""
        return self._memory.live_bytes

    @property
    def head_memory_bytes(self) -> int:
        return self._memory.head_memory_bytes

    def keep_object(self, segment_id: int, handle: ObjectHandle | None) -> None:
        """Of a segment's rows in shared memory; None: they are not there any more."""
        if handle is None:
            self._objects.pop(segment_id, None)
        else:
            self._objects[segment_id] = handle

    def roll(self) -> bool:
        """Begin another head, unless what waits for the one before has not begun to go out."""
        return self.may_compact() and self._roll_now()

    def _roll_now(self) -> bool:
        if self.progress is not TabletProgress.SERVING or self._log.waits_for_roll:
            return False
        self._roll()
        return True

    def keep_all(self, *, keeps: bool) -> None:
        """Forget no tombstone while that is so."""
        self.keeps_tombstones = keeps
