"""AlterTable end to end: masters, tservers and clients of older schemas, in a simulated world."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    ColumnNotFound,
    DeadlineExpired,
    InvalidArgument,
    RowExists,
    TableExists,
    TableNotFound,
    TabletNotReady,
)
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.alter import ALTER_TABLE, AlterTable
from stelae.core.messages.rows import GET, Get
from stelae.core.records.records import TableState
from stelae.core.schema.alter import MAX_HISTORY, schema_change
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.simulation import Options, World
from stelae.simulation.world.options import Servers
from tests.simulation.world.cluster_fixture import SimClusterFixture

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("a", pa.string()), pa.field("b", pa.int64())]
)


class AlteredFixture(SimClusterFixture):
    """A small calm cluster with one table of two tablets, and a handle that is never refreshed."""

    async def start(self) -> None:
        await super().start()
        self.table: AsyncTable = await self.database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 2),
            durability=segments("disk", "disk"),
        )
        self.old = await self.cluster.database("old").table("t")

    def record(self) -> Any:
        leader = self.world.server(self.cluster.leader() or "")
        return leader.catalog.tables[self.table.record.table_id]

    def owners(self) -> list[str]:
        """Tservers that hold tablets."""
        names = self.cluster.tservers
        return [n for n in names if (s := self.world.server(n)) is not None and s.reports()]

    async def crash_owners(self) -> None:
        for name in self.owners():
            self.world.crash(name)
        await self.world.wait_until(
            lambda: self.cluster.leader() is not None and self.cluster.is_whole(2, 2),
            60.0,
            "the tablets to be back",
        )


def run(
    scenario: Callable[[AlteredFixture], Coroutine[Any, Any, None]],
    *,
    masters: int = 1,
    tservers: int = 2,
) -> None:
    world = World(5, Options(servers=Servers(masters=masters, tservers=tservers, backups=3)))

    async def main() -> None:
        here = AlteredFixture(world)
        await here.start()
        await scenario(here)

    world.run(main())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def test_readers_and_writers_with_the_older_schema_go_on() -> None:
    """Renamed columns keep their old names for old handles; what an old handle writes for a
    dropped column is left out; an added one gets its default. One row, few, and Arrow alike."""

    async def scenario(here: AlteredFixture) -> None:
        await here.old.upsert([{"id": n, "a": f"a{n}", "b": n} for n in range(6)])
        await here.table.alter(
            add_columns=[pa.field("c", pa.int32(), False)],
            rename_columns={"a": "name"},
            defaults={"c": 9},
        )
        assert here.record().state is TableState.RUNNING
        assert await here.old.get(2) == {"id": 2, "a": "a2", "b": 2}
        assert (await here.table.get(2)) == {"id": 2, "name": "a2", "b": 2, "c": 9}
        await here.old.upsert({"id": 6, "a": "a6"})
        await here.old.update({"id": 3, "a": "A3"})
        many = pa.table({"id": [7, 8, 9, 10, 11], "a": list("vwxyz"), "b": [1, 2, 3, 4, 5]})
        await here.old.upsert(many)
        await here.old.delete(0)
        found = rows_of(await here.table.scan())
        assert found[0] == {"id": 1, "name": "a1", "b": 1, "c": 9}
        assert found[2] == {"id": 3, "name": "A3", "b": 3, "c": 9}
        assert found[5] == {"id": 6, "name": "a6", "b": None, "c": 9}
        assert found[-1] == {"id": 11, "name": "z", "b": 5, "c": 9}
        seen = await here.old.scan(where=[("a", "=", "A3")])
        assert seen.to_pylist() == [{"id": 3, "a": "A3", "b": 3}]
        some = await here.old.get_many([3, 8], columns=["a"])
        assert some.to_pylist() == [{"a": "A3"}, {"a": "w"}]
        assert here.old.schema.names == ["id", "a", "b"]

    run(scenario)


def test_a_handle_that_reads_a_dropped_column_learns_of_the_alter() -> None:
    """It loads the schema and makes the call again, once; naming the column is then an error."""

    async def scenario(here: AlteredFixture) -> None:
        await here.old.upsert([{"id": n, "a": f"a{n}", "b": n} for n in range(4)])
        other, third = [await here.cluster.database(n).table("t") for n in ("x", "y")]
        await here.table.alter(drop_columns="a")
        await here.old.upsert({"id": 9, "a": "lost", "b": 9})
        assert here.old.schema.names == ["id", "a", "b"]
        assert await here.old.get(9) == {"id": 9, "b": 9}
        assert here.old.schema.names == ["id", "b"]
        assert rows_of(await other.scan())[-1] == {"id": 9, "b": 9}
        assert (await third.get_many([9])).to_pylist() == [{"id": 9, "b": 9}]
        fourth = await here.cluster.database("z").table("t")
        await here.table.alter(add_columns={"a": pa.int8()})
        with pytest.raises(ColumnNotFound, match="no column 'q'"):
            await fourth.get(9, columns=["q"])
        batches = [batch async for batch in fourth.scan_tablets()]
        assert sum(batch.num_rows for batch in batches) == 5

    run(scenario)


def test_a_column_dropped_and_added_again_comes_back_empty_also_after_a_crash() -> None:
    """In heads, in sealed segments, and in both once they have been recovered."""

    async def scenario(here: AlteredFixture) -> None:
        filler = "x" * 300
        for n in range(40):
            await here.old.upsert({"id": n, "a": filler, "b": n})
        await here.table.alter(drop_columns=["a"])
        await here.table.alter(add_columns={"a": pa.string()})
        await here.old.upsert({"id": 100, "a": "of the old one", "b": 1})
        await here.table.upsert({"id": 101, "a": "of the new one", "b": 1})
        for _ in range(2):
            found = rows_of(await here.table.scan())
            assert [row["a"] for row in found] == [None] * 41 + ["of the new one"]
            assert [row["b"] for row in found[:40]] == list(range(40))
            await here.crash_owners()

    run(scenario)


def test_kudu_1374_an_alter_whose_calls_were_never_sent_is_done_under_the_next_leader() -> None:
    """The leader cannot reach the tservers, and dies once the entry is committed: the next one
    sees which owners are behind, and tells them."""

    async def scenario(here: AlteredFixture) -> None:
        await here.table.upsert([{"id": n, "a": "x", "b": n} for n in range(4)])
        leader = here.cluster.leader()
        assert leader is not None
        here.world.partition([leader], here.cluster.tservers)
        await here.table.alter(add_columns={"c": pa.int8()}, wait=False)
        assert here.record().state is TableState.ALTERING
        assert not await here.table.is_alter_done()
        versions = {
            report.schema_version
            for name in here.owners()
            for report in here.world.server(name).reports()
        }
        assert versions == {1}
        here.world.crash(leader, restart=False)
        await here.world.wait_until(
            lambda: here.cluster.leader() is not None and here.record().state is TableState.RUNNING,
            60.0,
            "the alter to be done",
        )
        assert await here.table.is_alter_done()
        assert await here.table.get(1) == {"id": 1, "a": "x", "b": 1, "c": None}

    run(scenario, masters=3)


def test_an_alter_waits_for_every_tablet_and_says_for_which() -> None:
    """A tablet that is offline keeps the table ALTERING; it comes back with the newest schema."""

    async def scenario(here: AlteredFixture) -> None:
        await here.table.upsert([{"id": n, "a": "x", "b": n} for n in range(8)])
        for name in here.cluster.tservers:
            here.world.crash(name, restart=False)
        with pytest.raises(DeadlineExpired, match="waits for tablets"):
            await here.table.alter(drop_columns="a", timeout=2.0)
        await here.table.alter(add_columns={"a": pa.int8()}, wait=False)
        assert here.record().schema.version == 3
        for name in here.cluster.tservers:
            here.world.restart(name)
        await here.world.wait_until(
            lambda: here.record().state is TableState.RUNNING, 60.0, "the alter to be done"
        )
        assert await here.table.get(5) == {"id": 5, "b": 5, "a": None}

    run(scenario)


def test_a_renamed_table_goes_on_under_old_handles_and_errors_use_its_new_name() -> None:
    """Handles are bound to the table's id; the name alone needs no waiting."""

    async def scenario(here: AlteredFixture) -> None:
        await here.table.upsert({"id": 1, "a": "x", "b": 1})
        await here.database.rename_table("t", "u")
        assert here.record().state is TableState.RUNNING
        assert (await here.database.table("u")).record.table_id == here.old.record.table_id
        with pytest.raises(TableNotFound):
            await here.database.table("t")
        assert [record.name for record in await here.database.tables()] == ["u"]
        servers = [here.world.server(name) for name in here.owners()]
        await here.world.wait_until(
            lambda: all(r.renames == 1 for s in servers for r in s.reports()), 10.0, "the news"
        )
        with pytest.raises(RowExists, match="insert into 'u'"):
            await here.old.insert({"id": 1, "a": "y", "b": 1})
        await here.crash_owners()
        assert await here.old.get(1) == {"id": 1, "a": "x", "b": 1}
        assert here.old.name == "u"
        again = await here.database.create_table("t", SCHEMA, key="id")
        assert await again.get(1) is None
        with pytest.raises(TableExists):
            await again.rename("u")
        for name in ("", "a/b", "x" * 256, "a\nb"):
            with pytest.raises(InvalidArgument):
                await again.rename(name)
        with pytest.raises(InvalidArgument, match="has that name already"):
            await again.rename("t")
        assert again.name == "t"

    run(scenario)


def test_a_refused_alter_leaves_no_trace() -> None:
    """The record is the very same afterwards, and no request result is kept."""

    async def scenario(here: AlteredFixture) -> None:
        before = here.record()
        for change in (
            {"drop_columns": "id"},
            {"rename_columns": {"id": "key"}},
            {"add_columns": [pa.field("n", pa.int8(), False)]},
            {"defaults": {"id": 3}},
            {"add_columns": {"_x": pa.int8()}},
            {"drop_columns": "b", "rename_to": "bad/name"},
            {},
        ):
            with pytest.raises(InvalidArgument):
                await here.table.alter(**change)
        with pytest.raises(InvalidArgument, match="does not fit type int64"):
            await here.table.alter(defaults={"b": "one"})
        assert here.record() is before

    run(scenario)


def test_a_repeated_alter_happens_once() -> None:
    """The second call with the same request id gets the first one's answer."""

    async def scenario(here: AlteredFixture) -> None:
        request = RequestId(ClientId("c"), 1, 1)
        change = schema_change(add=[pa.field("c", pa.int8())])
        order = AlterTable(request, here.table.record.table_id, "t", "u", change)
        masters = here.table.cache.masters
        for _ in range(2):
            reply = await masters.call(ALTER_TABLE, order, timeout_s=5.0)
            assert (reply.table.name, reply.table.schema.version) == ("u", 2)
        await here.database.delete_table("u")
        await masters.call(ALTER_TABLE, order, timeout_s=5.0)
        fresh = AlterTable(RequestId(ClientId("c"), 2, 1), order.table_id, "u", "", change)
        with pytest.raises(TableNotFound):
            await masters.call(ALTER_TABLE, fresh, timeout_s=5.0)

    run(scenario)


def test_a_request_with_a_newer_schema_waits_for_the_tablet() -> None:
    """A tserver that has not heard of the alter yet says so; the client repeats the call."""

    async def scenario(here: AlteredFixture) -> None:
        await here.table.upsert({"id": 1, "a": "x", "b": 1})
        leader = here.cluster.leader()
        assert leader is not None
        here.world.partition([leader], here.cluster.tservers)
        await here.table.alter(add_columns={"c": pa.int8()}, wait=False)
        where = here.table.cache.tablet(here.table.known.partitioner.tablet_number((1,)))
        peers = here.database.runtime.peers
        body = Get(where.tablet.tablet_id, ((1,),), (), 2)
        with pytest.raises(TabletNotReady, match="to hear of version 2"):
            await peers.call(where.address, GET, body, timeout_s=2.0)
        assert await here.old.get(1) == {"id": 1, "a": "x", "b": 1}
        here.world.heal()
        assert await here.table.get(1) == {"id": 1, "a": "x", "b": 1, "c": None}

    run(scenario)


def test_a_schema_too_old_to_be_remembered_is_loaded_anew() -> None:
    """Writes and reads of a very old handle are made again with the newest schema, once."""

    async def scenario(here: AlteredFixture) -> None:
        handles = [await here.cluster.database(f"h{n}").table("t") for n in range(4)]
        await here.table.alter(rename_columns={"a": "name"})
        for n in range(MAX_HISTORY + 1):
            await here.table.alter(defaults={"b": n})
        await handles[0].upsert({"id": 1, "a": "x"})
        many = pa.table({"id": [2, 3, 4, 5], "a": ["x"] * 4})
        await handles[1].upsert(many)
        assert await handles[2].get(1) == {"id": 1, "name": "x", "b": MAX_HISTORY}
        assert (await handles[3].scan(columns=["id"])).num_rows == 5
        found = rows_of(await here.table.scan())
        assert found[-1] == {"id": 5, "name": "x", "b": MAX_HISTORY}
        assert await here.old.count(where=[("b", "=", MAX_HISTORY)]) == 5

    run(scenario)


def test_a_changed_default_is_for_rows_written_from_then_on() -> None:
    """Also for rows of handles that know only the default before, as far as they leave it out;
    what is given, null too, is what is stored."""

    async def scenario(here: AlteredFixture) -> None:
        await here.old.upsert({"id": 1, "a": "x"})
        await here.table.alter(defaults={"b": 5})
        await here.old.upsert({"id": 2, "a": "x"})
        await here.old.upsert({"id": 3, "a": "x", "b": None})
        await here.table.upsert([{"id": 4}, {"id": 5, "b": 1}])
        await here.table.upsert(pa.table({"id": [6, 7, 8, 9, 10]}))
        found = {row["id"]: row["b"] for row in rows_of(await here.table.scan())}
        assert found == {1: None, 2: 5, 3: None, 4: 5, 5: 1} | dict.fromkeys(range(6, 11), 5)

    run(scenario)


def test_a_table_that_becomes_one_of_any_types_still_takes_small_calls_of_old_handles() -> None:
    """Decimals and lists do not travel as small rows; what an old handle sends is made columnar."""

    async def scenario(here: AlteredFixture) -> None:
        price = pa.decimal128(10, 2)
        await here.old.upsert({"id": 1, "a": "x", "b": 1})
        await here.table.alter(
            add_columns={"price": price, "tags": pa.list_(pa.string())},
            defaults={"price": pa.scalar("1.50").cast(price)},
        )
        await here.old.upsert([{"id": 2, "a": "y", "b": 2}, {"id": 1, "a": "z", "b": 3}])
        await here.old.update({"id": 2, "b": 7})
        await here.crash_owners()
        found = rows_of(await here.table.scan(columns=["id", "a", "b", "price"]))
        assert [(r["id"], r["a"], r["b"], str(r["price"])) for r in found] == [
            (1, "z", 3, "1.50"),
            (2, "y", 7, "1.50"),
        ]
        assert await here.old.get(2) == {"id": 2, "a": "y", "b": 7}

    run(scenario)
