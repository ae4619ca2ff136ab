"""Index entries across epochs of a tablet: stories that chance tells seldom, and bugs they find.

Of a removal and an insertion of the same entry the greater stamp wins, and whoever owns or leads a
tablet anew compares (`stelae.core.messages.indexes`). So nothing that was counted, or was put in,
in one epoch may be taken for a part of another one: an index would lack a row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.core.errors import IndexletNotReady
from stelae.core.schema.durability import Durability, Replicas, replicas, segments
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.indexes.entries import VALUES
from tests.simulation.indexes.planted_indexes import EPOCHS, planted
from tests.simulation.indexes.test_index_writes import BOTH, IndexedTable, run

COMPARED_S = 3.0
"""By then indexlets have compared what tablets of a new epoch have."""
CALL_S = 10.0


@contextlib.contextmanager
def held_up(indexlet: Indexlet, method: str) -> Iterator[None]:
    """The indexlet takes no such message meanwhile."""

    async def refuse(call: Any) -> None:
        raise IndexletNotReady(indexlet.indexlet_id, "held up, in this test")

    setattr(indexlet, method, refuse)
    yield
    delattr(indexlet, method)


async def nothing_lacks(here: IndexedTable) -> None:
    """Look for a while, and wait until the indexes are what the rows say."""
    for _ in range(60):
        await asyncio.sleep(0.05)
        here.watch.look()
    await here.settled()


# ---- an alter that is taken back --------------------------------------------------------------


async def taken_out_after_an_alter_back(here: IndexedTable, durability: Durability) -> None:
    """A row leaves a value, and comes back to it; what was to be taken out when it left is taken
    out only once an alter was taken back, and the tablet has heard from the masters since."""
    await here.table.upsert({"id": 1, "value": "a", "n": 1})
    await asyncio.sleep(COMPARED_S)
    with held_up(here.indexlet().indexlet, "remove"):
        for value in ("b", "a"):
            await here.table.upsert({"id": 1, "value": value, "n": 1})
        before = _tablets(here)
        other = segments("disk", "disk") if isinstance(durability, Replicas) else replicas(3)
        for wanted in (other, durability):
            await here.table.alter(durability=wanted, wait=False, timeout=CALL_S)
        await asyncio.sleep(COMPARED_S)
    assert _tablets(here) == before, "too late: a tablet has made way"
    await nothing_lacks(here)
    assert await here.ids("a") == [1]


def _tablets(here: IndexedTable) -> list[str]:
    table = here.watch.table()
    assert table is not None, "a master leads"
    return [tablet.tablet_id for tablet in here.watch.catalog().tablets_of(table.table_id)]


@BOTH
def test_what_is_taken_out_after_an_alter_back_leaves_what_came_since(
    durability: Durability,
) -> None:
    """A tablet that stays as it is stays in its epoch."""
    run(lambda here: taken_out_after_an_alter_back(here, durability), durability)


# ---- a leader that leads again ----------------------------------------------------------------


async def taken_out_when_it_leads_again(here: IndexedTable) -> None:
    """A row leaves a value; the next leader has it come back; the first one leads again at once,
    and has still to take out what it was to take out when the row left."""
    first = await _first_leader(here)
    with held_up(here.indexlet().indexlet, "remove"):
        await here.table.upsert({"id": 1, "value": "b", "n": 1})
        await first.replica.transfer_leadership(None, CALL_S)
        await here.table.upsert({"id": 1, "value": "a", "n": 1})
        await _leads_again(here, first)
    await nothing_lacks(here)
    assert await here.ids("a") == [1]


async def written_when_it_leads_again(here: IndexedTable) -> None:
    """A call waits for one of two indexes when its tablet gets another leader, which has the other
    index compared; then the first one leads again, and the call goes on. Its client is gone."""
    first = await _first_leader(here)
    index_id = here.table.record.schema.indexes[1].index_id
    (held,) = [h for h in here.watch.indexlets() if h.indexlet.record.index_id == index_id]
    with held_up(held.indexlet, "insert"):
        row = {"id": 1, "value": "b", "n": 2}
        writing = asyncio.ensure_future(here.table.upsert(row, timeout=CALL_S))
        await asyncio.sleep(0.1)
        writing.cancel()
        await first.replica.transfer_leadership(None, CALL_S)
        await asyncio.sleep(COMPARED_S)
        await _leads_again(here, first)
    await nothing_lacks(here)
    found = [await here.ids(value) for value in VALUES]
    assert sorted(found) == [[], [], [], [1]], "one value has it"


async def _first_leader(here: IndexedTable) -> ReplicatedTablet:
    """Of the tablet that has the only row, long after it began to lead."""
    await here.table.upsert({"id": 1, "value": "a", "n": 1})
    await asyncio.sleep(COMPARED_S)
    index = here.table.record.schema.indexes[0]
    (leader,) = [tablet for tablet in here.watch.tablets() if here.watch.rows(tablet, index)]
    assert isinstance(leader, ReplicatedTablet), "it has replicas"
    return leader


async def _leads_again(here: IndexedTable, first: ReplicatedTablet) -> None:
    """Whoever leads hands leadership back."""

    async def back() -> None:
        while not first.index_term:
            for tablet in here.watch.tablets():
                if tablet.tablet_id == first.tablet_id and tablet is not first:
                    assert isinstance(tablet, ReplicatedTablet), "it has replicas"
                    await tablet.replica.transfer_leadership(first.replica.uuid, CALL_S)
            await asyncio.sleep(0.001)

    async with asyncio.timeout(CALL_S):
        await back()


def test_who_leads_again_takes_out_nothing_of_its_former_term() -> None:
    """What the leader between has put in stays."""
    run(taken_out_when_it_leads_again, replicas(3))


def test_who_leads_again_writes_nothing_of_its_former_term() -> None:
    """Its entries may be gone: they are put in anew, or nothing is written."""
    run(written_when_it_leads_again, replicas(3), indexes=("value", "n"))


# ---- planted bugs -----------------------------------------------------------------------------

_TOLD: dict[str, tuple[Callable[[IndexedTable], Awaitable[None]], tuple[str, ...]]] = {
    "an_alter_back_is_an_epoch": (
        lambda here: taken_out_after_an_alter_back(here, replicas(3)),
        ("value",),
    ),
    "removals_of_every_term": (taken_out_when_it_leads_again, ("value",)),
    "entries_of_every_term": (written_when_it_leads_again, ("value", "n")),
}


@pytest.mark.parametrize("bug", EPOCHS)
def test_without_its_protection_an_index_lacks_a_row(bug: str) -> None:
    """Or the story would prove nothing."""
    story, indexes = _TOLD[bug]
    with planted(bug), pytest.raises(SimulationFailure, match="lacks"):
        run(story, replicas(3), indexes=indexes)
