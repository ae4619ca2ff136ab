"""Recovery by Spark, with the session and its executors on nodes with addresses of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import stelae
import stelae.spark
from tests.cluster.running import ClusterFixture
from tests.nodes.networks import HEAD, NodeNetwork

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.soak]

ROWS = 100_000
ATTEMPTS = 3
SPARK_HOST = "ray::SparkHost"
"""Name of the process of the actor that has the session."""
LIMIT_S = 180.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])


@pytest.fixture(scope="module")
def cluster(
    network: NodeNetwork, ray_folder: Path, small_spec: Callable[..., dict[str, Any]]
) -> Iterator[ClusterFixture]:
    """A warm session of two executors beside servers on each node."""
    servers = len(network.nodes) + 1
    spec = small_spec(
        ray_folder / "spark",
        ray={"address": network.ray_address},
        tservers={"count": servers, "memory": "128MiB"},
        backups={"count": servers},
        spark={"executors": 2, "cores": 1, "memory": "512MiB", "warm": True},
        recovery={"engine": "spark"},
        timings={"dead_after": "4s"},
    )
    with stelae.launch(spec) as database:
        yield ClusterFixture(database, limit_s=LIMIT_S)


def test_spark_recovers_the_tablets_of_a_server_on_another_node(cluster: ClusterFixture) -> None:
    """Every row is there after each kill, and Spark carries a recovery out.

    The masters have the owners merge if Spark takes much longer than expected, as it may on a busy
    machine. Spark therefore has `ATTEMPTS` recoveries to finish one.
    """
    database = cluster.database
    table = database.create_table(
        "rows", SCHEMA, key="id", partition=stelae.hash_partition("id", 8)
    )
    ids = pa.array(range(ROWS))
    table.load(pa.table([ids, ids.cast(pa.string())], schema=SCHEMA))
    expected = table.scan().sort_by("id")
    engines = []
    for number in range(ATTEMPTS):
        stelae.spark.warm(database)
        there = cluster.servers.victims("tserver")
        victims = there or list(cluster.servers.wait_live("tserver", 1).values())
        cluster.servers.replace(victims)
        assert table.scan().sort_by("id").equals(expected), f"kill {number}"
        found = cluster.until(
            lambda: next(
                (r for r in database.status()["recoveries"] if r["state"] == "done"), None
            ),
            "a recovery is done",
        )
        assert all(not tablet["problem"] for tablet in found["tablets"])
        engines.append((victims[0]["address"], found["engine"], found["engines"]))
        if found["engine"] == "spark":
            break
    assert engines[-1][1] == "spark", engines
    print("recovered by Spark:", engines[-1], "head:", HEAD)


def test_the_node_of_the_session_is_lost_within_a_recovery(
    cluster: ClusterFixture, network: NodeNetwork
) -> None:
    """The masters have the owners merge what Spark does not answer for. Every row is there."""
    database = cluster.database
    table = database.table("rows")
    expected = table.scan().sort_by("id")
    stelae.spark.warm(database)
    (host,) = [
        each.pid for each in psutil.process_iter() if each.name().startswith(SPARK_HOST[:15])
    ]
    session = network.address_of(host)
    tservers = cluster.servers.wait_live("tserver", len(network.nodes) + 1).values()
    victim = next(each for each in tservers if each["node"] != session and each.get("tablets"))
    cluster.servers.kill(victim["id"])
    with network.lost(session):
        assert table.scan(timeout=LIMIT_S).sort_by("id").equals(expected)
