"""Heartbeats that a server sent before it opened an indexlet, and that arrive after the drop.

The leader learns of an indexlet by an answer or a hint, which overtakes a heartbeat that lacks it.
That heartbeat proves nothing about the indexlet: its owner answers under a lease that still holds.
"""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import IndexNotFound, InvalidArgument, RetryLater
from stelae.core.messages.indexes import CLOSE_INDEXLET
from stelae.core.messages.servers import HEARTBEAT, Heartbeat
from stelae.core.records import ServerKind
from stelae.core.tables.durability import Durability, segments
from stelae.simulation.world import SimulationFailure
from tests.simulation.entries import TABLE, Held
from tests.simulation.held_back import held_back
from tests.simulation.planted_indexes import planted
from tests.simulation.test_index_writes import BOTH, Here, run

LEADS_S = 2.0
"""By then the leases that a former leader may have granted have ended."""
SENT_S = 0.45
"""By then each server has sent a heartbeat to each master, whatever came of the one before."""
WRITE_S = 0.3
SOON_S = 30.0


async def _dropped_at_once(here: Here) -> None:
    """Make an index, look it up, and drop it, while heartbeats of before are on their way; the
    owner's oldest one arrives after the drop. A look-up then finds all rows, or is refused."""
    cluster, world = here.cluster, here.world
    await here.table.upsert({"id": 0, "value": "a", "n": 0})
    await asyncio.sleep(LEADS_S)
    leader = world.server(cluster.leader())
    world.network.drop_filter = lambda _sender, _receiver, method: method == CLOSE_INDEXLET.name
    with held_back(world, HEARTBEAT, lambda b: b.server.kind is ServerKind.TSERVER) as late:
        await asyncio.sleep(SENT_S)
        before_s = {b.server.name: b.sent for b in late.bodies}  # the last one of each server
        await here.table.create_index("value", timeout=SOON_S)
        reader = await cluster.database("reader").table(TABLE)
        assert (await reader.find("value", "a", timeout=1.0)).num_rows == 1
        held: Held = here.indexlet()
        await here.table.drop_index("value", timeout=SOON_S)

        def is_of_before(beat: Heartbeat) -> bool:
            return beat.server.name == held.server and beat.sent <= before_s[held.server]

        assert any(map(is_of_before, late.bodies))
        late.let_go_of(is_of_before)
        await asyncio.sleep(WRITE_S)
        assert leader is world.server(cluster.leader()), "the same master leads"
        assert world.server(held.server)._lease.is_valid, "too late: the scenario shows nothing"
        await reader.upsert({"id": 1, "value": "a", "n": 1}, timeout=WRITE_S)
        try:
            found = (await reader.find("value", "a", timeout=WRITE_S)).column("id").to_pylist()
        except (IndexNotFound, InvalidArgument, RetryLater):
            found = [0, 1]
        assert found == [0, 1], f"look-ups find {found} only, in an index that was dropped"
    late.let_go()
    world.network.drop_filter = None
    await world.wait_until(lambda: not here.watch.indexlets(), SOON_S, "no indexlet")
    await here.table.create_index("value", timeout=SOON_S)
    assert await here.ids("a") == [0, 1]


@BOTH
def test_a_heartbeat_of_before_an_indexlet_does_not_say_that_it_is_gone(
    durability: Durability,
) -> None:
    """Tablets put entries in for as long as the owner may answer."""
    run(_dropped_at_once, durability, indexes=())


def test_without_its_protection_a_dropped_index_lacks_a_row() -> None:
    """Or the scenario would prove nothing."""
    bug = planted("overtaken_reports_count")
    with bug, pytest.raises(SimulationFailure, match="only, in an index that was dropped"):
        run(_dropped_at_once, segments("disk", "disk"), indexes=())
