"""A running cluster over several nodes, with a table of each durability and clients that write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae import Database, hash_partition, replicas, segments, wal
from tests.cluster.row_clients import VALUES
from tests.cluster.running import ClusterFixture
from tests.nodes.networks import HEAD, NodeNetwork, RayNode

LIMIT_S = 180.0
"""Upper bound of each wait: a healthy cluster on two cores needs a tenth of it."""
KEYS = 100
WRITES = 20
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), *VALUES])
DURABILITIES: dict[str, Any] = {
    "segmented": segments("disk", "disk"),
    "replicated": replicas(3),
    "walled": wal(3, ("disk", "disk")),
}


class OverNodes:
    """A running cluster with a table of each durability, and the clients that write to them."""

    def __init__(self, network: NodeNetwork, database: Database, spec: dict[str, Any]) -> None:
        self.network = network
        self.spec = spec
        self.database = database
        self.cluster = ClusterFixture(database, limit_s=LIMIT_S)
        for name, durability in DURABILITIES.items():
            table = database.create_table(
                name, SCHEMA, key="id", partition=hash_partition("id", 4), durability=durability
            )
            for number, batch in enumerate((1, 20)):
                keys = [{"id": number * KEYS + n} for n in range(KEYS)]
                self.cluster.load.add(table, f"{name}-{number}", keys, batch=batch)
        self.cluster.load.start()

    def servers(self) -> dict[str, dict[str, Any]]:
        """All servers by name, whatever their state."""
        return {server["id"]: server for server in self.database.status()["servers"]}

    def wait_writes(self, what: str) -> None:
        """Wait until each client has had more of its calls acknowledged."""
        self.cluster.load.wait_each(what, WRITES)

    def wait_live(self) -> None:
        """Wait until every server lives."""
        self.cluster.until(
            lambda: all(each["state"] == "live" for each in self.servers().values()), "all live"
        )

    def leader_node(self) -> RayNode:
        """A node with the leader of the masters, or, if that is on the head, with another one."""
        masters = [each for each in self.servers().values() if each["kind"] == "master"]
        masters.sort(key=lambda master: master["role"] != "leader")
        return next(
            self.network.node_at(each["address"])
            for each in masters
            if not each["address"].startswith(HEAD)
        )
