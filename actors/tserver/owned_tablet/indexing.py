"""Writes to a table with indexes, at a tablet that has one owner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from stelae.actors.tserver.indexes.indexed_tablet import IndexedTablet
from stelae.actors.tserver.tablet_log.interface import TabletLog
from stelae.core.errors import Rejected, StelaeError
from stelae.core.ids import RequestId, TabletId
from stelae.core.messages.rows import Write, WriteMany, WriteOp, WriteReply
from stelae.core.messages.servers import TabletProgress
from stelae.core.rpc import Call
from stelae.storage.entries.client_results import Recorded
from stelae.storage.entries.outcomes import answer
from stelae.storage.segments.remote import Piece, RowsAbsent


class Begun(NamedTuple):
    """Calls that were carried out, and count once their log does."""

    outcomes: tuple[bytes, ...]
    last_index: int
    wait: Callable[[int, float], Awaitable[None]]

    async def counted(self, timeout_s: float) -> tuple[bytes, ...]:
        """What each came to. Raises OutcomeUnknown."""
        await self.wait(self.last_index, timeout_s)
        return self.outcomes


class OwnedIndexing(IndexedTablet):
    """The part of `Tablet` that is about indexes."""

    term: int
    progress: TabletProgress
    may_serve: Callable[[TabletId], object] = staticmethod(lambda tablet_id: None)
    """Raises RetryLater: the server may not answer for its tablets at this moment."""
    _log: TabletLog
    _problem: str
    has_lost: bool
    """What was acknowledged by a former owner, by an accepted loss or a head that may be short."""

    @abstractmethod
    def _known(self, request: RequestId) -> Recorded | None: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @property
    @abstractmethod
    def is_loading(self) -> bool: ...

    @abstractmethod
    async def bring(self, absent: RowsAbsent, timeout_s: float) -> list[Piece]: ...

    @abstractmethod
    def _check_room(self) -> None: ...

    @abstractmethod
    def check_share(self, op: WriteOp, rows: Any, columns: Sequence[str]) -> None: ...

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

    async def _tell_loss(self) -> None:
        """Before it is handed over: from then on rows are seen that may have entries nowhere."""
        if self.has_lost and self._schemas.present.indexes:
            self._problem = "its table's indexlets are to hear that something was lost"
            await self._index_writes().tell_loss(self.term)
            self._problem = ""

    async def _reach_fill_point(self, timeout_s: float) -> None:
        """A write looks at the indexes in the turn in which it is carried out."""
        del timeout_s
        self.may_serve(self.tablet_id)

    async def _old_rows(self, look: Callable[[], None], deadline: float) -> list[Piece]:
        """Have the rows here that a call is to replace: their entries are taken out after it. They
        are while what is returned is held; a key's row is only ever replaced by one in memory.

        ``look`` raises RowsAbsent. It was called in the turn in which this returns: what is put in
        next is by the indexes of now, whatever they were before the wait.
        """
        held: list[Piece] = []
        while self.is_loading:
            try:
                look()
                break
            except RowsAbsent as absent:
                held = await self.bring(absent, deadline - self._runtime.clock.monotonic())
        return held

    async def _write_indexed(self, call: Call[Write], rows: Any, deadline: float) -> WriteReply:
        """As `Tablet.write`, once the entries of its rows are in."""
        with self._as_a_copy((call.body.request,), call.timeout_s):
            return await self._write_with_entries(call, rows, deadline)

    async def _write_with_entries(
        self, call: Call[Write], rows: Any, deadline: float
    ) -> WriteReply:
        request, clock = call.body, self._runtime.clock
        # Before anything is put in: what is taken out again would win over the right tablet's.
        self.check_share(request.op, *self._shown(request, rows))

        def look() -> None:
            self._index_writes().check_here(request.op, *self._shown(request, rows))

        held = await self._old_rows(look, deadline)
        shown, columns = self._shown(request, rows)
        indexes = self._index_writes()
        left_s = deadline - clock.monotonic()
        ticket = await indexes.prepare(request.op, shown, columns, left_s)
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
                outcome = self._execute(request, shown, columns, index, call.blobs)
        finally:
            is_written = self._memory.next_version > next_version
            indexes.settle(ticket, is_written=is_written)
            held.clear()
        await self._committed(index, deadline - clock.monotonic())
        indexes.wake()
        return answer(outcome)

    def begin_many(self, many: WriteMany) -> Begun | None:
        """As `Tablet.write_many`, as far as it goes in this turn. None: nothing was done, as the
        entries of rows come first, or one by one shows what is the matter."""
        outcomes = None if self._schemas.present.indexes else self._write_together(many)
        if outcomes is None:
            return None
        return Begun(outcomes, self._memory.last_index, self._committed)

    async def _write_many_indexed(self, call: Call[WriteMany]) -> tuple[bytes, ...] | None:
        """As `Tablet.write_many`, once the entries of all rows are in. None: nothing was done, and
        what is the matter shows one by one."""
        with self._as_a_copy(call.body.requests, call.timeout_s):
            return await self._write_many_with_entries(call)

    async def _write_many_with_entries(self, call: Call[WriteMany]) -> tuple[bytes, ...] | None:
        many, clock = call.body, self._runtime.clock
        deadline = clock.monotonic() + call.timeout_s
        if many.schema_version != self._schemas.present.version:
            return None
        indexes = self._index_writes()

        def look() -> None:
            indexes.check_here(many.op, many.rows, many.columns)

        try:
            self.check_share(many.op, many.rows, many.columns)
            held = await self._old_rows(look, deadline)
            if many.schema_version != self._schemas.present.version:
                return None
            left_s = deadline - clock.monotonic()
            ticket = await indexes.prepare(many.op, many.rows, many.columns, left_s)
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
            held.clear()
        if outcomes is not None:
            await self._committed(self._memory.last_index, deadline - clock.monotonic())
            indexes.wake()
        return outcomes
