"""What the upgrade's test input holds: settings, tables, rows by formula, and how both are made.

`make_input` runs this module under an older version's code, to make a data directory; the gate's
test runs it under the code of the checkout, to compare. So it only calls what both versions have.
The expected rows follow from the formula alone: no reader of either version has a part in them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.routing.session import Session
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.ids import ClientId
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition, range_partition
from stelae.core.schema.schema import VERSION_COLUMN

CLUSTER = "upgrade"
"""Not the name of other tests' clusters: servers look for the masters' former ports first."""
CLUSTER_SIZE: dict[str, Any] = {
    "masters": 3,
    "tservers": 3,
    "backups": 2,
    "safekeepers": 3,
    "cas_store_url": "sqlite:///cas.db",
}
SETTINGS = Settings(
    heartbeat_s=0.2,  # slow: all servers share one event loop, on a machine that may be busy
    lease_s=6.0,
    dead_after_s=12.0,
    raft_tick_s=0.1,
    call_timeout_s=15.0,
    append_timeout_s=15.0,
    segment_bytes=64 << 10,
    raft_snapshot_entries=20,
    client_expiry_s=100 * 365 * 86400.0,  # the input's calls are remembered however old it is
)
DURABILITIES: dict[str, Durability] = {
    "of_segments": segments("disk", "disk"),
    "of_replicas": replicas(3),
    "of_wal": wal(3, ("disk", "disk")),
}
"""Durability of each table, by the table's name."""
FIRST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("label", pa.string()),
        ("gone", pa.int32()),
        ("former", pa.float64()),
        ("flag", pa.bool_()),
        *((f"int{bits}", pa.int8() if bits == 8 else pa.int16()) for bits in (8, 16)),
        *((f"uint{bits}", getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)),
        ("float16", pa.float16()),
        ("float32", pa.float32()),
        ("bytes", pa.binary()),
        ("fixed", pa.binary(4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("clock", pa.time64("us")),
        ("lasted", pa.duration("us")),
        ("price", pa.decimal128(20, 4)),
        ("numbers", pa.list_(pa.int64())),
        ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
ADDED_DEFAULT = 7
ROWS = 400
REWRITTEN = range(0, 60, 3)
DELETED = range(5, ROWS, 7)
UPDATED = range(2, ROWS, 11)
ONCE_ID = 1_000_000
ONCE_CLIENT = ClientId("upgrade-client")
REGIONS = ("east", "north", "west")
PLACES = "places"
PLACE_KEYS = [(region, code) for region in REGIONS for code in range(20)]
DROPPED = "dropped"
TOKENS = (("reader", "read"), ("writer", "write"))
IN_MAINTENANCE = "tserver-1"
REBALANCE_AFTER_S = 3600.0


def first_row(n: int) -> dict[str, Any]:
    """Row ``n`` before the table is altered. Every ninth has nulls outside of the key."""
    if n % 9 == 8:
        return {name: n if name == "id" else None for name in FIRST_SCHEMA.names}
    digest = hashlib.sha256(b"%d" % n).digest()
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n, microseconds=n)
    return {
        "id": n,
        "label": f"label-{n % 20:02}",
        "gone": -n,
        "former": n / 8,
        "flag": n % 2 == 0,
        "int8": n % 256 - 128,
        "int16": -n,
        "uint8": n % 256,
        "uint16": n,
        "uint32": (1 << 32) - 1 - n,
        "uint64": (1 << 64) - 1 - n,
        "float16": float(n % 64) / 4,
        "float32": n / 2,
        "bytes": digest[:16] + bytes(200),
        "fixed": digest[:4],
        "day": dt.date(1969, 12, 1) + dt.timedelta(days=n),
        "at": moment,
        "clock": (dt.datetime.min + dt.timedelta(microseconds=n)).time(),
        "lasted": dt.timedelta(microseconds=-n),
        "price": Decimal(n - 200) / 16,
        "numbers": [*range(n % 4)],
        "place": {"x": n / 4, "name": f"näme {n}"},
        "tags": [(f"tag-{tag}", tag * n) for tag in range(n % 3)],
    }


def _altered(row: dict[str, Any], added: int) -> dict[str, Any]:
    later = {name: value for name, value in row.items() if name not in ("gone", "former")}
    return {**later, "renamed": row["former"], "added": added}


def expected_rows() -> dict[int, dict[str, Any]]:
    """All rows of a table of `DURABILITIES`, by key."""
    rows = {n: _altered(first_row(n), ADDED_DEFAULT) for n in range(ROWS)}
    rows |= {n: _altered(first_row(n + ROWS), n) | {"id": n} for n in REWRITTEN}
    for n in UPDATED:
        rows[n]["label"] = "updated"
    for n in DELETED:
        del rows[n]
    rows[ONCE_ID] = _altered(first_row(ONCE_ID % 1000), 1) | {"id": ONCE_ID}
    return rows


def expected_place(key: tuple[str, int]) -> dict[str, Any]:
    """A row of the table `PLACES`."""
    return {"region": key[0], "code": key[1], "size": len(key[0]) * key[1]}


def arrow_rows(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as Arrow data of this schema."""
    return pa.Table.from_pylist(list(rows), schema=schema)


async def insert_once(table: AsyncTable) -> int:
    """Insert a row under a request id that is always the same; its version."""
    client = table.with_session(Session(ONCE_CLIENT))
    row = expected_rows()[ONCE_ID]
    return int((await client.insert(arrow_rows([row], table.schema)))[0])


async def fill(database: AsyncDatabase) -> None:
    """Make all that the input holds."""
    for name, durability in DURABILITIES.items():
        await _make_table(database, name, durability)
        dropped = await database.create_table(
            f"{DROPPED}_{name}", FIRST_SCHEMA, key="id", durability=durability
        )
        await dropped.upsert(arrow_rows(map(first_row, range(50)), FIRST_SCHEMA))
        await database.delete_table(dropped.name)
    schema = pa.schema([("region", pa.string()), ("code", pa.int16()), ("size", pa.int64())])
    places = await database.create_table(
        PLACES,
        schema,
        key=("region", "code"),
        partition=range_partition("region", ["m"]),
        durability=replicas(1),
    )
    await places.insert([expected_place(key) for key in PLACE_KEYS])
    for name, role in TOKENS:
        await database.put_token(name, role, hashlib.sha256(name.encode()).hexdigest(), by="test")
    await database.rebalancing(REBALANCE_AFTER_S)
    await database.maintain_server(IN_MAINTENANCE, True)


async def _make_table(database: AsyncDatabase, name: str, durability: Durability) -> None:
    partition = hash_partition("id", buckets=2)
    table = await database.create_table(
        name,
        FIRST_SCHEMA,
        key="id",
        partition=partition,
        durability=durability,
        indexes=("label",),
    )
    for begin in range(0, ROWS, 200):
        rows = map(first_row, range(begin, begin + 200))
        await table.upsert(arrow_rows(rows, FIRST_SCHEMA))
    await table.alter(
        add_columns={"added": pa.int64()},
        drop_columns="gone",
        rename_columns={"former": "renamed"},
        defaults={"added": ADDED_DEFAULT},
    )
    for n in REWRITTEN:
        row = _altered(first_row(n + ROWS), n) | {"id": n}
        await table.upsert(arrow_rows([row], table.schema))
    await table.update([{"id": n, "label": "updated"} for n in UPDATED])
    await table.delete(list(DELETED))
    await insert_once(table)


async def versions_of(table: AsyncTable) -> dict[str, int]:
    """The version of each row, by its key as text."""
    found = await table.scan(columns=list(table.key), with_versions=True)
    rows = found.to_pylist()
    return {key_text(row[name] for name in table.key): row[VERSION_COLUMN] for row in rows}


def key_text(key: Iterable[Any]) -> str:
    """A key as text, for JSON."""
    return ",".join(map(str, key))
