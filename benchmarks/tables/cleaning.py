"""What cleaning costs writers, when 85 % of a tablet server's memory holds live rows.

Uniform random overwrites by batches, at full speed, against a server with so much memory that
nothing is cleaned, and against one that has to clean all the time, in turn; with rows in memory
alone, and with two backups. Live rows are topped up until they take their share as the server
accounts for it, which includes the index. Times are of whole calls.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, at_most, median, percentile, shown
from benchmarks.common.generated import SCHEMA, rows
from stelae import segments

BATCH_ROWS = 500
WRITERS = 4
LIVE_SHARE = 0.85
MIB = 1 << 20
PLENTY_MIB = 3072
RATE_SHARE_TARGET = 0.5
P99_FACTOR_TARGET = 3.0
SETTLE_ROUNDS = 12


@dataclass(frozen=True)
class Run:
    """One measured run."""

    rate: float
    times_s: list[float]
    live_share: float
    cleaning: dict[str, Any]

    @property
    def p99_s(self) -> float:
        return percentile(self.times_s, 0.99)


def measure(quick: bool) -> list[Figure]:
    """Rates and times of overwrites, cleaned against not."""
    memory_mib, duration_s, rounds = (192, 3.0, 1) if quick else (512, 10.0, 2)
    figures = []
    for name, durability in (
        ("memory alone", segments()),
        ("two backups", segments("disk", "disk")),
    ):
        free: list[Run] = []
        cleaned: list[Run] = []
        for _ in range(rounds):
            free.append(_run(durability, memory_mib, PLENTY_MIB, duration_s))
            cleaned.append(_run(durability, memory_mib, memory_mib, duration_s))
        figures += _figures(name, free, cleaned)
    return figures


def _figures(name: str, free: list[Run], cleaned: list[Run]) -> list[Figure]:
    pairs = list(zip(free, cleaned, strict=True))
    last = cleaned[-1]
    note = f"p99 {last.p99_s * 1e3:.1f} ms; " + ", ".join(
        f"{key} {last.cleaning[key]}"
        for key in ("utilisation", "write_cost", "segments_compacted", "segments_cleaned")
    )
    share = median([after.rate / before.rate for before, after in pairs])
    factor = median([after.p99_s / before.p99_s for before, after in pairs])
    slow = f"p99 {free[-1].p99_s * 1e3:.1f} ms"
    return [
        shown(
            f"{name}: overwrites, nothing cleaned", median([r.rate for r in free]), "rows/s", slow
        ),
        shown(
            f"{name}: overwrites while cleaning", median([r.rate for r in cleaned]), "rows/s", note
        ),
        at_least(f"{name}: live share of memory", last.live_share, LIVE_SHARE - 0.01, ""),
        at_least(f"{name}: rate while cleaning", share, RATE_SHARE_TARGET, "×"),
        at_most(f"{name}: p99 while cleaning", factor, P99_FACTOR_TARGET, "×"),
    ]


def _run(durability: Any, live_mib: int, memory_mib: int, duration_s: float) -> Run:
    """Fill `LIVE_SHARE` of ``live_mib``, with ``memory_mib`` in all; then overwrite."""
    tservers = {"count": 1, "memory": f"{memory_mib}MiB"}
    with cluster("cleaning", tservers=tservers, backups={"count": 2}) as database:
        table = database.create_table("t", SCHEMA, key="id", durability=durability)
        load = _Load(database, table, live_mib * MIB)
        load.fill()
        before = load.cleaning()
        rate, times_s = load.overwrite(duration_s)
        after = load.cleaning()
        done = {key: after[key] - before[key] for key in after if key.startswith("segments")}
        share = after["live_bytes"] / (live_mib * MIB)
        return Run(rate, times_s, share, {**after, **done})


class _Load:
    def __init__(self, database: Any, table: Any, limit_bytes: int) -> None:
        self._database = database
        self._table = table
        self._limit_bytes = limit_bytes
        self._keys = 0
        self._rng = np.random.default_rng(7)
        batches = [rows(np.arange(BATCH_ROWS), seed) for seed in range(8)]
        self._bodies = [batch.combine_chunks() for batch in batches]

    def cleaning(self) -> dict[str, Any]:
        """Once the server has told of all that was done."""
        time.sleep(1.0)
        found: dict[str, Any] = self._database.status()["tables"][0]["cleaning"]
        return found

    def fill(self) -> None:
        """Have live rows take their share, also after much of it was overwritten."""
        for number in range(SETTLE_ROUNDS):
            missing = LIVE_SHARE * self._limit_bytes - self.cleaning()["live_bytes"]
            if missing < 0.005 * self._limit_bytes and number > 3:
                return
            row_bytes = 180 if number == 0 else 300
            count = max(0, int(missing / row_bytes))
            for first in range(self._keys, self._keys + count, 2000):
                last = min(first + 2000, self._keys + count)
                self._table.upsert(rows(np.arange(first, last)))
            self._keys += count
            self.overwrite(0.5)

    def overwrite(self, duration_s: float) -> tuple[float, list[float]]:
        """Rows a second, and what each call took."""

        async def work() -> tuple[float, list[float]]:
            upsert = self._table._table.upsert
            times_s: list[float] = []
            began_s = time.perf_counter()

            async def writer(number: int) -> None:
                body = self._bodies[number]
                while (start_s := time.perf_counter()) < began_s + duration_s:
                    ids = self._rng.integers(0, self._keys, BATCH_ROWS)
                    await upsert(body.set_column(0, SCHEMA.field(0), [ids]))
                    times_s.append(time.perf_counter() - start_s)

            await asyncio.gather(*[writer(number) for number in range(WRITERS)])
            took_s = time.perf_counter() - began_s
            return len(times_s) * BATCH_ROWS / took_s, times_s

        found: tuple[float, list[float]] = self._database._loop.run(work())
        return found
