"""What a master answers operators who retire or maintain tservers, or move or spread replicas.

The order becomes a record in the catalog, once per request; the coordinator does the rest,
level-triggered.
"""

from __future__ import annotations

from collections.abc import Sequence

from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.operations import Draft
from stelae.coordinator.ddl.operator_orders import (
    draft_mark,
    draft_move,
    draft_rebalancing,
    move_of,
    progress_of,
    rebalancing_of,
)
from stelae.coordinator.ddl.replacement import draft_replace
from stelae.core.ids import RequestId, TabletId
from stelae.core.messages.operators import (
    GET_REBALANCING,
    GET_SERVER,
    MARK_SERVER,
    MOVE_REPLICA,
    REPLACE_SERVER,
    SET_REBALANCING,
    GetServer,
    MarkServer,
    MoveProgress,
    MoveReplica,
    RebalancingState,
    ReplaceServer,
    ServerProgress,
    SetRebalancing,
)
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply


async def carry_out(
    master: ServingMaster,
    request: RequestId,
    draft: Draft,
    timeout_s: float,
    tablets: Sequence[TabletId] = (),
) -> bool:
    """An operator's order, unless a copy of the same request was carried out: false.

    Raises what ``draft`` raises; NotLeader; StaleRequest.
    """
    coordinator = await master.barrier(timeout_s)
    if master.catalog.result_of(request) is not None:
        return False
    await coordinator.operations.change(draft, tablets=tablets, request=request)
    coordinator.wake()
    return True


class OperatorRequests:
    """The handlers of one master's operators."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            MARK_SERVER: self._on_mark_server,
            REPLACE_SERVER: self._on_replace_server,
            GET_SERVER: self._on_get_server,
            MOVE_REPLICA: self._on_move_replica,
            SET_REBALANCING: self._on_set_rebalancing,
            GET_REBALANCING: self._on_get_rebalancing,
        }

    @property
    def _now(self) -> float:
        return self._master.runtime.clock.monotonic()

    async def _on_mark_server(self, call: Call[MarkServer]) -> Reply[ServerProgress]:
        order, catalog, liveness = call.body, self._master.catalog, self._master.liveness
        await carry_out(
            self._master,
            order.request,
            lambda: draft_mark(catalog, liveness, order, self._now),
            call.timeout_s,
        )
        return Reply(progress_of(catalog, liveness, order.server, self._now))

    async def _on_replace_server(self, call: Call[ReplaceServer]) -> Reply[Empty]:
        order, catalog, liveness = call.body, self._master.catalog, self._master.liveness
        await carry_out(
            self._master,
            order.request,
            lambda: draft_replace(catalog, liveness, order, self._now),
            call.timeout_s,
        )
        return EMPTY

    async def _on_get_server(self, call: Call[GetServer]) -> Reply[ServerProgress]:
        master = self._master
        await master.barrier(call.timeout_s)
        return Reply(progress_of(master.catalog, master.liveness, call.body.server, self._now))

    async def _on_move_replica(self, call: Call[MoveReplica]) -> Reply[MoveProgress]:
        order, catalog, liveness = call.body, self._master.catalog, self._master.liveness
        await carry_out(
            self._master,
            order.request,
            lambda: draft_move(catalog, liveness, order, self._now),
            call.timeout_s,
            [order.tablet_id],
        )
        return Reply(move_of(catalog, liveness, order))

    async def _on_set_rebalancing(self, call: Call[SetRebalancing]) -> Reply[RebalancingState]:
        order, catalog = call.body, self._master.catalog
        await carry_out(
            self._master, order.request, lambda: draft_rebalancing(catalog, order), call.timeout_s
        )
        return Reply(self._rebalancing())

    async def _on_get_rebalancing(self, call: Call[Empty]) -> Reply[RebalancingState]:
        await self._master.barrier(call.timeout_s)
        return Reply(self._rebalancing())

    def _rebalancing(self) -> RebalancingState:
        return rebalancing_of(self._master.catalog, self._master.settings.rebalance_after_s)
