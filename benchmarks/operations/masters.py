"""The masters on real Ray: how long a client feels the leader's death, and how fast DDL is."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pyarrow as pa

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_most, median, shown
from stelae import hash_partition, segments

KILLS = 10
TABLES, TABLETS = 20, 10
LIMIT_S = 1.5
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])


def measure(quick: bool) -> list[Figure]:
    """Both, on one cluster with default timing."""
    with cluster("masters", tservers={"count": 2, "memory": "256MiB"}) as database:
        figures = _ddl(database, 3 if quick else TABLES)
        return figures + _failovers(database, 1 if quick else KILLS)


def _create(database: Any, name: str, tablets: int) -> None:
    database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", tablets),
        durability=segments("disk", "disk"),
    )


def _ddl(database: Any, count: int) -> list[Figure]:
    """Create a table, until all its tablets are served, and delete it; one after the other."""
    times: dict[str, list[float]] = {"create": [], "delete": []}
    for number in range(count + 1):
        start = time.perf_counter()
        _create(database, f"ddl-{number}", TABLETS)
        created = time.perf_counter()
        database.delete_table(f"ddl-{number}")
        if number:  # the first warms everything up
            times["create"].append((created - start) * 1000)
            times["delete"].append((time.perf_counter() - created) * 1000)
    figures = []
    for kind, taken in times.items():
        note = f"worst {max(taken):.0f} ms of {len(taken)}"
        figures.append(
            shown(f"{kind} a table of {TABLETS} tablets, median", median(taken), "ms", note)
        )
    return figures


class Caller:
    """Calls again and again, and notes the longest time from one answer to the next."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._stop = threading.Event()
        self.longest_s = 0.0
        self.calls = 0
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                start = time.perf_counter()
                self._call(self.calls)
                self.longest_s = max(self.longest_s, time.perf_counter() - start)
                self.calls += 1
        except BaseException as error:
            self.failed = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed


def _failovers(database: Any, count: int) -> list[Figure]:
    """SIGKILL of the leader under a client that lists and one that creates and deletes."""
    pauses: dict[str, list[float]] = {"list": [], "create and delete": []}

    def create_and_delete(number: int) -> None:
        _create(database, f"kill-{number}", 1)
        database.delete_table(f"kill-{number}")

    for _ in range(count):
        _wait_whole(database)
        leader = next(s for s in servers(database, "master") if s.get("role") == "leader")
        callers = {
            "list": Caller(lambda _: database.tables()),
            "create and delete": Caller(create_and_delete),
        }
        time.sleep(1.0)
        os.kill(leader["pid"], signal.SIGKILL)
        time.sleep(4.0)
        for kind, caller in callers.items():
            caller.stop()
            pauses[kind].append(caller.longest_s)
    figures = []
    for kind, longest in pauses.items():
        name = f"leader killed: longest call of a client, {kind}"
        note = f"median of {len(longest)}; worst {max(longest):.2f} s"
        figures.append(at_most(name, median(longest), LIMIT_S, "s", note))
    return figures


def _wait_whole(database: Any) -> None:
    """All masters live, and one leads."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        masters = servers(database, "master")
        if all(master["state"] == "live" for master in masters) and len(masters) == 3:
            return
        time.sleep(0.1)
    raise TimeoutError("the masters do not come back")
