"""A cluster over the nodes of a Ray, each with an address of its own: spread, killed, cut off.

The tests share the cluster and run in order. Clients write all the time to a table of each
durability. Nothing is lost, and the cluster heals; the tests judge no speed.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import ray

from stelae import data
from stelae.actors.ray_host.node_selector import node_options
from stelae.core.addresses import NODE_ADDRESS
from tests.nodes.networks import HEAD
from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = pytest.mark.ray

CUT_S = 5.0
"""Seconds of a cut between nodes. Ray gives up a node that is silent for about 20 s."""
PER_NODE = ("tserver", "backup", "safekeeper")
"""Kinds of which each node, and the head, has one."""


def test_servers_are_spread_over_nodes_and_listen_at_their_addresses(
    over_nodes: OverNodes,
) -> None:
    """Without a placement in the spec: no two servers of a kind are on one node."""
    servers = over_nodes.servers().values()
    assert all(each["address"].partition(":")[0] == each["node"] for each in servers)
    there = {HEAD, *(node.address for node in over_nodes.network.nodes)}
    counts = Counter((each["kind"], each["node"]) for each in servers)
    assert set(counts.values()) == {1}
    assert {(kind, node) for kind in PER_NODE for node in there} <= counts.keys()


def test_a_task_on_any_node_reads_and_writes(over_nodes: OverNodes) -> None:
    """With the table that it was handed, from the node that it runs on."""
    table = over_nodes.database.create_table(
        "tasks", pa.schema([pa.field("node", pa.string(), False)]), key="node"
    )

    def work(door: Any) -> str:
        here = str(ray.util.get_node_ip_address())
        door.upsert({"node": here}, timeout=60.0)
        return str(door.get(here, timeout=60.0)["node"])

    there = [HEAD, *(node.address for node in over_nodes.network.nodes)]
    task = ray.remote(work)
    running = [
        task.options(num_cpus=0, **node_options({NODE_ADDRESS: address})).remote(table)
        for address in there
    ]
    assert ray.get(running, timeout=LIMIT_S) == there
    assert sorted(table.scan()["node"].to_pylist()) == sorted(there)


def test_a_task_runs_next_to_a_tablet(over_nodes: OverNodes) -> None:
    """On the node that serves it; the nodes of all replicas are told."""
    table = over_nodes.database.table("replicated")
    places = table.locations()
    nodes = {HEAD, *(node.address for node in over_nodes.network.nodes)}
    assert all(len(place.replica_nodes) == 3 for place in places)
    assert all({place.node, *place.replica_nodes} <= nodes for place in places)
    here = ray.remote(lambda: str(ray.util.get_node_ip_address()))
    tasks = [here.options(num_cpus=0, **data.next_to(place)).remote() for place in places]
    assert ray.get(tasks, timeout=LIMIT_S) == [place.node for place in places]


def test_a_node_is_killed_whole_and_comes_back_with_its_disk(over_nodes: OverNodes) -> None:
    """A node with a master, the leader if it may be: writes to all tables go on. Back, on another
    raylet, all of its servers are who they were."""
    over_nodes.wait_writes("before the kill")
    before = over_nodes.servers()
    node = over_nodes.leader_node()
    over_nodes.network.kill(node)
    over_nodes.wait_writes(f"without {node.address}")
    over_nodes.network.start_ray(node)
    over_nodes.wait_live()
    after = over_nodes.servers()
    assert {name: (each["uuid"], each["node"]) for name, each in after.items()} == {
        name: (each["uuid"], each["node"]) for name, each in before.items()
    }
    restarted = {name for name in before if before[name]["pid"] != after[name]["pid"]}
    assert restarted == {name for name, each in before.items() if each["node"] == node.address}


def test_nodes_that_are_cut_off_heal(over_nodes: OverNodes) -> None:
    """One node does not reach another one, which reaches it; then one is cut off from all."""
    first, second = over_nodes.network.nodes[:2]
    with over_nodes.network.deaf(first, second):
        time.sleep(CUT_S)
        over_nodes.wait_writes(f"while {first.address} does not reach {second.address}")
    with over_nodes.network.apart(second):
        time.sleep(CUT_S)
    over_nodes.wait_live()
    over_nodes.wait_writes("after the cuts")


def test_nothing_was_lost(over_nodes: OverNodes) -> None:
    """Every row is as it was acknowledged, no client met an error, and nothing is missing."""
    over_nodes.cluster.load.end()
    for name in DURABILITIES:
        assert over_nodes.cluster.load.check_rows(name)
    over_nodes.cluster.check_whole(LIMIT_S)
