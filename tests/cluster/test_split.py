"""A tablet that is too large is split at its recovery, on real Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae import Database, segments
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.backups import INVENTORY, Inventory

pytestmark = [pytest.mark.ray, pytest.mark.soak]

LIMIT_S = 60.0
POLL_S = 0.1
ROWS = 40_000
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("text", pa.string()), ("number", pa.int64())]
)


@pytest.fixture(scope="module")
def db(launch_small: Callable[..., Database]) -> Database:
    return launch_small("split", recovery={"split_above": "1MiB"})


def until(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"not within {LIMIT_S:g} s: {what}")


def tablets_of(db: Database) -> list[dict[str, Any]]:
    return [each for each in db.status()["tablets"] if each["table"] == "rows"]


def are_served(db: Database) -> bool:
    found = tablets_of(db)
    return len(found) == 2 and all(each["progress"] == "serving" for each in found)


def logs_on_backups(db: Database) -> set[str]:
    """Of which tablets they hold something."""
    runtime = db._database.runtime
    backups = [server for server in live_servers(db) if server["kind"] == "backup"]

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
    kill(db, before["leader"])
    until("two parts are served", lambda: are_served(db))
    assert len({each["leader"] for each in tablets_of(db)}) == 2
    check_all(table, {})
    changed = {n: n for n in range(500, 900)}
    table.upsert([{"id": n, "text": f"row {n} " + "x" * 80, "number": n} for n in changed])
    until("they are whole", lambda: not any(each["inherits"] for each in tablets_of(db)))
    until("its log is freed", lambda: before["id"] not in logs_on_backups(db))
    check_all(table, changed)
    kill(db, tablets_of(db)[0]["leader"])
    until("all is served again", lambda: all_serve(db))
    check_all(table, changed)


def kill(db: Database, name: str) -> None:
    (pid,) = [s["pid"] for s in db.status()["servers"] if s["id"] == name and s["state"] == "live"]
    os.kill(pid, signal.SIGKILL)
    until(f"{name} is gone", lambda: pid not in [s["pid"] for s in live_servers(db)])


def live_servers(db: Database) -> list[dict[str, Any]]:
    return [s for s in db.status()["servers"] if s["state"] == "live"]


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
