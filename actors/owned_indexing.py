"""Writes to a table with indexes, at a tablet that has one owner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from stelae.actors.indexed_tablet import IndexedTablet
from stelae.actors.tablet_log import TabletLog
from stelae.core.errors import Rejected, StelaeError
from stelae.core.ids import RequestId, TabletId
from stelae.core.messages import TabletProgress, Write, WriteMany, WriteReply
from stelae.core.rpc import Call
from stelae.storage.client_results import Recorded
from stelae.storage.outcomes import answer


class OwnedIndexing(IndexedTablet):
    """The part of `Tablet` that is about indexes."""

    term: int
    progress: TabletProgress
    may_serve: Callable[[TabletId], object] = staticmethod(lambda tablet_id: None)
    """Raises RetryLater: the server may not answer for its tablets at this moment."""
    _log: TabletLog

    @abstractmethod
    def _known(self, request: RequestId) -> Recorded | None: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    def _check_loaded(self) -> None:
        """Raises TabletNotReady: rows that index entries are made from are elsewhere yet."""

    @abstractmethod
    def _check_room(self) -> None: ...

    @abstractmethod
    def _execute(
        self,
        request: Write,
        rows: Any,
        columns: Sequence[str],
        index: int,
        blobs: Sequence[memoryview],
    ) -> bytes: ...

    @abstractmethod
    def _write_together(self, many: WriteMany) -> tuple[bytes, ...] | None: ...

    @property
    def index_term(self) -> int:
        return self.term if self.progress is TabletProgress.SERVING else 0

    def index_committed(self) -> int:
        return self._log.committed_index

    async def _reach_fill_point(self, timeout_s: float) -> None:
        """A write looks at the indexes in the turn in which it is carried out."""
        del timeout_s
        self.may_serve(self.tablet_id)
        self._check_loaded()

    async def _write_indexed(self, call: Call[Write], rows: Any) -> WriteReply:
        """As `Tablet.write`, once the entries of its rows are in."""
        request, clock = call.body, self._runtime.clock
        deadline = clock.monotonic() + call.timeout_s
        rows, columns = self._shown(request, rows)
        indexes = self._index_writes()
        ticket = await indexes.prepare(request.op, rows, columns, call.timeout_s)
        next_version = self._memory.next_version
        try:
            known = self._known(request.request)  # another copy may have come first
            if known is not None:
                outcome, index = known.result.outcome, known.index
            else:
                self.may_serve(self.tablet_id)
                self._check_open()
                self._check_room()
                indexes.check(ticket)
                index = self._memory.last_index + 1
                outcome = self._execute(request, rows, columns, index, call.blobs)
        finally:
            is_written = self._memory.next_version > next_version
            indexes.settle(ticket, is_written=is_written)
        await self._committed(index, deadline - clock.monotonic())
        indexes.wake()
        return answer(outcome)

    async def _write_many_indexed(self, call: Call[WriteMany]) -> tuple[bytes, ...] | None:
        """As `Tablet.write_many`, once the entries of all rows are in. None: nothing was done, and
        what is the matter shows one by one."""
        many, clock = call.body, self._runtime.clock
        deadline = clock.monotonic() + call.timeout_s
        if many.schema_version != self._schemas.present.version:
            return None
        indexes = self._index_writes()
        try:
            ticket = await indexes.prepare(many.op, many.rows, many.columns, call.timeout_s)
        except Rejected:
            return None
        outcomes: tuple[bytes, ...] | None = None
        try:
            self.may_serve(self.tablet_id)
            indexes.check(ticket)
            outcomes = self._write_together(many)
        except StelaeError:
            return None
        finally:
            indexes.settle(ticket, is_written=outcomes is not None)
        if outcomes is not None:
            await self._committed(self._memory.last_index, deadline - clock.monotonic())
            indexes.wake()
        return outcomes
