"""Recovery, failover and bulk load over four nodes of a Ray, some milliseconds apart.

Each node has a network namespace, and its link a delay (`tests.nodes.networks`). All of them share
this machine's cores, and the delays themselves cost some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_least, skipped, timed
from benchmarks.common.generated import ROW_BYTES, SCHEMA, rows
from benchmarks.failures.failover import TSERVERS, pauses
from benchmarks.failures.recovering import GIGABYTE, TABLETS_EACH, fill, kill, wait_sealed
from stelae import hash_partition, segments
from tests.nodes.networks import HEAD, NodeNetwork, why_no_delay

NODES = 4
"""With the head, which is half as far from the others as they are from each other."""
DELAYS_S = (0.001, 0.010)
"""One way, between two nodes."""
FAILOVER_DELAY_S = 0.010
RECOVERY_LIMIT_S = 4.0
FAILOVER_LIMIT_S = 2.5
LOAD_MB_S = 50.0
OBJECT_STORE_BYTES = 300 << 20


def measure(quick: bool) -> list[Figure]:
    """Figures at each delay, with the delay in their names."""
    if why := why_no_delay():
        return [skipped("over nodes", why)]
    figures: list[Figure] = []
    for delay_s in DELAYS_S[:1] if quick else DELAYS_S:
        figures += _named(_recovery(quick, delay_s), delay_s)
    return figures + _named(_failover(quick), FAILOVER_DELAY_S)


def _named(figures: list[Figure], delay_s: float) -> list[Figure]:
    where = f"{NODES} nodes, {delay_s * 1000:g} ms: "
    return [
        Figure(where + each.name, each.measured, each.target, each.met, each.value, each.note)
        for each in figures
    ]


@contextmanager
def _over_nodes(name: str, delay_s: float, **sections: Any) -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        network = NodeNetwork(
            Path(folder), NODES - 1, delay_s=delay_s, object_store_bytes=OBJECT_STORE_BYTES
        )
        try:
            network.start()
            where = {"ray": {"address": network.ray_address}, "tls": {"mode": "off"}}
            with cluster(name, **where, **sections) as database:
                yield database
        finally:
            ray.shutdown()
            network.end()


def _recovery(quick: bool, delay_s: float) -> list[Figure]:
    """A tablet server of one node is killed with its gigabyte, which comes back on the others."""
    total_bytes = GIGABYTE // 20 if quick else GIGABYTE
    partition = hash_partition("id", NODES * TABLETS_EACH)
    with _over_nodes(
        "recovery-nodes",
        delay_s,
        tservers={"count": NODES, "memory": "3GiB"},
        backups={"count": NODES},
    ) as database:
        table = database.create_table(
            "t", SCHEMA, key="id", partition=partition, durability=segments("disk", "disk")
        )
        victim = next(
            each for each in servers(database, "tserver") if not each["address"].startswith(HEAD)
        )
        tablets = [t for t in database.status()["tablets"] if t["leader"] == victim["id"]]
        figures = [_load(database, quick)]
        probes, count = fill(table, partition, {t["number"] for t in tablets}, total_bytes)
        wait_sealed(database)
        survivors = NODES - 1
        figures += kill(
            database, table, victim, probes, count, survivors, "native", RECOVERY_LIMIT_S
        )
        return figures


def _load(database: Any, quick: bool) -> Figure:
    """Rows of the head's client go into tablets of all nodes."""
    count = 100_000 if quick else 2_000_000
    data = rows(np.random.default_rng(7).permutation(count))
    table = database.create_table(
        "bulk",
        SCHEMA,
        key="id",
        partition=hash_partition("id", NODES * TABLETS_EACH),
        durability=segments("disk", "disk"),
    )
    taken_s = timed(lambda: table.load(data))
    database.delete_table("bulk")
    return at_least("bulk load", count * ROW_BYTES / 1e6 / taken_s, LOAD_MB_S, "MB/s")


def _failover(quick: bool) -> list[Figure]:
    """The leader of three replicas on three nodes is killed."""
    with _over_nodes(
        "failover-nodes", FAILOVER_DELAY_S, tservers={"count": TSERVERS, "memory": "512MiB"}
    ) as database:
        return pauses(database, 2 if quick else 5, FAILOVER_LIMIT_S)
