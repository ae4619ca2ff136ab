"""A tablet server with eight tablets of an indexed table, and with its indexlet, is killed: how
long until every tablet answers, a row is found by its value, and every tablet is written."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from typing import Any

import numpy as np

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_most, shown
from benchmarks.common.generated import ROW_BYTES, SCHEMA, one_row, rows, tablet_numbers
from benchmarks.failures.recovering import DEADLINE_S, wait_loaded
from stelae import hash_partition, segments

TABLETS_EACH = 8
TSERVERS = 3
COLUMN = "x"
LIMIT_S = 1.5
"""For tablets and their index alike, after a server's death."""


def measure(quick: bool, megabytes: int = 300) -> list[Figure]:
    """Times from SIGKILL on. Rows go to the victim's tablets only."""
    total_bytes = (megabytes // 10 if quick else megabytes) * 1_000_000
    sections = {
        "tservers": {"count": TSERVERS, "memory": "2GiB"},
        "recovery": {"engine": "native"},
    }
    partition = hash_partition("id", TSERVERS * TABLETS_EACH)
    with cluster("recovery-indexed", **sections) as database:
        table = database.create_table(
            "t",
            SCHEMA,
            key="id",
            partition=partition,
            durability=segments("disk", "disk"),
            indexes=[COLUMN],
        )
        victim = _owner_of_indexlet(database)
        tablets = [t for t in database.status()["tablets"] if t["leader"] == victim["id"]]
        mine = sorted({t["number"] for t in tablets})
        probes, count = _fill(table, partition, mine, total_bytes)
        time.sleep(5.0)  # all but the heads is sealed
        return _kill(database, table, victim, probes, count)


def _owner_of_indexlet(database: Any) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [s for s in servers(database, "tserver") if s["indexlets"]]
    return found


def _fill(
    table: Any, partition: Any, mine: list[int], total_bytes: int
) -> tuple[list[tuple[int, float]], int]:
    """Load rows; return a key and value of each tablet, and the row count."""
    wanted, loaded, start = total_bytes // ROW_BYTES, 0, 0
    probes: dict[int, tuple[int, float]] = {}
    while loaded < wanted:
        ids = np.arange(start, start + 1_000_000)
        start += len(ids)
        numbers = tablet_numbers(partition, ids)
        kept = ids[np.isin(numbers, mine)][: wanted - loaded]
        batch = rows(kept, seed=start)
        for at, number in enumerate(tablet_numbers(partition, kept[:1000]).tolist()):
            probes.setdefault(number, (int(kept[at]), batch.column(COLUMN)[at].as_py()))
        table.load(batch)
        loaded += len(kept)
    return [probes[number] for number in mine], loaded


def _kill(
    database: Any,
    table: Any,
    victim: dict[str, Any],
    probes: list[tuple[int, float]],
    count: int,
) -> list[Figure]:
    calls, (key, value) = table._table, probes[0]
    assert table.find(COLUMN, value).column("id").to_pylist() == [key]
    os.kill(victim["pid"], signal.SIGKILL)
    killed = time.monotonic()

    async def taken(call: Awaitable[Any]) -> float:
        assert await call is not None, "a row is gone"
        return time.monotonic() - killed

    async def work() -> tuple[list[float], list[float], float]:
        reads = [taken(calls.get(key, timeout=DEADLINE_S)) for key, _ in probes]
        finding = taken(calls.find(COLUMN, value, timeout=DEADLINE_S))
        *readable, found = await asyncio.gather(*reads, finding)
        # Of rows that are still elsewhere, each replaced with another value.
        written = [calls.upsert(one_row(key), timeout=DEADLINE_S) for key, _ in probes]
        writable = await asyncio.gather(*[taken(write) for write in written])
        return readable, writable, found

    readable, writable, found = table._loop.run(work())
    assert table.find(COLUMN, value).num_rows == 0, "an old entry finds a row"
    assert table.find(COLUMN, 0.5).num_rows == len(probes), "a new entry is missing"
    recovery = wait_loaded(database)
    have = table.count()
    assert have == count, f"{have} rows of {count}"
    size = f"{count * ROW_BYTES / 1e6:.0f} MB"
    what = f"recovery of {size} with an index, {TABLETS_EACH} tablets, and its indexlet"
    since = "since SIGKILL"
    return [
        at_most(f"{what}: every tablet readable", max(readable), LIMIT_S, "s", since),
        at_most("… a row found by its value", found, LIMIT_S, "s", since),
        at_most("… every tablet written", max(writable), LIMIT_S, "s", f"{since}, after it"),
        shown("… all rows in memory", recovery["loaded_s"], "s", "since detection"),
    ]
