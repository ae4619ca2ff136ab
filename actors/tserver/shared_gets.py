"""Reads of several tablets of a tserver that came in one message (`GET_EACH`).

Each is answered as `GET` answers it, or not at all: nothing is waited for, so that none holds up
another. Whoever gets no answer asks for it with `GET`.
"""

from __future__ import annotations

from collections.abc import Callable

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.rows import GET_EACH, GETS_MAX, Get, GetEach, GetEachReply, GetReply
from stelae.core.rpc import Call, Handlers, Reply, prompt


class SharedGets:
    """Those of one server. ``serving`` gives a tablet that this server may answer for now."""

    def __init__(self, serving: Callable[[TabletId], Tablet | ReplicatedTablet]) -> None:
        self._serving = serving

    def handlers(self) -> Handlers:
        return {GET_EACH: self._on_get_each}

    @prompt
    async def _on_get_each(self, call: Call[GetEach]) -> Reply[GetEachReply]:
        gets = call.body.gets
        if len(gets) > GETS_MAX:
            raise InvalidArgument(f"{len(gets)} reads in one message; at most {GETS_MAX}")
        return Reply(GetEachReply(tuple([self._get(each) for each in gets])))

    def _get(self, request: Get) -> GetReply | None:
        try:
            tablet = self._serving(request.tablet_id)
            reply = tablet.get_now(request)
        except StelaeError:
            return None  # `GET` says what it is
        if reply is not None:
            tablet.calls += 1
        return reply
