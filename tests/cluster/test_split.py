"""A tablet that is too large is split at its recovery, on real Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae import Database, segments
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.backups import INVENTORY, Inventory
from tests.cluster.running import LIMIT_S, ClusterFixture
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

ROWS = 40_000
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("text", pa.string()), ("number", pa.int64())]
)


@pytest.fixture(scope="module")
def db(launch_small: Callable[..., Database]) -> Database:
    return launch_small("split", recovery={"split_above": "1MiB"})


def tablets_of(db: Database) -> list[dict[str, Any]]:
    return [each for each in db.status()["tablets"] if each["table"] == "rows"]


def are_served(db: Database) -> bool:
    found = tablets_of(db)
    return len(found) == 2 and all(each["progress"] == "serving" for each in found)


def logs_on_backups(cluster: ClusterFixture) -> set[str]:
    """Of which tablets they hold something."""
    db = cluster.database
    runtime = db._database.runtime
    backups = cluster.servers.live("backup").values()

    async def ask() -> set[str]:
        held: set[str] = set()
        for server in backups:
            reply = await runtime.peers.call(
                Address(server["address"]),
                INVENTORY,
                Inventory(),
                timeout_s=10.0,
                destination=ServerUuid(server["uuid"]),
            )
            held |= {log.tablet_id for log in reply.body.logs if log.replicas}
        return held

    return db._loop.run(ask())


def test_two_servers_take_over_a_tablet_of_one_that_was_killed(db: Database) -> None:
    """All rows are there at once, by key and by scan, each part at its own server; soon the parts
    inherit nothing any more, and backups let the split tablet's log go. What was written to them
    since outlives the next kill."""
    table = db.create_table("rows", SCHEMA, key="id", durability=segments("disk", "disk"))
    values = {"id": range(ROWS), "text": [f"row {n} " + "x" * 80 for n in range(ROWS)]}
    table.load(pa.table({**values, "number": [0] * ROWS}, schema=SCHEMA))
    table.delete(list(range(100)))
    (before,) = tablets_of(db)
    cluster = ClusterFixture(db)
    kill(cluster, before["leader"])
    until(lambda: are_served(db), LIMIT_S, "two parts are served")
    assert len({each["leader"] for each in tablets_of(db)}) == 2
    check_all(table, {})
    changed = {n: n for n in range(500, 900)}
    table.upsert([{"id": n, "text": f"row {n} " + "x" * 80, "number": n} for n in changed])
    until(lambda: not any(each["inherits"] for each in tablets_of(db)), LIMIT_S, "they are whole")
    until(lambda: before["id"] not in logs_on_backups(cluster), LIMIT_S, "its log is freed")
    check_all(table, changed)
    kill(cluster, tablets_of(db)[0]["leader"])
    until(lambda: all_serve(db), LIMIT_S, "all is served again")
    check_all(table, changed)


def kill(cluster: ClusterFixture, name: str) -> None:
    pid = cluster.servers.kill(name)
    assert pid, f"{name} does not live"
    live = cluster.servers.live
    until(lambda: pid not in [s["pid"] for s in live().values()], LIMIT_S, f"{name} is gone")


def all_serve(db: Database) -> bool:
    return all(each["progress"] == "serving" for each in tablets_of(db))


def check_all(table: Any, changed: dict[int, int]) -> None:
    """Every row once, as it was written last; those deleted are not there."""
    found = table.scan()
    assert sorted(found["id"].to_pylist()) == list(range(100, ROWS))
    numbers = dict(zip(found["id"].to_pylist(), found["number"].to_pylist(), strict=True))
    assert {n: number for n, number in numbers.items() if number} == changed
    assert table.get_many([0, 99, 100, ROWS - 1]).num_rows == 2
    assert table.get(777)["text"].startswith("row 777 ")
