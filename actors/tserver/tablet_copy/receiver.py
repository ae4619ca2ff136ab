"""The receiving end of tablet copies: orders by leaders, a bounded pool, one job each.

An order is checked against what is here before anything is done; a job then opens a session with
the source, and only when that shows what this server lacks is its own replica deleted and the copy
begun. Invariants: at no time does the tablet vanish from the disk, its term, vote and last OpId
are kept and vote while it is copied; a copy that is given up leaves a tombstone and nothing else.
A broken connection is tried again, and what was verified is not fetched twice; a new session brings
a new plan, and nothing of the old one is used without it. Seed "Auto-vivifying Tablet Copy
protocol", "Follower Tablet Copy"; design §8.

Other than in the seed's sketch, all checks come before the deletion: a deposed leader must not be
able to make anybody throw data away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from stelae.actors.tserver.tablet_copy.host import CopyHost
from stelae.actors.tserver.tablet_copy.receiver_files import CopyAttempt, TabletCopies
from stelae.actors.tserver.tablet_copy.session import Broken, SourceSession
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.backoff import jittered_s
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CopyOver,
    CorruptData,
    InvalidArgument,
    Overloaded,
    StaleTerm,
    StelaeError,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import (
    CANCEL_COPY,
    START_TABLET_COPY,
    CancelCopy,
    CopyCancelled,
    CopyStarted,
    DataState,
    StartTabletCopy,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks, all_or_first_error
from stelae.storage.files.superblock import NOTHING

T = TypeVar("T")
PROBLEM_MAX = 300
"""Letters of what went wrong with a copy that are told to others."""
FAILURES_MAX = 6
"""In a row, without a byte in between, before a copy is given up."""
SESSIONS_MAX = 8
"""Of one copy: a leader that still wants it after that orders it anew."""
IMAGES_AT_A_TIME = 3
"""One is read at the source while another is on its way and a third is made durable."""

logger = logging.getLogger(__name__)


class _Cancelled(Exception):
    """Somebody wanted the job to end."""


async def _outcome(
    work: Callable[[], Coroutine[Any, Any, T]],
) -> tuple[T | None, Exception | None]:
    """As a value: a task must not end with an exception that its owner may not live to see."""
    try:
        return await work(), None
    except Exception as error:  # handed on to the owner
        return None, error


@dataclass(eq=False)
class CopyJob:
    """One copy that is being received."""

    order: StartTabletCopy
    newer: StartTabletCopy | None = None
    """By another leader, who is asked for the rest if the source of ``order`` fails."""
    session: SourceSession | None = None
    attempt: CopyAttempt | None = None
    sessions: int = 0
    received_bytes: int = 0
    is_cancelled: bool = False
    work: asyncio.Task[Any] | None = None
    """What may be interrupted."""
    task: asyncio.Task[None] | None = None

    @property
    def tablet_id(self) -> TabletId:
        return self.order.tablet_id

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes of images that are here, and of all; zeros until that is known."""
        if self.attempt is None:
            return 0, 0
        held = sum(file.size_bytes for file in self.attempt.held.values())
        return held, sum(file.size_bytes for file in self.attempt.wanted.values())


class CopyJobs:
    """All copies that this server receives."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        store: TabletStore,
        host: CopyHost,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._store = store
        self._copies = TabletCopies(store)
        self._host = host
        self._jobs: dict[TabletId, CopyJob] = {}
        self.problems: dict[TabletId, str] = {}
        """Why the last copy of a tablet was given up; until one succeeds."""
        self._held: dict[TabletId, float] = {}
        """Not to be copied before then, by the word of an operator."""

    def handlers(self) -> Handlers:
        """What the server must serve for it."""
        return {START_TABLET_COPY: self.start, CANCEL_COPY: self._on_cancel}

    def progress(self, tablet_id: TabletId) -> tuple[int, int]:
        """Of a tablet that is being copied: bytes of images here, and in all (0: not known)."""
        job = self._jobs.get(tablet_id)
        return (0, 0) if job is None else job.progress

    def source(self, tablet_id: TabletId) -> ServerUuid:
        """From where a tablet is being copied; empty: it is not."""
        job = self._jobs.get(tablet_id)
        return ServerUuid("") if job is None else job.order.source

    # ---- orders -----------------------------------------------------------------------------

    async def start(self, call: Call[StartTabletCopy]) -> Reply[CopyStarted]:
        """Check an order, and begin. Raises as `StartTabletCopy` says; then nothing was done."""
        order = call.body
        self._check(order)
        self._check_held(order.tablet_id)
        self._check_room()
        job = CopyJob(order)
        self._jobs[order.tablet_id] = job
        job.task = self._tasks.spawn(self._run(job), f"copy of {order.tablet_id}")
        return Reply(CopyStarted(self.problems.get(order.tablet_id, "")[:PROBLEM_MAX]))

    def _check(self, order: StartTabletCopy) -> None:
        """The seed's ``StartTabletCopy``; what is believed must be so."""
        tablet_id = order.tablet_id
        if order.source == self._store.server:
            raise InvalidArgument(f"tablet {tablet_id} cannot be copied from where it is")
        job = self._jobs.get(tablet_id)
        if job is not None:
            if order.term > max(job.order.term, job.newer.term if job.newer else 0):
                job.newer = order
            raise TabletNotReady(tablet_id, "being copied")
        self._store.check_not_failed(tablet_id)
        superblock = self._store.superblock(tablet_id)
        if superblock is not None and superblock.forever:
            raise TabletDeleted(tablet_id, self._store.server)
        found = self._host.data_state(tablet_id)
        if found is DataState.COPYING:
            found = DataState.DELETED  # left over by a job that could not even clear up
        if found is not order.state:
            raise TabletNotReady(tablet_id, f"{found.value}, not {order.state.value}")
        if found is DataState.READY and self._host.tablet(tablet_id) is None:
            raise TabletNotReady(tablet_id, "not running: opened later, or failed")
        self._check_term(order)
        if order.last is not None and order.last != self._host.last_op_id(tablet_id):
            raise TabletNotReady(tablet_id, f"not at {order.last}")

    def _check_term(self, order: StartTabletCopy) -> None:
        term = self._host.term(order.tablet_id)
        if order.term < term:
            raise StaleTerm(f"an order to copy {order.tablet_id}", order.term, term)

    def _check_room(self) -> None:
        limit = self._settings.copies_max
        if len(self._jobs) >= limit:
            self._runtime.metrics.count("copies_throttled")
            raise Overloaded("copies to this server", limit)

    def _check_held(self, tablet_id: TabletId) -> None:
        held_until = self._held.get(tablet_id, 0.0)
        if self._runtime.clock.monotonic() < held_until:
            raise TabletNotReady(tablet_id, "not to be copied here: an operator cancelled it")
        self._held.pop(tablet_id, None)

    async def _on_cancel(self, call: Call[CancelCopy]) -> Reply[CopyCancelled]:
        order = call.body
        now = self._runtime.clock.monotonic()
        self._held = {i: until for i, until in self._held.items() if until > now}
        self._held[order.tablet_id] = now + order.hold_s
        return Reply(CopyCancelled(await self.cancel(order.tablet_id)))

    async def cancel(self, tablet_id: TabletId) -> bool:
        """End a copy before its end, and wait for that; what it wrote is removed.

        False if there is none. A replica that this copy was to replace stays if it was not deleted
        yet. For whoever deletes the tablet, and for operators: a leader may order it again.
        """
        job = self._jobs.get(tablet_id)
        if job is None or job.task is None:
            return False
        job.is_cancelled = True
        if job.work is not None:
            job.work.cancel()
        await asyncio.wait([job.task])
        return True

    # ---- a job ------------------------------------------------------------------------------

    async def _run(self, job: CopyJob) -> None:
        tablet_id = job.tablet_id
        try:
            await self._carry_out(job)
        except OSError as error:
            self.problems[tablet_id] = str(error)
            self._host.disk_failed(tablet_id, error)
        finally:
            self._jobs.pop(tablet_id, None)
        await self._end(job.session)

    async def _carry_out(self, job: CopyJob) -> None:
        tablet_id, metrics = job.tablet_id, self._runtime.metrics
        try:
            await self._copy(job)
        except (_Cancelled, Broken, StelaeError) as error:
            cause = error.error if isinstance(error, Broken) else error
            reason = "cancelled" if isinstance(cause, _Cancelled) else str(cause)
            self.problems[tablet_id] = reason
            metrics.count("copies_given_up", reason=type(cause).__name__.lstrip("_"))
            logger.warning("the copy of %s was given up: %s", tablet_id, reason)
            await self._give_up(job)
        else:
            self.problems.pop(tablet_id, None)
            metrics.count("copies_received")

    async def _copy(self, job: CopyJob) -> None:
        """From the first word with the source to a replica that runs."""
        tablet_id = job.tablet_id
        session = await self._interruptible(job, lambda: self._open(job))
        self._check_reaches(tablet_id, session)
        if self._host.data_state(tablet_id) is DataState.READY:
            await self._make_way(job, session)
        job.attempt = await self._begin(job, session)
        await self._host.settle(tablet_id)
        session, attempt = await self._interruptible(job, lambda: self._transfer(job))
        plan = session.plan
        await self._copies.finish_copy(attempt, session.snapshot, session.metadata, plan.began_with)
        job.attempt = None
        await self._host.start_copied(tablet_id)

    async def _interruptible(self, job: CopyJob, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out what only reads from the source or writes what does not count yet."""
        if job.is_cancelled:
            raise _Cancelled
        job.work = asyncio.create_task(_outcome(work))
        try:
            result, error = await job.work
        except asyncio.CancelledError:
            if job.is_cancelled:
                raise _Cancelled from None
            raise
        finally:
            job.work = None
        if error is not None:
            raise error
        return cast(T, result)

    async def _open(self, job: CopyJob) -> SourceSession:
        """A session with the source, of a plan that is new."""
        order = job.order

        def received(size_bytes: int) -> None:
            job.received_bytes += size_bytes

        session = SourceSession(
            self._runtime,
            self._settings,
            order.source,
            order.source_address,
            order.tablet_id,
            received,
        )
        await session.open(self._store.server, self._store.files_of)
        job.session = session
        job.sessions += 1
        if session.plan.term < order.term:
            raise StaleTerm(f"the source {order.source}", session.plan.term, order.term)
        return session

    def _check_reaches(self, tablet_id: TabletId, session: SourceSession) -> None:
        """A copy from a source that has less than was acknowledged here could never be finished."""
        last = self._host.last_op_id(tablet_id)
        if last is not None and session.plan.log_last < last:
            state = f"at {last}, and its source at {session.plan.log_last}"
            raise TabletNotReady(tablet_id, state)

    async def _make_way(self, job: CopyJob, session: SourceSession) -> None:
        """Delete the replica that is here, if it cannot do without a copy."""
        tablet_id, host = job.tablet_id, self._host
        tablet = host.tablet(tablet_id)
        if tablet is None:
            raise TabletNotReady(tablet_id, "between two states: repeat it")
        self._check_term(job.order)
        core = tablet.replica.core
        if session.snapshot is None or not core.log.lacks(session.snapshot.last):
            raise TabletNotReady(tablet_id, "as far as its source")  # the order came late
        await host.stop_for_copy(tablet_id)
        try:
            await self._store.tombstone(tablet_id, core.end_of_log)
        except StelaeError:
            if self._state(tablet_id) is DataState.READY:
                await host.start_copied(tablet_id)  # the disk is full, and all is as it was
            else:
                await host.settle(tablet_id)
            raise
        await host.settle(tablet_id)

    async def _begin(self, job: CopyJob, session: SourceSession) -> CopyAttempt:
        return await self._copies.begin_copy(
            job.tablet_id, session.table, session.metadata, session.wanted
        )

    async def _transfer(self, job: CopyJob) -> tuple[SourceSession, CopyAttempt]:
        """Fetch everything, over as many connections and sessions as it takes, within bounds."""
        failures, reached = 0, -1
        while True:
            session, attempt = job.session, job.attempt
            assert attempt is not None
            try:
                if session is None:
                    session = await self._open(job)
                    attempt = job.attempt = await self._begin(job, session)
                await self._fetch(session, attempt)
                return session, attempt
            except (Broken, CopyOver) as error:
                if isinstance(error, CopyOver):
                    job.session = None
                failures = failures + 1 if job.received_bytes == reached else 1
                reached = job.received_bytes
                if job.newer is not None:
                    self._tasks.spawn(self._end(job.session), f"end of a copy of {job.tablet_id}")
                    job.order, job.newer, job.session = job.newer, None, None
                    failures = 1
                if failures > FAILURES_MAX or job.sessions >= SESSIONS_MAX:
                    raise
                self._runtime.metrics.count("copies_resumed")
            pause_s = self._settings.copy_pause_s * failures
            await self._runtime.clock.sleep(jittered_s(pause_s, self._runtime.rng))

    async def _fetch(self, session: SourceSession, attempt: CopyAttempt) -> None:
        """What is missing of one session's plan: images, then the log."""
        missing = attempt.missing
        missing.reverse()

        async def fetch_images() -> None:
            while missing:
                file = missing.pop()
                await self._copies.write_copied(attempt, file, await session.file(file))
                session.written(file)

        lanes = min(IMAGES_AT_A_TIME, len(missing))
        await all_or_first_error([fetch_images() for _ in range(lanes)])
        plan = session.plan
        while True:
            done = attempt.log_last
            next_index = plan.log_first if done == NOTHING else done.index + 1
            if next_index > plan.log_last.index:
                break
            await self._copies.write_log(attempt, await session.entries(next_index))
        if attempt.log_last != NOTHING and attempt.log_last != plan.log_last:
            where = f"the copied log of {attempt.tablet_id}"
            raise CorruptData(where, 0, f"ends at {attempt.log_last}, not at {plan.log_last}")

    # ---- its end ----------------------------------------------------------------------------

    async def _give_up(self, job: CopyJob) -> None:
        """Back to the tombstone, which went on voting all the time."""
        tablet_id, attempt = job.tablet_id, job.attempt
        try:
            if attempt is not None:
                await self._copies.abort_copy(attempt)
            if self._state(tablet_id) is DataState.COPYING:  # an attempt that only half began
                await self._store.tombstone(tablet_id, None)
        except StelaeError as error:  # the disk is full: the next copy, or start, clears up
            logger.warning("the rest of a copy of %s stays: %s", tablet_id, error)
        if self._state(tablet_id) in (DataState.COPYING, DataState.DELETED):
            await self._host.settle(tablet_id)

    def _state(self, tablet_id: TabletId) -> DataState:
        superblock = self._store.superblock(tablet_id)
        return DataState.ABSENT if superblock is None else superblock.state

    async def _end(self, session: SourceSession | None) -> None:
        """Let the source have the place again at once."""
        if session is None:
            return
        try:
            await session.end()
        except (Broken, StelaeError):  # the source will notice that nobody asks any more
            self._runtime.metrics.count("copy_sessions_left")
