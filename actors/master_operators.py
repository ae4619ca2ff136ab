"""What a master answers operators who retire or maintain tservers, or move or spread replicas.

The order becomes a record in the catalog; the coordinator does the rest, level-triggered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.coordinator.operator_drafts import (
    draft_mark,
    draft_move,
    draft_rebalancing,
    find_group,
    progress_of,
    rebalancing_of,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.server_messages import (
    MARK_SERVER,
    MOVE_REPLICA,
    SET_REBALANCING,
    MarkServer,
    MoveProgress,
    MoveReplica,
    RebalancingState,
    ServerProgress,
    SetRebalancing,
)

if TYPE_CHECKING:
    from stelae.actors.master import Master


class OperatorRequests:
    """The handlers of one master's operators."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            MARK_SERVER: self._on_mark_server,
            MOVE_REPLICA: self._on_move_replica,
            SET_REBALANCING: self._on_set_rebalancing,
        }

    @property
    def _now(self) -> float:
        return self._master.runtime.clock.monotonic()

    async def _on_mark_server(self, call: Call[MarkServer]) -> Reply[ServerProgress]:
        order, master = call.body, self._master
        catalog, liveness = master.catalog, master.liveness
        coordinator = await master.barrier(call.timeout_s)
        await coordinator.operations.change(lambda: draft_mark(catalog, liveness, order, self._now))
        coordinator.wake()
        return Reply(progress_of(catalog, liveness, order.server, self._now))

    async def _on_move_replica(self, call: Call[MoveReplica]) -> Reply[MoveProgress]:
        order, master = call.body, self._master
        catalog, liveness = master.catalog, master.liveness
        coordinator = await master.barrier(call.timeout_s)
        await coordinator.operations.change(
            lambda: draft_move(catalog, liveness, order, self._now), tablets=[order.tablet_id]
        )
        coordinator.wake()
        return Reply(MoveProgress(find_group(catalog, order)))

    async def _on_set_rebalancing(self, call: Call[SetRebalancing]) -> Reply[RebalancingState]:
        order, master = call.body, self._master
        coordinator = await master.barrier(call.timeout_s)
        await coordinator.operations.change(lambda: draft_rebalancing(master.catalog, order))
        coordinator.wake()
        return Reply(rebalancing_of(master.catalog, master.settings.rebalance_after_s))
