"""A node that stays away: its servers are started on other nodes, and nothing runs twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stelae.runtime.files import LOCK_FILE
from tests.nodes.networks import RayNode
from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes
from tests.until import NO_LEADER, until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SPEC = {"placement": {"spread": "node", "replace_after": "20s"}}
REPLACED_S = 400.0
"""Upper bound of the replacement of all servers of a node, one after the other."""


def servers_on(node: RayNode) -> list[str]:
    """Names of the servers of which a process runs on a node, by the locks that they hold."""
    pids = subprocess.run(
        ["ip", "netns", "pids", node.namespace], capture_output=True, text=True, check=True
    ).stdout.split()
    found = []
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                file = descriptor.readlink()
            except FileNotFoundError:
                continue  # it has just ended, or closed the file
            if file.name == LOCK_FILE:
                found.append(file.parent.name)
    return sorted(found)


def test_servers_of_a_node_that_stays_away_are_started_elsewhere(over_nodes: OverNodes) -> None:
    """With new UUIDs, one after the other, under writes. The masters refuse the former UUIDs. When
    the node returns, only its master runs there; no row is lost; and an apply has nothing to do."""
    over = over_nodes
    over.wait_writes("before the kill")
    before = over.servers()
    node = over.leader_node()
    there = {name: each for name, each in before.items() if each["node"] == node.address}
    moved = {name for name, each in there.items() if each["kind"] != "master"}
    assert {before[name]["kind"] for name in moved} == {"tserver", "backup", "safekeeper"}
    assert servers_on(node) == sorted(there)
    over.network.kill(node)

    def are_elsewhere() -> bool:
        now = over.servers()
        return all(
            name in now
            and now[name]["state"] == "live"
            and now[name]["node"] != node.address
            and now[name]["uuid"] != before[name]["uuid"]
            for name in moved
        )

    until(are_elsewhere, REPLACED_S, "all are elsewhere", retried=NO_LEADER)
    over.wait_writes(f"without {node.address}")
    after = over.servers()
    fenced = over.database.status()["replaced"]
    assert {each["uuid"]: each["successor"] for each in fenced} == {
        before[name]["uuid"]: after[name]["uuid"] for name in moved
    }

    over.network.start_ray(node)
    over.wait_live()
    assert servers_on(node) == sorted(there.keys() - moved)
    assert {name: each["uuid"] for name, each in over.servers().items()} == {
        name: each["uuid"] for name, each in {**before, **{n: after[n] for n in moved}}.items()
    }
    over.cluster.load.end()
    for name in DURABILITIES:
        assert over.cluster.load.check_rows(name)
    over.cluster.check_whole(LIMIT_S)
    assert not over.database.apply(over.spec).steps
