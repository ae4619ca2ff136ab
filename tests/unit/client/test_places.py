"""Where tablets are, as callers are told that run next to their rows."""

from __future__ import annotations

import pytest

from stelae.client.table.places import TabletPlace, tablet_place
from stelae.core.addresses import host_of
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import ReplicaLocation, TabletLocation
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.records.replication import Configuration


def location(address: str, replicas: dict[str, bool] | None = None) -> TabletLocation:
    """A tablet at an address; with replicas by their addresses, and whether they vote."""
    record = TabletRecord(
        TabletId("t"),
        TableId("u"),
        4,
        TabletState.RUNNING,
        1,
        ServerUuid("s"),
        0,
        configuration=None if replicas is None else Configuration(OpId(1, 1), ()),
    )
    found = tuple(
        ReplicaLocation(ServerUuid(each), Address(each), votes)
        for each, votes in (replicas or {}).items()
    )
    return TabletLocation(record, Address(address), replicas=found)


@pytest.mark.parametrize(
    ("where", "node", "replicas"),
    [
        (location("10.0.0.1:7"), "10.0.0.1", ("10.0.0.1",)),
        (location("[fd00::1]:7"), "fd00::1", ("fd00::1",)),
        (location(""), "", ()),
        (
            location("10.0.0.1:7", {"10.0.0.2:7": True, "10.0.0.1:7": True, "10.0.0.3:7": False}),
            "10.0.0.1",
            ("10.0.0.2", "10.0.0.1"),
        ),
        (location("", {"10.0.0.2:7": True, "10.0.0.2:8": True}), "", ("10.0.0.2",)),
    ],
)
def test_a_place_names_nodes(where: TabletLocation, node: str, replicas: tuple[str, ...]) -> None:
    """Of a tablet that nobody serves no node; of replicas those that vote, each node once."""
    assert tablet_place(where) == TabletPlace("t", 4, node, replicas)
    assert host_of(where.address) == node
