"""What the leader master does for indexlets: catalog entries, and orders to their owners.

What is to be done is `stelae.coordinator.decide_indexes`'s to say. What owners answer to an
order is news at once, as what they report is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.decide_indexes import (
    ChangeIndexlets,
    CloseIndexletAt,
    HandOverAt,
    IndexAction,
    MakeSuccessors,
    OpenIndexletAt,
    ServeIndexletAt,
    closed_for_good,
    draft_change,
    draft_successors,
)
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.core.errors import StaleTerm
from stelae.core.messages.indexes import (
    CLOSE_INDEXLET,
    HAND_OVER_INDEXLET,
    OPEN_INDEXLET,
    SERVE_INDEXLET,
    IndexletReport,
    OpenIndexlet,
    ServeIndexlet,
)
from stelae.core.records.records import ServerInfo
from stelae.core.rpc import Method
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexletId

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, ...]
Once: TypeAlias = Callable[[Key, Callable[[], Coroutine[Any, Any, object]]], None]
"""Does it in the background, unless it is under way or was done a moment ago."""
Tell: TypeAlias = Callable[[Key, ServerInfo, Method[Any, Any], Any], Awaitable[Any]]
"""Gives a server an order, not again for a moment, and returns its answer."""


class IndexOrders:
    """For one leadership."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        liveness: Liveness,
        operations: Operations,
        pacing: Pacing,
        once: Once,
        tell: Tell,
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._liveness = liveness
        self._operations = operations
        self._pacing = pacing
        self._once = once
        self._tell = tell

    def begin(self, action: IndexAction) -> None:
        """Begin it, unless it is under way."""
        match action:
            case ChangeIndexlets(records, reason):
                key: Key = ("indexlet", records[0].indexlet_id)
                self._once(key, lambda: self._change(key, action, reason))
            case MakeSuccessors(indexlet, _, _, reason):
                key = ("indexlet", indexlet.indexlet_id)
                self._once(key, lambda: self._change(key, action, reason))
            case OpenIndexletAt(indexlet, owner):
                key = ("open indexlet", indexlet.indexlet_id, str(indexlet.term))
                table = self._catalog.tables[indexlet.table_id]
                order = OpenIndexlet(indexlet, table)
                self._once(key, lambda: self._open(key, owner, order))
            case ServeIndexletAt(indexlet, owner):
                key = ("serve indexlet", indexlet.indexlet_id, str(indexlet.term))
                serve = ServeIndexlet(indexlet.indexlet_id, indexlet.term)
                self._once(key, lambda: self._order(key, owner, SERVE_INDEXLET, serve))
            case CloseIndexletAt(server, close):
                kind = (str(close.drop), str(close.hand_over))
                key = ("close indexlet", close.indexlet_id, server.uuid, *kind)
                self._once(key, lambda: self._order(key, server, CLOSE_INDEXLET, close))
            case HandOverAt(server, hand_over):
                successors = [each.indexlet.indexlet_id for each in hand_over.successors]
                named = (hand_over.indexlet_id, str(hand_over.generation))
                key = ("hand over indexlet", *named, *successors)
                self._once(key, lambda: self._order(key, server, HAND_OVER_INDEXLET, hand_over))

    async def _change(
        self, key: Key, action: ChangeIndexlets | MakeSuccessors, reason: str
    ) -> None:
        def draft() -> CatalogBatch | None:
            if isinstance(action, ChangeIndexlets):
                return draft_change(self._catalog, action)
            return draft_successors(self._catalog, action, self._runtime.rng)

        logger.info("indexlet %s: %s: %s", key[1][:8], type(action).__name__, reason)
        if await self._operations.change(draft) is not None and isinstance(action, ChangeIndexlets):
            now = self._runtime.clock.monotonic()
            self._pacing.indexlets.failed(action.indexlet_id, action.failed_at, now)
        self._runtime.metrics.count("indexlet_changes", step=type(action).__name__)

    async def _open(self, key: Key, owner: ServerInfo, order: OpenIndexlet) -> None:
        try:
            await self._order(key, owner, OPEN_INDEXLET, order)
        except StaleTerm:
            indexlet = order.indexlet
            if self._catalog.indexes.indexlets.get(indexlet.indexlet_id) != indexlet:
                return  # it is being opened in a later term
            change = closed_for_good(self._catalog, indexlet)
            of = IndexletId(indexlet.succeeds or indexlet.indexlet_id)
            await self._change(("indexlet", of), change, change.reason)

    async def _order(
        self, key: Key, server: ServerInfo, method: Method[Any, Any], order: Any
    ) -> None:
        answer = await self._tell(key, server, method, order)
        if isinstance(answer, IndexletReport):
            now = self._runtime.clock.monotonic()
            self._liveness.indexlet_report(Run(server.uuid, server.incarnation), answer, now)
