"""Everything is stopped and started again on its disks: how long until every tablet answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

import stelae
from benchmarks.common.clusters import cluster_spec
from benchmarks.common.figures import Figure, at_most, shown
from benchmarks.common.generated import ROW_BYTES, SCHEMA, rows, tablet_numbers
from benchmarks.failures.recovering import wait_loaded
from stelae import hash_partition, segments

TABLETS = 8
BYTES = 2_000_000_000
PIECE_ROWS = 2_000_000
LIMIT_S = 6.0
DEADLINE_S = 120.0


def measure(quick: bool) -> list[Figure]:
    """From the moment that the second launch is over, which is when the actors are up."""
    count = BYTES // ROW_BYTES // (20 if quick else 1)
    partition = hash_partition("id", TABLETS)
    sections = {"tservers": {"count": 3, "memory": "3GiB"}}
    with cluster_spec("cold", **sections) as spec:
        probes = _fill(stelae.launch(spec), partition, count)
        began = time.monotonic()
        database: Any = stelae.launch(spec)
        try:
            up_s = time.monotonic() - began
            table = database.table("t")

            async def read_all() -> list[Any]:
                get = table._table.get
                return await asyncio.gather(*(get(key, timeout=DEADLINE_S) for key in probes))

            found = table._loop.run(read_all())
            readable_s = time.monotonic() - began - up_s
            assert all(row is not None for row in found), "a row is gone"
            wait_loaded(database)
            loaded_s = time.monotonic() - began - up_s
            assert table.count() == count, "rows are gone"
        finally:
            database.close()
    size = f"{count * ROW_BYTES / 1e9:.2g} GB"
    return [
        at_most(f"cold start of {size}, {TABLETS} tablets", readable_s, LIMIT_S, "s"),
        shown("… launch", up_s, "s", "until the actors are up"),
        shown("… all rows in memory", loaded_s, "s", "since the actors are up"),
    ]


def _fill(database: Any, partition: Any, count: int) -> list[int]:
    """Load the rows, and end everything; a key of each tablet."""
    try:
        table = database.create_table(
            "t", SCHEMA, key="id", partition=partition, durability=segments("disk", "disk")
        )
        for start in range(0, count, PIECE_ROWS):
            table.load(rows(np.arange(start, min(count, start + PIECE_ROWS)), seed=start + 1))
        numbers = tablet_numbers(partition, np.arange(1000))
        return [int(np.flatnonzero(numbers == tablet)[0]) for tablet in range(TABLETS)]
    finally:
        time.sleep(2.0)
        database.close()
