"""What a master answers about access tokens of the HTTP API: made, revoked, and listed.

Each change is one entry of the catalog, once per request. A list is of the leader, after it has
made sure that it leads: a token that was revoked is in no list that was asked for afterwards.
"""

from __future__ import annotations

from stelae.actors.master.operator_requests import carry_out
from stelae.actors.master.serving import ServingMaster
from stelae.coordinator.ddl.tokens import draft_drop, draft_put, tokens_for
from stelae.core.records.tokens import (
    DROP_TOKEN,
    LIST_TOKENS,
    PUT_LIMITED_TOKEN,
    PUT_TOKEN,
    DropToken,
    ListTokens,
    PutToken,
    TokenList,
)
from stelae.core.rpc import Call, Handlers, Reply


class TokenRequests:
    """The handlers of one master."""

    def __init__(self, master: ServingMaster) -> None:
        self._master = master

    def handlers(self) -> Handlers:
        return {
            PUT_TOKEN: self._on_put,
            PUT_LIMITED_TOKEN: self._on_put,
            DROP_TOKEN: self._on_drop,
            LIST_TOKENS: self._on_list,
        }

    async def _on_put(self, call: Call[PutToken]) -> Reply[TokenList]:
        order, catalog = call.body, self._master.catalog
        now_s = self._master.runtime.clock.now()
        await carry_out(
            self._master, order.request, lambda: draft_put(catalog, order, now_s), call.timeout_s
        )
        return Reply(tokens_for(catalog))

    async def _on_drop(self, call: Call[DropToken]) -> Reply[TokenList]:
        order, catalog = call.body, self._master.catalog
        await carry_out(
            self._master, order.request, lambda: draft_drop(catalog, order), call.timeout_s
        )
        return Reply(tokens_for(catalog))

    async def _on_list(self, call: Call[ListTokens]) -> Reply[TokenList]:
        await self._master.barrier(call.timeout_s)
        return Reply(tokens_for(self._master.catalog, call.body.known))
