"""What a master answers clients: the operations on tables, look-ups, lists, and status.

Every change goes through `stelae.coordinator.catalog.operations`; every answer comes after a read
barrier that began when the call was here, but those of reads that may be a little old: any master
that can prove that its state is new enough gives them (`stelae.actors.raft.staleness`). Source:
seed Kudu multi-master, appendix B; design §7.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from stelae.actors.master.leader.coordinator import Coordinator
from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.alter import by_id, draft_alter, problem_of, waiting_for
from stelae.coordinator.ddl.tables import (
    check_order,
    check_room,
    draft_create,
    draft_delete,
)
from stelae.coordinator.groups.group import location_of
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.liveness import Run, run_of
from stelae.coordinator.placement.assignment import (
    check_enough_backups,
    check_enough_tservers,
    check_live_tservers,
    check_media,
)
from stelae.coordinator.placement.known_backups import offers
from stelae.coordinator.placement.leaving_backups import staying_backups
from stelae.coordinator.status.document import MasterView, StatusInputs, status_document
from stelae.coordinator.status.recoveries import Recoveries
from stelae.coordinator.timelines.placement import first_timelines, fleet_of
from stelae.core.errors import InvalidArgument, TableNotFound, TabletNotFound
from stelae.core.ids import Address, TabletId
from stelae.core.messages.alter import (
    ALTER_TABLE,
    IS_ALTER_DONE,
    AlterTable,
    IsAlterDone,
    IsAlterDoneReply,
)
from stelae.core.messages.catalog import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    GET_TABLET_LOCATIONS,
    IS_CREATE_DONE,
    LIST_TABLES,
    STATUS,
    CreateProgress,
    CreateTable,
    DeleteTable,
    GetStatus,
    GetTable,
    GetTabletLocations,
    IsCreateDone,
    ListTables,
    StatusReply,
    TableList,
    TableLocations,
    TableReply,
    TabletLocation,
    TabletLocations,
)
from stelae.core.records.records import (
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.schema.durability import Replicas, media_of
from stelae.core.schema.schema import check_table_name

KNOWS_ALL_AFTER_S = 30.0
"""A leader that has led for so long has heard every server there is, or that will soon be again.
Until then it lets those wait who need more of them."""
MAX_LOCATED = 1000
"""Tablets looked up in one call."""


class ClientRequests:
    """The handlers of one master's clients."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            CREATE_TABLE: self._on_create_table,
            ALTER_TABLE: self._on_alter_table,
            DELETE_TABLE: self._on_delete_table,
            GET_TABLE: self._on_get_table,
            GET_TABLET_LOCATIONS: self._on_get_tablet_locations,
            IS_CREATE_DONE: self._on_is_create_done,
            IS_ALTER_DONE: self._on_is_alter_done,
            LIST_TABLES: self._on_list_tables,
            STATUS: self._on_status,
        }

    async def _on_create_table(self, call: Call[CreateTable]) -> Reply[TableReply]:
        order = call.body
        check_order(order)
        coordinator = await self._master.barrier(call.timeout_s)
        known = self._master.catalog.result_of(order.request)
        if known is None:
            async with coordinator.operations.reserve(order.name):
                known = await coordinator.operations.change(
                    lambda: self._draft_create(order), request=order.request
                )
            coordinator.wake()
        known = known or self._master.catalog.result_of(order.request)
        assert known is not None, "a create that changed nothing was done before"
        return Reply(TableReply(self._master.catalog.tables[known]))

    def _draft_create(self, order: CreateTable) -> CatalogBatch | None:
        if self._master.catalog.result_of(order.request) is not None:
            return None
        master, liveness = self._master, self._master.liveness
        now = master.runtime.clock.monotonic()
        loads = tserver_loads(master.catalog, liveness.live(ServerKind.TSERVER, now))
        check_room(master.catalog, order, master.settings)
        what, media = f"table {order.name!r}", media_of(order.durability)
        knows_all = now >= liveness.lead_since + KNOWS_ALL_AFTER_S
        known = [seen.server for seen in liveness.newest_runs()]
        is_new = master.catalog.find(order.name) is None
        if knows_all and is_new and isinstance(order.durability, Replicas):
            check_enough_tservers(what, order.durability.count, known)
        timelines = first_timelines(
            master.catalog,
            fleet_of(master.catalog, liveness, now),
            order.durability,
            order.partitioning.tablet_count if is_new else 0,
            what=what,
            now=now,
            silence_s=master.settings.dead_after_s,
            knows_all=knows_all,
        )
        batch = draft_create(
            master.catalog,
            order,
            loads,
            master.runtime.rng,
            timelines,
            key_seed=master.runtime.secrets.getrandbits(64),
        )
        if knows_all:
            check_enough_backups(what, media, offers(master.catalog, liveness, now))
        check_media(what, media, staying_backups(master.catalog, liveness, now))
        return batch

    def _check_room_for(self, order: AlterTable) -> None:
        """Raise `TooFewServers`, `TooManyReplicas` or `NotEnoughServers` for a durability that asks
        for more servers than there are."""
        master, liveness = self._master, self._master.liveness
        table = master.catalog.tables.get(order.table_id)
        if table is None or order.durability in (None, table.durability, table.becoming):
            return
        before, after = table.durability, order.durability
        assert after is not None, "it was looked at"
        now = master.runtime.clock.monotonic()
        what, known = f"table {order.name!r}", [s.server for s in liveness.newest_runs()]
        knows_all = now >= liveness.lead_since + KNOWS_ALL_AFTER_S
        if isinstance(after, Replicas):
            homes = [s for s in known if not master.catalog.mark(s.uuid).retiring]
            if isinstance(before, Replicas) and after.count <= before.count:
                return
            if knows_all:
                check_enough_tservers(what, after.count, homes)
            if not isinstance(before, Replicas):  # or else they are added one by one
                live = {seen.server.uuid for seen in liveness.live(ServerKind.TSERVER, now)}
                check_live_tservers(what, after.count, [s for s in homes if s.uuid in live])
            return
        first_timelines(
            master.catalog,
            fleet_of(master.catalog, liveness, now),
            after,
            1,
            what=what,
            now=now,
            silence_s=master.settings.dead_after_s,
            knows_all=knows_all,
        )
        media = media_of(after)
        if knows_all:
            check_enough_backups(what, media, offers(master.catalog, liveness, now))
        check_media(what, media, staying_backups(master.catalog, liveness, now))

    async def _on_delete_table(self, call: Call[DeleteTable]) -> Reply[Empty]:
        order = call.body
        coordinator = await self._master.barrier(call.timeout_s)
        if self._master.catalog.result_of(order.request) is not None:
            return EMPTY
        table = self._master.catalog.find(order.name)
        if table is None:
            await coordinator.operations.refuse(order.request, TableNotFound(order.name))
            return EMPTY
        catalog = self._master.catalog
        tablets = [tablet.tablet_id for tablet in catalog.tablets_of(table.table_id)]
        successors = [catalog.successor_of(tablet_id) for tablet_id in tablets]
        tablets += [each.tablet_id for each in successors if each is not None]

        def draft() -> CatalogBatch | None:
            if self._master.catalog.result_of(order.request) is not None:
                return None
            return draft_delete(
                self._master.catalog, order.request, table.table_id, order.name, order.if_edition
            )

        await coordinator.operations.change(
            draft, tables=[table.table_id], tablets=tablets, request=order.request
        )
        coordinator.recoveries.drop(tablets)
        for tablet_id in tablets:
            coordinator.problems.pop(tablet_id, None)
        coordinator.wake()
        if self._master.timelines is not None:
            self._master.timelines.wake()
        return EMPTY

    async def _on_alter_table(self, call: Call[AlterTable]) -> Reply[TableReply]:
        order, catalog = call.body, self._master.catalog
        coordinator = await self._master.barrier(call.timeout_s)

        def draft() -> CatalogBatch | None:
            if catalog.result_of(order.request) is not None:
                return None
            self._check_room_for(order)
            return draft_alter(catalog, order)

        if catalog.result_of(order.request) is None:
            async with AsyncExitStack() as held:
                if order.new_name:
                    check_table_name(order.new_name)
                    await held.enter_async_context(coordinator.operations.reserve(order.new_name))
                await coordinator.operations.change(
                    draft, tables=[order.table_id], request=order.request
                )
            coordinator.wake()
        return Reply(TableReply(catalog.tables[order.table_id]))

    # ---- reads ------------------------------------------------------------------------------

    async def _on_get_table(self, call: Call[GetTable]) -> Reply[TableLocations]:
        coordinator = await self._master.view(call.timeout_s, call.body.max_staleness_s)
        table = by_id(self._master.catalog, call.body.table_id, call.body.name)
        tablets = self._master.catalog.tablets_of(table.table_id)
        return Reply(TableLocations(table, self._locate_all(coordinator, tablets)))

    async def _on_get_tablet_locations(
        self, call: Call[GetTabletLocations]
    ) -> Reply[TabletLocations]:
        wanted = call.body.tablets
        if len(wanted) > MAX_LOCATED:
            raise InvalidArgument(f"{len(wanted)} tablets in one call; at most {MAX_LOCATED}")
        coordinator = await self._master.view(call.timeout_s, call.body.max_staleness_s)
        known = self._master.catalog.tablets
        for tablet_id in wanted:
            if tablet_id not in known:
                raise TabletNotFound(tablet_id)
        tablets = [known[tablet_id] for tablet_id in wanted]
        return Reply(TabletLocations(self._locate_all(coordinator, tablets)))

    def _find(self, name: str) -> TableRecord:
        table = self._master.catalog.find(name)
        if table is None:
            raise TableNotFound(name)
        return table

    def _locate_all(
        self, coordinator: Coordinator | None, tablets: Sequence[TabletRecord]
    ) -> tuple[TabletLocation, ...]:
        """Where tablets are, by the catalog and their owners' heartbeats; no cache of its own."""
        now = self._master.runtime.clock.monotonic()
        problems = self._problems(coordinator)
        return tuple(self._locate(problems, tablet, now) for tablet in tablets)

    def _problems(self, coordinator: Coordinator | None) -> Mapping[TabletId, str]:
        """What the leader knows of why tablets are offline; others know nothing."""
        timelines = self._master.timelines
        if coordinator is None or timelines is None:
            return {}
        return ChainMap(timelines.problems, coordinator.problems)

    def _locate(
        self, problems: Mapping[TabletId, str], tablet: TabletRecord, now: float
    ) -> TabletLocation:
        run = Run(tablet.owner, tablet.owner_incarnation)
        seen = self._master.liveness.find(run)
        problem = problems.get(tablet.tablet_id, "")
        if tablet.state is TabletState.REPLACED:
            problem = f"replaced by tablet {tablet.replaced_by}"
        elif tablet.state is TabletState.DELETED:
            problem = f"deleted with table {self._master.catalog.tables[tablet.table_id].name!r}"
        if tablet.state is not TabletState.RUNNING:
            report = seen.reports.get(tablet.tablet_id) if seen is not None else None
            if not problem and report is not None and report.term == tablet.term:
                problem = report.problem  # what its owner waits for
            return TabletLocation(tablet, Address(""), problem or tablet.state.value)
        if tablet.is_group:
            return self._locate_group(tablet, problem, now)
        if seen is None:
            return TabletLocation(tablet, Address(""), "its server was not heard yet")
        if not self._master.liveness.is_live(run, now):
            return TabletLocation(tablet, Address(""), f"{seen.server.name} is dead")
        return TabletLocation(tablet, seen.server.address)

    def _locate_group(self, tablet: TabletRecord, problem: str, now: float) -> TabletLocation:
        master = self._master
        leads = master.coordinator is not None
        found = location_of(tablet, master.liveness, now, knows_reports=leads)
        return found if found.problem else msgspec.structs.replace(found, problem=problem)

    async def _on_is_create_done(self, call: Call[IsCreateDone]) -> Reply[CreateProgress]:
        coordinator = await self._master.view(call.timeout_s, call.body.max_staleness_s)
        table = self._find(call.body.name)
        tablets = self._master.catalog.tablets_of(table.table_id)
        waiting = [tablet for tablet in tablets if tablet.state is TabletState.CREATING]
        located = self._locate_all(coordinator, waiting[:1])
        problem = located[0].problem if located else ""
        return Reply(CreateProgress(table.table_id, not waiting, len(waiting), problem))

    async def _on_is_alter_done(self, call: Call[IsAlterDone]) -> Reply[IsAlterDoneReply]:
        coordinator = await self._master.barrier(call.timeout_s)
        catalog, liveness = self._master.catalog, self._master.liveness
        table = by_id(catalog, call.body.table_id, call.body.name)
        now = self._master.runtime.clock.monotonic()
        live = {run_of(seen): seen for seen in liveness.live(ServerKind.TSERVER, now)}
        return Reply(
            IsAlterDoneReply(
                table.state is not TableState.ALTERING,
                table.schema.version,
                waiting_for(catalog, table, live, liveness.reporters(now).of),
                problem_of(catalog, table, coordinator.pacing.successions.waits),
            )
        )

    async def _on_list_tables(self, call: Call[ListTables]) -> Reply[TableList]:
        await self._master.view(call.timeout_s, call.body.max_staleness_s)
        return Reply(TableList(tuple(self._master.catalog.live_tables())))

    async def _on_status(self, call: Call[GetStatus]) -> Reply[StatusReply]:
        master = self._master
        coordinator = await master.view(call.timeout_s, call.body.max_staleness_s)
        inputs = status_inputs(master, coordinator, self._problems(coordinator))
        return Reply(StatusReply(status_document(inputs)))


def status_inputs(
    master: ServingMaster, coordinator: Coordinator | None, problems: Mapping[TabletId, str]
) -> StatusInputs:
    """What a master knows of its cluster now; ``coordinator``: if it leads."""
    leader = master.leader_uuid
    others = [
        MasterView(
            info,
            live,
            info.uuid == leader,
            voter,
            None if coordinator is None else master.keeps_up(info.uuid),
        )
        for info, live, voter in master.group.seen()
    ]
    own = MasterView(master.info, True, coordinator is not None, keeps_up=True)
    clock = master.runtime.clock
    now, wall = clock.monotonic(), clock.now()
    return StatusInputs(
        cluster=master.cluster,
        wall=wall,
        now=now,
        term=master.term,
        masters=tuple(sorted((own, *others), key=_name_of)),
        catalog=master.catalog,
        liveness=master.liveness,
        recoveries=coordinator.recoveries if coordinator is not None else Recoveries(),
        problems=problems,
        migrations=master.timelines.progress() if master.timelines is not None else (),
        is_leader=coordinator is not None,
        events=tuple(master.events.describe(now, wall)),
        waits={} if coordinator is None else coordinator.pacing.successions.waits,
        is_encrypted=master.is_encrypted,
        deaths={} if coordinator is None else coordinator.pacing.owners.deaths(now),
    )


def _name_of(view: MasterView) -> str:
    return view.server.name
