"""Reads of rows that are not back yet after a recovery, against reads of rows that are."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from clusters import cluster, servers
from figures import Figure, at_most, shown
from generated import SCHEMA, rows

from stelae import segments

ROWS = 1_000_000
READS = 1500
APART_ROWS = 200
"""Keys are so far from each other: each read is of a piece that was not fetched for another."""
DEADLINE_S = 60.0
RATIO_MAX = 2.0


def measure(quick: bool) -> list[Figure]:
    """Gets of keys of one tablet, in a random order: before its owner is killed, and while its rows
    are with the backups. Warm: each segment was read from before, other rows of it."""
    count = ROWS // 10 if quick else ROWS
    reads = min(READS, count // APART_ROWS // 3)
    sections = {
        "tservers": {"count": 2, "memory": "2GiB"},
        "recovery": {"engine": "native", "load_rate": "1MiB"},
    }
    with cluster("on-demand", **sections) as database:
        table = database.create_table("t", SCHEMA, key="id", durability=segments("disk", "disk"))
        table.load(rows(np.arange(count)))
        time.sleep(3.0)
        generator = np.random.default_rng(4)
        keys = (generator.permutation(count // APART_ROWS) * APART_ROWS).tolist()
        here = _latencies(table, keys[:reads])
        owner = database.status()["tablets"][0]["leader"]
        (victim,) = [s for s in servers(database, "tserver") if s["id"] == owner]
        os.kill(victim["pid"], signal.SIGKILL)
        assert table.get(keys[0], timeout=DEADLINE_S) is not None
        first = _latencies(table, keys[reads : 2 * reads])
        absent = _latencies(table, keys[2 * reads : 3 * reads])
        loaded = database.status()["tablets"][0]["loaded"]
        if loaded > 0.4 and not quick:
            raise RuntimeError(f"{loaded:.0%} of the rows are back already")
    ratio = float(np.median(absent) / np.median(here))
    note = f"{np.median(absent) * 1e6:.0f} µs against {np.median(here) * 1e6:.0f} µs, p50; "
    note += f"{loaded:.0%} of the rows were back"
    return [
        at_most("get of a row that is with the backups, warm", ratio, RATIO_MAX, "×", note),
        shown("… p99", float(np.percentile(absent, 99) * 1e3), "ms", _p99(here)),
        shown("… p99 of the first reads", float(np.percentile(first, 99) * 1e3), "ms", "cold"),
    ]


def _p99(latencies: np.ndarray) -> str:
    return f"of rows that are here: {np.percentile(latencies, 99) * 1e3:.2f} ms"


def _latencies(table: Any, keys: list[int]) -> np.ndarray:
    taken = []
    for key in keys:
        began = time.perf_counter()
        row = table.get(key, timeout=DEADLINE_S)
        taken.append(time.perf_counter() - began)
        assert row is not None, "a row is gone"
    return np.array(taken)
