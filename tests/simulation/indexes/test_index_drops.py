"""A dropped index that somebody still looks into, and who is to close it does not hear of that."""

from __future__ import annotations

import asyncio

import pytest

from stelae.client.table.table import AsyncTable
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl import alter
from stelae.core.errors import IndexNotFound, InvalidArgument, RetryLater
from stelae.core.messages.indexes import CLOSE_INDEXLET
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability, segments
from tests.simulation.indexes.entries import TABLE
from tests.simulation.indexes.test_index_writes import BOTH, IndexedTable, run

UNHEARD_S = 4.0
SOON_S = 60.0
CUT_OFF_MOST_S = 10.0
"""A lease, and some pauses."""


async def _look(reader: AsyncTable, written: list[int]) -> bool:
    """Look into the index as who knew it before; false: it is gone. What it finds is everything."""
    before = list(written)
    try:
        found = await reader.find("value", "a", timeout=0.5)
    except (IndexNotFound, InvalidArgument):
        return False
    except RetryLater:
        return True  # nobody answers just now: the next look will tell
    missing = set(before) - set(found.column("id").to_pylist())
    assert not missing, f"rows {sorted(missing)} were written, and are not in the index"
    return True


async def _drop_unheard(here: IndexedTable) -> None:
    """Drop the index while the order to close its indexlet is lost, and others read and write."""
    reader = await here.cluster.database("reader").table(TABLE)
    await reader.upsert({"id": 0, "value": "a", "n": 0})
    written, clock = [0], here.world.loop
    assert await _look(reader, written)
    heard_from = clock.time() + UNHEARD_S
    here.world.network.drop_filter = lambda _sender, _receiver, method: (
        method == CLOSE_INDEXLET.name and clock.time() < heard_from
    )
    dropping = asyncio.ensure_future(here.table.drop_index("value", timeout=SOON_S))
    writer = await here.cluster.database("writer").table(TABLE)
    is_there = True
    while is_there or not dropping.done():
        await writer.upsert({"id": len(written), "value": "a", "n": 0}, timeout=SOON_S)
        written.append(len(written))
        is_there = await _look(reader, written)
    await dropping
    assert len(written) > 10
    assert await here.table.count() == len(written)
    await here.world.wait_until(lambda: not here.watch.indexlets(), SOON_S, "no indexlet")
    here.world.network.drop_filter = None
    await here.table.create_index("value", timeout=SOON_S)
    assert await here.ids("a") == sorted(written)


@BOTH
def test_what_somebody_may_look_into_has_what_is_written(durability: Durability) -> None:
    """A look-up by who has not heard of the drop finds everything, or is told."""
    run(_drop_unheard, durability)


async def _drop_cut_off(here: IndexedTable) -> None:
    """Drop the index while whoever holds it hears nothing of the masters, which hear it."""
    await here.world.wait_until(
        lambda: bool(here.watch.indexlets()), SOON_S, "an indexlet that is open"
    )
    holder = here.indexlet().server
    assert not here.world.server(holder)._tablets, "its tablets would hold it up as well"
    writer = await here.cluster.database("writer").table(TABLE)
    await writer.upsert({"id": 0, "value": "a", "n": 0})
    here.world.partition(here.cluster.masters, [holder])
    begun_s = here.world.loop.time()
    await here.table.drop_index("value", timeout=SOON_S)
    await writer.upsert({"id": 1, "value": "a", "n": 0}, timeout=SOON_S)
    assert here.world.loop.time() - begun_s < CUT_OFF_MOST_S
    here.world.unpartition(here.cluster.masters, [holder])
    server = here.world.server(holder)
    await here.world.wait_until(lambda: not server.indexlets.reports(), SOON_S, "no indexlet")
    await here.table.create_index("value", timeout=SOON_S)
    assert await here.ids("a") == [0, 1]


def test_who_hears_no_order_holds_a_drop_up_for_its_lease_only() -> None:
    """Though its own messages come through, so that it is live."""
    run(_drop_cut_off, segments("disk", "disk"))


def test_the_story_sees_it_if_tablets_hear_of_a_drop_too_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows whose entries are not put in are missed by who looks into what is not closed."""

    def at_once(_catalog: Catalog, table: TableRecord) -> TableRecord:
        return table

    monkeypatch.setattr(alter, "table_told", at_once)
    with pytest.raises(BaseException, match="are not in the index"):
        run(_drop_unheard, segments("disk", "disk"))
