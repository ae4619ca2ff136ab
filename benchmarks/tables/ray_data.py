"""Tables as datasets of Ray Data: reading, and writing back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray

import stelae
from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, median, shown, timed
from benchmarks.common.generated import SCHEMA, rows
from stelae import hash_partition, segments


def measure(quick: bool) -> list[Figure]:
    """Figures of whole datasets: from the call of `read` to the last block in the object store."""
    count = 200_000 if quick else 4_000_000
    rounds = 2 if quick else 5
    with cluster("raydata", tservers={"count": 2, "memory": "2GiB"}) as database:
        ray.data.DataContext.get_current().enable_progress_bars = False
        table = _table(database, "t")
        table.load(rows(np.random.default_rng(7).permutation(count)))
        time.sleep(1.0)

        def whole(columns: list[str] | None) -> None:
            found = stelae.data.read("t", columns=columns, cluster=database).materialize()
            assert found.count() == count

        whole(["id"])  # starts the workers
        reads = [count / timed(lambda: whole(None)) for _ in range(rounds)]
        narrow = [count / timed(lambda: whole(["id", "x"])) for _ in range(rounds)]
        some = count // 4
        ds = stelae.data.read("t", where=[("id", "<", some)], cluster=database).materialize()
        _table(database, "copy")
        written = some / timed(lambda: _write(ds, database))
    name = f"Ray Data read of {count:,} rows of 100 bytes"
    target = 2e6
    figure = (
        shown(name, median(reads), "rows/s", "too few rows to judge the rate by")
        if quick
        else at_least(name, median(reads), target, "rows/s", f"best {max(reads):,.0f}")
    )
    return [
        figure,
        at_least("of two columns of three", median(narrow), 50_000 if quick else target, "rows/s"),
        shown(f"Ray Data write of {some:,} rows on two backups", written, "rows/s"),
    ]


def _write(ds: Any, database: Any) -> None:
    ds.write_datasink(stelae.data.Sink("copy", cluster=database))


def _table(database: Any, name: str) -> Any:
    return database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", 8),
        durability=segments("disk", "disk"),
    )
