"""What rows weigh in the tablet servers, and whether the servers' own accounting says the same.

A cluster of its own, in which nothing was stored before but a few rows that load what a write
loads: allocators keep what they were given once, and rows in place of dropped ones would look free.
Memory is what the processes hold without what they share (smaps), and what their objects take in
Ray's store, which is shared memory and counted once. Both are taken once they stand still.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.clusters import cluster, servers, shared_store_bytes
from benchmarks.common.figures import Figure, at_most, shown
from benchmarks.common.generated import SCHEMA, rows
from stelae import hash_partition, segments

PER_ROW_BYTES = 40
TABLETS = 8
WARM_UP_ROWS = 8_000
SETTLE_TIMEOUT_S = 60.0
STILL_S = 5.0
STILL_BYTES = 1 << 20


@dataclass(frozen=True)
class Taken:
    """Memory of all tablet servers at one moment, in bytes."""

    private: int
    store: int

    @property
    def total(self) -> int:
        return self.private + self.store


def measure(quick: bool) -> list[Figure]:
    """Memory after a bulk load, and what stays of it once the table is dropped."""
    count = 100_000 if quick else 1_000_000
    data = rows(np.random.default_rng(7).permutation(count))
    with cluster("memory", tservers={"count": 3, "memory": "3GiB"}) as database:
        pids = [server["pid"] for server in servers(database, "tserver")]
        _warm_up(database)
        empty = _settled(pids)
        table = _table(database, "rows")
        table.load(data)
        figures = _figures(database, data, empty, _settled(pids))
        database.delete_table("rows")
        left = _settled(pids)
        kept = (left.total - empty.total) / 1e6
        return [*figures, shown("kept after the table was dropped", kept, "MB", _note(left, empty))]


def _table(database: Any, name: str) -> Any:
    return database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=segments("disk", "disk"),
    )


def _warm_up(database: Any) -> None:
    """Have every server carry out each kind of call once."""
    table = _table(database, "warm")
    table.load(rows(np.arange(WARM_UP_ROWS)))
    for key in range(10 * TABLETS):
        table.get(key)
    table.scan()
    database.delete_table("warm")


def _figures(database: Any, data: pa.Table, before: Taken, after: Taken) -> list[Figure]:
    limit = (2 * data.nbytes + PER_ROW_BYTES * data.num_rows) / 1e6
    added = (after.total - before.total) / 1e6
    reported = next(t for t in database.status()["tables"] if t["name"] == "rows")["memory_bytes"]
    note = f"{_note(after, before)}; Arrow {data.nbytes / 1e6:.0f} MB"
    return [
        at_most(f"memory of {data.num_rows:,} rows, loaded in bulk", added, limit, "MB", note),
        shown("… as the tablets account for it", reported / 1e6, "MB"),
    ]


def _note(after: Taken, before: Taken) -> str:
    private, store = after.private - before.private, after.store - before.store
    return f"{private / 1e6:.0f} MB private, {store / 1e6:.0f} MB in the object store"


def _settled(pids: list[int]) -> Taken:
    """Memory once it has stood still for a while: sealing has ended, and what it took is free."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    still = _taken(pids)
    since = time.monotonic()
    while time.monotonic() - since < STILL_S:
        if time.monotonic() > deadline:
            raise TimeoutError(f"memory does not stand still for {SETTLE_TIMEOUT_S:g} s")
        time.sleep(0.5)
        now = _taken(pids)
        if abs(now.private - still.private) > STILL_BYTES or now.store != still.store:
            still, since = now, time.monotonic()
    return still


def _taken(pids: list[int]) -> Taken:
    return Taken(sum(map(private_bytes, pids)), shared_store_bytes())


def private_bytes(pid: int) -> int:
    """A process's own memory and its part of mapped files, without shared memory.

    Pages of the object store that one process alone has touched would pass for private.
    """
    wanted = {"Pss_Anon:", "Pss_File:", "SwapPss:"}
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = [line.split() for line in lines]
    return sum(int(words[1]) * 1024 for words in found if words[0] in wanted)
