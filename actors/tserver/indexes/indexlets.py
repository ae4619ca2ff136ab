"""The indexlets of one tserver: the masters' orders, what tablets and clients ask, reports.

An indexlet is in memory only: a server that starts has none. Orders may come twice and late: a term
that was closed here is not opened again, nor what another run of the server was to open; and those
about a hand-over name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.indexlet_fill import IndexletFill
from stelae.actors.tserver.indexes.indexlet_hand_over import HandOver, heed, make_way, take_copy
from stelae.actors.tserver.indexes.indexlet_offers import IndexletOffers
from stelae.client.routing.masters import MastersClient
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    IndexletNotHere,
    IndexletNotReady,
    OutOfMemory,
    StaleTerm,
    WrongServer,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages.index_offers import OFFER_ENTRIES, OfferEntries
from stelae.core.messages.indexes import (
    CLOSE_INDEXLET,
    COPY_ENTRIES,
    HAND_OVER_INDEXLET,
    INSERT_ENTRIES,
    LOOKUP,
    LOOKUP_MANY,
    OPEN_INDEXLET,
    REMOVE_ENTRIES,
    SERVE_INDEXLET,
    CloseIndexlet,
    CopyEntries,
    HandOverIndexlet,
    IndexletProgress,
    IndexletReport,
    InsertEntries,
    Lookup,
    LookupMany,
    LookupManyReply,
    LookupReply,
    OpenIndexlet,
    RemoveEntries,
    ServeIndexlet,
)
from stelae.core.records.records import ServerInfo
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexletId
from stelae.core.tasks import Tasks

CLOSED_TERMS_MAX = 10_000
"""Of how many closed indexlets the term is known, so that a late order to open one is refused."""


class Indexlets:
    """See the module.

    ``may_acknowledge``: the server's lease holds; ``out_of_memory``: what insertions are refused
    with just now; ``on_news`` is told of an indexlet that is COMPLETE, or whose hand-over is;
    ``info``: which run of which server this is, once it has started.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        masters: MastersClient,
        name: str,
        *,
        may_acknowledge: Callable[[], bool],
        out_of_memory: Callable[[], OutOfMemory | None],
        on_news: Callable[[IndexletReport], None],
        info: Callable[[], ServerInfo],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._masters = masters
        self._name = name
        self._may_acknowledge = may_acknowledge
        self._out_of_memory = out_of_memory
        self._on_news = on_news
        self._info = info
        self._indexlets: dict[IndexletId, Indexlet] = {}
        self._offers: dict[IndexletId, IndexletOffers] = {}
        self._closed_terms: dict[IndexletId, int] = {}

    def handlers(self) -> Handlers:
        return {
            OPEN_INDEXLET: self._on_open,
            SERVE_INDEXLET: self._on_serve,
            CLOSE_INDEXLET: self._on_close,
            HAND_OVER_INDEXLET: self._on_hand_over,
            INSERT_ENTRIES: self._on_insert,
            REMOVE_ENTRIES: self._on_remove,
            LOOKUP: self._on_lookup,
            LOOKUP_MANY: self._on_lookup_many,
            COPY_ENTRIES: self._on_copy,
            OFFER_ENTRIES: self._on_offer,
        }

    async def close(self) -> None:
        """The server stops: nothing is acknowledged any more, and everything is let go."""
        for indexlet in list(self._indexlets.values()):
            await self._drop(indexlet)

    # ---- what there is ------------------------------------------------------------------------

    def reports(self) -> tuple[IndexletReport, ...]:
        """How each indexlet is."""
        return tuple([indexlet.report() for indexlet in self._indexlets.values()])

    @property
    def memory_bytes(self) -> int:
        """Of all entries."""
        return sum([indexlet.entries.memory_bytes for indexlet in self._indexlets.values()])

    def indexlet(self, indexlet_id: IndexletId) -> Indexlet | None:
        """To look at."""
        return self._indexlets.get(indexlet_id)

    def _held(self, indexlet_id: IndexletId, term: int | None = None) -> Indexlet:
        """Raises IndexletNotHere, StaleTerm."""
        indexlet = self._indexlets.get(indexlet_id)
        if indexlet is None:
            raise IndexletNotHere(indexlet_id, self._name)
        if term is not None and term != indexlet.term:
            raise StaleTerm(f"term of indexlet {indexlet_id}", term, indexlet.term)
        return indexlet

    # ---- the masters' orders ------------------------------------------------------------------

    async def _on_open(self, call: Call[OpenIndexlet]) -> Reply[IndexletReport]:
        record = call.body.indexlet
        while (current := self._indexlets.get(record.indexlet_id)) is not None:
            if current.term > record.term:
                raise StaleTerm("term of indexlet", record.term, current.term)
            if current.term == record.term:
                return Reply(current.report())
            await self._drop(current)  # meanwhile another order may have opened it
        closed_term = self._closed_terms.get(record.indexlet_id, 0)
        if record.term <= closed_term:
            raise StaleTerm("term of indexlet", record.term, closed_term + 1)
        self._check_run(record.owner, record.owner_incarnation)
        indexlet = Indexlet(
            self._runtime,
            self._tasks,
            self._name,
            record,
            call.body.table,
            self._may_acknowledge,
        )
        self._indexlets[record.indexlet_id] = indexlet
        offers = self._offers[record.indexlet_id] = IndexletOffers(self._runtime, indexlet)
        fill = IndexletFill(self._runtime, self._settings, self._masters, indexlet, offers)
        short = record.indexlet_id[:8]
        indexlet.tasks.spawn(indexlet.merge_runs(), f"merge runs of {short}")
        indexlet.tasks.spawn(fill.compare(), f"compare {short}")
        if not record.succeeds:
            indexlet.tasks.spawn(self._fill(indexlet, fill), f"fill {short}")
        return Reply(indexlet.report())

    def _check_run(self, server: ServerUuid, incarnation: int) -> None:
        """Raises WrongServer: an order is for another run, whose lease ended long ago."""
        info = self._info()
        if (server, incarnation) != (info.uuid, info.incarnation):
            raise WrongServer(
                f"{server}, run {incarnation}", f"{info.uuid}, run {info.incarnation}"
            )

    async def _fill(self, indexlet: Indexlet, fill: IndexletFill) -> None:
        await fill.fill()
        self._on_news(indexlet.report())

    async def _on_serve(self, call: Call[ServeIndexlet]) -> Reply[IndexletReport]:
        indexlet = self._held(call.body.indexlet_id, call.body.term)
        indexlet.serve()
        return Reply(indexlet.report())

    def serve(self, indexlet_id: IndexletId, term: int) -> None:
        """The same fact, as a heartbeat's reply tells it."""
        indexlet = self._indexlets.get(indexlet_id)
        if indexlet is not None and indexlet.term == term:
            indexlet.serve()

    async def _on_close(self, call: Call[CloseIndexlet]) -> Reply[Empty]:
        order = call.body
        indexlet = self._indexlets.get(order.indexlet_id)
        if not order.drop:
            make_way(self._held(order.indexlet_id, order.term), order)
        elif indexlet is None:
            self._note_closed(order.indexlet_id, order.term)
        elif indexlet.term <= order.term:
            await self._drop(indexlet)
        return EMPTY

    async def _drop(self, indexlet: Indexlet) -> None:
        indexlet.close()
        if self._indexlets.get(indexlet.indexlet_id) is indexlet:
            del self._indexlets[indexlet.indexlet_id]
            del self._offers[indexlet.indexlet_id]
            self._note_closed(indexlet.indexlet_id, indexlet.term)
        await indexlet.tasks.close()

    def _note_closed(self, indexlet_id: IndexletId, term: int) -> None:
        term = max(term, self._closed_terms.pop(indexlet_id, 0))  # so that the newest come last
        self._closed_terms[indexlet_id] = term
        if len(self._closed_terms) > CLOSED_TERMS_MAX:
            del self._closed_terms[next(iter(self._closed_terms))]

    async def _on_hand_over(self, call: Call[HandOverIndexlet]) -> Reply[IndexletReport]:
        order = call.body
        indexlet = self._held(order.indexlet_id, order.term)
        if indexlet.progress is IndexletProgress.CLOSED:
            return Reply(indexlet.report())
        if indexlet.progress is not IndexletProgress.SERVING:
            raise IndexletNotReady(indexlet.indexlet_id, indexlet.progress.value)
        if heed(indexlet, order):
            hand_over = HandOver(
                self._runtime,
                self._settings,
                indexlet,
                order,
                lambda: self._on_news(indexlet.report()),
            )
            indexlet.tasks.spawn(hand_over.copy(), f"hand {order.indexlet_id[:8]} over")
        return Reply(indexlet.report())

    # ---- tablets, clients, other indexlets ------------------------------------------------------

    @prompt
    async def _on_insert(self, call: Call[InsertEntries]) -> Reply[Any]:
        refusal = self._out_of_memory()
        if refusal is not None and not call.body.is_forwarded:
            raise refusal
        await self._held(call.body.indexlet_id).insert(call)
        return EMPTY

    @prompt
    async def _on_remove(self, call: Call[RemoveEntries]) -> Reply[Any]:
        await self._held(call.body.indexlet_id).remove(call)
        return EMPTY

    @prompt
    async def _on_lookup(self, call: Call[Lookup]) -> Reply[LookupReply]:
        indexlet = self._held(call.body.indexlet_id, call.body.term)
        await indexlet.wait_filled(call.timeout_s)
        return indexlet.lookup(call.body)

    @prompt
    async def _on_lookup_many(self, call: Call[LookupMany]) -> Reply[LookupManyReply]:
        return self._held(call.body.indexlet_id).lookup_many(call.body)

    async def _on_copy(self, call: Call[CopyEntries]) -> Reply[Empty]:
        await take_copy(self._runtime, self._held(call.body.indexlet_id), call)
        return EMPTY

    async def _on_offer(self, call: Call[OfferEntries]) -> Reply[Empty]:
        refusal = self._out_of_memory()
        if refusal is not None:
            raise refusal
        self._held(call.body.indexlet_id)
        await self._offers[call.body.indexlet_id].take(call)
        return EMPTY
