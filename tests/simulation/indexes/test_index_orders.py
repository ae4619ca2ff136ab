"""Orders about indexlets by a master that leads no more, and does not know so: stories."""

from __future__ import annotations

import asyncio

from stelae.core.messages.indexes import CLOSE_INDEXLET, CloseIndexlet
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexletRecord
from tests.simulation.indexes.test_index_writes import IndexedTable, run

SOON_S = 30.0
LOOK_S = 0.00001


def _records(here: IndexedTable) -> list[IndexletRecord]:
    """Of all indexlets, as the leader master knows them."""
    return list(here.watch.catalog().indexes.indexlets.values())


async def _closed_by_a_former_leader(
    here: IndexedTable, known: list[IndexletRecord]
) -> IndexletRecord:
    """As soon as there is one more indexlet, and before its owner hears of it, that is told to
    forget it: by a master of whose catalog it is no part."""
    ids = {record.indexlet_id for record in known}

    def new() -> list[IndexletRecord]:
        return [record for record in _records(here) if record.indexlet_id not in ids]

    await here.world.wait_until(lambda: bool(new()), SOON_S, "an indexlet", LOOK_S)
    (record,) = new()
    servers = [here.world.server(name) for name in here.cluster.tservers]
    (owner,) = [server for server in servers if server.info.uuid == record.owner]
    order = CloseIndexlet(record.indexlet_id, record.term, drop=True)
    await owner.indexlets.handlers()[CLOSE_INDEXLET](Call(order, (), 1.0))
    return record


def test_a_new_indexlet_that_a_former_leader_has_closed_is_filled_in_the_next_term() -> None:
    """Its owner opens it never again in the one that was closed."""

    async def test(here: IndexedTable) -> None:
        await here.table.upsert([{"id": n, "value": "a", "n": n} for n in range(9)])
        creating = asyncio.ensure_future(here.table.create_index("value", timeout=SOON_S))
        record = await _closed_by_a_former_leader(here, [])
        await creating
        await here.settled()
        (now,) = _records(here)
        assert (now.indexlet_id, now.term) == (record.indexlet_id, record.term + 1)
        assert await here.ids("a") == list(range(9))

    run(test, segments("disk", "disk"), indexes=())


def test_a_successor_that_a_former_leader_has_closed_is_given_up() -> None:
    """Another one is made, and takes the place of the indexlet that is to leave its server."""

    async def test(here: IndexedTable) -> None:
        await here.table.upsert([{"id": n, "value": "a", "n": n} for n in range(9)])
        await here.settled()
        before = here.indexlet()
        database = here.cluster.database("operators")
        await database.retire_server(before.server, wait=False, timeout=SOON_S)
        record = await _closed_by_a_former_leader(here, _records(here))
        assert record.succeeds == before.indexlet.indexlet_id

        def has_left() -> bool:
            return [h.server for h in here.watch.indexlets()] not in ([], [before.server])

        await here.world.wait_until(has_left, SOON_S, "another successor in its place")
        await here.settled()
        assert here.indexlet().indexlet.indexlet_id != record.indexlet_id
        assert await here.ids("a") == list(range(9))

    run(test, segments("disk", "disk"))
