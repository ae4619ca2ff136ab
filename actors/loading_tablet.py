"""A tablet that is served while rows of it are still with backups, since it was recovered.

Reads and writes look for rows in memory as ever. Where some are absent, nothing was done: they are
fetched, and all is looked at again, as if the call had only come now.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from stelae.actors.remote_rows import RemoteRows
from stelae.actors.tablet_log import TabletLog
from stelae.actors.tablet_reads import TabletReads
from stelae.core.errors import TabletNotHere, TabletNotReady
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages import TabletProgress
from stelae.core.runtime import ObjectHandle
from stelae.storage.remote import Piece, RemoteSegment, RowsAbsent
from stelae.storage.tablet import TabletMemory


class LoadingTablet(TabletReads):
    """What `Tablet` does about rows that are not in its memory."""

    _remote: RemoteRows
    _objects: dict[int, ObjectHandle]
    _log: TabletLog

    progress: TabletProgress
    keeps_tombstones: bool
    may_serve: Callable[[TabletId], object]
    """The tablet that is served from here. Raises RetryLater: none is at this moment."""

    @abstractmethod
    def _roll(self) -> int:
        """Begin another head."""

    @property
    def is_loading(self) -> bool:
        """Whether rows are elsewhere yet: nothing is cleaned, and nothing changes hands."""
        return self._remote.is_loading

    def _check_loaded(self) -> None:
        """Raises TabletNotReady: rows are elsewhere yet."""
        if self.is_loading:
            raise TabletNotReady(self.tablet_id, "still loading rows, since it was recovered")

    async def bring(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]:
        """As `RemoteRows.bring`; once it returns the tablet may still be served from here."""
        held = await self._remote.bring(absent, timeout_s)
        if self.may_serve(self.tablet_id) not in (None, self):
            raise TabletNotHere(self.tablet_id, "this server in that term")
        return held

    async def bring_to_write(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]:
        """As `bring`, for a write that has put no entries into indexes.

        Raises TabletNotReady: an index was made meanwhile, and entries go before the row.
        """
        held = await self.bring(absent, timeout_s)
        if self._schemas.present.indexes:
            raise TabletNotReady(self.tablet_id, "with an index since just now")
        return held

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

    # ---- what cleaning asks for ---------------------------------------------------------------

    def may_clean(self) -> bool:
        """Whether it is served, and all of its rows are in memory: until then, what looks dead may
        be what is yet to be fetched."""
        return self.progress is TabletProgress.SERVING and not self.is_loading

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
        if not self.may_clean() or self._log.waits_for_roll:
            return False
        self._roll()
        return True

    def keep_all(self, *, keeps: bool) -> None:
        """Forget no tombstone while that is so."""
        self.keeps_tombstones = keeps
