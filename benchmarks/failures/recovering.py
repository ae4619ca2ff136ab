"""A tablet server with eight tablets is killed: how long until every one of them answers again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_least, at_most, shown
from benchmarks.common.generated import ROW_BYTES, SCHEMA, rows, tablet_numbers
from stelae import hash_partition, segments, spark
from stelae.planner.hardware import VM
from stelae.planner.measured import read_measured

TABLETS_EACH = 8
GIGABYTE = 1_000_000_000
LIMITS_S = {"native": {1: 1.5, 4: 4.0}, "spark": {1: 3.0, 4: 30.0}}
"""By gigabytes. Spark may take twice as long as the native engine."""
LOADED_MB_S = 400.0
PLANNER_FACTOR = 2.0
DEADLINE_S = 120.0


def measure(quick: bool, engine: str = "native", gigabytes: int = 1) -> list[Figure]:
    """Time from SIGKILL to the first answer of the last tablet, and the phases in between.

    Each tserver owns eight tablets; rows go to the victim's only, so that its memory is what
    comes back, onto those that live: two of a gigabyte, one of more, as each of them may have as
    much memory as the victim, and all have to fit into this machine. Then the rows follow, until
    all are in memory.
    """
    total_bytes = GIGABYTE // 20 if quick else gigabytes * GIGABYTE
    survivors = 2 if gigabytes == 1 else 1
    memory = "2GiB" if quick else f"{max(3, 2 * gigabytes)}GiB"
    sections: dict[str, Any] = {
        "tservers": {"count": survivors + 1, "memory": memory},
        "recovery": {"engine": engine},
    }
    if engine == "spark":
        sections["spark"] = {"executors": 2, "cores": 1, "memory": "1GiB", "warm": True}
    partition = hash_partition("id", (survivors + 1) * TABLETS_EACH)
    with cluster(f"recovery-{engine}", **sections) as database:
        table = database.create_table(
            "t", SCHEMA, key="id", partition=partition, durability=segments("disk", "disk")
        )
        victim = servers(database, "tserver")[0]
        tablets = [t for t in database.status()["tablets"] if t["leader"] == victim["id"]]
        mine = {t["number"] for t in tablets}
        probes, count = fill(table, partition, mine, total_bytes)
        wait_sealed(database)
        if engine == "spark":
            spark.warm(database)
        limit_s = LIMITS_S[engine][gigabytes]
        figures = kill(database, table, victim, probes, count, survivors, engine, limit_s)
        return figures + _predicted(figures)


def fill(table: Any, partition: Any, mine: set[int], total_bytes: int) -> tuple[list[int], int]:
    """Load rows into the tablets numbered ``mine``; return a key of each, and the row count."""
    wanted, loaded, start = total_bytes // ROW_BYTES, 0, 0
    probes: dict[int, int] = {}
    while loaded < wanted:
        ids = np.arange(start, start + 3_000_000)
        start += len(ids)
        numbers = tablet_numbers(partition, ids)
        kept = ids[np.isin(numbers, sorted(mine))][: wanted - loaded]
        for number in mine - probes.keys():
            at = np.flatnonzero(numbers == number)
            if len(at) and ids[at[0]] in kept:
                probes[number] = int(ids[at[0]])
        table.load(rows(kept, seed=start))
        loaded += len(kept)
    return [probes[number] for number in sorted(probes)], loaded


def wait_sealed(database: Any) -> None:
    """Let the load's own aftermath pass: all but the heads sealed, the machine at rest."""
    calm = 0
    deadline = time.monotonic() + 60.0
    while calm < 6 and time.monotonic() < deadline:
        calm = calm + 1 if os.getloadavg()[0] < 1.5 else calm
        time.sleep(1.0)
    assert database.status()["tables"]


def kill(
    database: Any,
    table: Any,
    victim: dict[str, Any],
    probes: list[int],
    count: int,
    survivors: int,
    engine: str,
    limit_s: float,
) -> list[Figure]:
    """Kill the victim; return how long its tablets were away, and what took the time.

    ``probes``: a key of each of its tablets. ``count``: rows of the table.
    """
    assert table.get(probes[0]) is not None
    os.kill(victim["pid"], signal.SIGKILL)
    killed, killed_wall = time.monotonic(), time.time()

    async def read_all() -> list[Any]:
        get = table._table.get
        return await asyncio.gather(*(get(key, timeout=DEADLINE_S) for key in probes))

    found = table._loop.run(read_all())
    readable_s = time.monotonic() - killed
    assert all(row is not None for row in found), "a row is gone"
    recovery = wait_loaded(database)
    have = table.count()
    assert have == count, f"{have} rows of {count}"
    size = f"{count * ROW_BYTES / 1e9:.2g} GB"
    name = f"recovery of {size}, {TABLETS_EACH} tablets, {survivors} survivors, {engine}"
    note = f"cause: {recovery['cause']}; engine {recovery['engine']}"
    figures = [at_most(name, readable_s, limit_s, "s", note)]
    loading_s = recovery["loaded_s"] - recovery["phases_s"]["opened"]
    rate = count * ROW_BYTES / 1e6 / max(loading_s, 1e-6)
    figures.append(at_least("… all rows in memory again", rate, LOADED_MB_S, "MB/s"))
    figures.append(shown("… all rows in memory", recovery["loaded_s"], "s", "since detection"))
    return figures + _phases(recovery, killed_wall)


def _predicted(figures: list[Figure]) -> list[Figure]:
    """What the planner says of the same recovery on this kind of machine, and how far off it is."""
    suite = [{"name": figure.name, "value": figure.value} for figure in figures]
    document = {"suites": {"recovery": {"figures": suite}}}
    return [
        at_most(
            f"… planner against that: {each.name.removeprefix('recovery: … ')}",
            each.factor,
            PLANNER_FACTOR,
            "× off",
            f"{each.predicted:.3g} {each.unit} predicted, {each.measured:.3g} measured",
        )
        for each in read_measured(document, VM).comparisons
    ]


def wait_loaded(database: Any) -> dict[str, Any]:
    """The newest recovery, once all rows of it are in memory."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        recovery: dict[str, Any] = database.status()["recoveries"][0]
        if recovery["loaded_s"] is not None:
            return recovery
        time.sleep(0.05)
    raise RuntimeError(f"rows are not back after {DEADLINE_S} s")


def _phases(recovery: dict[str, Any], killed_wall: float) -> list[Figure]:
    """Each phase by itself; of those that tablets pass side by side, the slowest tablet's."""
    figures = [shown("… detection", recovery["started"] - killed_wall, "s")]
    phases = recovery["phases_s"]
    figures.append(shown("… plan", phases.get("planned", 0.0), "s", "terms raised, backups fenced"))
    for phase in ("read", "merge", "install", "replicate"):
        taken = [t["replay_s"].get(phase, 0.0) for t in recovery["tablets"]]
        figures.append(shown(f"… {phase}", max(taken, default=0.0), "s", "slowest tablet"))
    figures.append(shown("… handed over", phases.get("running", 0.0), "s", "since detection"))
    return figures
