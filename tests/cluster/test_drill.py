"""The operator's drill, as one story: everything that is ever done to a running cluster, one after
the other, while clients check each row that they write."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stelae
from stelae import Database, hash_partition, replicas, segments, wal
from stelae.core.schema.durability import Durability
from tests.cluster.row_clients import VALUES
from tests.cluster.running import ClusterFixture

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), *VALUES])
DURABILITIES: dict[str, Durability] = {
    "copied": replicas(3),
    "logged": segments("disk", "disk"),
    "walled": wal(3, ("disk", "disk")),
}
KEYS = 200
WRITES = 10
"""Of each client, before the next step: so each step meets rows of the one before."""
Spec = dict[str, Any]


class Drill:
    """A cluster under load, and its file."""

    def __init__(self, database: Database, spec: Spec) -> None:
        self.cluster = ClusterFixture(database)
        self.database, self.servers = database, self.cluster.servers
        self.load = self.cluster.load
        self.spec = spec
        for table, durability in DURABILITIES.items():
            made = database.create_table(
                table,
                SCHEMA,
                key="id",
                partition=hash_partition("id", 3),
                durability=durability,
                indexes=["number"] if table == "logged" else [],
            )
            for number, batch in enumerate((1, 20)):
                keys = [{"id": number * KEYS + n} for n in range(KEYS)]
                self.load.add(made, f"{table}-{number}", keys, batch=batch)
        self.load.start()

    def wait_writes(self, what: str) -> None:
        """All go on."""
        self.load.wait_each(what, WRITES)

    def apply(self, **changes: Any) -> list[str]:
        """Change parts of the file, and have the cluster made so; what was done for it."""
        self.spec = copy.deepcopy(self.spec)
        for part, change in changes.items():
            self.spec[part] = {**self.spec.get(part, {}), **change}
        done = self.database.apply(self.spec)
        assert done.is_done
        self.wait_writes(f"after {changes}")
        return [str(step).split(" (")[0] for step in done.steps]

    def timed(self, step: Callable[[Drill], None]) -> str:
        """Take a step; how long it took, and the longest pause of a client of each table in it."""
        began = time.monotonic()
        step(self)
        taken_s = time.monotonic() - began
        pauses = [
            f"{table} {self.load.longest_pause_s(table, began):.2f} s" for table in DURABILITIES
        ]
        return f"{step.__name__}: {taken_s:.1f} s; longest pauses: {', '.join(pauses)}"

    def wait_whole(self, what: str) -> None:
        """Nothing is missed anywhere any more."""
        found = self.database.check(wait=90.0)
        assert found.is_well, f"{what}: {found}"
        self.wait_writes(what)


def grow(drill: Drill) -> None:
    """Two tablet servers, a backup and a safekeeper more."""
    drill.apply(tservers={"count": 5}, backups={"count": 4}, safekeepers={"count": 4})
    assert len(drill.servers.live("tserver")) == 5


def lose_one(drill: Drill) -> None:
    """A tablet server's process dies with all that it has in memory."""
    victim = next(iter(drill.servers.live("tserver").values()))
    os.kill(victim["pid"], signal.SIGKILL)
    drill.wait_whole("after a tablet server was killed")


def retire_one(drill: Drill) -> None:
    """The last tablet server is to go: emptied first, by hand; then the file says so."""
    left = drill.database.retire_server("tserver-5")
    assert (left.replicas, left.tablets, left.segments) == (0, 0, 0)
    drill.wait_writes("beside a retired tablet server")
    assert drill.apply(tservers={"count": 4}) == ["remove tserver-5"]


def replace_a_backup(drill: Drill) -> None:
    """A backup's machine is replaced: its process and its disk are gone at once, and it comes back
    with an empty one."""
    victim = drill.servers.live("backup")["backup-2"]
    folder = Path(drill.spec["data_dir"], "backup-2")
    shutil.rmtree(folder)
    os.kill(victim["pid"], signal.SIGKILL)

    def is_another() -> bool:
        found = drill.servers.live("backup").get("backup-2", victim)
        return bool(found["uuid"] != victim["uuid"])

    drill.cluster.until(is_another, "a backup of that name with another disk")
    drill.wait_whole("after a backup was replaced")


def change_safekeepers(drill: Drill) -> None:
    """Logs of one table go to other safekeepers, of which the new one is one."""
    names = ["safekeeper-2", "safekeeper-3", "safekeeper-4"]
    ids = set(drill.database.safekeeper_ids(names))
    for scheduled in drill.database.migrate_table("walled", names):
        drill.database.wait_migrated(scheduled)
    views = drill.database.timelines("walled").timelines
    assert all(set(configuration.sk_set) == ids for _, _, configuration in views)
    drill.wait_writes("with other safekeepers")


def change_masters(drill: Drill) -> None:
    """Two masters more join the catalog's group, one at a time; then two leave it."""
    assert drill.apply(masters={"count": 5}) == ["add a master"] * 2
    assert len(drill.servers.wait_live("master", 5)) == 5
    drill.wait_writes("with five masters")
    done = drill.apply(masters={"count": 3})
    assert all(step.startswith("remove master-") for step in done), done
    drill.cluster.until(lambda: len(drill.servers.live("master")) == 3, "three masters")


def give_memory(drill: Drill) -> None:
    """Each tablet server is started again with more memory, one at a time."""
    names = sorted(drill.servers.live("tserver"))
    done = drill.apply(tservers={"memory": "224MiB"})
    assert done == [f"restart {name}" for name in names]


def renew_all(drill: Drill) -> None:
    """As for an upgrade: every process is started anew, one at a time."""
    for kind in ("safekeeper", "tserver", "master"):
        for name in sorted(drill.servers.live(kind)):
            before = drill.servers.live(kind)[name]["pid"]
            drill.database.restart_server(name)
            assert drill.servers.wait_live(kind, 3)[name]["pid"] != before
    done = drill.apply(media={"disk": {"path": "disk"}})  # and no memory: other values for backups
    assert done == [f"restart backup-{number}" for number in range(1, 5)]


def shrink(drill: Drill) -> None:
    """Back to what it was, by one file."""
    done = drill.apply(tservers={"count": 3}, backups={"count": 3})
    assert sorted(done) == [
        "drain backup-4", "drain tserver-4", "remove backup-4", "remove tserver-4",
    ]  # fmt: skip


STEPS: list[Callable[[Drill], None]] = [
    grow, lose_one, retire_one, replace_a_backup, change_safekeepers, change_masters, give_memory,
    renew_all, shrink,
]  # fmt: skip


def test_the_operators_drill_loses_nothing(tmp_path: Path) -> None:
    """Grow, lose, retire, replace, move logs, change masters and memory, start all again, shrink.

    Every client goes on after each step. In the end every row is as it must be, and so is every
    entry of the index. How long each step took is printed, and judged by nobody here.
    """
    spec: Spec = {
        "cluster": "drill",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 3},
        "tservers": {"count": 3, "memory": "160MiB"},
        "backups": {"count": 3},
        "safekeepers": {"count": 3},
        "serve": None,
        "spark": None,
    }
    with stelae.launch(spec) as database:
        drill = Drill(database, spec)
        try:
            drill.wait_writes("at the beginning")
            for step in STEPS:
                print(drill.timed(step), flush=True)
        finally:
            drill.load.stop()
        drill.load.end()
        for name in DURABILITIES:
            assert drill.load.check_rows(name) > KEYS / 4
        indexed = database.table("logged")
        row = next(row for row in indexed.scan().to_pylist())
        assert row in indexed.find("number", row["number"]).to_pylist()
        assert database.check(wait=30.0).is_well
