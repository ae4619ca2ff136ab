"""Single durable rows: one writer after another, and many at once, beside etcd in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import (
    Figure,
    at_least,
    at_most,
    median,
    percentile,
    shown,
    skipped,
    timed,
)
from benchmarks.common.generated import SCHEMA, one_row
from benchmarks.peers.etcd import Etcd, Missing, etcd_cluster
from stelae import segments

BLOCK = 200
WRITERS = 64


def measure(quick: bool) -> list[Figure]:
    """Figures of `upsert` of one row, and their ratios to etcd's put."""
    blocks, duration_s = (2, 1.0) if quick else (10, 4.0)
    with contextlib.ExitStack() as stack:
        try:
            etcd: Etcd | None = stack.enter_context(etcd_cluster())
            missing = ""
        except Missing as error:
            etcd, missing = None, str(error)
        database = stack.enter_context(cluster("writes"))
        # One tablet, which is one log: as etcd is one.
        table = database.create_table("t", SCHEMA, key="id", durability=segments("disk", "disk"))
        figures = _one_by_one(table, etcd, missing, blocks)
        return figures + _at_once(table, etcd, missing, 1 if quick else 3, duration_s)


def _put(table: Any, n: int) -> None:
    table.upsert(one_row(n))


def _one_by_one(table: Any, etcd: Etcd | None, missing: str, blocks: int) -> list[Figure]:
    """Blocks of puts to either in turn, so that both meet the same load."""
    ours: list[float] = []
    theirs: list[float] = []
    ratios: list[float] = []
    for block in range(blocks + 1):  # the first one warms up
        mine = [timed(partial(_put, table, n)) for n in range(BLOCK)]
        other = [timed(etcd.put) for _ in range(BLOCK)] if etcd is not None else []
        if block:
            ours += mine
            theirs += other
            if other:
                ratios.append(median(mine) / median(other))
    figures = [
        at_most("one durable row, p50", median(ours) * 1e3, 0.5, "ms"),
        shown("one durable row, p99", percentile(ours, 0.99) * 1e3, "ms"),
    ]
    if etcd is None:
        return [*figures, skipped("one durable row against etcd's put", missing)]
    return [
        *figures,
        shown("etcd put, 3 nodes, p50", median(theirs) * 1e3, "ms"),
        shown("etcd put, 3 nodes, p99", percentile(theirs, 0.99) * 1e3, "ms"),
        at_most("one durable row against etcd's put, p50", median(ratios), 0.7, "×"),
    ]


def _at_once(
    table: Any, etcd: Etcd | None, missing: str, rounds: int, duration_s: float
) -> list[Figure]:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(_write_rate(table, duration_s))
        if etcd is not None:
            theirs.append(etcd.put_rate(WRITERS, duration_s))
    name = f"{WRITERS} writers at once"
    figures = [shown(name, median(ours), "rows/s")]
    if etcd is None:
        return [*figures, skipped(f"{name} against etcd", missing)]
    ratio = median([mine / other for mine, other in zip(ours, theirs, strict=True)])
    return [
        *figures,
        shown(f"etcd, {WRITERS} connections", median(theirs), "puts/s", "its JSON gateway, by wrk"),
        at_least(f"{name} against etcd", ratio, 2.0, "×"),
    ]


def _write_rate(table: Any, duration_s: float) -> float:
    """Rows a second of 64 tasks that each write one row after the other, in one process."""

    async def write_all() -> int:
        upsert = table._table.upsert
        end = time.monotonic() + duration_s

        async def writer(number: int) -> int:
            done = 0
            while time.monotonic() < end:
                await upsert(one_row(number * 1_000_000 + done % 10_000))
                done += 1
            return done

        return sum(await asyncio.gather(*(writer(n) for n in range(WRITERS))))

    started = time.monotonic()
    rows = table._loop.run(write_all())
    return float(rows / (time.monotonic() - started))
