"""What a master answers operators about safekeepers and timelines.

Statuses are records in the catalog; migrations are requests to the leader's `TimelineKeeper`, which
drives them in the background. A wish that cannot be fulfilled is refused before it is scheduled.

Implements seed 004 ("API"); design §10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stelae.actors.timeline_keeper import TimelineKeeper
from stelae.actors.timeline_scrub import scrub
from stelae.coordinator.migration_steps import Abort, MoveTo, Request, check_target
from stelae.coordinator.safekeepers import decide_evacuation
from stelae.coordinator.timeline_duties import Duty, named, timeline_tablet
from stelae.coordinator.timeline_placement import (
    count_members,
    draft_status,
    known_safekeeper,
    place_of,
    timeline_of,
)
from stelae.core.configurations import TimelineId
from stelae.core.durability import Wal
from stelae.core.errors import (
    InvalidArgument,
    MigrationUnderWay,
    StelaeError,
    TableNotFound,
    TabletNotReady,
)
from stelae.core.ids import Address, TabletId
from stelae.core.records import SafekeeperRecord, TabletRecord
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.timeline_messages import (
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
from stelae.core.timelines import SafekeeperId

if TYPE_CHECKING:
    from stelae.actors.master import Master

ANSWER_SHARE = 0.8
"""Of a call's time: by then what is known is answered."""
UNDER_WAY = "under way"


class SafekeeperRequests:
    """The handlers of one master's operators, as far as safekeepers are concerned."""

    def __init__(self, master: Master) -> None:
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
            round(liveness.silent_s(record.uuid, now), 3),
            seen.server.address if seen is not None else Address(""),
            timelines,
            self._master.lead_timelines().broken.count(record.safekeeper_id),
        )

    async def _on_set_status(self, call: Call[SetSafekeeperStatus]) -> Reply[SafekeeperView]:
        order, catalog = call.body, self._master.catalog
        keeper = await self._lead(call.timeout_s)
        await self._master.lead().operations.change(
            lambda: draft_status(catalog, order.safekeeper_id, order.status)
        )
        keeper.wake()
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
        keeper = await self._lead(call.timeout_s)
        tablet = timeline_tablet(self._master.catalog, call.body.tablet_id)
        return self._schedule(keeper, [self._wish(tablet, call.body.desired_set)])

    async def _on_migrate_table(self, call: Call[MigrateTable]) -> Reply[ScheduledMigrations]:
        keeper = await self._lead(call.timeout_s)
        desired = call.body.desired_set
        tablets = self._tablets(call.body.table)
        if not tablets:
            raise InvalidArgument(f"table {call.body.table!r} has no timelines: it is not wal(…)")
        elsewhere = [t for t in tablets if t.timeline and set(t.timeline.members) != set(desired)]
        return self._schedule(keeper, [self._wish(tablet, desired) for tablet in elsewhere])

    def _wish(self, tablet: TabletRecord, desired: tuple[SafekeeperId, ...]) -> Duty:
        """Raises InvalidArgument for members that it can surely not have."""
        durability = self._master.catalog.tables[tablet.table_id].durability
        assert isinstance(durability, Wal), "only these have timelines"
        assert tablet.timeline is not None, "it was looked for by that"
        statuses = self._master.lead_timelines().statuses
        check_target(desired, tablet.timeline, statuses, durability.count)
        if len(desired) != durability.count:
            raise InvalidArgument(
                f"safekeepers {list(desired)}: of {durability} there are {durability.count}"
            )
        return Duty(timeline_of(tablet), MoveTo(desired), "asked for")

    async def _on_migrate_safekeeper(
        self, call: Call[MigrateSafekeeper]
    ) -> Reply[ScheduledMigrations]:
        order, catalog = call.body, self._master.catalog
        keeper = await self._lead(call.timeout_s)
        known_safekeeper(catalog, order.src_sk)
        known_safekeeper(catalog, order.dst_sk)
        records = await keeper.records()
        moves = decide_evacuation(records, keeper.statuses, order.src_sk, order.dst_sk, order.limit)
        return self._schedule(keeper, [Duty(m.timeline, m.request, m.reason) for m in moves])

    def _schedule(
        self, keeper: TimelineKeeper, duties: Iterable[Duty]
    ) -> Reply[ScheduledMigrations]:
        """Those of which another change is under way are left out, if there are others."""
        scheduled: list[ScheduledMigration] = []
        problem: MigrationUnderWay | None = None
        for duty in duties:
            assert isinstance(duty.request, MoveTo), "nothing else is scheduled here"
            try:
                _begin(keeper, duty.timeline, duty.request)
            except MigrationUnderWay as error:
                problem = error
            else:
                scheduled.append(
                    ScheduledMigration(duty.timeline, duty.request.desired, duty.reason)
                )
        if problem is not None and not scheduled:
            raise problem
        return Reply(ScheduledMigrations(tuple(scheduled)))

    async def _on_abort(self, call: Call[AbortMigration]) -> Reply[MigrationResult]:
        keeper = await self._lead(call.timeout_s)
        tablet = timeline_tablet(self._master.catalog, call.body.tablet_id)
        timeline = timeline_of(tablet)
        ended = _begin(keeper, timeline, Abort())
        await asyncio.wait((ended,), timeout=call.timeout_s * ANSWER_SHARE)
        if ended.done():
            return Reply(ended.result())
        running = [p for p in keeper.progress() if p.timeline == timeline]
        verdict, generation = UNDER_WAY, 0
        if running:
            verdict, generation = running[0].verdict or UNDER_WAY, running[0].generation
        now = self._master.runtime.clock.now()
        return Reply(MigrationResult(timeline, named(Abort()), verdict, "", generation, False, now))

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
            history = await keeper.ports.store.history(
                timeline, 0, 1000, timeout_s=call.timeout_s * ANSWER_SHARE
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


def _begin(
    keeper: TimelineKeeper, timeline: TimelineId, request: Request
) -> asyncio.Future[MigrationResult]:
    """Raises MigrationUnderWay, which is told at once: operators do not wait for one another."""
    try:
        return keeper.request(timeline, request)
    except TabletNotReady as error:
        raise MigrationUnderWay(timeline.tablet_id, error.args[1]) from None
