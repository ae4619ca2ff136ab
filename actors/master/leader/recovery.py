"""Carrying out recoveries: fence the backups, plan from what they hold, tell the new owners to
open.

One round takes all tablets that wait at that moment, of however many dead servers: every live
backup is called once, for all of them. Each step is a function of durable facts and can be
repeated; a round that fails anywhere leaves tablets RECOVERING, and the coordinator begins another
one.

Source: design §9, phase 1; RAMCloud `Recovery`, without its limit of one recovery at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stelae.actors.master.leader.recovery_attempts import Attempt, RecoveryAttempts
from stelae.actors.master.leader.recovery_splits import RecoverySplits
from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl.alter import told
from stelae.coordinator.decide import Recover
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.status.recoveries import Recoveries
from stelae.coordinator.timelines.placement import source_of
from stelae.core.config.settings import Settings
from stelae.core.errors import SegmentsMissing, StelaeError
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.backups import FENCE_LOGS, FenceLogs, LogInventory
from stelae.core.messages.servers import OPEN_TABLET, OpenTablet, RecoveryEngine
from stelae.core.records.records import ServerInfo, ServerKind, TabletState
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import Wal, media_of
from stelae.core.schema.indexes import IndexletState
from stelae.core.schema.shares import share_of
from stelae.recovery.engine import (
    Choice,
    EngineChooser,
    EnginePolicy,
    IndexletTarget,
    RecoveryJob,
    SparkEngine,
    SparkState,
)
from stelae.recovery.inherited import logs_of, plan_of
from stelae.recovery.plan import plan_sealed

logger = logging.getLogger(__name__)

FENCE_PATIENCE_S = 0.1
"""Backups that have not answered by then hold up only those tablets whose log is not complete."""
RESEND_S = 1.0
"""An owner that was told to open a tablet and does not report it is told again after this time."""
RETRY_S = 0.2
"""Pause after a call to an owner failed."""
MISSING_RETRY_S = 1.0
"""Pause before backups are asked again for missing segments."""

SPARK_TRIES = 2
OWNERS_LONGER_S = 2.0
"""Owners wait for so much longer than the leader, which tells them when it gives up."""
SPARK_PATIENCE_S = 5.0
SPARK_SLACK = 3.0
"""Spark may take this many times as long as was expected, and `SPARK_PATIENCE_S` in any case; then
the owners merge what they have loaded."""

Inventories = dict[TabletId, dict[ServerInfo, LogInventory]]


def patience_s(choice: Choice) -> float:
    """How long the owners wait for Spark's merges."""
    return max(SPARK_PATIENCE_S, SPARK_SLACK * (choice.spark_s or 0.0))


class RecoveryRounds:
    """The leader's recoveries. Lives as long as its leadership."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        catalog: Catalog,
        liveness: Liveness,
        recoveries: Recoveries,
        pacing: Pacing,
        problems: dict[TabletId, str],
        splits: RecoverySplits,
        *,
        policy: EnginePolicy,
        spark_engine: Callable[[], SparkEngine | None],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._catalog = catalog
        self._liveness = liveness
        self._recoveries = recoveries
        self._pacing = pacing
        self._problems = problems
        self._splits = splits
        chooser = EngineChooser(policy, metadata_first=settings.metadata_first)
        self._attempts = RecoveryAttempts(recoveries, runtime.metrics, chooser)
        self._spark_engine = spark_engine
        self._without_spark: dict[TabletId, int] = {}
        """Tablets that the Spark engine has failed in this term: they are recovered natively."""

    async def run(self, orders: Sequence[Recover]) -> None:
        """One round: when it returns, each tablet was opened, or is to be tried again later."""
        with_log: list[Recover] = []
        empty: list[RecoveryJob] = []
        for order in orders:
            table = told(self._catalog, order.tablet)
            if media_of(table.durability):
                with_log.append(order)
            else:
                empty.append(RecoveryJob(table, order.tablet, (), order.owner))
        if empty:
            self._reached(empty, "fenced", "planned")
        await asyncio.gather(self._open_all(empty, RecoveryEngine.NATIVE), self._replay(with_log))

    # ---- fence and plan ---------------------------------------------------------------------

    async def _replay(self, orders: list[Recover]) -> None:
        if not orders:
            return
        now = self._runtime.clock.monotonic()
        backups = [seen.server for seen in self._liveness.live(ServerKind.BACKUP, now)]
        logs = logs_of([order.tablet for order in orders])
        inventories: Inventories = {log: {} for log in logs}
        request = FenceLogs(tuple(logs.items()))
        calls = [
            asyncio.create_task(self._fence(backup, request, inventories)) for backup in backups
        ]
        try:
            if calls:
                await asyncio.wait(calls, timeout=FENCE_PATIENCE_S)
            # The end of a timeline is not known here: who could not be asked may be missed by it.
            are_in = all(call.done() for call in calls)
            ready = [order for order in orders if are_in or not self._has_timeline(order)]
            waiting = [order for order in orders if not are_in and self._has_timeline(order)]
            waiting += await self._plan_and_open(ready, inventories, are_all_in=are_in)
            if waiting and any(not call.done() for call in calls):
                await asyncio.wait(calls)
                waiting = await self._plan_and_open(waiting, inventories, are_all_in=True)
            for call in calls:
                await call
        finally:
            for call in calls:
                call.cancel()
        for order in waiting:
            self._pause(order.tablet.tablet_id, MISSING_RETRY_S)

    def _has_timeline(self, order: Recover) -> bool:
        return isinstance(
            self._catalog.tables[order.tablet.table_id].durability_of(order.tablet), Wal
        )

    async def _fence(
        self, backup: ServerInfo, request: FenceLogs, inventories: Inventories
    ) -> None:
        """Fence one backup and note what it holds. One that does not answer is done without."""
        try:
            reply = await self._runtime.peers.call(
                backup.address,
                FENCE_LOGS,
                request,
                timeout_s=self._settings.call_timeout_s,
                destination=backup.uuid,
            )
        except StelaeError as error:
            self._runtime.metrics.count("fences_failed", error=type(error).__name__)
            return
        for log in reply.body.logs:
            if log.tablet_id in inventories:
                inventories[log.tablet_id][backup] = log

    async def _plan_and_open(
        self, orders: Sequence[Recover], inventories: Inventories, *, are_all_in: bool
    ) -> list[Recover]:
        """Open what is complete; return the rest, with the reasons noted as problems."""
        self._recoveries.reached(
            (o.tablet.tablet_id for o in orders), "fenced", self._runtime.clock.monotonic()
        )
        waiting: list[Recover] = []
        planned: list[tuple[RecoveryJob, dict[ServerInfo, LogInventory]]] = []
        for order in orders:
            tablet = order.tablet
            table = told(self._catalog, tablet)
            try:
                found = inventories[tablet.tablet_id]
                if isinstance(table.durability, Wal):
                    sources = plan_sealed(found)
                else:
                    media_count = len(media_of(table.durability))
                    sources = plan_of(tablet, media_count, inventories, are_all_in=are_all_in)
            except SegmentsMissing as error:
                self._note(tablet.tablet_id, f"{error}; see `stelae recover`")
                self._recoveries.incomplete[tablet.tablet_id] = None
                waiting.append(order)
            else:
                self._note(tablet.tablet_id, "")
                self._recoveries.incomplete.pop(tablet.tablet_id, None)
                rows = self._recoveries.rows_before(tablet.tablet_id)
                planned.append((RecoveryJob(table, tablet, sources, order.owner, rows), found))
        jobs = await self._splits.not_split(planned)
        self._reached(jobs, "planned")
        await self._open_with_engine(jobs)
        return waiting

    # ---- open -------------------------------------------------------------------------------

    async def _open_with_engine(self, jobs: list[RecoveryJob]) -> None:
        spark = self._spark_engine()
        may = [job for job in jobs if self._may_use_spark(job)]
        state = None if spark is None or not may else spark.state
        choice = self.chooser.choose(may or jobs, state)
        if choice.engine is RecoveryEngine.NATIVE or spark is None:
            self._begin(choice, state, jobs)
            await self._open_all(jobs, RecoveryEngine.NATIVE)
            return
        natively = [job for job in jobs if not self._may_use_spark(job)]
        if natively:
            self._begin(self.chooser.choose(natively, None), None, natively)
        attempt = self._begin(choice, state, may)
        await asyncio.gather(
            self._open_all(natively, RecoveryEngine.NATIVE), self._merge_by_spark(spark, attempt)
        )

    def _may_use_spark(self, job: RecoveryJob) -> bool:
        """Spark reads backups; a timeline's end is not on them. It merges all rows of a log, not a
        share of them, as a part of a split tablet has."""
        has_timeline = isinstance(job.table.durability, Wal)
        is_part = share_of(job.tablet.number, job.table.partitioning.tablet_count).bits > 0
        failed_in = self._without_spark.get(job.tablet.tablet_id)
        return not has_timeline and not is_part and failed_in != job.tablet.term

    @property
    def chooser(self) -> EngineChooser:
        return self._attempts.chooser

    def _begin(
        self,
        choice: Choice,
        spark: SparkState | None,
        jobs: Sequence[RecoveryJob],
        *,
        takes_over: bool = False,
    ) -> Attempt:
        now = self._runtime.clock.monotonic()
        return self._attempts.begin(choice, spark, jobs, now, takes_over=takes_over)

    def recovered(self, tablet_ids: Iterable[TabletId]) -> None:
        """These tablets run."""
        done = list(tablet_ids)
        for tablet_id in done:
            self._without_spark.pop(tablet_id, None)
        self._attempts.recovered(done, self._runtime.clock.monotonic())

    async def _merge_by_spark(self, spark: SparkEngine, attempt: Attempt) -> None:
        """Have Spark merge; what it fails is tried once more, then the owners merge themselves.

        They have loaded the summaries meanwhile, and take whichever merge comes first, in the same
        term: one that arrives late changes nothing.
        """
        limit_s = patience_s(attempt.choice)
        await self._open_all(attempt.jobs, RecoveryEngine.SPARK, limit_s + OWNERS_LONGER_S)
        # Also those whose answer was not heard: the order may have been carried out all the same.
        left, reason = list(attempt.jobs), ""
        try:
            async with asyncio.timeout(limit_s):
                for tries_left in reversed(range(SPARK_TRIES)):
                    left, reason = await self._try_spark(spark, left)
                    if not left:
                        return
                    if spark.state.start_s > 0:
                        break  # its session is gone, and the next one not to be waited for
                    if tries_left:
                        self._attempts.retried(attempt, len(left), reason)
        except TimeoutError:
            left = [job for job in left if self._is_awaited(job)]
            if not left:
                return  # it goes on with indexlets
            reason = f"no end after {limit_s:.1f} s"
            self._runtime.metrics.count("spark_recoveries_failed", error="TimeoutError")
        await self._go_on_natively(attempt, left, reason)

    def _is_awaited(self, job: RecoveryJob) -> bool:
        """Whether its tablet is not back, and this is its recovery still."""
        tablet = self._catalog.tablets[job.tablet.tablet_id]
        return tablet.term == job.tablet.term and tablet.state is TabletState.RECOVERING

    async def _try_spark(
        self, spark: SparkEngine, jobs: Sequence[RecoveryJob]
    ) -> tuple[list[RecoveryJob], str]:
        """The jobs that failed and still count, and why one of them did."""
        filling = self._filling()
        try:
            problems = await spark(
                [replace(job, indexlets=filling.get(job.table.table_id, ())) for job in jobs]
            )
        except Exception as error:  # whatever Spark raised: the tablets come back without it
            if not isinstance(error, StelaeError):
                logger.exception("a bug, or an error of Spark's that nobody foresaw")
            self._runtime.metrics.count("spark_recoveries_failed", error=type(error).__name__)
            problems = {job.tablet.tablet_id: str(error) for job in jobs}
        failed = [j for j in jobs if j.tablet.tablet_id in problems and self._is_awaited(j)]
        return failed, problems[failed[0].tablet.tablet_id] if failed else ""

    def _filling(self) -> dict[TableId, tuple[IndexletTarget, ...]]:
        """The indexlets of each table that are being filled, where their owners live."""
        now = self._runtime.clock.monotonic()
        found: dict[TableId, tuple[IndexletTarget, ...]] = {}
        for indexlet in self._catalog.indexes.found():
            run = Run(indexlet.owner, indexlet.owner_incarnation)
            seen = self._liveness.find(run)
            is_filling = indexlet.state is IndexletState.FILLING
            if is_filling and seen is not None and self._liveness.is_live(run, now):
                target = IndexletTarget(indexlet, seen.server)
                found[indexlet.table_id] = (*found.get(indexlet.table_id, ()), target)
        return found

    async def _go_on_natively(
        self, attempt: Attempt, jobs: Sequence[RecoveryJob], reason: str
    ) -> None:
        """Tell the owners to wait for Spark no more."""
        self._attempts.gave_up(attempt, len(jobs), reason)
        for job in jobs:
            self._without_spark[job.tablet.tablet_id] = job.tablet.term
        self._begin(self.chooser.choose(jobs, None), None, jobs, takes_over=True)
        await self._open_all(jobs, RecoveryEngine.NATIVE)

    async def _open_all(
        self, jobs: Sequence[RecoveryJob], engine: RecoveryEngine, merge_patience_s: float = 0.0
    ) -> None:
        """Tell all owners at once."""
        await asyncio.gather(*(self._open(job, engine, merge_patience_s) for job in jobs))

    async def _open(
        self, job: RecoveryJob, engine: RecoveryEngine, merge_patience_s: float
    ) -> None:
        tablet_id, owner = job.tablet.tablet_id, job.owner
        newest = self._catalog.tablets[tablet_id]
        timeline = source_of(self._catalog, self._liveness, newest)
        load_rate = self._pacing.departures.load_rate(job.tablet)
        now = self._runtime.clock.monotonic()
        self._pacing.owners.opening(tablet_id, job.tablet.term, now)  # it may die before it answers
        order = OpenTablet(
            job.table, job.tablet, job.sources, engine, timeline, merge_patience_s, load_rate
        )
        try:
            await self._runtime.peers.call(
                owner.address,
                OPEN_TABLET,
                order,
                timeout_s=self._settings.call_timeout_s,
                destination=owner.uuid,
            )
        except StelaeError as error:
            self._note(tablet_id, f"{owner.name} could not be told to open it: {error}")
            now = self._runtime.clock.monotonic()
            self._pacing.owners.untold(tablet_id, job.tablet.term, now)
            self._pause(tablet_id, RETRY_S)
            return
        self._note(tablet_id, "")
        self._pacing.owners.told(tablet_id)
        self._pause(tablet_id, RESEND_S)
        self._recoveries.note(tablet_id, owner=owner.name)
        self._reached([job], "opened")

    # ---- notes ------------------------------------------------------------------------------

    def _reached(self, jobs: Sequence[RecoveryJob], *phases: str) -> None:
        now = self._runtime.clock.monotonic()
        for phase in phases:
            self._recoveries.reached((job.tablet.tablet_id for job in jobs), phase, now)

    def _pause(self, tablet_id: TabletId, pause_s: float) -> None:
        self._pacing.ordered(tablet_id, self._runtime.clock.monotonic() + pause_s)

    def _note(self, tablet_id: TabletId, problem: str) -> None:
        if problem:
            self._problems[tablet_id] = problem
        else:
            self._problems.pop(tablet_id, None)
        self._recoveries.note(tablet_id, problem=problem)
