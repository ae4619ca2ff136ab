"""The node of Ray's head hangs for a minute, with its GCS and the servers that it has.

Clients write all the time to a table of each durability, and go on. The test judges no speed.
"""

from __future__ import annotations

import time

import pytest

from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]

AWAY_S = 60.0
LOOKS = 12
"""Times within the minute at which each client has to have had writes acknowledged since."""


def test_reads_and_writes_go_on_while_the_head_is_away(over_nodes: OverNodes) -> None:
    """Tables need no GCS. The servers of the head count as dead; when they go on, they find that
    others have taken over, and nothing is lost."""
    over_nodes.wait_writes("before the head goes away")
    with over_nodes.network.head_away():
        until_s = time.monotonic() + AWAY_S
        for look in range(LOOKS):
            over_nodes.wait_writes(f"while the head is away, look {look}")
            assert over_nodes.database.table("replicated").get(0, max_staleness=60.0) is not None
            time.sleep(max(0.0, until_s - time.monotonic()) / (LOOKS - look))
    over_nodes.wait_live()
    over_nodes.wait_writes("after the head is back")
    over_nodes.cluster.load.end()
    for name in DURABILITIES:
        assert over_nodes.cluster.load.check_rows(name)
    over_nodes.cluster.check_whole(LIMIT_S)
