"""`operations`, `ddl` and `assignment`: the seven-step contract, and what operations change."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.ddl.tables import (
    check_order,
    draft_create,
    draft_delete,
    draft_raise_epoch,
)
from stelae.coordinator.placement.assignment import (
    Load,
    check_enough_backups,
    check_media,
    choose_owners,
)
from stelae.core.errors import (
    InvalidArgument,
    NameReserved,
    NotEnoughServers,
    NotLeader,
    OutcomeUnknown,
    RetryLater,
    StaleTerm,
    TableExists,
    TableNotFound,
    TabletNotReady,
    TooLarge,
    TooManyReplicas,
)
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import CreateTable
from stelae.core.messages.servers import RaiseEpoch
from stelae.core.records.records import ServerInfo, ServerKind, TabletState
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.alter import altered, schema_change
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning, hash_partition
from stelae.core.schema.schema import TableSchema, check_table_name

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
RNG = random.Random(5)


def info(name: str, *media: str, kind: ServerKind = ServerKind.TSERVER) -> ServerInfo:
    process = ProcessIdentity("n", 1, 0)
    return ServerInfo(kind, name, ServerUuid(name), 1, Address(f"{name}:1"), process, media)


def order(
    name: str = "t", sequence: int = 1, partitioning: Partitioning | None = None
) -> CreateTable:
    request = RequestId(ClientId("c"), sequence, 0)
    partitioning = partitioning or hash_partition("id", buckets=4)
    return CreateTable(request, name, SCHEMA, partitioning, segments("disk"))


class Log:
    """A log that replicates when told to."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.entries = 0

    async def replicate(self, command: bytes) -> object:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.entries += 1
        return self.catalog.apply(self.entries, 1, command)

    def create(self, name: str = "t", sequence: int = 1) -> CatalogBatch:
        loads = [Load(info("s1")), Load(info("s2"))]
        return draft_create(self.catalog, order(name, sequence), loads, RNG)


async def test_nothing_is_visible_before_it_is_replicated() -> None:
    """Steps 2 to 6: readers see the whole table after the one entry, and nothing before."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    log.gate.clear()
    creating = asyncio.create_task(operations.change(log.create))
    await asyncio.sleep(0)
    assert log.catalog.live_tables() == []
    assert list(log.catalog.live_tablets()) == []
    log.gate.set()
    table_id = await creating
    assert table_id is not None
    assert log.entries == 1
    tablets = log.catalog.tablets_of(table_id)
    assert [t.number for t in tablets] == [0, 1, 2, 3]
    assert all(t.state is TabletState.CREATING and t.term == 1 for t in tablets)
    assert [t.owner for t in tablets].count(ServerUuid("s1")) == 2


async def test_a_failed_replication_fails_the_operation_only() -> None:
    """KUDU-495: the draft is dropped, locks and names are free, the next one succeeds."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    log.error = NotLeader("m1", 1, "")
    for _ in range(2):
        with pytest.raises(NotLeader):
            async with operations.reserve("t"):
                await operations.change(log.create, tables=[TableId("T")])
    assert log.catalog.live_tables() == []
    log.error = None
    async with operations.reserve("t"):
        assert await operations.change(log.create, tables=[TableId("T")])


async def test_a_second_creator_of_a_name_is_told_to_retry() -> None:
    """Not that the table exists: it may never come to be."""
    operations = Operations(Catalog(), Log().replicate)
    async with operations.reserve("t"):
        with pytest.raises(NameReserved):
            async with operations.reserve("t"):
                pass
    async with operations.reserve("t"):
        pass


async def test_a_copy_of_a_refused_request_is_refused_whatever_has_happened_since() -> None:
    """The network copies a deletion: one finds no table, and then the table is made."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    request = RequestId(ClientId("d"), 1, 1)

    def delete() -> CatalogBatch:
        table = log.catalog.find("t")
        return draft_delete(log.catalog, request, table.table_id if table else TableId("?"), "t")

    with pytest.raises(TableNotFound):
        await operations.change(delete, request=request)
    table_id = await operations.change(log.create)
    with pytest.raises(TableNotFound):
        await operations.change(delete, request=request)
    assert [table.table_id for table in log.catalog.live_tables()] == [table_id]


async def test_operations_on_one_record_are_one_after_the_other() -> None:
    """The second drafts from what the first has committed."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    table_id = await operations.change(log.create)
    assert table_id is not None
    tablet_id = log.catalog.tablets_of(table_id)[0].tablet_id
    log.gate.clear()

    def raise_term() -> CatalogBatch:
        now = log.catalog.tablets[tablet_id]
        return CatalogBatch(
            tablets=(
                msgspec.structs.replace(now, term=now.term + 1, generation=now.generation + 1),
            )
        )

    changes = [
        asyncio.create_task(operations.change(raise_term, tablets=[tablet_id])) for _ in range(5)
    ]
    await asyncio.sleep(0)
    log.gate.set()
    await asyncio.gather(*changes)
    assert log.catalog.tablets[tablet_id].term == 6
    assert log.entries == 6, "no draft had to be made twice"


async def test_an_entry_of_unknown_outcome_that_comes_late_overwrites_nothing() -> None:
    """Generations keep it out; the operation that came meanwhile stands."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    table_id = await operations.change(log.create)
    assert table_id is not None
    lost = draft_delete(log.catalog, order(sequence=2).request, table_id, "t").encode()
    log.error = OutcomeUnknown("m1", "propose", 1.0)
    with pytest.raises(OutcomeUnknown):
        await operations.change(lambda: CatalogBatch(tablets=()), tables=[table_id])
    log.error = None
    first = log.catalog.tablets_of(table_id)[0]
    runs = msgspec.structs.replace(first, state=TabletState.RUNNING, generation=2)
    await operations.change(lambda: CatalogBatch(tablets=(runs,)), tablets=[first.tablet_id])
    log.catalog.apply(99, 1, lost)
    assert log.catalog.find("t") is not None
    assert log.catalog.tablets[first.tablet_id].state is TabletState.RUNNING


async def test_a_draft_that_never_fits_ends_in_retry_later() -> None:
    """Bounded: no operation spins on a catalog that keeps changing."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    batch = log.create()
    await operations.change(lambda: batch)
    other = msgspec.structs.replace(batch, request=None)
    with pytest.raises(RetryLater, match="changed meanwhile"):
        await operations.change(lambda: other)
    assert log.entries == 4


async def test_a_batch_too_large_is_refused_before_the_log() -> None:
    """Step 2."""
    log = Log()
    big = order("x").request
    huge = CatalogBatch((), (), big, TableId("T" * (5 << 20)))
    with pytest.raises(TooLarge):
        await Operations(log.catalog, log.replicate).change(lambda: huge)
    assert log.entries == 0


async def test_the_largest_table_fits() -> None:
    """1024 tablets in one entry, well below the limit."""
    log = Log()
    loads = [Load(info("s1"))]
    large = order("big", partitioning=hash_partition("id", buckets=1024))
    batch = draft_create(log.catalog, large, loads, RNG)
    assert len(batch.encode()) < 1 << 20


async def test_create_and_delete_refuse_what_cannot_be() -> None:
    """Existing name, unknown table, no server."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    with pytest.raises(NotEnoughServers):
        draft_create(log.catalog, order(), [], RNG)
    table_id = await operations.change(log.create)
    assert table_id is not None
    with pytest.raises(TableExists):
        log.create("t", 2)
    request = order(sequence=3).request
    await operations.change(lambda: draft_delete(log.catalog, request, table_id, "t"))
    assert all(t.state is TabletState.DELETED for t in log.catalog.tablets_of(table_id))
    with pytest.raises(TableNotFound):
        draft_delete(log.catalog, request, table_id, "t")


def test_a_tables_keys_are_hashed_with_a_seed_that_no_client_chooses() -> None:
    """The master's seed is in the record, whatever the order says, and stays through alters."""
    made = draft_create(Catalog(), order(), [Load(info("s1"))], RNG, key_seed=77)
    assert made.tables[0].schema.key_seed == 77
    assert made.tables[0].schema.column_ids == SCHEMA.column_ids
    chosen = msgspec.structs.replace(order(), schema=made.tables[0].schema)
    check_order(chosen)
    again = draft_create(Catalog(), chosen, [Load(info("s1"))], RNG, key_seed=78)
    assert again.tables[0].schema.key_seed == 78
    change = schema_change(add=[pa.field("more", pa.int64())])
    assert altered(made.tables[0].schema, change, "t").key_seed == 77


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "a\nb", " a", "a ", "a/b", "a:b", ".", "..", "%2e", "a\\b", "a?b"]
)
def test_bad_table_names_are_refused(name: str) -> None:
    """With what to change."""
    with pytest.raises(InvalidArgument, match="table name"):
        check_table_name(name)


async def test_an_epoch_is_raised_by_the_owner_in_its_term_only() -> None:
    """And never goes back; a repeated call changes nothing."""
    log = Log()
    operations = Operations(log.catalog, log.replicate)
    table_id = await operations.change(log.create)
    assert table_id is not None
    tablet = log.catalog.tablets_of(table_id)[0]
    good = RaiseEpoch(tablet.tablet_id, 1, tablet.owner, 7, 2)
    with pytest.raises(TabletNotReady):  # what it would make stale may be all that there is
        draft_raise_epoch(log.catalog, good)
    running = msgspec.structs.replace(tablet, state=TabletState.RUNNING, generation=2)
    await operations.change(lambda: CatalogBatch(tablets=(running,)))
    batch = draft_raise_epoch(log.catalog, good)
    assert batch is not None
    await operations.change(lambda: batch)
    now = log.catalog.tablets[tablet.tablet_id]
    assert (now.valid_segment, now.valid_epoch) == (7, 2)
    assert draft_raise_epoch(log.catalog, good) is None
    assert draft_raise_epoch(log.catalog, msgspec.structs.replace(good, segment_id=6)) is None
    for bad in (
        msgspec.structs.replace(good, term=0),
        msgspec.structs.replace(good, term=2),
        msgspec.structs.replace(good, owner=ServerUuid("other")),
        msgspec.structs.replace(good, tablet_id=TabletId("?")),
    ):
        with pytest.raises(StaleTerm):
            draft_raise_epoch(log.catalog, bad)


def test_owners_are_those_with_the_least_to_do() -> None:
    """Opening first, then all tablets, then memory; full servers and failed ones last."""
    ids = [TabletId(str(n)) for n in range(6)]
    loads = [Load(info("s1"), tablets=10), Load(info("s2")), Load(info("s3"), opening=3, tablets=3)]
    chosen = choose_owners(ids, loads)
    assert [chosen[i].name for i in ids] == ["s2", "s1", "s2", "s1", "s2", "s1"]
    full = [Load(info("s1"), memory_bytes=99, memory_limit_bytes=100), Load(info("s2"), tablets=9)]
    assert choose_owners(ids[:1], full)[ids[0]].name == "s2"
    two = [Load(info("s1")), Load(info("s2"), tablets=9)]
    assert choose_owners(ids[:1], two, {ids[0]: {ServerUuid("s1"): 1.0}})[ids[0]].name == "s2"
    alone = [Load(info("s1"))]
    assert choose_owners(ids[:1], alone, {ids[0]: {ServerUuid("s1"): 1.0}})[ids[0]].name == "s1"


def on_node(name: str, node: str) -> ServerInfo:
    return msgspec.structs.replace(info(name), process=ProcessIdentity(node, 1, 0))


def test_a_tables_tablets_are_spread_over_servers_and_then_over_nodes() -> None:
    """What fails together holds little of any table: three servers on one node, one on another."""
    ids = [TabletId(str(n)) for n in range(8)]
    servers = [on_node("s1", "n1"), on_node("s2", "n1"), on_node("s3", "n1"), on_node("s4", "n2")]
    two = choose_owners(ids[:2], [Load(server) for server in servers])
    assert {server.process.node for server in two.values()} == {"n1", "n2"}
    eight = choose_owners(ids, [Load(server) for server in servers])
    counts = [sum(s.name == server.name for s in eight.values()) for server in servers]
    assert counts == [2, 2, 2, 2]
    again = choose_owners(ids, [Load(server) for server in servers])
    assert again == eight


def test_a_tablet_that_moves_goes_where_fewest_of_its_table_are() -> None:
    """The other tablets of the table count, on the server and on its node."""
    servers = [on_node("s1", "n1"), on_node("s2", "n1"), on_node("s3", "n2"), on_node("s4", "n2")]
    one = [TabletId("x")]
    beside = {ServerUuid("s1"): 1, ServerUuid("s3"): 1, ServerUuid("s4"): 1}
    loads = [Load(server, tablets=10) for server in servers]
    assert choose_owners(one, loads, None, beside)[one[0]].name == "s2"
    beside = {ServerUuid("s1"): 1}
    loads = [Load(server, tablets=10) for server in servers]
    assert choose_owners(one, loads, None, beside)[one[0]].process.node == "n2"


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), min_size=12, max_size=12),
    st.integers(0, 40),
)
def test_a_new_tables_tablets_lie_evenly_whatever_the_cluster_is_like(
    nodes: list[int], tablets: list[int], count: int
) -> None:
    """No server gets two more than another, however loaded they are."""
    loads = [
        Load(on_node(f"s{n:02}", f"n{node}"), tablets=tablets[n]) for n, node in enumerate(nodes)
    ]
    chosen = choose_owners([TabletId(str(n)) for n in range(count)], loads)
    counts = [sum(s.uuid == load.server.uuid for s in chosen.values()) for load in loads]
    assert max(counts) - min(counts) <= 1


def test_more_replicas_than_backups_there_are_is_refused_for_good() -> None:
    """Counted by medium, live or not."""
    known = [("disk", "ram"), ("disk",)]
    check_enough_backups("t", ["disk", "disk", "ram"], known)
    with pytest.raises(TooManyReplicas, match="needs 2 backups with medium 'ram'"):
        check_enough_backups("t", ["ram", "disk", "ram"], known)


def test_each_replica_needs_a_backup_of_its_own() -> None:
    """Matched, not counted: a backup with both media serves as one of them."""
    both, disk = info("b1", "disk", "ram"), info("b2", "disk")
    check_media("t", ["disk", "ram"], [both, disk])
    check_media("t", ["ram", "disk"], [disk, both])
    with pytest.raises(NotEnoughServers, match="needs 2 live backups with medium 'ram'"):
        check_media("t", ["ram", "ram"], [both, disk])
    with pytest.raises(NotEnoughServers):
        check_media("t", ["disk", "disk", "ram"], [both, disk])
    check_media("t", [], [])
