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

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, median, percentile, shown, skipped
from benchmarks.common.generated import SCHEMA, one_row, rows
from benchmarks.common.row_load import Writers, Written, joined
from benchmarks.peers.etcd import Etcd, Missing, etcd_cluster
from stelae import replicas, segments
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.messages.catalog import TabletLocation
from stelae.core.schema.durability import Durability
from stelae.recovery.spark_link import ClusterLink
from stelae.runtime.client import client_runtime
from stelae.runtime.tcp.handshake import Credentials

BATCH_ROWS = 1000
BATCH_WRITERS = 4
BATCHES = 400
ROW_WRITERS = 32
ROW_ROUNDS = 9
ROW_DURATION_S = 2.0
"""Short ones in turn: the machine is not as fast in one minute as in the next."""


def measure(quick: bool) -> list[Figure]:
    """One tablet each, which is one log: as etcd is one."""
    rounds, batches = (1, 40) if quick else (5, BATCHES)
    row_rounds, duration_s = (1, 1.0) if quick else (ROW_ROUNDS, ROW_DURATION_S)
    with contextlib.ExitStack() as stack:
        try:
            etcd: Etcd | None = stack.enter_context(etcd_cluster())
            missing = ""
        except Missing as error:
            etcd, missing = None, str(error)
        database = stack.enter_context(
            cluster("replica-writes", tservers={"count": 3, "memory": "3GiB"})
        )
        figures = compare_batches(database, "replicas(3)", replicas(3), 60, rounds, batches)
        database.create_table("single", SCHEMA, key="id", durability=replicas(3))
        return figures + _single_rows(database, "single", etcd, missing, row_rounds, duration_s)


def compare_batches(
    database: Any, word: str, durability: Durability, target: float, rounds: int, count: int
) -> list[Figure]:
    """New rows in random order, into a table of that durability and one on segments in turn; the
    first, short round warms up. ``target``: per cent of what segments do."""
    ours = database.create_table("ours", SCHEMA, key="id", durability=durability)
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
            rate, times = write_batches(table, data)
            if number:
                rates[table.name].append(rate)
                taken[table.name] += times
            time.sleep(1.0)  # what was written is sealed and flushed
    ratio = median([mine / other for mine, other in zip(*rates.values(), strict=True)])
    name = f"batches of {BATCH_ROWS:,} rows of 100 bytes, {BATCH_WRITERS} writers"
    figures = []
    for table, what in ((ours, word), (theirs, 'segments("disk", "disk")')):
        note = f"one batch: median {median(taken[table.name]) * 1e3:.1f} ms"
        note += f", p99 {percentile(taken[table.name], 0.99) * 1e3:.1f} ms"
        figures.append(shown(f"{name}, {what}", median(rates[table.name]), "rows/s", note))
    return [*figures, at_least(f"… {word} against segments", ratio * 100, target, "%")]


def write_batches(table: Any, data: pa.Table) -> tuple[float, list[float]]:
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
    """Three times 32 clients: with connections of their own and as light as etcd's load; tasks of
    one client, whose calls travel together; and as many Python clients, which take most of what
    the servers leave of the machine."""
    link, loop = database.link, database._loop
    shared = loop.run(own_clients(link, name, 1)) * ROW_WRITERS
    own = loop.run(own_clients(link, name, ROW_WRITERS))
    light, tasks, python = "connections", "tasks of one client", "Python clients in one process"
    loads: dict[str, list[Written]] = {light: [], tasks: [], python: []}
    theirs: list[float] = []
    for number in range(rounds + 1):
        taken = {
            light: write_lightly(link, database.locate_table(name)[0], duration_s),
            tasks: loop.run(write_rows(shared, duration_s)),
            python: loop.run(write_rows(own, duration_s)),
        }
        if not number:
            continue  # the first one warms up
        for way, load in taken.items():
            loads[way].append(load)
        if etcd is not None:
            theirs.append(etcd.put_rate(ROW_WRITERS, duration_s))
    figures = []
    if etcd is not None:
        what = f"etcd, {ROW_WRITERS} connections"
        figures.append(shown(what, median(theirs), "puts/s", "its JSON gateway, by wrk"))
    for way, ours in loads.items():
        rates = [load.rate for load in ours]
        what = f"single rows into replicas(3), {ROW_WRITERS} {way}"
        figures.append(shown(what, median(rates), "rows/s", joined(ours).note))
        if etcd is None:
            figures.append(skipped("… against etcd", missing))
            continue
        ratio = median([mine / other for mine, other in zip(rates, theirs, strict=True)])
        what = "… against etcd"
        figures.append(
            shown(what, ratio, "×") if way is python else at_least(what, ratio, 1.5, "×")
        )
    return figures


def write_lightly(link: ClusterLink, where: TabletLocation, duration_s: float) -> Written:
    """One run of the load that costs little, at the tablet's owner or leader."""
    leaders = (r.uuid for r in where.replicas if r.address == where.address)
    server = next(leaders, where.tablet.owner)
    writers = Writers(Credentials(link.cluster, link.secret), where, server, ROW_WRITERS)
    try:
        return writers.run(duration_s)
    finally:
        writers.close()


async def own_clients(link: ClusterLink, name: str, count: int) -> list[AsyncTable]:
    """The table, as so many clients know it."""
    masters = list(link.masters)
    return [
        await AsyncDatabase(
            client_runtime(link.cluster, link.secret), masters, link.settings
        ).table(name)
        for _ in range(count)
    ]


async def write_rows(tables: list[AsyncTable], duration_s: float) -> Written:
    """Tasks that each write one row after the other, in one process."""
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
    return Written(len(times), time.perf_counter() - started, times)
