"""Tables as DataFrames of Spark, by both doors, in turn with the same rows in Parquet.

Each read takes all columns of all rows into Spark's rows and drops them there (``noop``), in one
session on the cluster's Ray.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stelae
from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, median, shown, skipped, timed
from benchmarks.common.generated import SCHEMA, rows
from stelae import hash_partition, segments
from stelae.core.errors import InvalidArgument

PARTS = 8


def measure(quick: bool) -> list[Figure]:
    """Figures of whole tables: from the call of `read` to the last row."""
    count, rounds = (200_000, 2) if quick else (5_000_000, 5)
    folder = Path(tempfile.mkdtemp(prefix="stelae-bench-parquet-", dir="/var/tmp"))
    try:
        with cluster("spark", tservers={"count": 2, "memory": "2GiB"}) as database:
            data = rows(np.random.default_rng(7).permutation(count))
            _store(database, data, folder)
            spark = stelae.spark.session(database, executors=2, cores=1, memory_bytes=1 << 30)
            try:
                return _figures(spark, database, folder, count, rounds, quick)
            finally:
                stelae.spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _store(database: Any, data: pa.Table, folder: Path) -> None:
    for name in ("t", "copy"):
        partition, durability = hash_partition("id", PARTS), segments("disk", "disk")
        database.create_table(name, SCHEMA, key="id", partition=partition, durability=durability)
    database["t"].load(data)
    step = -(-data.num_rows // PARTS)
    for n in range(PARTS):
        pq.write_table(data.slice(n * step, step), folder / f"{n}.parquet")
    time.sleep(1.0)


def _figures(
    spark: Any, database: Any, folder: Path, count: int, rounds: int, quick: bool
) -> list[Figure]:
    reads: dict[str, Callable[[], Any]] = {
        "Parquet": lambda: spark.read.parquet(str(folder)),
        "stelae.spark.read": lambda: stelae.spark.read(spark, "t", cluster=database),
    }
    try:
        stelae.spark.jar()
        reads['format("stelae")'] = lambda: spark.read.format("stelae").load("t")
        missing = ""
    except InvalidArgument as error:
        missing = str(error)
    took: dict[str, list[float]] = {name: [] for name in reads}
    for turn in range(rounds + 1):
        for name, frame in reads.items():
            seconds = timed(partial(_drop, frame))
            if turn:  # the first starts workers and compiles
                took[name].append(seconds)
    parquet = count / median(took.pop("Parquet"))
    figures = [shown(f"Spark reads {count:,} rows of 100 bytes from Parquet", parquet, "rows/s")]
    for name, each in took.items():
        rate, best = count / median(each), count / min(each)
        note = f"{rate:,.0f} rows/s, best {best:,.0f}"
        target = 0.01 if quick else 0.5  # too few rows to judge the rate by
        figures.append(at_least(f"… by {name}, of that", rate / parquet, target, "×", note))
    if missing:
        figures.append(skipped('… with format("stelae")', missing))
    some = count // 5
    part = stelae.spark.read(spark, "t", where=[("id", "<", some)], cluster=database)
    wrote = timed(lambda: stelae.spark.write(part, "copy", cluster=database))
    return [*figures, shown(f"stelae.spark.write of {some:,} rows", some / wrote, "rows/s")]


def _drop(frame: Callable[[], Any]) -> None:
    frame().write.format("noop").mode("overwrite").save()
