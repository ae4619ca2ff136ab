"""`stelae.coordinator.placement.splitting`: which tablets are split, into what, and how long a log
stays."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pyarrow as pa
import pytest

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch
from stelae.coordinator.liveness.standing import to_drop
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.splitting import draft_split, parts_wanted
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.records.records import (
    Inheritance,
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import Durability, replicas, segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.shares import wrong_places

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
SETTINGS = Settings(split_above_bytes=1000, split_above_rows=50)
TABLE, SPLIT = TableId("T"), TabletId("a")
INHERITS = Inheritance(SPLIT, 3, 77, 10, 1)


def record(**changes: object) -> TabletRecord:
    plain = TabletRecord(SPLIT, TABLE, 1, TabletState.RECOVERING, 2, ServerUuid("x"), 1, 77, 4)
    return msgspec.structs.replace(plain, **changes)


def catalog_of(
    tablet: TabletRecord, *, durability: Durability | None = None, **changes: object
) -> Catalog:
    durability = durability or segments("disk")
    table = TableRecord(TABLE, "t", SCHEMA, hash_partition("id", 2), durability, TableState.RUNNING)
    other = TabletRecord(TabletId("b"), TABLE, 0, TabletState.RUNNING, 1, ServerUuid("x"), 1)
    catalog = Catalog()
    table = msgspec.structs.replace(table, **changes)
    assert isinstance(
        catalog.apply(1, 1, CatalogBatch((table,), (tablet, other)).encode()), Applied
    )
    return catalog


def loads(*names: str) -> list[Load]:
    process = ProcessIdentity("n", 1, 0)
    address = Address("h:1")
    return [
        Load(ServerInfo(ServerKind.TSERVER, name, ServerUuid(name), 1, address, process))
        for name in names
    ]


def wanted(catalog: Catalog, tablet: TabletRecord, size: int, rows: int, servers: int = 9) -> int:
    there = loads(*[f"s{number}" for number in range(servers)])
    return parts_wanted(catalog, tablet, SETTINGS, size_bytes=size, row_count=rows, loads=there)


def test_parts_are_so_many_that_each_is_below_both_limits() -> None:
    """A power of two, and no more than there are servers."""
    catalog = catalog_of(record())
    assert [wanted(catalog, record(), size, 0) for size in (0, 1000, 1001, 2001, 4001)] == [
        1, 1, 2, 4, 8
    ]  # fmt: skip
    assert wanted(catalog, record(), 10, 51) == 2
    assert wanted(catalog, record(), 1 << 40, 0, servers=7) == 4
    assert wanted(catalog, record(), 1 << 40, 0, servers=1) == 1


def test_nothing_is_split_where_it_is_off() -> None:
    """However long the log, and whatever the memory."""
    catalog, settings = catalog_of(record()), Settings(split_above_bytes=0)
    there = loads("x", "y")
    parts = partial(parts_wanted, size_bytes=1 << 40, row_count=1 << 40, loads=there)
    assert parts(catalog, record(), settings) == 1
    assert parts(catalog, record(), Settings()) == 2


def test_a_tablet_for_which_no_server_has_memory_is_split() -> None:
    """So that each part has it; servers that are full get none. What is used counts for nothing
    else: dead rows are cleaned when others need the room."""
    catalog, there = catalog_of(record()), loads("x", "y", "z", "full")

    def parts(size_bytes: int) -> int:
        return parts_wanted(
            catalog, record(), Settings(), size_bytes=size_bytes, row_count=0, loads=there
        )

    assert parts(5 << 20) == 1, "nobody knows the memory"
    for load in there:
        load.memory_limit_bytes, load.memory_bytes = 10 << 20, 6 << 20
    assert parts(10 << 20) == 2
    assert parts(9 << 20) == 1
    assert parts(1 << 30) == 4
    there[3].memory_bytes = 10 << 20
    assert parts(1 << 30) == 2


@pytest.mark.parametrize(
    ("tablet", "table"),
    [
        (record(state=TabletState.RUNNING), {}),
        (record(inherits=Inheritance(TabletId("z"), 1, 1, 1, 1)), {}),
        (record(), {"state": TableState.ALTERING}),
        (record(), {"durability": replicas(3)}),
        (record(succeeds=TabletId("b")), {}),
    ],
)
def test_some_tablets_are_not_split(tablet: TabletRecord, table: dict[str, object]) -> None:
    """Those that are not being recovered, inherit, change, or have no log on backups."""
    assert wanted(catalog_of(tablet, **table), tablet, 1 << 40, 0) == 1  # type: ignore[arg-type]


def split(catalog: Catalog, parts: int = 2) -> list[TabletRecord]:
    batch = draft_split(
        catalog, record(), parts, INHERITS, loads("x", "y"), random.Random(1), {}, 0
    )
    assert batch is not None
    assert isinstance(catalog.apply(2, 1, batch.encode()), Applied)
    return [t for t in catalog.tablets_of(TABLE) if t.inherits is not None]


def test_the_parts_are_in_the_tablets_place_in_one_entry() -> None:
    """In the next term, with the mark of the log that they inherit, each at another server."""
    catalog = catalog_of(record())
    parts = split(catalog)
    assert catalog.tablets[SPLIT].state is TabletState.REPLACED
    assert wrong_places([t.number for t in catalog.tablets_of(TABLE)], 2) == []
    for part in parts:
        assert (part.state, part.term) == (TabletState.RECOVERING, 3)
        assert (part.valid_segment, part.valid_epoch) == (77, 4)
        assert part.inherits == INHERITS
    assert {part.owner for part in parts} == {"x", "y"}
    again = Catalog()
    again.restore(catalog.snapshot())
    assert again.tablets_of(TABLE) == catalog.tablets_of(TABLE)
    assert again.heirs.of(SPLIT) == catalog.heirs.of(SPLIT)


def test_a_tablet_that_has_changed_is_not_split() -> None:
    """What its log was found to be was of another moment."""
    catalog = catalog_of(record(term=9))
    rng = random.Random(1)
    assert draft_split(catalog, record(), 2, INHERITS, loads("x"), rng, {}, 0) is None


def test_a_split_tablets_log_stays_until_the_last_part_is_whole() -> None:
    """Or gone: backups are told to drop it then, and not before."""
    catalog = catalog_of(record())
    first, second = split(catalog)
    assert to_drop(catalog, [SPLIT]) == ()
    for index, part in enumerate((first, second)):
        assert to_drop(catalog, [SPLIT]) == ()
        whole = msgspec.structs.replace(part, inherits=None, generation=part.generation + 1)
        gone = msgspec.structs.replace(
            part, state=TabletState.DELETED, generation=part.generation + 1
        )
        catalog.apply(3 + index, 1, CatalogBatch(tablets=((whole, gone)[index],)).encode())
    assert to_drop(catalog, [SPLIT]) == (SPLIT,)


def test_parts_go_last_where_the_tablet_failed() -> None:
    """And each where there is room for its share, while there is."""
    failed = {ServerUuid("y"): 100.0}
    for avoid, size_bytes, owners in (
        ({}, 0, ["y", "z"]),  # another tablet of the table is on x
        (failed, 0, ["x", "z"]),
        ({}, 1200, ["x", "z"]),
    ):
        catalog, some = catalog_of(record()), loads("x", "y", "z")
        some[1].memory_bytes, some[1].memory_limit_bytes = 450, 1000  # room for less than half
        batch = draft_split(
            catalog, record(), 2, INHERITS, some, random.Random(1), avoid, size_bytes
        )
        assert batch is not None
        parts = [t for t in batch.tablets if t.inherits is not None]
        assert sorted(part.owner for part in parts) == owners
