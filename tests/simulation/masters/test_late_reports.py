"""Heartbeats that a server sent before it opened an indexlet, and that arrive long after.

The leader learns of an indexlet by an answer or a hint, which overtakes a heartbeat that lacks it.
That heartbeat proves nothing about the indexlet: its owner answers under a lease that still holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import IndexNotFound, InvalidArgument, RetryLater
from stelae.core.messages.indexes import CLOSE_INDEXLET
from stelae.core.messages.servers import HEARTBEAT, Heartbeat
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Durability, segments
from stelae.simulation.world.world import SimulationFailure
from tests.simulation.indexes.entries import TABLE
from tests.simulation.indexes.planted_indexes import planted
from tests.simulation.indexes.test_index_writes import BOTH, IndexedTable, run
from tests.simulation.tables.held_back import HeldBack, held_back

LEADS_S = 2.0
"""Age of a leadership, in seconds, at which leases of former leaders have ended."""
SENT_S = 0.45
"""Time in which each server sends a heartbeat to each master, whatever came of the last one."""
CALL_S = 0.3
SOON_S = 30.0


def _of_tservers(beat: Heartbeat) -> bool:
    return beat.server.kind is ServerKind.TSERVER


async def _finds_all(reader: AsyncTable) -> None:
    """Write a row, and look it up by an index that the reader knew before; or be refused."""
    await reader.upsert({"id": 1, "value": "a", "n": 1}, timeout=CALL_S)
    try:
        found = (await reader.find("value", "a", timeout=CALL_S)).column("id").to_pylist()
    except (IndexNotFound, InvalidArgument, RetryLater):
        return
    assert found == [0, 1], f"look-ups find {found} only"


async def _with_late_reports(here: IndexedTable, *, is_dropped: bool) -> None:
    """Make an index, look it up, and perhaps drop it, while heartbeats of before are on their way;
    those of the indexlet's owner arrive then. The order to close the indexlet is lost."""
    cluster, world = here.cluster, here.world
    await here.table.upsert({"id": 0, "value": "a", "n": 0})
    await asyncio.sleep(LEADS_S)
    world.network.drop_filter = lambda _sender, _receiver, method: method == CLOSE_INDEXLET.name
    with held_back(world, HEARTBEAT, _of_tservers) as late:
        await asyncio.sleep(SENT_S)
        count = len(late.bodies)
        await here.table.create_index("value", timeout=SOON_S)
        reader = await cluster.database("reader").table(TABLE)
        assert (await reader.find("value", "a", timeout=1.0)).num_rows == 1
        owner = here.indexlet().server
        if is_dropped:
            await here.table.drop_index("value", timeout=SOON_S)
        _deliver(late, owner, late.bodies[:count])
        await asyncio.sleep(CALL_S)
        assert world.server(owner)._lease.is_valid, "too late: the scenario shows nothing"
        await _finds_all(reader)
        here.watch.look()
    late.let_go()
    world.network.drop_filter = None
    if is_dropped:
        await world.wait_until(lambda: not here.watch.indexlets(), SOON_S, "no indexlet")
        await here.table.create_index("value", timeout=SOON_S)
    assert await here.ids("a") == [0, 1]


def _deliver(late: HeldBack[Heartbeat], owner: str, before: list[Heartbeat]) -> None:
    """Deliver the heartbeats that the owner had sent before it opened the indexlet."""

    def is_wanted(beat: Heartbeat) -> bool:
        return beat.server.name == owner and any(beat is each for each in before)

    assert any(map(is_wanted, late.bodies))
    late.let_go_of(is_wanted)


async def _dropped(here: IndexedTable) -> None:
    await _with_late_reports(here, is_dropped=True)


async def _kept(here: IndexedTable) -> None:
    await _with_late_reports(here, is_dropped=False)


@BOTH
def test_a_heartbeat_of_before_an_indexlet_does_not_end_a_drop(durability: Durability) -> None:
    """Tablets put entries in for as long as the owner may answer."""
    run(_dropped, durability, indexes=())


@BOTH
def test_a_heartbeat_of_before_an_indexlet_does_not_give_it_to_another(
    durability: Durability,
) -> None:
    """Its owner has not lost it, and answers under its lease."""
    run(_kept, durability, indexes=())


@pytest.mark.parametrize("scenario", [_dropped, _kept], ids=["dropped", "kept"])
def test_without_its_protection_an_index_lacks_a_row(
    scenario: Callable[[IndexedTable], Awaitable[None]],
) -> None:
    """Or the scenario would prove nothing."""
    bug = planted("overtaken_reports_count")
    with bug, pytest.raises(SimulationFailure, match=r"lacks|only"):
        run(scenario, segments("disk", "disk"), indexes=())
