"""`stelae.client.http.records`: what a description as JSON says is what the record said."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from stelae.client.http.records import table_record, tablet_location
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import ReplicaLocation, TabletLocation
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.records.replication import Configuration, Peer
from stelae.core.schema.durability import Durability, checked, media_of, replicas, segments, wal
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.serve.routes.tables import describe_location, describe_table

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])


@pytest.mark.parametrize(
    "durability", [segments(), segments("disk", "ram"), replicas(5), wal(3, ["ram"])]
)
def test_tables_of_each_durability_come_back_as_they_were(durability: Durability) -> None:
    """Requests and answers say ``{"segments": [...]}``, ``{"replicas": n}``, or both of ``wal``."""
    table = TableRecord(TableId("T"), "t", SCHEMA, Partitioning(), durability, TableState.RUNNING)
    assert table_record(json.loads(json.dumps(describe_table(table)))) == table
    assert checked(durability) == durability
    assert media_of(durability) == getattr(durability, "media", ())


def test_a_location_comes_back_with_its_replicas() -> None:
    """Members, leader and configuration, as the masters gave them."""
    a, b = ServerUuid("a"), ServerUuid("b")
    peers = (Peer(a, Address("a:1"), True, "a"), Peer(b, Address("b:1")))
    tablet = TabletRecord(
        TabletId("t"),
        TableId("T"),
        0,
        TabletState.RUNNING,
        0,
        ServerUuid(""),
        0,
        configuration=Configuration(OpId(3, 4), peers),
    )
    found = (
        ReplicaLocation(a, Address("a:1"), True, is_leader=True),
        ReplicaLocation(b, Address(""), False),
    )
    location = TabletLocation(tablet, Address("a:1"), "", found)
    assert tablet_location(json.loads(json.dumps(describe_location(location)))) == location


@pytest.mark.parametrize("count", [0, 2, 4, 9, -1, True, "3"])
def test_an_impossible_number_of_replicas_is_refused(count: int) -> None:
    """Odd, and no more than seven."""
    with pytest.raises(InvalidArgument):
        replicas(count)
