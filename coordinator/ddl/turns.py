"""What taking, keeping and ending a turn (`stelae.core.records.turns`) change in the catalog. Pure.

A draft is None if this very request was carried out before.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.core.errors import AlreadyRunning
from stelae.core.records.turns import MAX_TEXT, TURN_S, EndTurn, TakeTurn, Turn

GO_ON = "apply again then, which goes on where it was"


def draft_take(
    catalog: Catalog, order: TakeTurn, silent_s: float, wall_s: float
) -> CatalogBatch | None:
    """``silent_s``: for how long, at least, its holder has not been heard. Raises AlreadyRunning,
    StaleRequest."""
    if catalog.result_of(order.request) is not None:
        return None
    now = catalog.turn
    generation = now.generation + 1
    if order.number:
        if (now.holder, now.number) != (order.holder, order.number):
            raise AlreadyRunning(f"this turn is over: {_whose(now)}; {GO_ON}")
        kept = msgspec.structs.replace(now, generation=generation)
        return CatalogBatch(turn=kept, request=order.request)
    if now.holder not in ("", order.holder) and silent_s <= TURN_S:
        left_s = TURN_S - max(0.0, silent_s)
        raise AlreadyRunning(
            f"{_whose(now)}: wait for it, or end it; if its process is gone, its turn ends in "
            f"{left_s:.0f} s; {GO_ON}"
        )
    who, what = order.who[:MAX_TEXT], order.what[:MAX_TEXT]
    taken = Turn(order.holder, who, what, wall_s, now.number + 1, generation)
    return CatalogBatch(turn=taken, request=order.request)


def draft_end(catalog: Catalog, order: EndTurn) -> CatalogBatch | None:
    """Raises StaleRequest."""
    if catalog.result_of(order.request) is not None:
        return None
    now = catalog.turn
    if now.number != order.number or not now.holder:
        return CatalogBatch(request=order.request)
    over = msgspec.structs.replace(now, holder="", generation=now.generation + 1)
    return CatalogBatch(turn=over, request=order.request)


def _whose(turn: Turn) -> str:
    since = datetime.fromtimestamp(turn.since_s, UTC).strftime("%H:%M:%S UTC")
    if not turn.holder:
        return f"{turn.who} has changed this cluster ({turn.what}) after {since}"
    return f"{turn.who} is changing this cluster ({turn.what}) since {since}"
