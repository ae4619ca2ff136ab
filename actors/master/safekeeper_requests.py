"""What a master answers operators about safekeepers and timelines.

Statuses are records in the catalog, and so are orders of migrations, from before they are answered
until they are decided: the leader's `TimelineKeeper` drives them in the background, whoever leads.
Each is carried out once per request. A wish that cannot be fulfilled is refused before it is taken.

Implements seed 004 ("API"); design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from stelae.actors.master.leader.timeline_checks import scrub
from stelae.actors.master.leader.timelines import TimelineKeeper
from stelae.actors.master.operator_requests import carry_out
from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.timelines.duties import Duty, named, timeline_tablet
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    MoveTo,
    Request,
    Verdict,
    check_target,
)
from stelae.coordinator.timelines.placement import (
    count_members,
    draft_status,
    known_safekeeper,
    place_of,
    timeline_of,
)
from stelae.coordinator.timelines.safekeepers import decide_evacuation
from stelae.core.errors import (
    InvalidArgument,
    MigrationUnderWay,
    StelaeError,
    TableNotFound,
)
from stelae.core.ids import Address, RequestId, TabletId
from stelae.core.messages.timelines import (
    ABORT_MIGRATION,
    LIST_MIGRATIONS,
    LIST_SAFEKEEPERS,
    LIST_TIMELINES,
    LOCATE_TIMELINE,
    MIGRATE_SAFEKEEPER,
    MIGRATE_TABLE,
    MIGRATE_TIMELINE,
    SCRUB_SAFEKEEPER,
    SET_SAFEKEEPER_STATUS,
    AbortMigration,
    ListMigrations,
    ListSafekeepers,
    LocateTimeline,
    MigrateSafekeeper,
    MigrateTable,
    MigrateTimeline,
    MigrationList,
    MigrationResult,
    SafekeeperList,
    SafekeeperView,
    ScheduledMigration,
    ScheduledMigrations,
    ScrubReply,
    ScrubSafekeeper,
    SetSafekeeperStatus,
    TablesTimelines,
    TimelineList,
    TimelineView,
)
from stelae.core.records.configurations import (
    ConfigurationStore,
    MigrationOrder,
    StoredRecord,
    TimelineId,
)
from stelae.core.records.records import SafekeeperRecord, TabletRecord
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.schema.durability import Wal

ANSWER_SHARE = 0.8
"""Of a call's time: by then what is known is answered."""
HISTORY_SHOWN = 200
"""Records of a timeline: some dozens of moves."""
UNDER_WAY = "under way"
ASKED_FOR = "asked for"


class SafekeeperRequests:
    """The handlers of one master's operators, as far as safekeepers are concerned."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            LIST_SAFEKEEPERS: self._on_list,
            SET_SAFEKEEPER_STATUS: self._on_set_status,
            MIGRATE_TIMELINE: self._on_migrate_timeline,
            MIGRATE_TABLE: self._on_migrate_table,
            MIGRATE_SAFEKEEPER: self._on_migrate_safekeeper,
            ABORT_MIGRATION: self._on_abort,
            LIST_MIGRATIONS: self._on_list_migrations,
            LOCATE_TIMELINE: self._on_locate,
            LIST_TIMELINES: self._on_list_timelines,
            SCRUB_SAFEKEEPER: self._on_scrub,
        }

    async def _lead(self, timeout_s: float) -> TimelineKeeper:
        """After proof that this master led when the call came. Raises NotLeader."""
        await self._master.barrier(timeout_s)
        return self._master.lead_timelines()

    # ---- safekeepers ------------------------------------------------------------------------

    async def _on_list(self, call: Call[ListSafekeepers]) -> Reply[SafekeeperList]:
        await self._lead(call.timeout_s)
        catalog = self._master.catalog
        load = count_members(catalog.live_tablets())
        records = catalog.timelines.safekeepers
        views = (self._view(records[number], load.get(number, 0)) for number in sorted(records))
        return Reply(SafekeeperList(tuple(views)))

    def _view(self, record: SafekeeperRecord, timelines: int) -> SafekeeperView:
        liveness, now = self._master.liveness, self._master.runtime.clock.monotonic()
        seen = liveness.newest(record.uuid)
        return SafekeeperView(
            record,
            liveness.live_server(record.uuid, now) is not None,
            round(liveness.missed_s(record.uuid, now), 3),
            seen.server.address if seen is not None else Address(""),
            timelines,
            self._master.lead_timelines().broken.count(record.safekeeper_id),
        )

    async def _on_set_status(self, call: Call[SetSafekeeperStatus]) -> Reply[SafekeeperView]:
        order, catalog = call.body, self._master.catalog
        draft = partial(draft_status, catalog, order)
        if await carry_out(self._master, order.request, draft, call.timeout_s):
            self._master.lead_timelines().wake()
        load = count_members(catalog.live_tablets())
        record = known_safekeeper(catalog, order.safekeeper_id)
        return Reply(self._view(record, load.get(order.safekeeper_id, 0)))

    async def _on_scrub(self, call: Call[ScrubSafekeeper]) -> Reply[ScrubReply]:
        number = call.body.safekeeper_id
        keeper = await self._lead(call.timeout_s)
        known_safekeeper(self._master.catalog, number)
        try:
            found = await scrub(self._master.catalog, keeper.ports, number)
        except StelaeError as error:
            # As an answer: whoever is told that somebody is away looks for another master.
            return Reply(ScrubReply(0, (), (), {}, silence=str(error)))
        self._master.runtime.metrics.count("timelines_scrubbed", len(found.removed))
        return Reply(found)

    # ---- migrations -------------------------------------------------------------------------

    async def _on_migrate_timeline(self, call: Call[MigrateTimeline]) -> Reply[ScheduledMigrations]:
        order, catalog = call.body, self._master.catalog

        def wanted() -> list[Duty]:
            tablet = timeline_tablet(catalog, order.tablet_id)
            return [self._wish(tablet, order.desired_set)]

        def given() -> list[Duty]:
            tablet = timeline_tablet(catalog, order.tablet_id)
            return [Duty(timeline_of(tablet), MoveTo(order.desired_set), ASKED_FOR)]

        return await self._schedule(order.request, wanted, given, call.timeout_s)

    async def _on_migrate_table(self, call: Call[MigrateTable]) -> Reply[ScheduledMigrations]:
        order = call.body

        def elsewhere() -> list[TabletRecord]:
            tablets, desired = self._tablets(order.table), set(order.desired_set)
            if not tablets:
                raise InvalidArgument(f"table {order.table!r} has no timelines: it is not wal(…)")
            return [t for t in tablets if t.timeline and set(t.timeline.members) != desired]

        def wanted() -> list[Duty]:
            return [self._wish(tablet, order.desired_set) for tablet in elsewhere()]

        def given() -> list[Duty]:
            move = MoveTo(order.desired_set)
            return [Duty(timeline_of(tablet), move, ASKED_FOR) for tablet in elsewhere()]

        return await self._schedule(order.request, wanted, given, call.timeout_s)

    def _wish(self, tablet: TabletRecord, desired: tuple[SafekeeperId, ...]) -> Duty:
        """Raises InvalidArgument for members that it can surely not have."""
        durability = self._master.catalog.tables[tablet.table_id].durability_of(tablet)
        assert isinstance(durability, Wal), "only these have timelines"
        assert tablet.timeline is not None, "it was looked for by that"
        statuses = self._master.lead_timelines().statuses
        check_target(desired, tablet.timeline, statuses, durability.count)
        if len(desired) != durability.count:
            raise InvalidArgument(
                f"safekeepers {list(desired)}: of {durability} there are {durability.count}"
            )
        return Duty(timeline_of(tablet), MoveTo(desired), ASKED_FOR)

    async def _on_migrate_safekeeper(
        self, call: Call[MigrateSafekeeper]
    ) -> Reply[ScheduledMigrations]:
        order, catalog = call.body, self._master.catalog
        keeper = await self._lead(call.timeout_s)
        records = await keeper.records()

        def wanted() -> list[Duty]:
            source, target = order.src_sk, order.dst_sk
            known_safekeeper(catalog, source)
            known_safekeeper(catalog, target)
            statuses = self._master.lead_timelines().statuses
            moves = decide_evacuation(records, statuses, source, target, order.limit)
            return [Duty(move.timeline, move.request, move.reason) for move in moves]

        def given() -> list[Duty]:
            return [
                Duty(one.timeline, MoveTo(one.desired), ASKED_FOR)
                for one in self._master.lead_timelines().progress()
                if one.desired is not None
                and order.dst_sk in one.desired
                and order.src_sk not in one.desired
            ]

        return await self._schedule(order.request, wanted, given, call.timeout_s)

    async def _schedule(
        self,
        request: RequestId,
        wanted: Callable[[], list[Duty]],
        given: Callable[[], list[Duty]],
        timeout_s: float,
    ) -> Reply[ScheduledMigrations]:
        """Write down what is ``wanted``, and begin it: this leader, or any that follows. A copy of
        the request orders nothing more, and is told what was ``given`` to do."""
        taken: list[Duty] = []

        def draft() -> CatalogBatch:
            taken[:] = _free(self._master.lead_timelines(), wanted())
            orders = (_order(duty.timeline, duty.request, request) for duty in taken)
            return CatalogBatch(request=request, orders=tuple(orders))

        if not await carry_out(self._master, request, draft, timeout_s):
            return Reply(ScheduledMigrations(tuple(map(_described, given()))))
        keeper = self._master.lead_timelines()
        for duty in taken:
            keeper.obey(_order(duty.timeline, duty.request, request))
        return Reply(ScheduledMigrations(tuple(map(_described, taken))))

    async def _on_abort(self, call: Call[AbortMigration]) -> Reply[MigrationResult]:
        body, catalog, clock = call.body, self._master.catalog, self._master.runtime.clock
        until_s = clock.monotonic() + call.timeout_s * ANSWER_SHARE
        await self._lead(call.timeout_s)

        def order() -> MigrationOrder:
            timeline = timeline_of(timeline_tablet(catalog, body.tablet_id))
            return _order(timeline, Abort(), body.request)

        def draft() -> CatalogBatch:
            given = order()
            self._master.lead_timelines().require_free(given.timeline, Abort())
            return CatalogBatch(request=body.request, orders=(given,))

        is_new = await carry_out(self._master, body.request, draft, call.timeout_s)
        keeper = self._master.lead_timelines()
        ended = keeper.obey(order()) if is_new else None
        if ended is not None:
            await asyncio.wait((ended,), timeout=max(0.0, until_s - clock.monotonic()))
            if ended.done() and ended.exception() is None:
                return Reply(ended.result())
        return Reply(self._abort_so_far(keeper, body.tablet_id))

    def _abort_so_far(self, keeper: TimelineKeeper, tablet_id: TabletId) -> MigrationResult:
        """How it stands with an abort that was ordered, as far as this leader knows."""
        tablet = timeline_tablet(self._master.catalog, tablet_id)
        timeline, configuration = timeline_of(tablet), tablet.timeline
        assert configuration is not None, "it was looked for by that"
        running = [p for p in keeper.progress() if p.timeline == timeline]
        ended = keeper.results.get(timeline)
        if not running and ended is not None:
            return ended
        verdict, generation = UNDER_WAY, configuration.generation
        if running:
            verdict, generation = running[0].verdict or UNDER_WAY, running[0].generation
        elif not configuration.is_joint:
            verdict = Verdict.DONE.value
        now = self._master.runtime.clock.now()
        return MigrationResult(timeline, named(Abort()), verdict, "", generation, False, now)

    async def _on_list_migrations(self, call: Call[ListMigrations]) -> Reply[MigrationList]:
        keeper = await self._lead(call.timeout_s)
        return Reply(MigrationList(keeper.progress(), tuple(keeper.results.values())))

    # ---- timelines --------------------------------------------------------------------------

    def _tablets(self, table: str) -> list[TabletRecord]:
        """Live tablets with timelines, of one table or of all. Raises TableNotFound."""
        catalog = self._master.catalog
        if not table:
            tablets = list(catalog.live_tablets())
        else:
            found = catalog.find(table)
            if found is None:
                raise TableNotFound(table)
            tablets = catalog.tablets_of(found.table_id)
        return [tablet for tablet in tablets if tablet.timeline is not None]

    async def _on_list_timelines(self, call: Call[TablesTimelines]) -> Reply[TimelineList]:
        await self._lead(call.timeout_s)
        found = [
            (tablet.table_id, tablet.tablet_id, tablet.timeline)
            for tablet in self._tablets(call.body.table)
            if tablet.timeline is not None
        ]
        return Reply(TimelineList(tuple(found)))

    async def _on_locate(self, call: Call[LocateTimeline]) -> Reply[TimelineView]:
        keeper = await self._lead(call.timeout_s)
        tablet = timeline_tablet(self._master.catalog, TabletId(call.body.tablet_id))
        assert tablet.timeline is not None, "it was looked for by that"
        timeline = timeline_of(tablet)
        try:
            history = await _newest(
                keeper.ports.store, timeline, timeout_s=call.timeout_s * ANSWER_SHARE
            )
            problem = ""
        except StelaeError as error:
            history, problem = (), str(error)
        members = tablet.timeline.members
        if history:
            members = history[-1].record.configuration.members
        catalog, liveness = self._master.catalog, self._master.liveness
        places = (place_of(catalog, liveness, member) for member in members)
        running = [p for p in keeper.progress() if p.timeline == timeline]
        return Reply(
            TimelineView(
                tablet,
                tablet.timeline,
                tuple(place for place in places if place is not None),
                history,
                problem,
                running[0] if running else None,
                keeper.results.get(timeline),
            )
        )


async def _newest(
    store: ConfigurationStore, timeline: TimelineId, *, timeout_s: float
) -> tuple[StoredRecord, ...]:
    """The last records of a timeline, however many there are, the newest last."""
    current = await store.get(timeline, timeout_s=timeout_s / 2)
    before = max(0, current.revision - HISTORY_SHOWN) if current is not None else 0
    return await store.history(timeline, before, HISTORY_SHOWN, timeout_s=timeout_s / 2)


def _free(keeper: TimelineKeeper, duties: Iterable[Duty]) -> list[Duty]:
    """Those of which another change is under way are left out, if there are others.

    Raises MigrationUnderWay: there are none.
    """
    free: list[Duty] = []
    problem: MigrationUnderWay | None = None
    for duty in duties:
        assert isinstance(duty.request, MoveTo), "nothing else is scheduled"
        try:
            keeper.require_free(duty.timeline, duty.request)
        except MigrationUnderWay as error:
            problem = error
        else:
            free.append(duty)
    if problem is not None and not free:
        raise problem
    return free


def _order(timeline: TimelineId, wish: Request, request: RequestId) -> MigrationOrder:
    return MigrationOrder(timeline, wish.desired if isinstance(wish, MoveTo) else None, request)


def _described(duty: Duty) -> ScheduledMigration:
    assert isinstance(duty.request, MoveTo), "nothing else is scheduled"
    return ScheduledMigration(duty.timeline, duty.request.desired, duty.reason)
