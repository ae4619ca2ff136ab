"""One timeline that a safekeeper has: its control file, its WAL, and every change of the two.

Invariants: each change has one commit point, the replacement of the control file, and one change is
made at a time; it is carried through even if its caller is cancelled. A timeline whose files are
damaged, or below which the disk failed, does nothing any more, and so acknowledges nothing; the
others go on. After a failure it is opened anew (`stelae.actors.safekeeper.reopening`).
What an acceptor decides comes from `stelae.consensus`; here it becomes durable. Neon RFC 035,
"Persistently stored data changes"; design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from stelae.actors.safekeeper.timeline_store.files import TimelineFiles
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.server.uncancellable import carry_through
from stelae.consensus.wal.acceptor import AcceptorReady
from stelae.core.errors import CorruptData, StelaeError, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import AcceptorState, LogExtent, LogPosition, TermHistory
from stelae.core.tasks import Tasks
from stelae.storage.files.timeline_control import (
    TimelineControl,
    log_cut,
    restarted,
    saved,
    trimmed,
)
from stelae.storage.files.wal_log import history_after


class Timeline:
    """A timeline that exists; `TimelineStore` makes them.

    Methods raise NoSpace with everything as it was if the disk is full, OSError if the disk failed
    in it, and TabletNotReady if it had failed before, or the timeline was deleted or replaced
    meanwhile; CorruptData of a timeline whose files are damaged.
    """

    def __init__(
        self,
        files: TimelineFiles,
        tasks: Tasks,
        control: TimelineControl,
        log: TimelineLog | None,
        lock: asyncio.Lock,
        residence: asyncio.Lock,
        *,
        bring_back: Callable[[Timeline], Awaitable[None]],
        make_log: Callable[[TimelineControl], TimelineLog],
        next_incarnation: Callable[[TabletId], int],
        on_failed: Callable[[TabletId, OSError | CorruptData], None],
    ) -> None:
        """``log`` is None if it is evicted; ``bring_back`` is what then changes that."""
        self.control = control
        self.log = log
        self.lock = lock
        """Held during each change."""
        self.residence = residence
        """Held while the WAL is offloaded or brought back; taken before the other lock."""
        self.holds: dict[object, int] = {}
        """Who reads the WAL from which LSN on: it is neither trimmed so far nor evicted."""
        self.uses = 0
        """How often its WAL was used; whoever evicts idle timelines looks whether it rose."""
        self.failure: OSError | CorruptData | None = None
        self._files = files
        self._tasks = tasks
        self._bring_back = bring_back
        self._make_log = make_log
        self._next_incarnation = next_incarnation
        self._on_failed = on_failed
        self._closed: StelaeError | None = None
        self._aside: TimelineLog | None = None
        """The log while nothing may be written, as it is about to go."""

    # ---- what there is ----------------------------------------------------------------------

    @property
    def tablet_id(self) -> TabletId:
        return self.control.tablet_id

    @property
    def acceptor(self) -> AcceptorState:
        """As it is on the disk."""
        assert self.control.acceptor is not None
        return self.control.acceptor

    @property
    def is_evicted(self) -> bool:
        return self.control.evicted is not None

    @property
    def base_lsn(self) -> int:
        """Entries up to here are not in the WAL."""
        return self.control.base_lsn

    @property
    def history(self) -> TermHistory:
        """The term history of all that is durable."""
        if self.control.evicted is not None:
            return self.control.evicted.history
        return self._known.index.history(self.acceptor.term_history)

    @property
    def last(self) -> OpId:
        """The last entry that is durable; (0, 0) if there never was one."""
        if self.control.evicted is not None:
            return self.control.evicted.last
        return self._known.index.last(self.acceptor.term_history)

    @property
    def extent(self) -> LogExtent:
        """What an acceptor begins with, beside its state."""
        base_lsn, last_lsn = self.base_lsn, self.flush_lsn
        history = history_after(self.history, base_lsn) if last_lsn > base_lsn else ()
        return LogExtent(base_lsn, last_lsn, history)

    @property
    def position(self) -> LogPosition:
        last = self.last
        return LogPosition(last.term, last.index)

    @property
    def flush_lsn(self) -> int:
        return self.last.index if self.is_evicted else self._known.flush_lsn

    @property
    def log_bytes(self) -> int:
        """Of its files; 0 while it is evicted."""
        return 0 if self.is_evicted else sum(file.end for file in self._known.index.files)

    @property
    def _known(self) -> TimelineLog:
        log = self.log or self._aside
        assert log is not None
        return log

    def check(self) -> None:
        """Raises what keeps it from doing anything."""
        if isinstance(self.failure, CorruptData):
            raise self.failure
        if self.failure is not None:
            raise TabletNotReady(self.tablet_id, f"failed: {self.failure}")
        if self._closed is not None:
            raise self._closed

    def fail(self, error: OSError | CorruptData) -> None:
        """It does nothing any more: nothing is known of what it did last, or it is damaged."""
        if self.failure is None:
            self.failure = error
            if self.log is not None and isinstance(error, OSError):
                self.log.fail(error)
            self._on_failed(self.tablet_id, error)

    def give_up(self, error: CorruptData) -> None:
        """Its files turned out to be damaged, when it was to be opened anew."""
        self.failure = error

    async def close(self, state: str) -> None:
        """It is deleted or replaced: who still has it learns so. Its lock is held."""
        self._closed = TabletNotReady(self.tablet_id, state)
        log = self.log or self._aside
        if log is not None:
            await log.close(self._closed)

    def set_aside(self) -> None:
        """From here on nothing is written until `resume`. Both locks are held."""
        self._aside, self.log = self.log, None

    def resume(self, log: TimelineLog | None) -> None:
        """Go on with this log; None: it is evicted."""
        self._aside, self.log = None, log

    # ---- changes ----------------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self, *, resident: bool = False) -> AsyncIterator[None]:
        """Alone, and with its WAL here if that is asked for."""
        while True:
            if resident:
                await self.resident()
            async with self.lock:
                self.check()
                if resident and self.log is None:
                    continue
                yield
                return

    async def commit(self, control: TimelineControl) -> None:
        """The one moment in which a change happens; its lock is held."""
        try:
            await self._files.replace_control(control)
        except OSError as error:
            self.fail(error)
            raise
        self.control = control

    async def carry_out(self, ready: AcceptorReady) -> None:
        """Make durable what an acceptor says; deletion and trimming are the caller's.

        If it raises, nothing of it may be told, and the acceptor is to be made anew from `acceptor`
        and `extent`, if this goes on at all.
        """
        if ready.restart_after is not None:
            await self.restart(ready.state, ready.restart_after)
        elif ready.state is not None or ready.cut_after is not None:
            cut_from = None if ready.cut_after is None else ready.cut_after + 1
            await self.save(ready.state, cut_from=cut_from)
        if ready.entries:
            await self.append(ready.entries)

    async def save(
        self, acceptor: AcceptorState | None = None, *, cut_from: int | None = None
    ) -> None:
        """Make the acceptor's state durable, and the end of the log: both at once.

        Entries from ``cut_from`` on are removed; none may be written meanwhile.
        """
        work = self._save(acceptor, cut_from)
        await carry_through(self._tasks, work, "save of a timeline", self.fail)

    async def _save(self, acceptor: AcceptorState | None, cut_from: int | None) -> None:
        async with self.changing(resident=cut_from is not None):
            after = self.control
            if acceptor is not None and acceptor != self.acceptor:
                assert acceptor.commit_lsn <= self.flush_lsn, "a commit of what is not durable"
                after = saved(after, acceptor)
            log = None
            if cut_from is not None:
                assert self.log is not None
                await self.log.drained()
                if cut_from <= self.log.flush_lsn:
                    log, after = self.log, log_cut(after, cut_from)
            if after is not self.control:
                await self.commit(after)
            if log is not None:
                try:
                    await log.cut(after.cut)
                except OSError as error:
                    self.fail(error)
                    raise

    async def restart(self, acceptor: AcceptorState | None, base_lsn: int) -> None:
        """Make the acceptor's state durable, and the log empty: it begins after ``base_lsn``, the
        state's horizon. None of the entries may be written meanwhile."""
        work = self._restart(acceptor, base_lsn)
        await carry_through(self._tasks, work, "restart of a timeline's log", self.fail)

    async def _restart(self, acceptor: AcceptorState | None, base_lsn: int) -> None:
        async with self.residence, self.lock:
            self.check()
            log, incarnation = self.log, self.control.incarnation
            if log is not None:
                await log.drained()
            after = self.control if acceptor is None else saved(self.control, acceptor)
            assert after.acceptor is not None
            assert after.acceptor.commit_lsn <= base_lsn, "a commit of what is not durable"
            after = restarted(after, base_lsn, self._next_incarnation(self.tablet_id))
            await self.commit(after)
            self.resume(self._make_log(after))
            if log is not None:
                await log.close(TabletNotReady(self.tablet_id, "being restarted"))
                try:
                    await self._files.remove_wal(self.tablet_id, incarnation)
                except OSError as error:
                    self.fail(error)
                    raise

    async def trim(self, through_lsn: int) -> int:
        """Remove files of entries up to there, as far as the horizon and readers allow.

        The new base. Of an evicted timeline nothing is removed.
        """
        work = self._trim(through_lsn)
        return await carry_through(self._tasks, work, "trim of a timeline", self.fail)

    async def _trim(self, through_lsn: int) -> int:
        async with self.changing():
            if self.log is None:
                return self.base_lsn
            held = [lsn - 1 for lsn in self.holds.values()]
            through_lsn = min([through_lsn, self.acceptor.horizon_lsn, *held])
            base_lsn = self.log.index.trimmable(through_lsn)
            if base_lsn > self.base_lsn:
                await self.commit(trimmed(self.control, base_lsn))
                try:
                    await self.log.trim(base_lsn)
                except OSError as error:
                    self.fail(error)
                    raise
            return self.base_lsn

    # ---- the log ----------------------------------------------------------------------------

    async def resident(self) -> TimelineLog:
        """The WAL, brought back if it was offloaded."""
        self.uses += 1
        self.check()
        while self.log is None:
            await self._bring_back(self)
            self.check()
        return self.log

    async def append(self, entries: Sequence[Entry]) -> int:
        """Write entries that follow the last one; the end of the log, once they are durable."""
        log = await self.resident()
        while log.is_full:
            await log.drained()
            log = await self.resident()
        self.write(entries)
        return await self.flushed(entries[-1].index) if entries else self.flush_lsn

    def append_at_once(self, entries: Sequence[Entry]) -> bool:
        """The same where there is nothing to wait for; if false, `append` must come next, with the
        same. See `TimelineLog.write_at_once`."""
        self.check()
        self.uses += 1
        return self.log is not None and self.log.write_at_once(entries)

    def write(self, entries: Sequence[Entry]) -> None:
        """The same as `append`, without waiting: `flushed` tells when they are durable.

        Only right after `resident`, without a wait in between, and if the log is not full.
        """
        self.check()
        assert self.log is not None, "its WAL is not here"
        self.uses += 1
        self.log.write(entries)

    async def flushed(self, lsn: int) -> int:
        """Wait until an entry is durable; the end of the log by then. See `TimelineLog.flushed`."""
        self.check()
        return self.flush_lsn if self.is_evicted else await self._known.flushed(lsn)

    async def read(self, first_lsn: int, last_lsn: int, size_max_bytes: int) -> list[Entry]:
        """Durable entries from the first on: at least one, and as many as fit.

        None if the log begins later or ends before.
        """
        log = await self.resident()
        hold = object()
        self.holds[hold] = first_lsn
        try:
            return await log.read(first_lsn, last_lsn, size_max_bytes)
        except CorruptData as error:
            self.fail(error)
            raise
        finally:
            del self.holds[hold]
