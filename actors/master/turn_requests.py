"""What a master answers operators who want to change the cluster's servers, one at a time.

The leader counts the silence of whoever has the turn by its own clock, and from when it began to
lead: what a former leader has answered it does not know, but that was before.
"""

from __future__ import annotations

from stelae.actors.master.operator_requests import carry_out
from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.turns import draft_end, draft_take
from stelae.core.records.turns import END_TURN, TAKE_TURN, EndTurn, TakeTurn, TurnReply
from stelae.core.rpc import Call, Handlers, Reply


class TurnRequests:
    """The handlers of one master."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master
        self._heard_at = float("-inf")
        """When the last one was given, or kept, by this master."""

    def handlers(self) -> Handlers:
        return {TAKE_TURN: self._on_take, END_TURN: self._on_end}

    @property
    def _now(self) -> float:
        return self._master.runtime.clock.monotonic()

    def silent_s(self, now: float) -> float:
        """For how long nothing was heard of whoever has the turn, at least."""
        return now - max(self._heard_at, self._master.liveness.lead_since)

    async def _on_take(self, call: Call[TakeTurn]) -> Reply[TurnReply]:
        order, catalog = call.body, self._master.catalog
        wall_s = self._master.runtime.clock.now()

        def draft() -> CatalogBatch | None:
            now = self._now
            batch = draft_take(catalog, order, self.silent_s(now), wall_s)
            self._heard_at = now  # before it is part of the catalog: another draft may see it there
            return batch

        await carry_out(self._master, order.request, draft, call.timeout_s)
        self._heard_at = self._now  # also of a copy of what was carried out: that one is answered
        return Reply(TurnReply(catalog.turn))

    async def _on_end(self, call: Call[EndTurn]) -> Reply[TurnReply]:
        order, catalog = call.body, self._master.catalog
        await carry_out(
            self._master, order.request, lambda: draft_end(catalog, order), call.timeout_s
        )
        return Reply(TurnReply(catalog.turn))
