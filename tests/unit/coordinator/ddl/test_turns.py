"""Whose turn it is to change the cluster, as the catalog has it."""

from __future__ import annotations

import pytest

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl.turns import draft_end, draft_take
from stelae.core.errors import AlreadyRunning
from stelae.core.ids import ClientId, RequestId
from stelae.core.records.turns import TURN_S, EndTurn, TakeTurn

NEVER = float("inf")


def request(number: int, client: str = "c") -> RequestId:
    return RequestId(ClientId(client), number, 1)


def take(number: int, holder: str, turn: int = 0) -> TakeTurn:
    return TakeTurn(request(number), holder, f"{holder} (process 7)", "apply", turn)


def put(catalog: Catalog, batch: CatalogBatch | None) -> object:
    assert batch is not None
    return catalog.apply(1, 1, batch.encode())


def test_the_second_hears_who_has_it_until_it_ends_or_is_silent_for_too_long() -> None:
    """And how to go on."""
    catalog = Catalog()
    put(catalog, draft_take(catalog, take(1, "ada"), NEVER, 3600.0))
    with pytest.raises(AlreadyRunning) as refused:
        draft_take(catalog, take(2, "bob"), TURN_S - 12, 0.0)
    assert str(refused.value) == (
        "ada (process 7) is changing this cluster (apply) since 01:00:00 UTC: wait for it, or end "
        "it; if its process is gone, its turn ends in 12 s; apply again then, which goes on where "
        "it was"
    )
    put(catalog, draft_take(catalog, take(3, "bob"), TURN_S + 1, 0.0))
    assert (catalog.turn.holder, catalog.turn.number) == ("bob", 2)
    put(catalog, draft_end(catalog, EndTurn(request(4), 2)))
    put(catalog, draft_take(catalog, take(5, "cy"), 0.0, 0.0))
    assert catalog.turn.holder == "cy"


def test_who_was_silent_for_long_keeps_it_if_nobody_took_it_and_else_never_again() -> None:
    """Also once the other's turn is over: what was planned before is not what is by now."""
    catalog = Catalog()
    put(catalog, draft_take(catalog, take(1, "ada"), NEVER, 0.0))
    put(catalog, draft_take(catalog, take(2, "ada", 1), NEVER, 9.0))
    assert (catalog.turn.number, catalog.turn.since_s) == (1, 0.0)
    put(catalog, draft_take(catalog, take(3, "bob"), NEVER, 60.0))
    with pytest.raises(AlreadyRunning, match=r"^this turn is over: bob .* is changing"):
        draft_take(catalog, take(4, "ada", 1), NEVER, 0.0)
    put(catalog, draft_end(catalog, EndTurn(request(5), 2)))
    with pytest.raises(AlreadyRunning, match=r"bob .* has changed this cluster \(apply\) after"):
        draft_take(catalog, take(6, "ada", 1), NEVER, 0.0)


def test_what_comes_late_changes_nothing() -> None:
    """The end of a former turn, a copy of a request, and what was drafted before another look."""
    catalog = Catalog()
    first = draft_take(catalog, take(1, "ada"), NEVER, 0.0)
    late = draft_take(catalog, take(2, "bob"), NEVER, 0.0)
    assert isinstance(put(catalog, first), Applied)
    assert isinstance(put(catalog, late), Conflict)
    assert draft_take(catalog, take(1, "ada"), NEVER, 0.0) is None
    put(catalog, draft_take(catalog, take(3, "bob"), NEVER, 0.0))
    before = catalog.turn
    put(catalog, draft_end(catalog, EndTurn(request(4), 1)))
    assert catalog.turn == before
    assert draft_end(catalog, EndTurn(request(4), 2)) is None
    copy = Catalog()
    copy.restore(catalog.snapshot())
    assert copy.turn == before
