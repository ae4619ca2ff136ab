"""What a master answers about indexes: made, dropped, listed, and where their indexlets are."""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.alter import by_id
from stelae.coordinator.ddl.indexes import draft_create_index, draft_drop_index
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.status.indexes import locations_of, views_of
from stelae.core.messages.catalog import TableReply
from stelae.core.messages.index_catalog import (
    CREATE_INDEX,
    DROP_INDEX,
    LIST_INDEXES,
    CreateIndex,
    DropIndex,
    IndexList,
    ListIndexes,
)
from stelae.core.messages.indexes import LOCATE_INDEXLETS, IndexletLocations, LocateIndexlets
from stelae.core.records.records import ServerKind
from stelae.core.rpc import Call, Handlers, Reply


class IndexRequests:
    """The handlers of one master."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            CREATE_INDEX: self._on_create,
            DROP_INDEX: self._on_drop,
            LIST_INDEXES: self._on_list,
            LOCATE_INDEXLETS: self._on_locate,
        }

    @property
    def _now(self) -> float:
        return self._master.runtime.clock.monotonic()

    async def _on_create(self, call: Call[CreateIndex]) -> Reply[TableReply]:
        master, order = self._master, call.body

        def draft() -> CatalogBatch:
            live = master.liveness.live(ServerKind.TSERVER, self._now)
            loads = tserver_loads(master.catalog, live)
            return draft_create_index(master.catalog, order, loads, master.runtime.rng)

        return await self._change(order, draft, call.timeout_s)

    async def _on_drop(self, call: Call[DropIndex]) -> Reply[TableReply]:
        order = call.body
        return await self._change(
            order, lambda: draft_drop_index(self._master.catalog, order), call.timeout_s
        )

    async def _change(
        self, order: CreateIndex | DropIndex, draft: Callable[[], CatalogBatch], timeout_s: float
    ) -> Reply[TableReply]:
        """Carry it out, unless a copy of the same request was."""
        catalog = self._master.catalog
        coordinator = await self._master.barrier(timeout_s)

        def draft_once() -> CatalogBatch | None:
            return draft() if catalog.result_of(order.request) is None else None

        if catalog.result_of(order.request) is None:
            await coordinator.operations.change(
                draft_once, tables=[order.table_id], request=order.request
            )
            coordinator.wake()
        return Reply(TableReply(catalog.tables[order.table_id]))

    async def _on_list(self, call: Call[ListIndexes]) -> Reply[IndexList]:
        master = self._master
        await master.barrier(call.timeout_s)
        table = by_id(master.catalog, call.body.table_id, call.body.table)
        return Reply(IndexList(views_of(master.catalog, master.liveness, self._now, table)))

    async def _on_locate(self, call: Call[LocateIndexlets]) -> Reply[IndexletLocations]:
        master, order = self._master, call.body
        await master.barrier(call.timeout_s)
        table = by_id(master.catalog, order.table_id, order.table_id)
        found = locations_of(master.catalog, master.liveness, self._now, table, order.tablet_id)
        return Reply(found)
