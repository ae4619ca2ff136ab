"""Tables of replicas on real Ray, while tablet servers are killed again and again."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae import (
    Database,
    hash_and_range,
    hash_partition,
    range_partition,
    replicas,
)
from tests.cluster.row_clients import (
    VALUES,
    WELL_WITHIN_S,
    Client,
    check_by_command,
    check_failures,
    check_rows,
)
from tests.cluster.running import ClusterFixture

pytestmark = [pytest.mark.ray, pytest.mark.soak]

KILL_EVERY_S, KILLED_FOR_S = 5.0, 120.0
CLIENTS_PER_TABLE = 2
KEYS_PER_CLIENT = 50
PAUSE_MAX_S = 30.0
DAY = datetime.date(2020, 1, 1)
SHAPES: dict[str, dict[str, Any]] = {
    "hashed": {
        "schema": pa.schema([pa.field("id", pa.int64(), False), *VALUES]),
        "key": "id",
        "partition": hash_partition("id", 3),
    },
    "ranges": {
        "schema": pa.schema([pa.field("name", pa.string(), False), *VALUES]),
        "key": "name",
        "partition": range_partition("name", ["3", "6"]),
    },
    "both": {
        "schema": pa.schema(
            [pa.field("day", pa.date32(), False), pa.field("id", pa.int64(), False), *VALUES]
        ),
        "key": ["day", "id"],
        "partition": hash_and_range(
            hash_partition("id", 2), range_partition("day", [DAY + datetime.timedelta(days=50)])
        ),
    },
}


def keys_of(shape: str, client: int) -> list[dict[str, Any]]:
    """The key columns of a client's rows."""
    first = client * KEYS_PER_CLIENT
    return [key_of(shape, place) for place in range(first, first + KEYS_PER_CLIENT)]


def key_of(shape: str, place: int) -> dict[str, Any]:
    if shape == "hashed":
        return {"id": place}
    if shape == "ranges":
        return {"name": f"{place % 10}-{place}"}
    return {"day": DAY + datetime.timedelta(days=place), "id": place * 7919}


def test_tablet_servers_killed_every_five_seconds_lose_and_double_nothing(
    launch_small: Callable[..., Database],
    ray_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two minutes of kills under load: every acknowledged write stands, once; afterwards each
    tablet has three live voters that hold the same, and ``stelae check`` finds nothing."""
    db = launch_small("killed")
    tables = {
        shape: db.create_table(shape, **options, durability=replicas(3))
        for shape, options in SHAPES.items()
    }
    clients = [
        Client(table, f"{shape}-{number}", keys_of(shape, number))
        for shape, table in tables.items()
        for number in range(CLIENTS_PER_TABLE)
    ]
    for client in clients:
        client.start()
    cluster = ClusterFixture(db)
    began, killed, rng = time.monotonic(), 0, random.Random(5)
    while time.monotonic() - began < KILLED_FOR_S:
        time.sleep(KILL_EVERY_S)
        killed += bool(cluster.servers.kill_any("tserver", rng))
    for client in clients:
        client.end()
    check_failures(clients)
    report = cluster.check_whole(WELL_WITHIN_S)
    for each in report.tablets:
        assert [r.server_live and r.member == "voter" for r in each.tablet.replicas or ()] == (
            [True] * 3
        )
    rows = sum(
        check_rows([client for client in clients if client.table is table])
        for table in tables.values()
    )
    code, document = check_by_command(ray_folder / "killed")
    assert code == 0, document["findings"]
    writes = sum(len(client.acknowledged) for client in clients)
    pause_s = max(client.longest_pause_s() for client in clients)
    unknown = sum(client.unknown for client in clients)
    with capsys.disabled():
        print(
            f"\n{killed} kills; {writes} writes acknowledged, {unknown} of unknown outcome; "
            f"{rows} rows; longest pause of a client {pause_s:.2f} s"
        )
    assert killed >= KILLED_FOR_S / KILL_EVERY_S / 2
    assert pause_s < PAUSE_MAX_S
