"""One small cluster on real Ray: it meets bad input, and its servers are killed under load."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from stelae import Database, Table, errors, hash_partition, replicas, segments, wal
from stelae.client.check.status import problems_of
from stelae.core.schema.durability import Durability
from stelae.demo.writers import Writers, check_table, load_table
from tests.until import until

pytestmark = pytest.mark.ray

LIMIT_S = 180.0
SAFEKEEPERS = 3
SERVERS = 9 + SAFEKEEPERS
EMPTY_BYTES_MAX = 300 << 20
NOT_IN_SERVERS = ("/pandas/", "/matplotlib/", "/scipy/", "/polars/", "/pyspark/")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("name", pa.string()), ("reading", pa.int64())]
)


@pytest.fixture(scope="module")
def db(launch_small: Callable[..., Database]) -> Database:
    return launch_small("live", safekeepers={"count": SAFEKEEPERS})


def rows_of(count: int) -> pa.Table:
    return pa.table(
        {"id": range(count), "name": [f"row {i}" for i in range(count)], "reading": [0] * count},
        schema=SCHEMA,
    )


def servers_of(db: Database) -> list[dict[str, Any]]:
    return list(db.status()["servers"])


def is_whole(db: Database, killed: dict[str, int]) -> bool:
    """All servers are live, those killed in a new process, and nothing is wrong or missing."""
    status = db.status()
    live = {s["id"]: s["pid"] for s in status["servers"] if s["state"] == "live"}
    return (
        len(live) == SERVERS
        and all(live[name] != pid for name, pid in killed.items())
        and not problems_of(status)
    )


# ---- empty ----------------------------------------------------------------------------------


def test_empty_servers_are_small_and_load_no_data_science(db: Database) -> None:
    """An empty server has at most 300 MB resident, and none has pandas, plots or Spark loaded."""
    servers = servers_of(db)
    assert servers
    for server in servers:
        process = psutil.Process(server["pid"])
        size = process.memory_info().rss
        assert size <= EMPTY_BYTES_MAX, f"{server['id']}: {size / 1e6:.0f} MB"
        maps = Path(f"/proc/{server['pid']}/maps").read_text()
        assert not [name for name in NOT_IN_SERVERS if name in maps], server["id"]


# ---- kills ----------------------------------------------------------------------------------


def victims(db: Database, kind: str, table: str) -> list[dict[str, Any]]:
    """The servers to kill: of tservers and backups, those that hold most of the table."""
    status = db.status()
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for server in status["servers"]:
        name = f"{server.get('role', '')} {server['kind']}".strip()
        by_kind.setdefault(name, []).append(server)
    owned = [tablet["leader"] for tablet in status["tablets"] if tablet["table"] == table]
    return [
        max(by_kind[part], key=lambda server: owned.count(server["id"]))
        for part in kind.split(" and ")
    ]


SEGMENTS, REPLICAS, WAL = segments("disk", "disk"), replicas(3), wal(3, ("disk", "disk"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "durability"),
    [
        ("tserver", SEGMENTS),
        ("backup", SEGMENTS),
        ("leader master", SEGMENTS),
        ("follower master", SEGMENTS),
        ("tserver and backup", SEGMENTS),
        ("tserver", REPLICAS),
        ("leader master", REPLICAS),
        ("tserver", WAL),
        ("safekeeper", WAL),
        ("tserver and safekeeper", WAL),
    ],
    ids=str,
)
def test_a_kill_under_load_loses_nothing_and_the_cluster_heals(
    db: Database, kind: str, durability: Durability
) -> None:
    """After SIGKILL of a server under load every acknowledged row is there, each write went
    through, and the cluster comes back to full strength by itself."""
    name = f"{kind} {type(durability).__name__}".replace(" ", "-")
    table = db.create_table(
        name, SCHEMA, key="id", partition=hash_partition("id", 6), durability=durability
    )
    ledger = table._loop.run(load_table(table._table, rows_of(3000), lambda _: None))
    writers = Writers(table._table, ledger, "reading", count=4)
    table._loop.run(writers.start())
    try:
        until(lambda: len(writers.acknowledged) >= 100, LIMIT_S, "writes before the kill")
        killed = victims(db, kind, name)
        for server in killed:
            os.kill(server["pid"], signal.SIGKILL)
        at_kill = len(writers.acknowledged)
        until(lambda: len(writers.acknowledged) >= at_kill + 200, LIMIT_S, "writes after the kill")
        until(lambda: is_whole(db, {s["id"]: s["pid"] for s in killed}), LIMIT_S, "full strength")
        healed = len(writers.acknowledged)
        until(lambda: len(writers.acknowledged) >= healed + 50, LIMIT_S, "writes at full strength")
    finally:
        table._loop.run(writers.stop())
    checked = table._loop.run(check_table(table._table, ledger))
    assert checked.is_right, checked.problems
    assert checked.rows >= 3000
    assert not writers.failures


# ---- much at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("durability", [SEGMENTS, REPLICAS, WAL], ids=str)
def test_one_call_of_63_mib_for_one_tablet_is_carried_out(
    db: Database, durability: Durability
) -> None:
    """Far more than a segment, a log file, or what is replicated in one batch otherwise."""
    table = db.create_table("large", SCHEMA, key="id", durability=durability)
    rows = pa.table({"id": range(126), "name": [f"{i:06d}" + "x" * (1 << 19) for i in range(126)]})
    table.upsert(rows, timeout=LIMIT_S)
    assert table.count() == 126
    assert table.scan(columns=["name"]).sort_by("name")["name"].equals(rows["name"])
    db.delete_table("large")


# ---- bad input ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[SEGMENTS, REPLICAS, WAL], ids=str)
def table(request: pytest.FixtureRequest, db: Database) -> Iterator[Table]:
    made = db.create_table(
        "input", SCHEMA, key="id", partition=hash_partition("id", 2), durability=request.param
    )
    made.upsert(rows_of(10))
    yield made
    db.delete_table("input")


BAD_CALLS: dict[str, tuple[type[errors.StelaeError], Callable[[Database, Table], Any]]] = {
    "wrong type": (errors.InvalidArgument, lambda db, t: t.upsert({"id": "7", "name": "x"})),
    "wrong type in Arrow": (
        errors.InvalidArgument,
        lambda db, t: t.upsert(pa.table({"id": ["7"], "name": ["x"], "reading": [1]})),
    ),
    "missing key": (errors.InvalidArgument, lambda db, t: t.upsert({"name": "x"})),
    "null in the key": (errors.InvalidArgument, lambda db, t: t.upsert({"id": None})),
    "null in the key in Arrow": (
        errors.InvalidArgument,
        lambda db, t: t.upsert(pa.table({"id": pa.array([1, None]), "name": ["x", "y"]})),
    ),
    "null key read": (errors.InvalidArgument, lambda db, t: t.get(None)),
    "key of the wrong type": (errors.InvalidArgument, lambda db, t: t.get("seven")),
    "too many key values": (errors.InvalidArgument, lambda db, t: t.get((1, 2))),
    "no rows at all": (errors.InvalidArgument, lambda db, t: t.upsert(7)),
    "the same key twice in an insert": (
        errors.InvalidArgument,
        lambda db, t: t.insert([{"id": 100, "name": "a"}, {"id": 100, "name": "b"}]),
    ),
    "insert of a row that is there": (errors.RowExists, lambda db, t: t.insert({"id": 1})),
    "update of a row that is not": (
        errors.RowNotFound,
        lambda db, t: t.update({"id": 1000, "reading": 1}),
    ),
    "another version": (
        errors.VersionMismatch,
        lambda db, t: t.upsert({"id": 1, "reading": 9}, if_version=999_999),
    ),
    "unknown table": (errors.TableNotFound, lambda db, t: db.table("nowhere")),
    "unknown column": (errors.ColumnNotFound, lambda db, t: t.upsert({"id": 1, "nmae": "x"})),
    "unknown column scanned": (errors.ColumnNotFound, lambda db, t: t.scan(columns=["nmae"])),
    "unknown column filtered": (
        errors.ColumnNotFound,
        lambda db, t: t.scan(where=[("nmae", "=", "x")]),
    ),
    "filter of the wrong type": (
        errors.InvalidArgument,
        lambda db, t: t.scan(where=[("reading", ">", "many")]),
    ),
    "unknown operator": (
        errors.InvalidArgument,
        lambda db, t: t.scan(where=[("reading", "~", 1)]),
    ),
    "row over 1 MiB": (
        errors.TooLarge,
        lambda db, t: t.upsert({"id": 1, "name": "x" * ((1 << 20) + 1)}),
    ),
    "row over 1 MiB in Arrow": (
        errors.TooLarge,
        lambda db, t: t.upsert(pa.table({"id": [1], "name": ["x" * (1 << 20)]})),
    ),
    "call of dicts over 64 MiB": (
        errors.TooLarge,
        lambda db, t: t.upsert([{"id": i, "name": "x" * 1_000_000} for i in range(70)]),
    ),
    "call over 64 MiB": (
        errors.TooLarge,
        lambda db, t: t.upsert(
            pa.table({"id": range(200, 400), "name": ["x" * (400 << 10)] * 200}), timeout=60
        ),
    ),
    "expired deadline": (
        errors.DeadlineExpired,
        lambda db, t: t.upsert({"id": 1, "name": "late"}, timeout=1e-9),
    ),
    "table that exists": (
        errors.TableExists,
        lambda db, t: db.create_table("input", SCHEMA, key="id"),
    ),
    "key that is no column": (
        errors.ColumnNotFound,
        lambda db, t: db.create_table("new", SCHEMA, key="nmae"),
    ),
    "partition by no key column": (
        errors.InvalidArgument,
        lambda db, t: db.create_table("new", SCHEMA, key="id", partition=hash_partition("name", 2)),
    ),
    "table name for no URL": (
        errors.InvalidArgument,
        lambda db, t: db.create_table("a/b", SCHEMA, key="id"),
    ),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_changes_nothing(
    db: Database, table: Table, what: str
) -> None:
    """Each wrong call raises the error of its kind, in words, and the rows stay as they were."""
    kind, call = BAD_CALLS[what]
    before = table.scan(with_versions=True).sort_by("id")
    with pytest.raises(kind) as caught:
        call(db, table)
    assert type(caught.value) is kind
    assert str(caught.value)
    assert table.scan(with_versions=True).sort_by("id").equals(before)
    assert "new" not in db.tables()
