"""Masters of a live cluster on real Ray: added under load, the leader removed, one replaced."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import stelae
from stelae import errors
from stelae.deploy.masters import scale_masters

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])


class Load:
    """A client that writes, and creates and deletes tables, until told to stop."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self.tables = 0
        self.problems: list[BaseException] = []
        self._stop = threading.Event()
        self._database = stelae.connect(folder)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._database as database:
                table = database.create_table("load", SCHEMA, key="id")
                while not self._stop.is_set():
                    table.upsert({"id": self.rows, "name": f"row {self.rows}"})
                    self.rows += 1
                    if self.rows % 50 == 0:
                        database.create_table(f"t{self.tables}", SCHEMA, key="id", timeout=20.0)
                        database.delete_table(f"t{self.tables}", timeout=20.0)
                        self.tables += 1
        except BaseException as error:
            self.problems.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "the load hangs"
        assert not self.problems, self.problems


@contextmanager
def under_load(folder: Path) -> Iterator[Load]:
    load = Load(folder)
    try:
        yield load
    finally:
        load.stop()


def leader_of(database: Any) -> dict[str, Any]:
    return next(s for s in database.status()["servers"] if s.get("role") == "leader")


def names(database: Any) -> list[str]:
    return [member["name"] for member in database.masters()]


def test_masters_are_added_removed_and_replaced_while_clients_work(
    ray_folder: Path, launch_small: Callable[..., Any]
) -> None:
    """Three to four, the leader goes, one is killed for good and replaced; nothing fails or is
    lost, and a cluster launched again on the same folder has the masters it had."""
    folder = ray_folder / "members"
    database = launch_small("members")
    with under_load(folder) as load:
        members = database.add_master()
        assert [(m["name"], m["voter"]) for m in members] == [
            (f"master-{number}", True) for number in (1, 2, 3, 4)
        ]
        leader = leader_of(database)
        members = database.remove_master(leader["id"])
        assert leader["id"] not in [m["name"] for m in members]
        assert not psutil.pid_exists(leader["pid"])

        victim = next(
            s
            for s in database.status()["servers"]
            if s["kind"] == "master" and s["role"] == "follower"
        )
        psutil.Process(victim["pid"]).kill()
        database.add_master("master-9")
        members = database.remove_master(victim["uuid"])
        assert "master-9" in [m["name"] for m in members]
        assert victim["uuid"] not in [m["uuid"] for m in members]
        assert all(m["voter"] for m in members)
    assert load.rows > 50
    state = json.loads((folder / "cluster.json").read_text())
    assert sorted(state["masters"]) == names(database)
    with pytest.raises(errors.InvalidArgument, match="there is no master 'nobody'"):
        database.remove_master("nobody")
    with pytest.raises(errors.InvalidArgument, match="there is a master 'master-9' already"):
        database.add_master("master-9")
    with stelae.connect("test") as found:
        assert found["load"].get(load.rows - 1) is not None
    expected = names(database)
    database.close()

    database = launch_small("members")
    assert names(database) == expected
    assert database["load"].get(load.rows - 1) == {
        "id": load.rows - 1,
        "name": f"row {load.rows - 1}",
    }
    scale_masters(database, 5)
    assert len(names(database)) == 5
    scale_masters(database, 3)
    assert len(names(database)) == 3
    database["load"].upsert({"id": -1, "name": "after all that"})
    database.close()
