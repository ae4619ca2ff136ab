"""A tablet server with a gigabyte is drained under writers: how long it takes, and what they feel.

Its eight tablets have their log on two backups each: each is closed, and recovered elsewhere, one
at a time, with a rest in between. Writers come at a steady pace, spread over all tablets, before
and during the drain.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_most, percentile, shown
from benchmarks.common.generated import ROW_BYTES, SCHEMA, one_row
from benchmarks.failures.recovering import GIGABYTE, TABLETS_EACH, fill, wait_sealed
from stelae import hash_partition, segments

TSERVERS = 3
WRITERS = 8
WRITES_PER_S = 200
NEW_KEYS = 1 << 40
"""Of the writers' rows, above all that are loaded."""
NORMAL_S = 10.0
LIMIT_S = 30.0
P99_FACTOR = 3.0


def measure(quick: bool) -> list[Figure]:
    """Eight tablets on each of three servers; rows are loaded into one server's, then it goes."""
    total_bytes = GIGABYTE // 20 if quick else GIGABYTE
    partition = hash_partition("id", TSERVERS * TABLETS_EACH)
    with cluster("drain", tservers={"count": TSERVERS, "memory": "3GiB"}) as database:
        table = database.create_table(
            "t", SCHEMA, key="id", partition=partition, durability=segments("disk", "disk")
        )
        leaving = servers(database, "tserver")[0]
        tablets = [t for t in database.status()["tablets"] if t["leader"] == leaving["id"]]
        _, count = fill(table, partition, {t["number"] for t in tablets}, total_bytes)
        wait_sealed(database)
        load = _Load(database, table)
        try:
            time.sleep(1.0 if quick else NORMAL_S)
            normal = load.take()
            started = time.perf_counter()
            database.retire_server(leaving["id"], timeout=10 * LIMIT_S)
            drained_s = time.perf_counter() - started
            during = load.take()
        finally:
            load.stop()
        assert table.count() == count + load.keys, "rows are gone"
    return _figures(count * ROW_BYTES, drained_s, normal, during)


def _figures(
    size_bytes: int, drained_s: float, normal: list[float], during: list[float]
) -> list[Figure]:
    before_s, during_s = percentile(normal, 0.99), percentile(during, 0.99)
    name = f"drain of a tserver with {size_bytes / GIGABYTE:.2g} GB in {TABLETS_EACH} tablets"
    return [
        at_most(name, drained_s, LIMIT_S, "s"),
        at_most(
            f"… p99 of {WRITES_PER_S} writes/s against before",
            during_s / before_s,
            P99_FACTOR,
            "×",
            f"{during_s * 1e3:.1f} ms, {before_s * 1e3:.1f} before; {len(during)} writes",
        ),
        shown("… longest write", max(during) * 1e3, "ms", f"before {max(normal) * 1e3:.1f} ms"),
    ]


class _Load:
    """Writers of single new rows at a steady pace; what each took is noted, from call to answer."""

    def __init__(self, database: Any, table: Any) -> None:
        self.keys = 0
        self._times: list[float] = []
        self._is_over = False
        self._failed: BaseException | None = None
        work = self._run(table._table)
        self._thread = threading.Thread(target=self._work, args=(database, work))
        self._thread.start()

    def _work(self, database: Any, work: Any) -> None:
        try:
            database._loop.run(work)
        except BaseException as error:
            self._failed = error

    async def _run(self, table: Any) -> None:
        async def writer(number: int) -> None:
            due = time.perf_counter() + number / WRITES_PER_S
            while not self._is_over:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                self.keys += 1
                began = time.perf_counter()
                await table.upsert(one_row(NEW_KEYS + self.keys))
                self._times.append(time.perf_counter() - began)
                due += WRITERS / WRITES_PER_S

        await asyncio.gather(*map(writer, range(WRITERS)))

    def take(self) -> list[float]:
        """What the writes since the last look took, in seconds."""
        times, self._times = self._times, []
        return times

    def stop(self) -> None:
        """End them. Raises the error that a write ended with."""
        self._is_over = True
        self._thread.join()
        if self._failed is not None:
            raise self._failed
