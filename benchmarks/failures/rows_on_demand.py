"""Reads of rows that are not back yet after a recovery, against reads of rows that are.

Both are of the same server, by the same client, some of the one and then some of the other. The
rows lie in a file that the server can read itself, or with a backup that has to be asked, as one on
another machine: its files are moved away from where it says that they are, once it has opened them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import stelae
from benchmarks.common.clusters import cluster_spec, servers
from benchmarks.common.figures import Figure, at_most, shown
from benchmarks.common.generated import SCHEMA, rows
from benchmarks.common.http_load import load, request_bytes
from stelae import segments

ROWS = 1_000_000
ROWS_HERE = 20_000
"""Of another table, which are soon back."""
FIRST_READS = 1500
ROUNDS = 10
READS = 300
"""Of each kind in a round."""
HTTP_READS = 500
HTTP_S = 0.4
"""Less than so many take."""
APART_ROWS = 200
"""Keys are so far from each other: each read is of a piece that was not fetched for another."""
DEADLINE_S = 60.0
RATIO_MAX = 2.0


def measure(quick: bool) -> list[Figure]:
    """Gets of one row, in a random order, while its rows are with the backups. Warm: each segment
    was read from before, other rows of it."""
    here = _measure(quick, "in a file of this machine", by_backup=False)
    return here + _measure(quick, "by a backup", by_backup=True)


def _measure(quick: bool, where: str, *, by_backup: bool) -> list[Figure]:
    scale = 10 if quick else 1
    count, reads = ROWS // scale, READS // scale
    sections = {
        "tservers": {"count": 2, "memory": "2GiB"},
        "recovery": {"engine": "native", "load_rate": "1MiB"},
        "serve": {"host": "127.0.0.1", "port": 0, "replicas": 1},
    }
    with cluster_spec("on-demand", **sections) as spec:
        database = stelae.launch(spec)
        try:
            table, other = (
                database.create_table(name, SCHEMA, key="id", durability=segments("disk", "disk"))
                for name in ("t", "here")
            )
            table.load(rows(np.arange(count)))
            other.load(rows(np.arange(ROWS_HERE)))
            time.sleep(3.0)
            if by_backup:
                _move_away(Path(spec["data_dir"]))
            _lose_owner(database, table, other)
            generator = np.random.default_rng(4)
            keys = (generator.permutation(count // APART_ROWS) * APART_ROWS).tolist()
            first = _latencies(table, keys[: FIRST_READS // scale])
            keys, over_http = keys[FIRST_READS // scale :], keys[-HTTP_READS // scale :]
            keys_here = generator.integers(0, ROWS_HERE, ROUNDS * reads).tolist()
            rounds = [
                (
                    _latencies(other, keys_here[at : at + reads]),
                    _latencies(table, keys[at : at + reads]),
                )
                for at in range(0, ROUNDS * reads, reads)
            ]
            loaded = _tablet(database, "t")["loaded"]
            by_http = _over_http(database, Path(spec["data_dir"]), over_http)
        finally:
            database.close()
    if loaded > 0.4 and not quick:
        raise RuntimeError(f"{loaded:.0%} of the rows are back already")
    return [*_figures(where, rounds, first, loaded), by_http]


def _figures(
    where: str,
    rounds: list[tuple[np.ndarray, np.ndarray]],
    first: np.ndarray,
    loaded: float,
) -> list[Figure]:
    middle = _middle(loaded)
    here = [float(np.median(each)) for each, _ in rounds]
    absent = [float(np.quantile(each, middle)) for _, each in rounds]
    ratio = float(np.median([a / h for a, h in zip(absent, here, strict=True)]))
    note = f"{np.median(absent) * 1e6:.0f} µs against {np.median(here) * 1e6:.0f} µs, p50 of "
    note += f"{len(rounds)} rounds; {loaded:.0%} of the rows were back"
    late_here = np.percentile(np.concatenate([each for each, _ in rounds]), 99) * 1e3
    late = float(np.percentile(np.concatenate([each for _, each in rounds]), 99) * 1e3)
    return [
        at_most(f"get of a row that lies {where}, warm", ratio, RATIO_MAX, "×", note),
        shown("… p99", late, "ms", f"of rows that are here: {late_here:.2f} ms"),
        shown("… p99 of the first reads", float(np.percentile(first, 99) * 1e3), "ms", "cold"),
    ]


def _middle(loaded: float) -> float:
    """Of all reads, where the median of those lies whose rows were not back: they take longest."""
    return loaded + (1.0 - loaded) / 2


def _over_http(database: Any, folder: Path, keys: list[int]) -> Figure:
    """One client of the front, one request after the other."""
    url, token = database.http_url, (folder / "admin-token").read_text().strip()

    def of(table: str, keys: list[int]) -> list[float]:
        def make(number: int) -> bytes:
            path = f"/v1/tables/{table}/rows/{keys[number % len(keys)]}"
            return request_bytes(url, "GET", path, token)

        return list(load(url, make, 1, HTTP_S).times_s)

    for warm in ("here", "t", "here"):
        here = of(warm, list(range(HTTP_READS)))
    absent = of("t", keys)[: len(keys)]
    typical = float(np.quantile(absent, _middle(_tablet(database, "t")["loaded"])))
    ratio = typical / float(np.median(here))
    note = f"{typical * 1e6:.0f} µs against {np.median(here) * 1e6:.0f} µs, p50"
    return shown("… by a client of the HTTP front", ratio, "×", note)


def _move_away(folder: Path) -> None:
    """No file of a backup is where it was opened."""
    frames = sorted(folder.rglob("frames"))
    assert frames, "backups keep replicas in frame files"
    for each in frames:
        each.rename(each.with_name("elsewhere"))


def _lose_owner(database: Any, table: Any, other: Any) -> None:
    """Kill the owner of the one table, and wait until all of the other's rows are back."""
    owner = _tablet(database, "t")["leader"]
    (victim,) = [s for s in servers(database, "tserver") if s["id"] == owner]
    os.kill(victim["pid"], signal.SIGKILL)
    assert table.get(0, timeout=DEADLINE_S) is not None
    assert other.get(0, timeout=DEADLINE_S) is not None
    deadline = time.monotonic() + DEADLINE_S
    while _tablet(database, "here")["loaded"] < 1.0:
        if time.monotonic() > deadline:
            raise RuntimeError("the rows that are to be back are not")
        time.sleep(0.2)


def _tablet(database: Any, table: str) -> Any:
    (tablet,) = [each for each in database.status()["tablets"] if each["table"] == table]
    return tablet


def _latencies(table: Any, keys: list[int]) -> np.ndarray:
    taken = []
    for key in keys:
        began = time.perf_counter()
        row = table.get(key, timeout=DEADLINE_S)
        taken.append(time.perf_counter() - began)
        assert row is not None, "a row is gone"
    return np.array(taken)
