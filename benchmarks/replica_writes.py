"""Writes into ``replicas(3)``: batches beside the same table on segments, single rows beside etcd.

Everything in turn in the same run, with a sync of the disk behind each answer: of a majority of
replicas, of both backups, and of a majority of etcd's nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from clusters import cluster
from etcd import Etcd, Missing, etcd_cluster
from figures import Figure, at_least, median, percentile, shown, skipped
from generated import SCHEMA, one_row, rows

from stelae import replicas, segments
from stelae.client.database import AsyncDatabase
from stelae.client.table import AsyncTable
from stelae.recovery.spark_link import ClusterLink
from stelae.runtime.client import client_runtime

BATCH_ROWS = 1000
BATCH_WRITERS = 4
BATCHES = 400
ROW_WRITERS = 32


def measure(quick: bool) -> list[Figure]:
    """One tablet each, which is one log: as etcd is one."""
    rounds, batches, duration_s = (1, 40, 1.0) if quick else (5, BATCHES, 4.0)
    with contextlib.ExitStack() as stack:
        try:
            etcd: Etcd | None = stack.enter_context(etcd_cluster())
            missing = ""
        except Missing as error:
            etcd, missing = None, str(error)
        database = stack.enter_context(
            cluster("replica-writes", tservers={"count": 3, "memory": "3GiB"})
        )
        figures = _batches(database, rounds, batches)
        database.create_table("single", SCHEMA, key="id", durability=replicas(3))
        return figures + _single_rows(database, "single", etcd, missing, rounds, duration_s)


def _batches(database: Any, rounds: int, count: int) -> list[Figure]:
    """New rows in random order, into both tables in turn; the first, short round warms up."""
    ours = database.create_table("replicas", SCHEMA, key="id", durability=replicas(3))
    disks = segments("disk", "disk")
    theirs = database.create_table("segments", SCHEMA, key="id", durability=disks)
    rates: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    taken: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    generator = np.random.default_rng(5)
    for number in range(rounds + 1):
        size = count if number else min(count, 40)
        first = number * count * BATCH_ROWS
        ids = first + generator.permutation(size * BATCH_ROWS)
        data = rows(ids, seed=number)
        order = (ours, theirs) if number % 2 else (theirs, ours)
        for table in order:
            rate, times = _write_batches(table, data)
            if number:
                rates[table.name].append(rate)
                taken[table.name] += times
            time.sleep(1.0)  # what was written is sealed and flushed
    ratio = median([mine / other for mine, other in zip(*rates.values(), strict=True)])
    name = f"batches of {BATCH_ROWS:,} rows of 100 bytes, {BATCH_WRITERS} writers"
    figures = []
    for table, word in ((ours, "replicas(3)"), (theirs, 'segments("disk", "disk")')):
        note = f"one batch: median {median(taken[table.name]) * 1e3:.1f} ms"
        note += f", p99 {percentile(taken[table.name], 0.99) * 1e3:.1f} ms"
        figures.append(shown(f"{name}, {word}", median(rates[table.name]), "rows/s", note))
    return [*figures, at_least("… replicas against segments", ratio * 100, 60, "%")]


def _write_batches(table: Any, data: pa.Table) -> tuple[float, list[float]]:
    """Rows a second, and how long each batch took."""
    batches: Iterator[pa.Table] = iter(
        [data.slice(at, BATCH_ROWS) for at in range(0, data.num_rows, BATCH_ROWS)]
    )
    times: list[float] = []

    async def writer() -> None:
        for batch in batches:
            start = time.perf_counter()
            await table._table.upsert(batch)
            times.append(time.perf_counter() - start)

    async def write_all() -> None:
        await asyncio.gather(*(writer() for _ in range(BATCH_WRITERS)))

    start = time.perf_counter()
    table._loop.run(write_all())
    return data.num_rows / (time.perf_counter() - start), times


def _single_rows(
    database: Any, name: str, etcd: Etcd | None, missing: str, rounds: int, duration_s: float
) -> list[Figure]:
    """By tasks of one client, whose calls travel together, and by as many clients that share
    nothing: each its own connections, like those of etcd's."""
    loop = database._loop
    shared = loop.run(_clients(database.link, name, 1)) * ROW_WRITERS
    own = loop.run(_clients(database.link, name, ROW_WRITERS))
    ways = {"clients of their own": own, "tasks of one client": shared}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    theirs: list[float] = []
    for number in range(rounds + 1):
        for way, tables in ways.items():
            rate, times = loop.run(_write_rows(tables, duration_s))
            if number:  # the first one warms up
                rates[way].append(rate)
                taken[way] += times
        if number and etcd is not None:
            theirs.append(etcd.put_rate(ROW_WRITERS, duration_s))
    figures = []
    if etcd is not None:
        what = f"etcd, {ROW_WRITERS} connections"
        figures.append(shown(what, median(theirs), "puts/s", "its JSON gateway, by wrk"))
    for way, ours in rates.items():
        times = taken[way]
        note = f"median {median(times) * 1e3:.1f} ms, p99 {percentile(times, 0.99) * 1e3:.1f} ms"
        what = f"single rows into replicas(3), {ROW_WRITERS} {way}"
        figures.append(shown(what, median(ours), "rows/s", note))
        if etcd is None:
            figures.append(skipped("… against etcd", missing))
        else:
            ratio = median([mine / other for mine, other in zip(ours, theirs, strict=True)])
            figures.append(at_least("… against etcd", ratio, 1.5, "×"))
    return figures


async def _clients(link: ClusterLink, name: str, count: int) -> list[AsyncTable]:
    """The table, as so many clients know it."""
    masters = list(link.masters)
    return [
        await AsyncDatabase(
            client_runtime(link.cluster, link.secret), masters, link.settings
        ).table(name)
        for _ in range(count)
    ]


async def _write_rows(tables: list[AsyncTable], duration_s: float) -> tuple[float, list[float]]:
    """Rows a second of tasks that each write one row after the other, in one process."""
    times: list[float] = []

    async def writer(number: int, table: AsyncTable, end: float) -> None:
        done = 0
        while (start := time.perf_counter()) < end:
            await table.upsert(one_row(number * 1_000_000 + done % 10_000))
            times.append(time.perf_counter() - start)
            done += 1

    started = time.perf_counter()
    end = started + duration_s
    await asyncio.gather(*(writer(n, table, end) for n, table in enumerate(tables)))
    return len(times) / (time.perf_counter() - started), times
