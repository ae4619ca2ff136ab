"""What a master answers clients: the operations on tables, look-ups, lists, and status.

Every change goes through `stelae.coordinator.operations`; every answer comes after a read barrier
that began when the call was here. Source: seed Kudu multi-master, appendix B; design §7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.actors.coordinator import Coordinator
from stelae.coordinator.assignment import check_media
from stelae.coordinator.catalog import CatalogBatch
from stelae.coordinator.ddl import check_table_name, draft_create, draft_delete
from stelae.coordinator.decide import tserver_loads
from stelae.coordinator.liveness import Run
from stelae.coordinator.status import MasterView, StatusInputs, status_document
from stelae.core.catalog_messages import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLE,
    LIST_TABLES,
    STATUS,
    CreateTable,
    DeleteTable,
    GetTable,
    StatusReply,
    TableList,
    TableLocations,
    TableReply,
    TabletLocation,
)
from stelae.core.errors import TableNotFound
from stelae.core.ids import Address
from stelae.core.records import ServerKind, TabletRecord, TabletState
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply

if TYPE_CHECKING:
    from stelae.actors.master import Master


class ClientRequests:
    """The handlers of one master's clients."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            CREATE_TABLE: self._on_create_table,
            DELETE_TABLE: self._on_delete_table,
            GET_TABLE: self._on_get_table,
            LIST_TABLES: self._on_list_tables,
            STATUS: self._on_status,
        }

    async def _on_create_table(self, call: Call[CreateTable]) -> Reply[TableReply]:
        order = call.body
        check_table_name(order.name)
        order.partitioning.check(order.schema.key)
        coordinator = await self._master.barrier(call.timeout_s)
        known = self._master.catalog.result_of(order.request)
        if known is None:
            async with coordinator.operations.reserve(order.name):
                known = await coordinator.operations.change(lambda: self._draft_create(order))
            coordinator.wake()
        known = known or self._master.catalog.result_of(order.request)
        assert known is not None, "a create that changed nothing was done before"
        return Reply(TableReply(self._master.catalog.tables[known]))

    def _draft_create(self, order: CreateTable) -> CatalogBatch | None:
        if self._master.catalog.result_of(order.request) is not None:
            return None
        now = self._master.runtime.clock.monotonic()
        backups = [seen.server for seen in self._master.liveness.live(ServerKind.BACKUP, now)]
        tservers = self._master.liveness.live(ServerKind.TSERVER, now)
        loads = tserver_loads(self._master.catalog, tservers)
        batch = draft_create(self._master.catalog, order, loads, self._master.runtime.rng)
        check_media(f"table {order.name!r}", order.durability.media, backups)
        return batch

    async def _on_delete_table(self, call: Call[DeleteTable]) -> Reply[Empty]:
        order = call.body
        coordinator = await self._master.barrier(call.timeout_s)
        if self._master.catalog.result_of(order.request) is not None:
            return EMPTY
        table = self._master.catalog.find(order.name)
        if table is None:
            raise TableNotFound(order.name)
        tablets = [tablet.tablet_id for tablet in self._master.catalog.tablets_of(table.table_id)]

        def draft() -> CatalogBatch | None:
            if self._master.catalog.result_of(order.request) is not None:
                return None
            return draft_delete(self._master.catalog, order.request, table.table_id, order.name)

        await coordinator.operations.change(draft, tables=[table.table_id], tablets=tablets)
        coordinator.recoveries.drop(tablets)
        for tablet_id in tablets:
            coordinator.problems.pop(tablet_id, None)
        coordinator.wake()
        return EMPTY

    async def _on_get_table(self, call: Call[GetTable]) -> Reply[TableLocations]:
        coordinator = await self._master.barrier(call.timeout_s)
        table = self._master.catalog.find(call.body.name)
        if table is None:
            raise TableNotFound(call.body.name)
        now = self._master.runtime.clock.monotonic()
        tablets = self._master.catalog.tablets_of(table.table_id)
        locations = tuple(self._locate(coordinator, tablet, now) for tablet in tablets)
        return Reply(TableLocations(table, locations))

    def _locate(self, coordinator: Coordinator, tablet: TabletRecord, now: float) -> TabletLocation:
        """Where a tablet is, by the catalog and its owner's heartbeats; no cache of its own."""
        run = Run(tablet.owner, tablet.owner_incarnation)
        seen = self._master.liveness.find(run)
        problem = coordinator.problems.get(tablet.tablet_id, "")
        if tablet.state is not TabletState.RUNNING:
            return TabletLocation(tablet, Address(""), problem or tablet.state.value)
        if seen is None:
            return TabletLocation(tablet, Address(""), "its server was not heard yet")
        if not self._master.liveness.is_live(run, now):
            return TabletLocation(tablet, Address(""), f"{seen.server.name} is dead")
        return TabletLocation(tablet, seen.server.address)

    async def _on_list_tables(self, call: Call[Empty]) -> Reply[TableList]:
        await self._master.barrier(call.timeout_s)
        return Reply(TableList(tuple(self._master.catalog.live_tables())))

    async def _on_status(self, call: Call[Empty]) -> Reply[StatusReply]:
        coordinator = await self._master.barrier(call.timeout_s)
        others = tuple(MasterView(info, live, False) for info, live in self._master.group.seen())
        masters = sorted((MasterView(self._master.info, True, True), *others), key=_name_of)
        clock = self._master.runtime.clock
        document = status_document(
            StatusInputs(
                cluster=self._master.cluster,
                wall=clock.now(),
                now=clock.monotonic(),
                term=self._master.term,
                masters=tuple(masters),
                catalog=self._master.catalog,
                liveness=self._master.liveness,
                recoveries=coordinator.recoveries,
                problems=coordinator.problems,
            )
        )
        return Reply(StatusReply(document))


def _name_of(view: MasterView) -> str:
    return view.server.name
