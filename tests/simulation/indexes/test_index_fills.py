"""Fills of indexes that take long, or are disturbed again and again: they end all the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from stelae.actors.tserver.indexes import fill_answers as tablet_fills
from stelae.actors.tserver.indexes.fill_answers import TabletFills
from stelae.core.errors import TabletNotReady
from stelae.core.messages.indexes import FILL_ENTRIES
from stelae.core.schema.durability import Durability, segments
from tests.simulation.indexes.entries import TABLETS
from tests.simulation.indexes.test_index_writes import BOTH, IndexedTable, run

ROWS = 200
LONG_S = 90.0
"""Far longer than any call may take."""
SOON_S = 600.0


def counted_makes(monkeypatch: pytest.MonkeyPatch, sleep_s: float) -> list[str]:
    """Of which tablet an answer was made, each of which takes so long."""
    made: list[str] = []
    make = TabletFills._make

    async def slow(self: TabletFills, tablet: Any, body: Any) -> Any:
        await asyncio.sleep(sleep_s)
        answer = await make(self, tablet, body)
        made.append(body.tablet_id)
        return answer

    monkeypatch.setattr(TabletFills, "_make", slow)
    return made


async def _made(here: IndexedTable) -> None:
    await here.table.upsert([{"id": n, "value": "a", "n": n} for n in range(ROWS)])
    await here.table.create_index("value", timeout=SOON_S)
    assert await here.ids("a") == list(range(ROWS))


@BOTH
def test_an_answer_that_takes_longer_than_any_call_is_made_once(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tablet is asked until it has made it."""
    made = counted_makes(monkeypatch, LONG_S)
    run(_made, durability, indexes=())
    assert len(made) == len(set(made)) == TABLETS


@BOTH
def test_pieces_whose_calls_are_lost_are_asked_for_again(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same answer: a third of the calls is lost, and answers have more pieces than three."""
    made, calls, rng = counted_makes(monkeypatch, 0.0), [0], random.Random(1)
    monkeypatch.setattr(tablet_fills, "PIECE_BYTES", 64)

    def lost(_sender: str, _receiver: str, method: str) -> bool:
        calls[0] += method == FILL_ENTRIES.name
        return method == FILL_ENTRIES.name and rng.random() < 0.3

    async def test(here: IndexedTable) -> None:
        here.world.network.drop_filter = lost
        await _made(here)
        here.world.network.drop_filter = None

    run(test, durability, indexes=())
    assert calls[0] > 6 * TABLETS
    assert len(made) == len(set(made)) == TABLETS


def test_an_answer_that_is_let_go_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is never taken for all of it."""
    monkeypatch.setattr(tablet_fills, "PIECE_BYTES", 64)
    made, let_go = counted_makes(monkeypatch, 0.0), [0]
    piece = TabletFills._piece

    def forgets(self: TabletFills, name: str, session: Any, number: int) -> Any:
        if number == 2 and let_go[0] < 3:
            let_go[0] += 1
            self.drop(session.tablet_id)
        return piece(self, name, session, number)

    monkeypatch.setattr(TabletFills, "_piece", forgets)
    run(_made, segments("disk", "disk"), indexes=())
    assert len(made) > TABLETS
    assert let_go == [3]


def test_what_cannot_be_made_says_why_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a background task is the answer of who asks for it."""
    make, failed = TabletFills._make, [0]

    async def fails(self: TabletFills, tablet: Any, body: Any) -> Any:
        if failed[0] < 3:
            failed[0] += 1
            raise TabletNotReady(body.tablet_id, "not ready just now")
        return await make(self, tablet, body)

    monkeypatch.setattr(TabletFills, "_make", fails)
    run(_made, segments("disk", "disk"), indexes=())
    assert failed == [3]
