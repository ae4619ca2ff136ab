"""Nodes that are 10 ms apart and lose one frame of a hundred: nothing is lost, and all heals.

Clients write all the time to a table of each durability. The test judges no speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.nodes.networks import NodeNetwork, why_no_delay
from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]
NODES = 3
DELAY_S = 0.010
LOSS = 0.01
CUT_S = 5.0


@pytest.fixture(scope="module")
def network(ray_folder: Path) -> Iterator[NodeNetwork]:
    """In place of the one without delays."""
    if why := why_no_delay():
        pytest.skip(why)
    made = NodeNetwork(ray_folder, NODES, delay_s=DELAY_S, loss=LOSS)
    try:
        made.start()
        yield made
    finally:
        ray.shutdown()
        made.end()


def test_writes_go_on_over_slow_links_that_lose_frames(over_nodes: OverNodes) -> None:
    """Of each client, whatever its durability; no server is taken for dead for good."""
    over_nodes.wait_writes("writes over slow links")
    over_nodes.wait_live()


def test_a_node_that_dies_among_slow_links_costs_nothing(over_nodes: OverNodes) -> None:
    """The node of the leader of the masters, with a server of each kind; it comes back."""
    node = over_nodes.leader_node()
    over_nodes.network.kill(node)
    over_nodes.wait_writes("writes after the death of a node")
    over_nodes.network.start_ray(node)
    over_nodes.wait_live()
    over_nodes.cluster.load.end()
    for name in DURABILITIES:
        assert over_nodes.cluster.load.check_rows(name)
    over_nodes.cluster.check_whole(LIMIT_S)
