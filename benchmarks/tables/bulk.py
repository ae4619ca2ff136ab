"""Many rows: load beside PostgreSQL's COPY, reads by key and by scan."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import (
    Figure,
    at_least,
    at_most,
    median,
    percentile,
    shown,
    skipped,
    timed,
)
from benchmarks.common.generated import SCHEMA, rows
from benchmarks.peers.etcd import Missing
from benchmarks.peers.postgres import Postgres, postgres
from stelae import hash_partition, segments


def measure(quick: bool) -> list[Figure]:
    """Figures of load, get, get_many and scan."""
    count = 100_000 if quick else 1_000_000
    rounds = 1 if quick else 3
    data = rows(np.random.default_rng(7).permutation(count))
    with contextlib.ExitStack() as stack:
        try:
            peer: Postgres | None = stack.enter_context(postgres())
            missing = ""
        except Missing as error:
            peer, missing = None, str(error)
        database = stack.enter_context(cluster("bulk", tservers={"count": 3, "memory": "3GiB"}))
        _table(database, "warm").load(data.slice(0, count // 10))
        database.delete_table("warm")
        figures, table = _load(database, data, peer, missing, rounds)
        return figures + _reads(table, count, quick)


def _table(database: Any, name: str) -> Any:
    return database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", 8),
        durability=segments("disk", "disk"),
    )


def _load(
    database: Any, data: pa.Table, peer: Postgres | None, missing: str, rounds: int
) -> tuple[list[Figure], Any]:
    """Load into fresh tables, in turn with COPY; the last table stays."""
    ours, theirs, table = [], [], None
    for number in range(rounds):
        if table is not None:
            database.delete_table(table.name)
        table = _table(database, f"t{number}")
        time.sleep(1.0)
        ours.append(data.num_rows / timed(partial(table.load, data)))
        if peer is not None:
            theirs.append(data.num_rows / peer.copy_s(data))
    name = f"bulk upsert of {data.num_rows:,} rows of 100 bytes on two backups"
    figures = [at_least(name, median(ours), 400_000, "rows/s", f"best {max(ours):,.0f}")]
    if peer is None:
        return [*figures, skipped("bulk upsert against COPY", missing)], table
    ratio = median([mine / other for mine, other in zip(ours, theirs, strict=True)])
    return [
        *figures,
        shown("PostgreSQL COPY, primary key", median(theirs), "rows/s"),
        at_least("bulk upsert against COPY", ratio, 1.0, "×"),
    ], table


def _reads(table: Any, count: int, quick: bool) -> list[Figure]:
    generator = np.random.default_rng(3)
    for key in generator.integers(0, count, 300).tolist():
        table.get(key)
    keys = generator.integers(0, count, 500 if quick else 5000).tolist()
    one = [timed(partial(table.get, key)) for key in keys]
    many = []
    for _ in range(10 if quick else 60):
        asked = pa.array(generator.permutation(count)[:10_000])
        many.append(timed(partial(table.get_many, asked)))
    scans, narrow = [], []
    for _ in range(5):
        scans.append(timed(table.scan))
        narrow.append(timed(lambda: table.scan(columns=["id", "x"])))
    return [
        at_most("get, p50", median(one) * 1e6, 150, "µs"),
        shown("get, p99", percentile(one, 0.99) * 1e6, "µs"),
        at_least("get_many of 10,000 keys", 10_000 / median(many), 1e6, "rows/s"),
        at_least(f"scan of {count:,} rows to Arrow", count / median(scans), 5e6, "rows/s"),
        shown("scan of two columns of three", count / median(narrow), "rows/s"),
    ]
