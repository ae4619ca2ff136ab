"""Random masters on real Ray are killed again and again while clients create and delete tables."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from stelae import Database, errors, hash_partition
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

KILL_EVERY_S, KILLED_FOR_S = 2.0, 60.0
WHOLE_AFTER_S = 60.0
CALL_TIMEOUT_S = 30.0
CLIENTS = 2
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("maker", pa.string())])


class DdlLoad(threading.Thread):
    """One client: creates and deletes tables of its own, and knows which of them must be there."""

    def __init__(self, db: Database, name: str) -> None:
        super().__init__(name=name)
        self.tables: dict[str, bool] = {}
        """What was acknowledged; False where nobody can tell."""
        self.changes = 0
        self.unclear = 0
        self.failure: BaseException | None = None
        self._db = db
        self._rng = random.Random(name)
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._change(f"{self.name}-{self._rng.randrange(6)}")
                listed = self._db.tables()
                lost = [t for t, is_sure in self.tables.items() if is_sure and t not in listed]
                assert not lost, f"acknowledged, and not listed: {lost}"
        except BaseException as error:
            self.failure = error

    def _change(self, table: str) -> None:
        try:
            if table in self.tables:
                self._db.delete_table(table, timeout=CALL_TIMEOUT_S)
                del self.tables[table]
            else:
                self._db.create_table(
                    table,
                    SCHEMA,
                    key="id",
                    partition=hash_partition("id", 2),
                    timeout=CALL_TIMEOUT_S,
                ).insert({"id": 1, "maker": self.name}, timeout=CALL_TIMEOUT_S)
                self.tables[table] = True
            self.changes += 1
        except (errors.TableExists, errors.TableNotFound):
            assert not self.tables.get(table, True), f"{table} is not what its only client made it"
            self.tables.pop(table)  # settled: it came to be, or it is gone
        except (errors.OutcomeUnknown, errors.RetryLater):
            self.tables[table] = False
            self.unclear += 1

    def end(self) -> None:
        self._end.set()
        self.join()


def is_whole(db: Database) -> bool:
    status = db.status()
    running = all(tablet["state"] == "running" for tablet in status["tablets"])
    return running and all(server["state"] == "live" for server in status["servers"])


def test_masters_killed_every_two_seconds_lose_and_double_nothing(
    launch_small: Callable[..., Database],
) -> None:
    """After a minute of kills under DDL all that was acknowledged is there, once, and is served."""
    db, rng = launch_small("killed-masters"), random.Random(7)
    clients = [DdlLoad(db, f"c{number}") for number in range(CLIENTS)]
    for client in clients:
        client.start()
    began, kills = time.monotonic(), 0
    while time.monotonic() - began < KILLED_FOR_S:
        time.sleep(KILL_EVERY_S)
        masters = [s for s in db.status()["servers"] if s["kind"] == "master"]
        live = [master for master in masters if master["state"] == "live"]
        if len(live) == len(masters):  # of three masters a majority must live to answer anything
            os.kill(rng.choice(live)["pid"], signal.SIGKILL)
            kills += 1
    for client in clients:
        client.end()
        assert client.failure is None, f"{client.name}: {client.failure!r}"
    what = "all servers live and all tablets served"
    until(lambda: is_whole(db), WHOLE_AFTER_S, what, poll_s=0.1)
    listed = db.tables()
    assert len(listed) == len(set(listed)), f"a name twice: {sorted(listed)}"
    known = {name: is_sure for client in clients for name, is_sure in client.tables.items()}
    assert {name for name, is_sure in known.items() if is_sure} <= set(listed)
    assert set(listed) <= set(known), "a table that nobody made, or that was deleted"
    for name, is_sure in known.items():
        if is_sure:
            assert db.table(name).get(1, timeout=CALL_TIMEOUT_S) == {
                "id": 1,
                "maker": name.partition("-")[0],
            }
    changes = sum(client.changes for client in clients)
    assert kills >= 10, f"only {kills} kills: the masters did not come back in time"
    assert changes >= 40, f"only {changes} changes in {KILLED_FOR_S:g} s"
