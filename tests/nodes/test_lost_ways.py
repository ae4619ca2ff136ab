"""Ways in which a node goes: its raylet before all else, its servers before it, and with its disks.

Clients write all the time to a table of each durability. The test judges no speed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.nodes.networks import RayNode
from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]

RAYLET_GONE_S = 5.0
"""Time for which the servers of a node run on without its raylet."""
SERVERS_GONE_S = 1.0
"""Time for which a raylet runs on without its servers."""
DATA_KINDS = {"tserver", "backup", "safekeeper"}


def processes_on(node: RayNode) -> list[psutil.Process]:
    """All processes of a node."""
    listed = subprocess.run(
        ["ip", "netns", "pids", node.namespace], capture_output=True, text=True, check=True
    )
    return [psutil.Process(int(pid)) for pid in listed.stdout.split()]


def live_on(over: OverNodes, node: RayNode) -> dict[str, str]:
    """UUIDs of the live servers on a node that have data, by name."""
    return {
        each["id"]: each["uuid"]
        for each in over.database.status()["servers"]
        if each["state"] == "live"
        and each["kind"] in DATA_KINDS
        and each["address"].partition(":")[0] == node.address
    }


def come_back(over: OverNodes, node: RayNode) -> None:
    over.wait_writes(f"without {node.address}")
    over.network.start_ray(node)
    over.wait_live()
    over.wait_writes(f"with {node.address} again")


def lose_raylet_first(over: OverNodes) -> None:
    """Ray takes the node for dead while its servers still run, and lease, and write."""
    node = over.leader_node()
    raylets = [each for each in processes_on(node) if each.name() == "raylet"]
    assert len(raylets) == 1
    raylets[0].kill()
    time.sleep(RAYLET_GONE_S)
    over.network.kill(node)
    come_back(over, node)


def lose_servers_first(over: OverNodes) -> None:
    """Ray begins to start servers again on a node that goes a moment later."""
    node = over.leader_node()
    pids = {
        each["pid"]
        for each in over.servers().values()
        if each["state"] == "live" and each["address"].partition(":")[0] == node.address
    }
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(SERVERS_GONE_S)
    over.network.kill(node)
    come_back(over, node)


def lose_disks_too(over: OverNodes) -> None:
    """The node comes back with a tablet server, a backup and a safekeeper that have nothing: each
    is a new server, and takes part again."""
    node = over.leader_node()
    former = live_on(over, node)
    assert {name.partition("-")[0] for name in former} == DATA_KINDS
    over.network.kill(node)
    for name in former:
        shutil.rmtree(Path(over.spec["data_dir"]) / name)
    over.wait_writes(f"without {node.address}")
    over.network.start_ray(node)

    def are_new() -> bool:
        now = live_on(over, node)
        return now.keys() == former.keys() and not set(now.values()) & set(former.values())

    over.cluster.until(are_new, "servers without data live as new ones")
    over.wait_writes("with new servers")


def test_a_node_is_lost_in_each_of_these_ways(over_nodes: OverNodes) -> None:
    """One after the other, under writers of every durability: each goes on, and nothing is lost."""
    over_nodes.wait_writes("before the first loss")
    for lose in (lose_raylet_first, lose_servers_first, lose_disks_too):
        lose(over_nodes)
    over_nodes.cluster.load.end()
    for name in DURABILITIES:
        assert over_nodes.cluster.load.check_rows(name)
    over_nodes.cluster.check_whole(LIMIT_S)
