"""Writes into ``wal(3)``: batches beside the same table on segments, single rows beside PostgreSQL.

Everything in turn in the same run, with a sync of the disk behind each answer: of a majority of
safekeepers, of both backups, and of PostgreSQL's own log.
"""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_least, median, shown, skipped
from benchmarks.common.generated import SCHEMA
from benchmarks.common.row_load import Written, joined
from benchmarks.peers.etcd import Missing
from benchmarks.peers.postgres import Postgres, postgres
from benchmarks.tables.replica_writes import (
    BATCHES,
    ROW_DURATION_S,
    ROW_ROUNDS,
    ROW_WRITERS,
    compare_batches,
    own_clients,
    write_lightly,
    write_rows,
)
from stelae import wal

SAFEKEEPERS = 3
BATCH_TARGET_PERCENT = 80


def measure(quick: bool) -> list[Figure]:
    """One tablet each, which is one log."""
    rounds, batches = (1, 40) if quick else (5, BATCHES)
    row_rounds, duration_s = (1, 1.0) if quick else (ROW_ROUNDS, ROW_DURATION_S)
    with contextlib.ExitStack() as stack:
        try:
            theirs: Postgres | None = stack.enter_context(postgres())
            missing = ""
        except Missing as error:
            theirs, missing = None, str(error)
        servers: dict[str, Any] = {
            "tservers": {"count": 2, "memory": "3GiB"},
            "safekeepers": {"count": SAFEKEEPERS},
        }
        database = stack.enter_context(cluster("wal-writes", **servers))
        durability = wal(SAFEKEEPERS)
        figures = compare_batches(
            database, f"wal({SAFEKEEPERS})", durability, BATCH_TARGET_PERCENT, rounds, batches
        )
        database.create_table("single", SCHEMA, key="id", durability=durability)
        return figures + _single_rows(database, "single", theirs, missing, row_rounds, duration_s)


def _single_rows(
    database: Any, name: str, theirs: Postgres | None, missing: str, rounds: int, duration_s: float
) -> list[Figure]:
    """By connections as light as psycopg's, by tasks of one client, whose calls travel together,
    and by as many Python clients that share nothing, which take most of what the servers leave of
    the machine. PostgreSQL's connections are in one process, too."""
    link, loop = database.link, database._loop
    shared = loop.run(own_clients(link, name, 1)) * ROW_WRITERS
    own = loop.run(own_clients(link, name, ROW_WRITERS))
    light, tasks, python = "connections", "tasks of one client", "Python clients in one process"
    loads: dict[str, list[Written]] = {light: [], tasks: [], python: []}
    commits: list[float] = []
    for number in range(rounds + 1):
        taken = {
            light: write_lightly(link, database.locate_table(name)[0], duration_s),
            tasks: loop.run(write_rows(shared, duration_s)),
            python: loop.run(write_rows(own, duration_s)),
        }
        rate = theirs.commit_rate(ROW_WRITERS, duration_s) if theirs is not None else 0.0
        if number:  # the first one warms up
            commits.append(rate)
            for way, load in taken.items():
                loads[way].append(load)
    figures = []
    if theirs is not None:
        what = f"PostgreSQL, {ROW_WRITERS} connections through psycopg"
        figures.append(shown(what, median(commits), "commits/s", "upserts, synchronous commit"))
    for way, ours in loads.items():
        rates = [load.rate for load in ours]
        what = f"single rows into wal({SAFEKEEPERS}), {ROW_WRITERS} {way}"
        figures.append(shown(what, median(rates), "rows/s", joined(ours).note))
        against = f"… {way} against PostgreSQL"
        if theirs is None:
            figures.append(skipped(against, missing))
            continue
        ratio = median([mine / other for mine, other in zip(rates, commits, strict=True)])
        if way is python:
            figures.append(shown(against, ratio, "×"))
        else:
            figures.append(at_least(against, ratio, 1.0, "×"))
    return figures
