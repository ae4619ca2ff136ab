"""A tablet server dies, and the node of the configuration store within the recovery of its tablets.

Clients write all the time to a table of each durability. The test judges no speed.
"""

from __future__ import annotations

import pytest

from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]


def test_the_node_of_the_configuration_store_is_lost_within_a_recovery(
    over_nodes: OverNodes,
) -> None:
    """Its rows are on that node alone, as it keeps them in SQLite. What needs them waits for it;
    all tables are served again before it is back, and nothing is lost."""
    over = over_nodes
    over.wait_writes("before the kills")
    servers = over.servers().values()
    (store,) = [each for each in servers if each["kind"] == "cas_store"]
    victim = next(
        each for each in servers if each["kind"] == "tserver" and each["node"] != store["node"]
    )
    over.cluster.servers.kill(victim["id"])
    with over.network.lost(store["node"]):
        over.wait_writes(f"without {victim['id']} and {store['node']}")
    over.wait_live()
    over.cluster.load.end()
    for name in DURABILITIES:
        assert over.cluster.load.check_rows(name)
    over.cluster.check_whole(LIMIT_S)
