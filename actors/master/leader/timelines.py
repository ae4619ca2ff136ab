"""The leader master's care of timelines: creates, migrates, finishes and removes them.

The thin side of `stelae.coordinator.timelines.duties`. It lives as long as one leadership; what is
under way may be lost with it at any point, and is found again in the configuration store by the
next leader. Without the store nothing is created or migrated, and everything else goes on.

- Of each timeline one request runs here at a time; an abort, or a removal, ends the one before.
- What operators order is in the catalog before it is begun, and until it is decided: a run that
  ends otherwise, or with its leader, is made again.
- What is told to the catalog is an entry of the masters' log: a deposed leader tells nothing.

Implements seed 004 ("storage_controller implementation"); design §10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from stelae.actors.master.leader.migration_ports import MasterPorts
from stelae.actors.master.leader.migration_runner import MigrationRunner, RunnerSettings
from stelae.actors.master.leader.timeline_checks import BrokenTimelines
from stelae.coordinator.backoff.pacing import Pauses
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.timelines.duties import (
    Duty,
    creations,
    decides,
    is_void,
    left_to_do,
    named,
    replacements,
    statuses_now,
    supersedes,
    wish_of,
)
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    MoveTo,
    Request,
    Statuses,
    Verdict,
)
from stelae.coordinator.timelines.placement import fleet_of, where_is
from stelae.coordinator.timelines.safekeepers import Fleet
from stelae.coordinator.timelines.vain_members import VainMembers
from stelae.core.config.settings import Settings
from stelae.core.errors import MigrationUnderWay, Overloaded, StelaeError, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import MigrationProgress, MigrationResult
from stelae.core.records.configurations import PAGE_MAX, MigrationOrder, TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

ACTIVE = SafekeeperStatus.ACTIVE

REPLACEMENTS_MAX = 8
"""Timelines whose lost members are replaced at a time."""
DUTIES_MAX = 256
"""Requests of the keeper's own that wait or run at a time; the next look finds the rest."""
RESULTS_MAX = 1000
RETRY_S = 0.5
"""Pause before a request of its own that did not get on is made again."""
DECIDED_MAX = 256
"""Orders that are struck off by one entry."""

StrikeOff = Callable[[tuple[MigrationOrder, ...]], Awaitable[object]]


@dataclass(slots=True)
class _Job:
    request: Request
    task: asyncio.Task[None]
    ended: asyncio.Future[MigrationResult]
    began_s: float


class TimelineKeeper:
    """One leadership's timelines. `start` when ready to lead, `stop` when leading no more."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        catalog: Catalog,
        liveness: Liveness,
        ports: MasterPorts,
        migrations: RunnerSettings,
        strike_off: StrikeOff,
    ) -> None:
        """``strike_off`` removes orders that are decided from the catalog; raises StelaeError."""
        self.ports = ports
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._catalog = catalog
        self._liveness = liveness
        self._migrations = migrations
        self._runner = MigrationRunner(runtime, tasks, ports, lambda: self.statuses, migrations)
        self._jobs: dict[TimelineId, _Job] = {}
        self._created: dict[TimelineId, None] = {}
        """Of tablets still CREATING: their timelines are there."""
        self._pauses: Pauses[tuple[TimelineId, str]] = Pauses()
        self._own: dict[asyncio.Task[None], None] = {}
        self._strike_off = strike_off
        self._decided: dict[TimelineId, MigrationOrder] = {}
        """Orders of which nothing is left to be done, and which the catalog still has."""
        self._scan_now = asyncio.Event()
        self.broken = BrokenTimelines(runtime, catalog, ports.safekeepers)
        self.vain = VainMembers()
        self.results: dict[TimelineId, MigrationResult] = {}
        """How the last request about each ended, the newest last."""
        self.problems: dict[TabletId, str] = {}
        """Why the timelines of tablets that are being created are not there."""
        self.problem = ""
        """Why the store could not be looked at the last time; empty: it could."""

    # ---- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to lead."""
        self._spawn(self._create_for_ever(), "timelines/create")
        self._spawn(self._obey_for_ever(), "timelines/orders")
        self._spawn(self._scan_for_ever(), "timelines/scan")

    def stop(self) -> None:
        """Lead no more. What is under way is interrupted; what is in the store stands."""
        own, self._own = self._own, {}
        for task in own:
            task.cancel()

    def wake(self) -> None:
        """Something has changed that leaves work to do: look now."""
        self._scan_now.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.spawn(work, name)
        self._own[task] = None
        task.add_done_callback(lambda done: self._own.pop(done, None))
        return task

    # ---- what is known ----------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        return fleet_of(self._catalog, self._liveness, self._runtime.clock.monotonic())

    @property
    def statuses(self) -> Statuses:
        """Of all safekeepers; who is not heard counts as offline."""
        now = self._runtime.clock.monotonic()
        return statuses_now(self.fleet, now, self._settings.dead_after_s)

    def progress(self) -> tuple[MigrationProgress, ...]:
        """Of all requests that run now, and then those that wait for their turn."""
        running = self._runner.progress()
        begun = {each.timeline for each in running}
        now = self._runtime.clock.monotonic()
        waiting: dict[TimelineId, tuple[Request, float]] = {
            order.timeline: (wish_of(order), now) for order in self._open_orders()
        }
        for timeline, job in self._jobs.items():
            if not job.ended.done():
                waiting[timeline] = (job.request, job.began_s)
        left = sorted(timeline for timeline in waiting if timeline not in begun)
        return (*running, *(_waits(timeline, *waiting[timeline]) for timeline in left))

    async def records(self) -> list[TimelineRecord]:
        """All that the store has and is not over. Raises StelaeError: it does not answer."""
        store, timeout_s = self.ports.store, self._migrations.store_timeout_s
        found: list[TimelineRecord] = []
        after: TimelineId | None = None
        while page := await store.list(None, after, PAGE_MAX, timeout_s=timeout_s):
            found += [stored.record for stored in page if not stored.record.is_over]
            after = page[-1].record.timeline
        return found

    # ---- orders -----------------------------------------------------------------------------

    def _open_orders(self) -> list[MigrationOrder]:
        """Those that are not decided, by what this leader knows."""
        orders = self._catalog.timelines.orders.values()
        return [order for order in orders if self._decided.get(order.timeline) != order]

    def require_free(self, timeline: TimelineId, wish: MoveTo | Abort) -> None:
        """Whether this may be ordered now: of two operators the second is told, and not queued.

        Raises MigrationUnderWay.
        """
        order, job = self._catalog.timelines.orders.get(timeline), self._jobs.get(timeline)
        under_way = [] if job is None else [job.request]
        if order is not None and self._decided.get(timeline) != order:
            under_way.append(wish_of(order))
        for other in under_way:
            if other != wish and not supersedes(wish, other):
                what = f"being changed already: {named(other)}"
                raise MigrationUnderWay(timeline.tablet_id, what)

    def obey(self, order: MigrationOrder) -> asyncio.Future[MigrationResult] | None:
        """Begin what the catalog has as ordered. None: its turn comes later, or it is over."""
        timeline, wish = order.timeline, wish_of(order)
        job, is_kept = self._jobs.get(timeline), self._catalog.timelines.orders.get(timeline)
        may_begin = job is None or job.request == wish or supersedes(wish, job.request)
        return self.request(timeline, wish) if is_kept == order and may_begin else None

    def _has_heard(self, order: MigrationOrder) -> bool:
        """Whether this leader can say who answers: one that leads since just now, after a restart,
        has heard nobody, and would give up what an earlier one has taken."""
        now, liveness = self._runtime.clock.monotonic(), self._liveness
        if now >= liveness.lead_since + self._settings.dead_after_s:
            return True
        members = order.desired or ()
        return all(where_is(self._catalog, liveness, one, now) is not None for one in members)

    async def _obey_for_ever(self) -> None:
        """Carry out what is ordered, and have what is decided struck off."""
        while True:
            for order in self._open_orders():
                if is_void(self._catalog, order):
                    self._decided[order.timeline] = order
            ready = [order for order in self._open_orders() if self._has_heard(order)]
            self._take(Duty(order.timeline, wish_of(order), "ordered") for order in ready)
            kept = self._catalog.timelines.orders
            self._decided = {t: o for t, o in self._decided.items() if kept.get(t) == o}
            if self._decided:
                try:
                    await self._strike_off(tuple(self._decided.values())[:DECIDED_MAX])
                except StelaeError as error:  # it is tried again
                    kind = type(error).__name__
                    self._runtime.metrics.count("migration_orders_not_struck_off", error=kind)
            await self._runtime.clock.sleep(self._settings.coordinator_period_s)

    # ---- requests ---------------------------------------------------------------------------

    def request(self, timeline: TimelineId, request: Request) -> asyncio.Future[MigrationResult]:
        """Drive a request, in the background; the result says how it ended.

        The same one again is the one that runs. Raises TabletNotReady: another one is under way.
        """
        job = self._jobs.get(timeline)
        if job is not None and job.request == request:
            return job.ended
        if job is not None:
            if not supersedes(request, job.request):
                what = f"being changed already: {named(job.request)}"
                raise TabletNotReady(timeline.tablet_id, what)
            job.task.cancel()
        ended: asyncio.Future[MigrationResult] = asyncio.get_running_loop().create_future()
        name = f"timeline {timeline.tablet_id[:8]}: {named(request)}"
        task = self._spawn(self._drive(timeline, request, ended), name)
        self._jobs[timeline] = job = _Job(request, task, ended, self._runtime.clock.monotonic())
        task.add_done_callback(lambda _: self._ended(timeline, job))
        return ended

    def _ended(self, timeline: TimelineId, job: _Job) -> None:
        if self._jobs.get(timeline) is job:
            del self._jobs[timeline]
        if not job.ended.done():
            what = f"no longer being changed: {named(job.request)} was interrupted"
            job.ended.set_exception(TabletNotReady(timeline.tablet_id, what))
            job.ended.exception()  # whoever waits is told; nobody has to

    async def _drive(
        self, timeline: TimelineId, request: Request, ended: asyncio.Future[MigrationResult]
    ) -> None:
        now = self._runtime.clock.monotonic
        try:
            outcome = await self._runner.run(timeline, request)
        except Overloaded as error:
            self._runtime.metrics.count("migrations_put_off")
            self._pauses.begin((timeline, named(request)), now() + RETRY_S, now())
            if not ended.done():
                ended.set_exception(error)
                ended.exception()  # whoever waits is told; nobody has to
            return
        order = self._catalog.timelines.orders.get(timeline)
        if order is not None and decides(request, outcome.verdict, order):
            self._decided[timeline] = order
        for safekeeper in outcome.unreached:
            self.vain.failed(timeline, safekeeper, now())
        generation = outcome.stored.record.generation if outcome.stored is not None else 0
        result = MigrationResult(
            timeline,
            named(request),
            outcome.verdict.value,
            outcome.reason,
            generation,
            outcome.is_finished,
            self._runtime.clock.now(),
        )
        self.results.pop(timeline, None)
        self.results[timeline] = result
        if len(self.results) > RESULTS_MAX:
            del self.results[next(iter(self.results))]
        if not ended.done():
            ended.set_result(result)
        is_there = outcome.verdict in (Verdict.DONE, Verdict.DELETED)
        if isinstance(request, Create) and is_there:
            self._created[timeline] = None
            self.problems.pop(timeline.tablet_id, None)
        self._pauses.begin((timeline, result.request), now() + RETRY_S, now())
        if isinstance(request, Create) and not is_there:
            why = outcome.reason or outcome.verdict.value
            self.problems[timeline.tablet_id] = f"its timeline cannot be created: {why}"
            logger.info("timeline %s: %s: %s", timeline.key, result.verdict, result.reason)

    # ---- duties -----------------------------------------------------------------------------

    async def _create_for_ever(self) -> None:
        """Look at what is being created as often as the coordinator does: clients wait for it."""
        while True:
            wanted = creations(self._catalog)
            present = {duty.timeline: None for duty in wanted}
            self._created = {known: None for known in self._created if known in present}
            tablets = {timeline.tablet_id for timeline in present}
            self.problems = {i: text for i, text in self.problems.items() if i in tablets}
            self._take(duty for duty in wanted if duty.timeline not in self._created)
            await self._runtime.clock.sleep(self._settings.coordinator_period_s)

    async def _scan_for_ever(self) -> None:
        period_s = self._settings.timeline_scan_s
        while True:
            self._scan_now.clear()
            try:
                await self._scan()
            except StelaeError as error:
                self.problem = str(error)
                self._runtime.metrics.count("timeline_scans_failed", error=type(error).__name__)
            else:
                self.problem = ""
            try:
                async with asyncio.timeout(period_s * self._runtime.rng.uniform(0.7, 1.3)):
                    await self._scan_now.wait()
            except TimeoutError:
                continue

    async def _scan(self) -> None:
        """Begin whatever is left to be done. Raises StelaeError: the store does not answer."""
        if not self._catalog.timelines.safekeepers:
            return
        records, statuses = await self.records(), self.statuses
        self._take(left_to_do(self._catalog, records, statuses))
        await self.broken.look(number for number, status in statuses.items() if status is ACTIVE)
        now, silence_s = self._runtime.clock.monotonic(), self._settings.dead_after_s
        grace_s = max(silence_s, self._settings.safekeeper_dead_after_s)
        under_way = {timeline: job.request for timeline, job in self._jobs.items()}
        under_way |= {order.timeline: wish_of(order) for order in self._open_orders()}
        self.vain.look(records, self._held_by, now, grace_s)
        broken = dict(self.broken.lasting(grace_s))
        for timeline, lacking in self.vain.lasting(now, grace_s).items():
            broken[timeline] = (*broken.get(timeline, ()), *lacking)
        self._take(
            replacements(
                records,
                self.fleet,
                under_way,
                now,
                silence_s=silence_s,
                grace_s=grace_s,
                limit=REPLACEMENTS_MAX,
                broken=broken,
                avoid=self.vain.avoid,
            )
        )

    def _held_by(self, safekeeper: SafekeeperId) -> Container[TabletId] | None:
        """The timelines that a safekeeper says it holds; None: it has not told this leader."""
        record = self._catalog.timelines.safekeepers.get(safekeeper)
        now = self._runtime.clock.monotonic()
        seen = None if record is None else self._liveness.live_server(record.uuid, now)
        return seen.picture.logs if seen is not None and seen.picture.is_exact else None

    def _take(self, duties: Iterable[Duty]) -> None:
        now = self._runtime.clock.monotonic()
        for duty in duties:
            if len(self._jobs) >= DUTIES_MAX:
                self._runtime.metrics.count("timeline_duties_put_off")
                return
            job = self._jobs.get(duty.timeline)
            may_begin = job is None or supersedes(duty.request, job.request)
            key = (duty.timeline, named(duty.request))
            if may_begin and self._pauses.is_over(key, now):
                logger.info("timeline %s: %s", duty.timeline.key, duty.reason)
                self.request(duty.timeline, duty.request)


def _waits(timeline: TimelineId, request: Request, since_s: float) -> MigrationProgress:
    """A request that has not begun yet."""
    return MigrationProgress(
        timeline=timeline,
        step=0,
        step_name="wait for a turn",
        generation=0,
        members=(),
        desired=request.desired if isinstance(request, MoveTo) else None,
        waits_for=("others to end",),
        problems={},
        started_s=since_s,
        moved_s=since_s,
    )
