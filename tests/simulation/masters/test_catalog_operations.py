"""Operations on tables with real servers: bad input leaves no trace, stuck tablets are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.client.database import AsyncDatabase
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.errors import (
    InvalidArgument,
    NotEnoughServers,
    Rejected,
    StelaeError,
    TableExists,
    TableNotFound,
    TabletNotFound,
    TooManyReplicas,
)
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.catalog import (
    CREATE_TABLE,
    DELETE_TABLE,
    GET_TABLET_LOCATIONS,
    CreateTable,
    DeleteTable,
    GetTabletLocations,
)
from stelae.core.messages.servers import OPEN_TABLET, OpenTablet
from stelae.core.records.records import TabletState
from stelae.core.schema.durability import Segments, Wal, segments, wal
from stelae.core.schema.partition import (
    HashPartition,
    Partitioning,
    RangePartition,
    hash_partition,
)
from stelae.core.schema.schema import TableSchema
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
GOOD = CreateTable(
    RequestId(ClientId("raw"), 1, 1), "new", SCHEMA, hash_partition("id", 2), segments()
)
Story = Callable[[World, SimCluster, AsyncDatabase], Coroutine[Any, Any, None]]


def tell(story: Story, **settings: Any) -> None:
    """Run a story in a calm world with a cluster that has a leader."""

    async def run(world: World) -> None:
        cluster = SimCluster(world)
        cluster.settings = msgspec.structs.replace(cluster.settings, **settings)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        await story(world, cluster, cluster.database("client"))

    world = World(1, Options())
    world.run(run(world))


async def create(database: AsyncDatabase, name: str, buckets: int, *, wait: bool = True) -> None:
    partition = hash_partition("id", buckets)
    await database.create_table(
        name,
        SCHEMA.arrow,
        key="id",
        partition=partition,
        durability=segments(),
        wait=wait,
        timeout=60.0,
    )


def content(catalog: Catalog) -> bytes:
    """All tables, tablets and names; what each request was answered is another matter."""
    tables = [*catalog.every_table()]
    return msgspec.msgpack.encode((tables, [*catalog.tablets.values()], catalog._names))


def but(**changes: Any) -> CreateTable:
    return msgspec.structs.replace(GOOD, **changes)


def schema(fields: list[tuple[str, pa.DataType]], key: tuple[str, ...] = ("id",)) -> TableSchema:
    """A schema that no client of ours would send."""
    ipc = pa.schema(fields).serialize().to_pybytes()
    return msgspec.structs.replace(SCHEMA, arrow_ipc=ipc, key=key)


BAD: dict[str, tuple[CreateTable, type[StelaeError], str]] = {
    "existing name": (but(name="there"), TableExists, "'there' exists"),
    "empty name": (but(name=""), InvalidArgument, "1 to 255 printable"),
    "long name": (but(name="x" * 256), InvalidArgument, "1 to 255 printable"),
    "unprintable name": (but(name="a\nb"), InvalidArgument, "printable"),
    "name with slash": (but(name="a/b"), InvalidArgument, "none of /"),
    "damaged schema": (
        but(schema=msgspec.structs.replace(SCHEMA, arrow_ipc=b"not a schema")),
        InvalidArgument,
        "no Arrow schema",
    ),
    "no columns": (but(schema=schema([])), InvalidArgument, "1 to 300 columns"),
    "no key": (but(schema=schema([("id", pa.int64())], ())), InvalidArgument, "name one or more"),
    "key twice": (
        but(schema=schema([("id", pa.int64())], ("id", "id"))),
        InvalidArgument,
        "each once",
    ),
    "key not there": (
        but(schema=schema([("x", pa.int64())])),
        Rejected,
        "no column 'id'",
    ),
    "key of a type that is none": (
        but(schema=schema([("id", pa.float64())])),
        InvalidArgument,
        "key column 'id' has type double",
    ),
    "type that is not stored": (
        but(schema=schema([("id", pa.int64()), ("d", pa.dictionary(pa.int8(), pa.string()))])),
        InvalidArgument,
        "normalised",
    ),
    "column named twice": (
        but(schema=schema([("id", pa.int64()), ("id", pa.int64())])),
        InvalidArgument,
        "twice",
    ),
    "reserved column": (
        but(schema=schema([("id", pa.int64()), ("_op", pa.int64())])),
        InvalidArgument,
        "not starting with _",
    ),
    "partitioned by no key column": (
        but(partitioning=Partitioning(hash=HashPartition(("x",), 2))),
        InvalidArgument,
        "must be key columns",
    ),
    "no buckets": (
        but(partitioning=Partitioning(hash=HashPartition(("id",), 0))),
        InvalidArgument,
        "buckets=0",
    ),
    "splits that do not ascend": (
        but(partitioning=Partitioning(range=RangePartition(("id",), ((2,), (1,))))),
        InvalidArgument,
        "ascend",
    ),
    "more tablets than a table may have": (
        but(partitioning=hash_partition("id", 9)),
        InvalidArgument,
        "the limit is 8",
    ),
    "more tablets than the cluster may have": (
        but(partitioning=hash_partition("id", 8)),
        InvalidArgument,
        "the cluster has 3 of at most 10",
    ),
    "more replicas than backups": (
        but(durability=Segments(("disk",) * 6)),
        TooManyReplicas,
        "needs 6 backups with medium 'disk'",
    ),
    "medium that nobody has": (but(durability=Segments(("tape",))), TooManyReplicas, "'tape'"),
    "log that is never cut": (but(durability=Wal(3, ())), InvalidArgument, "at least one medium"),
    "more replicas than anybody may have": (
        but(durability=Segments(("disk",) * 8)),
        InvalidArgument,
        "the limit is 7",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_rejected_with_reasons_and_leaves_no_trace(case: str) -> None:
    """What and why; tables and tablets of every master's catalog are the same to the byte."""
    order, expected, reason = BAD[case]

    async def story(world: World, cluster: SimCluster, database: AsyncDatabase) -> None:
        await create(database, "there", 3)
        await asyncio.sleep(35.0)  # the leader has heard every server there is
        names = cluster.masters
        before = {name: content(world.server(name).catalog) for name in names}
        address = cluster.addresses[cluster.leader() or ""]
        with pytest.raises(expected, match=reason) as found:
            await database.runtime.peers.call(address, CREATE_TABLE, order, timeout_s=5.0)
        assert isinstance(found.value, Rejected)
        await asyncio.sleep(1.0)
        assert {name: content(world.server(name).catalog) for name in names} == before
        master = world.server(cluster.leader() or "")
        assert master.coordinator.operations._reserved == {}

    tell(story, tablets_per_table_max=8, tablets_max=10)


def test_a_timeline_without_safekeepers_is_refused_and_leaves_no_trace() -> None:
    """More may come, so the client may try again; until then no record of the table exists."""

    async def story(world: World, cluster: SimCluster, database: AsyncDatabase) -> None:
        leader = cluster.leader() or ""
        address, catalog = cluster.addresses[leader], world.server(leader).catalog
        before = content(catalog)
        with pytest.raises(NotEnoughServers, match="needs 3 live safekeepers, there are 0"):
            await database.runtime.peers.call(
                address, CREATE_TABLE, but(durability=wal(3)), timeout_s=5.0
            )
        await asyncio.sleep(1.0)
        assert content(catalog) == before

    tell(story)


def test_what_is_not_there_is_refused_without_a_trace() -> None:
    """Deleting, and locating, what never was."""

    async def story(world: World, cluster: SimCluster, database: AsyncDatabase) -> None:
        leader = cluster.leader() or ""
        address, catalog = cluster.addresses[leader], world.server(leader).catalog
        before = content(catalog)
        call = database.runtime.peers.call
        request = RequestId(ClientId("raw"), 1, 1)
        with pytest.raises(TableNotFound):
            await call(address, DELETE_TABLE, DeleteTable(request, "none"), timeout_s=1.0)
        for body, error in (
            (GetTabletLocations((TabletId("none"),)), TabletNotFound),
            (GetTabletLocations((TabletId("none"),) * 1001), InvalidArgument),
        ):
            with pytest.raises(error):
                await call(address, GET_TABLET_LOCATIONS, body, timeout_s=1.0)
        for bad in (-1, float("nan"), float("inf"), "1", True):
            with pytest.raises(InvalidArgument):
                await database.tables(max_staleness=bad)  # type: ignore[arg-type]
        assert content(catalog) == before

    tell(story)


def test_who_wants_more_backups_than_live_waits_while_they_may_come_back() -> None:
    """A server that is down for a moment is no reason to refuse for good."""

    async def story(world: World, cluster: SimCluster, database: AsyncDatabase) -> None:
        await asyncio.sleep(35.0)
        count = len(cluster.backups)
        for name in cluster.backups[1:]:
            world.crash(name, restart=False)
        await asyncio.sleep(3.0)
        order = but(durability=Segments(("disk",) * min(count, 7)))
        address = cluster.addresses[cluster.leader() or ""]
        with pytest.raises(NotEnoughServers):
            await database.runtime.peers.call(address, CREATE_TABLE, order, timeout_s=5.0)

    tell(story)


def test_a_tablet_stuck_in_creation_is_replaced_and_holds_nobody_up() -> None:
    """One server hears no orders, and seems alive: a new tablet takes the place of its own.

    Both records are in one entry; another table is made meanwhile; what is opened late is closed.
    """

    async def story(world: World, cluster: SimCluster, database: AsyncDatabase) -> None:
        deaf = cluster.tservers[0]
        world.partition(cluster.masters, [deaf])
        count = len(cluster.tservers)
        await create(database, "slow", count, wait=False)
        assert not await database.is_create_done("slow")
        catalog = world.server(cluster.leader() or "").catalog
        await world.wait_until(
            lambda: len(list(catalog.opening_tablets())) == 1, 5, "the others to run"
        )
        (old,) = catalog.opening_tablets()
        assert old.owner == world.server(deaf).info.uuid
        began = world.loop.time()
        await create(database, "quick", 1)
        assert world.loop.time() - began < 1.0, "one table held up another"
        assert await database.is_create_done("quick")

        def replaced() -> bool:
            numbers = [t.number for t in catalog.tablets_of(old.table_id)]
            assert numbers == list(range(count)), "half a table was seen"
            return catalog.tablets[old.tablet_id].state is TabletState.REPLACED

        await world.wait_until(replaced, 20, "a replacement", poll_s=0.001)
        await world.wait_until(
            lambda: not list(catalog.opening_tablets()), 20, "the table to be whole"
        )
        assert await database.is_create_done("slow")
        now = catalog.tablets[old.tablet_id]
        new = catalog.tablets[now.replaced_by]
        assert (new.number, new.attempt, new.table_id) == (old.number, 1, old.table_id)
        (told,) = await database.locate([old.tablet_id])
        assert told.problem == f"replaced by tablet {new.tablet_id}"
        assert told.address == ""
        world.unpartition(cluster.masters, [deaf])
        server = world.server(deaf)
        late = OpenTablet(catalog.tables[old.table_id], old)
        await database.runtime.peers.call(server.info.address, OPEN_TABLET, late, timeout_s=1.0)
        assert old.tablet_id in [r.tablet_id for r in server.reports()]
        await world.wait_until(
            lambda: old.tablet_id not in [r.tablet_id for r in server.reports()],
            5,
            "the late tablet to be closed",
        )
        await database.delete_table("slow")
        assert catalog.tablets[old.tablet_id].state is TabletState.REPLACED

    tell(story, creation_timeout_s=5.0)
