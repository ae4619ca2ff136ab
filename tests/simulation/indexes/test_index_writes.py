"""What a write does to the indexes of its table, in calm clusters of real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    IndexletNotHere,
    RetryLater,
    StaleRequest,
    StaleTerm,
    VersionMismatch,
)
from stelae.core.messages.indexes import (
    INSERT_ENTRIES,
    InsertEntries,
    TabletStamp,
)
from stelae.core.schema.durability import Durability, replicas, segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.indexes.entries import SCHEMA, TABLE, TABLETS, Held, Tally, Watch

BOTH = pytest.mark.parametrize(
    "durability", [segments("disk", "disk"), replicas(3)], ids=["segments", "replicas"]
)


class IndexedTable:
    """A cluster, its table with an index of ``value``, and whoever sees everything."""

    def __init__(self, cluster: SimCluster, table: AsyncTable) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.table = table
        self.watch = Watch(cluster, Tally())

    async def settled(self) -> None:
        """Wait until the indexes are what the rows say."""
        for _ in range(300):
            self.watch.look()
            if not (difference := self.watch.difference()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(difference)

    def indexlet(self) -> Held:
        """The only one."""
        (held,) = self.watch.indexlets()
        return held

    async def ids(self, value: str | None) -> list[int]:
        """Of the rows with that value, by the index."""
        found: list[int] = (await self.table.find("value", value)).column("id").to_pylist()
        return found


def run(
    test: Callable[[IndexedTable], Awaitable[None]],
    durability: Durability,
    indexes: tuple[str, ...] = ("value",),
    **settings: Any,
) -> None:
    """Carry a test out in a cluster of its own."""
    world = World(7, Options(servers=Servers(masters=3, tservers=4, backups=4)))

    async def main() -> None:
        cluster = SimCluster(world, **settings)
        await cluster.start()
        table = await cluster.database("admin").create_table(
            TABLE,
            SCHEMA,
            key="id",
            partition=hash_partition("id", TABLETS),
            durability=durability,
            indexes=indexes,
            timeout=60.0,
        )
        await test(IndexedTable(cluster, table))

    world.run(main())


@BOTH
def test_old_entries_go_and_new_ones_are_there_at_once(durability: Durability) -> None:
    """One row and many, part of the columns, nulls, deletes, and a key twice in one call."""

    async def test(here: IndexedTable) -> None:
        table = here.table
        await table.upsert({"id": 1, "value": "a", "n": 1})
        assert await here.ids("a") == [1]
        await table.update({"id": 1, "n": 2})
        assert await here.ids("a") == [1]
        await table.update({"id": 1, "value": None})
        assert (await here.ids("a"), await here.ids(None)) == ([], [1])
        rows = [{"id": n, "value": "b", "n": 0} for n in range(12)]
        await table.upsert([*rows, {"id": 3, "value": "c", "n": 0}])
        assert await here.ids("c") == [3]
        assert 3 not in await here.ids("b")
        await table.delete(list(range(6)))
        assert await here.ids("b") == list(range(6, 12))
        await here.settled()
        assert len(list(here.indexlet().indexlet.entries.live_entries())) == 6

    run(test, durability)


@BOTH
def test_what_is_refused_leaves_nothing_behind(durability: Durability) -> None:
    """The entries of a write that did not hold its condition are taken out again."""

    async def test(here: IndexedTable) -> None:
        table = here.table
        version = int((await table.upsert({"id": 1, "value": "a", "n": 1}))[0])
        for rows in (
            [{"id": 1, "value": "b", "n": 1}],
            [{"id": n, "value": "b", "n": 1} for n in (1, 1, 1, 1, 1)],
        ):
            with pytest.raises(VersionMismatch):
                await table.upsert(rows, if_version=[version + 7] * len(rows))
            await here.settled()
        assert await here.ids("a") == [1]

    run(test, durability)


@BOTH
def test_calls_on_one_row_at_the_same_time_end_with_its_entry_alone(
    durability: Durability,
) -> None:
    """Whichever call is the last, its value is found, and no other."""

    async def test(here: IndexedTable) -> None:
        for number in range(5):
            calls = [
                here.table.upsert({"id": 1, "value": "abc"[n % 3], "n": number}) for n in range(12)
            ]
            await asyncio.gather(*calls, here.table.delete(1))
            here.watch.look()
        await here.settled()

    run(test, durability)


@BOTH
def test_without_its_indexlet_nothing_is_written(durability: Durability) -> None:
    """A write ends with RetryLater, surely not done, and goes on once there is another indexlet."""

    async def test(here: IndexedTable) -> None:
        await here.table.upsert({"id": 1, "value": "a", "n": 1})
        await here.settled()
        held = here.indexlet().indexlet

        async def refuse(call: Any) -> None:
            raise IndexletNotHere(held.indexlet_id, "this server, in this test")

        held.insert = refuse  # type: ignore[method-assign]
        with pytest.raises(RetryLater):
            await here.table.upsert({"id": 1, "value": "b", "n": 1}, timeout=1.0)
        row = await here.table.get(1)
        assert row is not None
        assert row["value"] == "a"
        await here.table.update({"id": 1, "n": 7})  # whose entries it has no need for
        await here.table.upsert({"id": 1, "value": "a", "n": 8})  # which has its entry
        del held.insert
        await here.table.upsert({"id": 1, "value": "b", "n": 1})
        await here.settled()

    run(test, durability)


@BOTH
def test_an_index_stays_with_its_column_and_goes_with_it(durability: Durability) -> None:
    """Renamed: the same entries, found by the new name. Dropped: nothing is asked of it."""

    async def test(here: IndexedTable) -> None:
        await here.table.upsert([{"id": n, "value": "a", "n": n} for n in range(5)])
        await here.settled()
        before = here.indexlet().indexlet
        await here.table.alter(rename_columns={"value": "word"})
        await here.table.upsert({"id": 9, "word": "a", "n": 1})
        found = await here.table.find("word", "a")
        assert found.column("id").to_pylist() == [0, 1, 2, 3, 4, 9]
        assert here.indexlet().indexlet is before
        await here.table.alter(drop_columns=["word"])
        await here.table.upsert({"id": 10, "n": 1})
        await here.world.wait_until(lambda: not here.watch.indexlets(), 30.0, "it to be dropped")

    run(test, durability)


@BOTH
def test_an_index_made_of_rows_under_load_lacks_none(durability: Durability) -> None:
    """Rows from before, and those that are written while it is filled."""

    async def test(here: IndexedTable) -> None:
        await here.table.upsert([{"id": n, "value": "a", "n": n % 3} for n in range(40)])

        async def load() -> None:
            for n in range(60):
                await here.table.upsert({"id": n, "value": "b", "n": n % 4})

        loading = asyncio.ensure_future(load())
        await here.table.create_index("n", timeout=60.0)
        here.watch.look()
        await loading
        await here.settled()
        found = (await here.table.find("n", 3)).column("id").to_pylist()
        assert found == [n for n in range(60) if n % 4 == 3]

    run(test, durability, indexes=())


def test_indexlets_that_grow_are_split_while_rows_are_written() -> None:
    """Every look finds every row; in the end several indexlets hold all of it."""

    async def test(here: IndexedTable) -> None:
        for n in range(120):
            await here.table.upsert({"id": n, "value": f"{n % 7}", "n": n})
            here.watch.look()
        while len(here.watch.indexlets()) < 4:
            await here.table.upsert({"id": n + 1, "value": "more", "n": n})
            here.watch.look()
            n += 1
            assert here.world.loop.time() < 120.0, "it is not split"
        await here.settled()

    run(test, segments("disk", "disk"), indexlet_entries_max=25)


def test_a_late_copy_of_an_insertion_is_refused() -> None:
    """Nothing that is over comes back: not of this epoch, and not of an older one."""

    async def test(here: IndexedTable) -> None:
        for value in ("a", "b"):
            await here.table.upsert({"id": 1, "value": value, "n": 1})
        await here.settled()
        held = here.indexlet()
        record, peers = held.indexlet.record, here.world.client("late").peers
        known = held.indexlet.known.items()
        number, each = max(known, key=lambda known: known[1].first_incomplete)
        for epoch, refusal in ((each.epoch, StaleRequest), (each.epoch - 1, StaleTerm)):
            stamp = TabletStamp(number, epoch, 1)
            body = InsertEntries(record.indexlet_id, record.term, stamp, (1,), (b"late",))
            with pytest.raises(refusal):
                await peers.call(
                    here.world.address(held.server), INSERT_ENTRIES, body, timeout_s=1.0
                )
        assert b"late" not in held.indexlet.entries.live_entries()

    run(test, segments("disk", "disk"))
