"""Tables as Arrow streams: a scan in batches, and DuckDB over it."""

from __future__ import annotations

import time

import duckdb
import numpy as np

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, median, shown, timed
from benchmarks.common.generated import SCHEMA, rows
from stelae import hash_partition, segments

TARGET = 5e6


def measure(quick: bool) -> list[Figure]:
    """Rates of whole tables, from the call to the last row, in rows a second."""
    count = 1_000_000 if quick else 8_000_000
    rounds = 3 if quick else 7
    with cluster("arrow", tservers={"count": 2, "memory": "4GiB"}) as database:
        table = database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=hash_partition("id", 8),
            durability=segments("disk", "disk"),
        )
        table.load(rows(np.random.default_rng(7).permutation(count)))
        time.sleep(1.0)

        def read() -> None:
            assert sum([batch.num_rows for batch in table.scan_batches()]) == count

        def query() -> None:
            found = duckdb.from_arrow(table.scan_batches())
            (sums,) = found.aggregate("count(*), sum(id)").fetchall()
            assert sums == (count, count * (count - 1) // 2)

        read()
        reads = [count / timed(read) for _ in range(rounds)]
        queries = [count / timed(query) for _ in range(rounds)]
    name = f"DuckDB over a scan of {count:,} rows of 100 bytes"
    return [
        at_least(name, median(queries), TARGET, "rows/s", f"best {max(queries):,.0f}"),
        shown("the scan alone", median(reads), "rows/s", f"best {max(reads):,.0f}"),
    ]
