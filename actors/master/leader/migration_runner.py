"""Drives migrations: carries out what the pure machines ask for, and wakes them when it is time.

The thin side of `stelae.coordinator.timelines.migration`: no decision is made here. One run of a
timeline at a time in this process (others elsewhere do no harm), so many runs, calls and copies at
once as the limits say; every call has its own deadline. A scan of the store goes on with whatever
an earlier driver has left behind, without anybody asking.

Implements seed 004 ("storage_controller implementation": pool of tasks, ``FinishPending`` at start,
notifying until it succeeds); design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from stelae.coordinator.timelines.migration import Migration
from stelae.coordinator.timelines.migration_steps import (
    Effect,
    Exclude,
    FinishPending,
    MigrationSettings,
    Notify,
    Order,
    Outcome,
    Output,
    Passed,
    Ping,
    PullTimeline,
    PutConfiguration,
    ReadRecord,
    Request,
    Statuses,
    WriteRecord,
)
from stelae.coordinator.timelines.safekeepers import needs_work
from stelae.core.errors import OutcomeUnknown, Overloaded, StelaeError
from stelae.core.ids import make_uuid
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.records.configurations import (
    PAGE_MAX,
    ConfigurationStore,
    StoredRecord,
    TimelineId,
    TimelineRecord,
)
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

LEAST_WAIT_S = 0.001


class MigrationPorts(Protocol):
    """What a driver asks of others. Every call ends by ``timeout_s``, or is ended then.

    Raises StelaeError: `StaleTerm` where the other knows a higher generation.
    """

    @property
    def store(self) -> ConfigurationStore: ...

    async def ping(self, safekeeper: SafekeeperId, *, timeout_s: float) -> None: ...

    async def put_configuration(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        min_term: int,
        create: bool,
        timeout_s: float,
    ) -> SwitchReply | None:
        """Switch to the configuration if it is higher, and raise the term to ``min_term`` if that
        is higher, in one durable step. If the timeline is not there: None, or with ``create``
        (unless it was ever excluded or deleted here) begin it, empty, in this configuration."""
        ...

    async def pull_timeline(
        self,
        safekeeper: SafekeeperId,
        source: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        at_least: LogPosition,
        timeout_s: float,
    ) -> SwitchReply:
        """Be in the configuration with ``at_least`` so much of the log: by a copy of ``source``,
        if the timeline is not here, or is here and behind both."""
        ...

    async def exclude(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        forever: bool,
        timeout_s: float,
    ) -> None:
        """Remove it, unless its generation is higher or the safekeeper is a member; remember the
        generation durably, also if there was nothing."""
        ...

    async def notify(self, record: TimelineRecord, *, timeout_s: float) -> None: ...


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    migration: MigrationSettings = MigrationSettings()
    runs_max: int = 64
    waiting_max: int = 1000
    calls_max: int = 16
    """At a time to one safekeeper, or to the store: one that hangs keeps up nobody else."""
    pulls_max: int = 4
    scan_period_s: float = 10.0
    store_timeout_s: float = 5.0


Hook = Callable[[TimelineId, Passed], Awaitable[None]]


async def _no_hook(timeline: TimelineId, passed: Passed) -> None:
    """Nothing is to happen between steps."""


class MigrationRunner:
    """One driver. ``tasks`` own its scan; ``hook`` is awaited after each step (a failpoint)."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        ports: MigrationPorts,
        statuses: Callable[[], Statuses],
        settings: RunnerSettings,
        hook: Hook = _no_hook,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._ports = ports
        self._statuses = statuses
        self._settings = settings
        self._hook = hook
        self._writer = make_uuid(runtime.rng)
        self._runs = 0
        self._room = asyncio.Semaphore(settings.runs_max)
        self._calls: dict[SafekeeperId | None, asyncio.Semaphore] = {}
        self._pulls = asyncio.Semaphore(settings.pulls_max)
        self._turns: dict[TimelineId, _Turn] = {}
        self._active: dict[TimelineId, Migration] = {}

    def begin(self) -> None:
        """Start to scan the store for what is left to be done, now and again."""
        self._tasks.spawn(self._scan_for_ever(), "migrations/scan")

    def progress(self) -> list[MigrationProgress]:
        """Of all migrations that run here."""
        return [self._active[timeline].progress() for timeline in sorted(self._active)]

    async def run(self, timeline: TimelineId, request: Request) -> Outcome:
        """Drive a request to its outcome, after those of this timeline that came before.

        Raises Overloaded: too many wait already.
        """
        if len(self._turns) >= self._settings.waiting_max:
            raise Overloaded("migrations that wait", self._settings.waiting_max)
        async with self._turn(timeline), self._room:
            self._runs += 1
            now = self._runtime.clock.monotonic()
            migration = self._active[timeline] = Migration(
                timeline,
                request,
                statuses=self._statuses(),
                settings=self._settings.migration,
                writer=f"{self._writer}.{self._runs}",
                now=now,
                jitter=self._runtime.rng.uniform(0.7, 1.3),
            )
            try:
                outcome = await _Drive(self, migration).drive()
            finally:
                del self._active[timeline]
        self._runtime.metrics.count("migrations", verdict=outcome.verdict.value)
        return outcome

    @asynccontextmanager
    async def _turn(self, timeline: TimelineId) -> AsyncIterator[None]:
        """One after the other, for each timeline."""
        turn = self._turns.setdefault(timeline, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[timeline]

    # ---- scanning -----------------------------------------------------------------------------

    async def _scan_for_ever(self) -> None:
        while True:
            try:
                await self.scan()
            except StelaeError as error:
                self._runtime.metrics.count("migration_scans_failed", error=type(error).__name__)
            pause_s = self._settings.scan_period_s * self._runtime.rng.uniform(0.7, 1.3)
            await self._runtime.clock.sleep(pause_s)

    async def scan(self) -> int:
        """Finish whatever is unfinished and can be; returns how many timelines that were.

        Raises StelaeError: the store does not answer.
        """
        found = 0
        after: TimelineId | None = None
        while True:
            page = await self._ports.store.list(
                None, after, PAGE_MAX, timeout_s=self._settings.store_timeout_s
            )
            if not page:
                return found
            after = page[-1].record.timeline
            found += await self._finish(page)

    async def _finish(self, page: tuple[StoredRecord, ...]) -> int:
        statuses = self._statuses()
        left = [
            stored.record.timeline
            for stored in page
            if needs_work(stored.record, statuses) and stored.record.timeline not in self._turns
        ]
        # So many at once as may run: who asks for something in between is not kept out for long.
        for start in range(0, len(left), self._settings.runs_max):
            async with asyncio.TaskGroup() as group:
                for timeline in left[start : start + self._settings.runs_max]:
                    group.create_task(self._finish_one(timeline))
        return len(left)

    async def _finish_one(self, timeline: TimelineId) -> None:
        try:
            await self.run(timeline, FinishPending())
        except Overloaded:
            self._runtime.metrics.count("migrations_put_off")

    # ---- calls --------------------------------------------------------------------------------

    async def carry_out(self, order: Order) -> object:
        """One effect; ends by its deadline. Raises StelaeError."""
        room = self._pulls
        if not isinstance(order.effect, PullTimeline):
            target = getattr(order.effect, "safekeeper", None)
            room = self._calls.setdefault(target, asyncio.Semaphore(self._settings.calls_max))
        try:
            async with asyncio.timeout(order.timeout_s), room:
                return await self._call(order.effect, order.timeout_s)
        except TimeoutError as error:
            name = type(order.effect).__name__
            raise OutcomeUnknown("a safekeeper or store", name, order.timeout_s) from error

    async def _call(self, effect: Effect, timeout_s: float) -> object:
        ports = self._ports
        match effect:
            case ReadRecord(timeline):
                return await ports.store.get(timeline, timeout_s=timeout_s)
            case WriteRecord(record, revision, writer, nonce):
                return await ports.store.cas(
                    record, revision, writer=writer, nonce=nonce, timeout_s=timeout_s
                )
            case Ping(safekeeper):
                await ports.ping(safekeeper, timeout_s=timeout_s)
            case PutConfiguration(safekeeper, timeline, configuration, term, create):
                return await ports.put_configuration(
                    safekeeper,
                    timeline,
                    configuration,
                    min_term=term,
                    create=create,
                    timeout_s=timeout_s,
                )
            case PullTimeline(safekeeper, source, timeline, configuration, at_least):
                return await ports.pull_timeline(
                    safekeeper,
                    source,
                    timeline,
                    configuration,
                    at_least=at_least,
                    timeout_s=timeout_s,
                )
            case Exclude(safekeeper, timeline, configuration, forever):
                await ports.exclude(
                    safekeeper, timeline, configuration, forever=forever, timeout_s=timeout_s
                )
            case Notify(record):
                await ports.notify(record, timeout_s=timeout_s)
        return None

    def now(self) -> float:
        return self._runtime.clock.monotonic()

    async def passed(self, timeline: TimelineId, passed: Passed) -> None:
        self._runtime.metrics.count("migration_steps", step=passed.step.name.lower())
        await self._hook(timeline, passed)


class _Turn:
    """Whose turn it is with one timeline."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _Drive:
    """The loop around one machine."""

    def __init__(self, runner: MigrationRunner, migration: Migration) -> None:
        self._runner = runner
        self._migration = migration
        self._ended: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
        """Bounded by the orders under way, of which there are a few per member."""
        self._under_way: dict[asyncio.Task[None], None] = {}

    async def drive(self) -> Outcome:
        migration = self._migration
        async with asyncio.TaskGroup() as group:
            outputs = migration.tick(self._runner.now())
            while True:
                await self._carry_out(group, outputs)
                if migration.outcome is not None:
                    break
                outputs = await self._next()
            for task in self._under_way:
                task.cancel()
        return migration.outcome

    async def _carry_out(self, group: asyncio.TaskGroup, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Passed):
                await self._runner.passed(self._migration.timeline, output)
            else:
                task = group.create_task(self._call(output))
                self._under_way[task] = None
                task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _call(self, order: Order) -> None:
        try:
            answer = await self._runner.carry_out(order)
        except StelaeError as error:
            self._ended.put_nowait((order.number, error))
        else:
            self._ended.put_nowait((order.number, answer))

    async def _next(self) -> list[Output]:
        """Wait for the next thing to happen, and let the machine know."""
        migration = self._migration
        wait_s = max(LEAST_WAIT_S, migration.wake_s - self._runner.now())
        try:
            async with asyncio.timeout(wait_s):
                number, answer = await self._ended.get()
        except TimeoutError:
            return migration.tick(self._runner.now())
        now = self._runner.now()
        if isinstance(answer, StelaeError):
            return migration.failed(number, answer, now)
        return migration.answered(number, answer, now)
