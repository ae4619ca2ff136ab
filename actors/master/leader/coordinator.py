"""The coordinator: the control-plane work of the leader master, for as long as it leads.

Every ``coordinator_period_s``, and whenever something has happened, it looks at what should be and
what is (`stelae.coordinator.decide`) and carries out what follows: catalog entries first,
then calls to servers. All it has under way may be lost with it; the next leader begins it again.

It watches the TCP connection to every server: when one ends and the process surely no longer runs,
the server is dead at that moment, not after its silence has lasted long enough.

Source: design §7, §9; seed Kudu multi-master, background tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from stelae.actors.master.leader.index_orders import IndexOrders
from stelae.actors.master.leader.recovery import RESEND_S, RETRY_S, RecoveryRounds
from stelae.actors.master.leader.recovery_splits import RecoverySplits
from stelae.coordinator.backoff.pacing import Pacing, Pauses
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.ddl.alter import Alter, FinishAlter, draft_finish, told
from stelae.coordinator.ddl.succession import (
    BeginSuccession,
    GiveUpSuccessor,
    OrderTransfer,
    SuccessionAction,
    Swap,
    draft_begin,
    draft_give_up,
    draft_swap,
)
from stelae.coordinator.ddl.tables import draft_replace
from stelae.coordinator.decide import (
    Action,
    GiveUp,
    HandOver,
    Learn,
    Move,
    Open,
    Recover,
    Replace,
    Serve,
    decide,
    note_replaced,
)
from stelae.coordinator.decide_groups import (
    Change,
    Create,
    Delete,
    GroupAction,
    Transfer,
    UpdateGroups,
)
from stelae.coordinator.decide_indexes import IndexAction
from stelae.coordinator.groups.replacements import CopyLimits
from stelae.coordinator.liveness.liveness import Liveness, Run, run_of
from stelae.coordinator.moves.departures import Close
from stelae.coordinator.status.recoveries import Recoveries, why_unknown
from stelae.coordinator.timelines.placement import source_of
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.alter import ALTER_TABLET, AlterTablet
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    TRANSFER_LEADERSHIP,
    ChangeReplicas,
)
from stelae.core.messages.servers import (
    CLOSE_TABLET,
    LEARN_TIMELINE,
    OPEN_TABLET,
    SERVE_TABLET,
    CloseTablet,
    LearnTimeline,
    OpenTablet,
    ServeTablet,
)
from stelae.core.records.records import ServerInfo, TabletRecord, TabletState
from stelae.core.records.succession import TRANSFER_TABLET
from stelae.core.rpc import Method
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.recovery.engine import EnginePolicy, SparkEngine

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, ...]
"""Names an action: what, of which tablet or table, in which term."""
PROBE_PAUSES_S = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""A killed process may outlive its connections by a moment: it is looked for so often."""


class Coordinator:
    """One leadership of one master. `start` when ready to lead, `stop` when leading no more."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        catalog: Catalog,
        liveness: Liveness,
        replicate: Callable[[bytes], Awaitable[object]],
        *,
        policy: EnginePolicy,
        spark_engine: Callable[[], SparkEngine | None],
    ) -> None:
        self.operations = Operations(catalog, replicate)
        self.recoveries = Recoveries()
        self.problems: dict[TabletId, str] = {}
        """Why a tablet is offline, if it is."""
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._catalog = catalog
        self._liveness = liveness
        self.pacing = Pacing()
        self._wake = asyncio.Event()
        self._own: dict[asyncio.Task[None], None] = {}
        self._busy: dict[Key, None] = {}
        self._pauses: Pauses[Key] = Pauses()
        self._watched: dict[Run, None] = {}
        self._looked_at = 0.0
        self._indexes = IndexOrders(
            runtime, catalog, liveness, self.operations, self.pacing, self._once, self._tell
        )
        self._rounds = RecoveryRounds(
            runtime,
            settings,
            catalog,
            liveness,
            self.recoveries,
            self.pacing,
            self.problems,
            RecoverySplits(
                runtime,
                settings,
                catalog,
                liveness,
                self.recoveries,
                self.operations,
                self.pacing,
            ),
            policy=policy,
            spark_engine=spark_engine,
        )

    # ---- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to lead: everything committed before is applied."""
        self._looked_at = self._runtime.clock.monotonic()
        self._liveness.lead(self._looked_at)
        for seen in self._liveness.all():
            self.watch(seen.server)
        self._spawn(self._loop(), "coordinator")

    def stop(self) -> None:
        """Lead no more. What is under way is cancelled; entries already replicated stand."""
        own, self._own = self._own, {}
        for task in own:
            task.cancel()

    def use_engine(self, policy: EnginePolicy) -> None:
        """Merge with this engine from the next recovery on."""
        self._rounds.chooser.policy = policy

    def wake(self) -> None:
        """Something has happened: look now."""
        self._wake.set()

    def watch(self, server: ServerInfo) -> None:
        """Notice the end of this run of this server."""
        run = Run(server.uuid, server.incarnation)
        if run not in self._watched:
            self._watched[run] = None
            self._spawn(self._watch(run, server), f"watch {server.name}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.spawn(work, name)
        self._own[task] = None
        task.add_done_callback(lambda done: self._own.pop(done, None))

    # ---- the loop ---------------------------------------------------------------------------

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            self._step()
            try:
                async with asyncio.timeout(self._settings.coordinator_period_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _step(self) -> None:
        """One look: begin whatever is to be done and not under way."""
        now = self._runtime.clock.monotonic()
        paused_s = now - self._looked_at
        if paused_s > self._settings.lease_s / 2:
            self._liveness.stalled(now, paused_s)  # what came meanwhile waits to be read
            self._runtime.metrics.count("coordinator_stalls")
        self._looked_at = now
        owners = [*self._catalog.owners(), *self._catalog.indexes.owners()]
        self._liveness.forget({Run(*owner): None for owner in owners})
        self._liveness.on_look(now)
        actions = decide(
            self._catalog,
            self._liveness,
            self.pacing,
            now,
            missing_after_s=self._settings.dead_after_s,
            creation_timeout_s=self._settings.creation_timeout_s,
            replica_dead_after_s=self._settings.replica_dead_after_s,
            rebalance_after_s=self._catalog.rebalance_after_s(self._settings.rebalance_after_s),
            copy_limits=CopyLimits(self._settings.copies_max, self._settings.copy_sessions_max),
            indexlet_entries_max=self._settings.indexlet_entries_max,
        )
        self._recover([action for action in actions if isinstance(action, Recover)])
        for action in actions:
            self._begin(action)

    def _begin(self, action: Action) -> None:
        match action:
            case GiveUp(run):
                self._liveness.give_up(run)
                self._runtime.metrics.count("servers_given_up")
            case Move():
                self._once(("move", action.table_id), lambda: self._move(action))
            case Replace():
                self._once(("replace", action.table_id), lambda: self._replace_stuck(action))
            case HandOver():
                self._once(("hand over", action.table_id), lambda: self._hand_over(action))
            case Open(tablet):
                key: Key = ("open", tablet.tablet_id, str(tablet.term))
                self._once(key, lambda: self._open(action))
            case Serve(tablet, owner):
                key = ("serve", tablet.tablet_id, str(tablet.term))
                serve = ServeTablet(tablet.tablet_id, tablet.term)
                self._once(key, lambda: self._tell(key, owner, SERVE_TABLET, serve))
            case Learn(tablet, owner):
                key = ("learn", tablet.tablet_id, str(tablet.generation))
                self._once(key, lambda: self._tell_timeline(key, tablet, owner))
            case Alter(tablet, _, alter_term):
                key = ("alter", tablet.tablet_id, str(alter_term))
                self._once(key, lambda: self._alter(action))
            case FinishAlter(table):
                self._once(("finish alter", table.table_id), lambda: self._finish_alter(action))
            case Close(server, tablet_id, term):
                key = ("close", tablet_id, server.uuid, str(term))
                close = CloseTablet(tablet_id, term)
                self._once(key, lambda: self._tell(key, server, CLOSE_TABLET, close))
            case Recover():
                pass  # together, in `_recover`
            case _:
                self._begin_of_group(action)

    def _begin_of_group(self, action: GroupAction | SuccessionAction | IndexAction) -> None:
        match action:
            case UpdateGroups():
                self._once(("groups",), lambda: self._update_groups(action))
            case Create(server, order):
                key: Key = ("create replica", order.tablet_id, server.uuid)
                self._once(key, lambda: self._tell(key, server, CREATE_REPLICA, order))
            case Delete(server, order):
                key = ("delete replica", order.tablet_id, server.uuid)
                self._once(key, lambda: self._tell(key, server, DELETE_REPLICA, order))
            case Change(leader, change, reason):
                key = ("change members", change.tablet_id, str(change.expected), change.kind.value)
                self._once(key, lambda: self._change_members(key, leader, change, reason))
            case Transfer(_, order):
                key = ("transfer leadership", order.tablet_id)
                self._once(key, lambda: self._transfer(key, action))
            case OrderTransfer(server, transfer):
                key = ("transfer", transfer.tablet_id, transfer.successor, transfer.release)
                self._once(key, lambda: self._tell(key, server, TRANSFER_TABLET, transfer))
            case BeginSuccession(tablet) | Swap(tablet):
                self._once(("succeed", tablet.tablet_id), lambda: self._succession(action))
            case GiveUpSuccessor(tablet):
                self._once(("give up", tablet.tablet_id), lambda: self._succession(action))
            case _:
                self._indexes.begin(action)

    def _once(self, key: Key, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do it in the background, unless it is under way or was done a moment ago."""
        if key in self._busy:
            return
        now = self._runtime.clock.monotonic()
        if not self._pauses.is_over(key, now):
            return
        self._busy[key] = None
        self._spawn(self._finish([key], work), " ".join(key))

    async def _finish(
        self, keys: Sequence[Key], work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Run ``work``, which is made here: whoever leads no more may never come to it. A failure
        of it is logged and counted, and the next look tries again."""
        try:
            await work()
        except StelaeError as error:
            logger.info("%s: %s", ", ".join(" ".join(key) for key in keys), error)
            self._runtime.metrics.count("coordinator_failures", error=type(error).__name__)
            now = self._runtime.clock.monotonic()
            for key in keys:
                self._pauses.begin(key, now + RETRY_S, now)
        finally:
            for key in keys:
                del self._busy[key]
            self.wake()

    # ---- catalog entries --------------------------------------------------------------------

    async def _move(self, action: Move) -> None:
        self._open_pages(action)
        began = self._runtime.clock.monotonic()
        done = await self._replace(action.tablets)
        now = self._runtime.clock.monotonic()
        for tablet in done:
            former = action.failed_at.get(tablet.tablet_id)
            if former is not None:
                self.pacing.owners.failed(tablet.tablet_id, (former,), now)
            self.pacing.moved(tablet.tablet_id)
        raised = (tablet.tablet_id for tablet in done)
        self.recoveries.reached(raised, "raised", now, began=began)  # the round may have begun

    async def _hand_over(self, action: HandOver) -> None:
        done = await self._replace(action.tablets)
        for tablet in done:
            self.pacing.succeeded(tablet.tablet_id)
            self.problems.pop(tablet.tablet_id, None)
            seen = self._liveness.find(Run(tablet.owner, tablet.owner_incarnation))
            report = None if seen is None else seen.reports.get(tablet.tablet_id)
            self.recoveries.note(tablet.tablet_id, report=report)
        now = self._runtime.clock.monotonic()
        self.recoveries.reached((tablet.tablet_id for tablet in done), "running", now)
        self._rounds.recovered([tablet.tablet_id for tablet in done])

    async def _update_groups(self, action: UpdateGroups) -> None:
        for tablet in await self._replace(action.tablets):
            if tablet.state is TabletState.RUNNING:
                self.pacing.succeeded(tablet.tablet_id)
                self.problems.pop(tablet.tablet_id, None)

    async def _replace_stuck(self, action: Replace) -> None:
        """Put new tablets in the place of stuck ones; the next look tells their owners."""
        await self.operations.change(
            lambda: draft_replace(
                self._catalog, action.stuck, action.holders, self._runtime.rng, action.timelines
            ),
            tables=[action.table_id],
            tablets=[tablet.tablet_id for tablet in action.stuck],
        )
        note_replaced(self._catalog, self.pacing, action, self._runtime.clock.monotonic())
        for tablet in action.stuck:
            self.problems.pop(tablet.tablet_id, None)
            self.pacing.succeeded(tablet.tablet_id)  # nothing of it is awaited any more
        self._runtime.metrics.count("tablets_replaced", len(action.stuck))

    async def _succession(self, action: BeginSuccession | Swap | GiveUpSuccessor) -> None:
        def draft() -> CatalogBatch | None:
            match action:
                case BeginSuccession():
                    return draft_begin(self._catalog, action, self._runtime.rng)
                case Swap():
                    return draft_swap(self._catalog, action)
                case GiveUpSuccessor():
                    return draft_give_up(self._catalog, action)

        of = action.successor if isinstance(action, GiveUpSuccessor) else action.tablet
        touched = [of.tablet_id]
        if isinstance(action, Swap):
            touched.append(action.successor.tablet_id)
        await self.operations.change(draft, tables=[of.table_id], tablets=touched)
        self._runtime.metrics.count("successions", step=type(action).__name__)

    async def _finish_alter(self, action: FinishAlter) -> None:
        def draft() -> CatalogBatch | None:
            return draft_finish(self._catalog, action)

        await self.operations.change(draft, tables=[action.table.table_id])

    async def _replace(self, tablets: Sequence[TabletRecord]) -> list[TabletRecord]:
        """Replicate new records of tablets in one entry, leaving out those overtaken meanwhile."""

        def draft() -> CatalogBatch | None:
            current = self._catalog.tablets
            follow = [t for t in tablets if current[t.tablet_id].generation + 1 == t.generation]
            return CatalogBatch(tablets=tuple(follow)) if follow else None

        await self.operations.change(draft, tablets=[t.tablet_id for t in tablets])
        return [t for t in tablets if self._catalog.tablets[t.tablet_id] == t]

    def _open_pages(self, action: Move) -> None:
        """Note for people which recoveries begin with this entry."""
        for new, reason in zip(action.tablets, action.reasons, strict=True):
            self.problems[new.tablet_id] = reason
            if new.state is TabletState.RECOVERING and self.recoveries.of(new.tablet_id) is None:
                old = self._catalog.tablets[new.tablet_id]
                self._open_page(old, reason)

    def _open_page(self, tablet: TabletRecord, reason: str) -> None:
        clock = self._runtime.clock
        now = clock.monotonic()
        seen = self._liveness.find(Run(tablet.owner, tablet.owner_incarnation))
        name = seen.server.name if seen is not None else tablet.owner
        recovery = self.recoveries.running(name)
        if recovery is None:
            silent_s = now - seen.heard_at if seen is not None else 0.0
            recovery = self.recoveries.begin(
                name, reason, now=now, wall=clock.now(), silent_s=silent_s
            )
        table = self._catalog.tables[tablet.table_id]
        report = None if seen is None else seen.reports.get(tablet.tablet_id)
        rows = 0 if report is None else report.row_count
        self.recoveries.add(recovery, tablet.tablet_id, table.name, rows)

    # ---- calls ------------------------------------------------------------------------------

    def _recover(self, orders: Sequence[Recover]) -> None:
        """Begin a round for all tablets that wait and are in none."""
        keys: dict[Key, Recover] = {
            ("recover", o.tablet.tablet_id, str(o.tablet.term)): o for o in orders
        }
        fresh = {key: order for key, order in keys.items() if key not in self._busy}
        if not fresh:
            return
        for key, order in fresh.items():
            self._busy[key] = None
            if self.recoveries.of(order.tablet.tablet_id) is None:
                self._open_page(order.tablet, why_unknown(order.tablet))
        orders = list(fresh.values())
        self._spawn(self._finish(list(fresh), lambda: self._rounds.run(orders)), "recovery round")

    async def _open(self, action: Open) -> None:
        tablet, owner = action.tablet, action.owner
        timeline = source_of(self._catalog, self._liveness, tablet)
        table = told(self._catalog, tablet)
        order = OpenTablet(table, tablet, timeline=timeline)
        now = self._runtime.clock.monotonic()
        self.pacing.ordered(tablet.tablet_id, now + RETRY_S)
        self.pacing.owners.opening(tablet.tablet_id, tablet.term, now)
        await self._call(owner, OPEN_TABLET, order)
        self.pacing.ordered(tablet.tablet_id, self._runtime.clock.monotonic() + RESEND_S)

    async def _tell_timeline(self, key: Key, tablet: TabletRecord, owner: ServerInfo) -> None:
        source = source_of(self._catalog, self._liveness, tablet)
        assert source is not None, "only who has a timeline is told of it"
        order = LearnTimeline(tablet.tablet_id, tablet.term, source)
        await self._tell(key, owner, LEARN_TIMELINE, order)

    async def _alter(self, action: Alter) -> None:
        """Tell an owner of its table's newest record; what it then reports is news at once."""
        tablet, owner = action.tablet, action.owner
        table = told(self._catalog, tablet)
        order = AlterTablet(tablet.tablet_id, action.term, table)
        report = await self._call(owner, ALTER_TABLET, order)
        now = self._runtime.clock.monotonic()
        self._liveness.report(Run(owner.uuid, owner.incarnation), report, now)

    async def _change_members(
        self, key: Key, leader: ServerInfo, order: ChangeReplicas, reason: str
    ) -> None:
        table = self._catalog.tables[self._catalog.tablets[order.tablet_id].table_id]
        what = f"{order.kind.value} {order.name or order.uuid}"
        logger.info("table %s, tablet %s: %s: %s", table.name, order.tablet_id[:8], what, reason)
        self._runtime.metrics.count("replica_changes", kind=order.kind.value)
        await self._tell(key, leader, CHANGE_REPLICAS, order)

    async def _transfer(self, key: Key, action: Transfer) -> None:
        """Have a leadership handed over, and note if it was not. Only what the leader itself says
        counts against the target."""
        order, transfers = action.order, self.pacing.transfers
        now = self._runtime.clock.monotonic()
        about = (action.leader.uuid, action.term, order.target)
        transfers.told(order.tablet_id, *about, now)
        try:
            await self._tell(key, action.leader, TRANSFER_LEADERSHIP, order)
        except StelaeError as error:
            now = self._runtime.clock.monotonic()
            transfers.refused(order.tablet_id, order.target, error, now)
            raise

    async def _tell(
        self, key: Key, server: ServerInfo, method: Method[Any, Any], order: Any
    ) -> Any:
        answer = await self._call(server, method, order)
        now = self._runtime.clock.monotonic()
        self._pauses.begin(key, now + 2 * self._settings.heartbeat_s, now)
        return answer

    async def _call(self, server: ServerInfo, method: Method[Any, Any], order: Any) -> Any:
        reply = await self._runtime.peers.call(
            server.address,
            method,
            order,
            timeout_s=self._settings.call_timeout_s,
            destination=server.uuid,
        )
        return reply.body

    # ---- watching ---------------------------------------------------------------------------

    async def _watch(self, run: Run, server: ServerInfo) -> None:
        """Wait for the end of a server's process, as far as it can be seen from here."""
        runtime, process = self._runtime, server.process
        while (newest := self._liveness.newest(run.uuid)) and run_of(newest) == run:
            await runtime.peers.watch(server.address)
            for pause_s in PROBE_PAUSES_S:
                await runtime.clock.sleep(pause_s)
                if runtime.process_gone(process.node, process.pid, process.started):
                    self._liveness.process_gone(run)
                    self.wake()
                    return
            await runtime.clock.sleep(self._settings.heartbeat_s)
