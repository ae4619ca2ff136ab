"""A Ray whose nodes have racks: copies are in different ones, and each server knows its own."""

from __future__ import annotations

import pytest

from stelae.core.records.records import ServerKind
from tests.nodes.networks import HEAD
from tests.nodes.over_nodes import OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]

RACKS = ("r1", "r1", "r2", "")
"""Of the head and of three nodes: the last one is a rack of its own."""
SPEC = {"placement": {"spread": ["node", "rack"]}}


def test_copies_are_in_different_racks(over_nodes: OverNodes) -> None:
    """Masters, replicas of tablets, and safekeepers: three of each, in three racks."""
    network = over_nodes.network
    assert HEAD in network.racks
    over_nodes.wait_writes("writes to every table")
    servers = over_nodes.servers()
    for server in servers.values():
        assert server["rack"] == network.racks.get(server["node"], "")
    rack_of = {name: server["rack"] for name, server in servers.items()}
    masters = [n for n, s in servers.items() if s["kind"] == ServerKind.MASTER.value]
    assert sorted(rack_of[name] for name in masters) == ["", "r1", "r2"]
    status = over_nodes.database.status()
    replicated = [t["replicas"] for t in status["tablets"] if "replicas" in t]
    assert len(replicated) == 4
    for replicas in replicated:
        assert sorted(rack_of[each["server"]] for each in replicas) == ["", "r1", "r2"]
    names = {s["safekeeper_id"]: n for n, s in servers.items() if s.get("safekeeper_id")}
    timelines = [t["timeline"] for t in status["tablets"] if t.get("timeline")]
    assert len(timelines) == 4
    for timeline in timelines:
        assert sorted(rack_of[names[each]] for each in timeline["sk_set"]) == ["", "r1", "r2"]
