"""A table on real Ray gets each durability in turn while clients write it, and servers are killed.

No row has a home in common with its former one: each tablet makes way for a successor, with a log
of another kind, or the same kind on other media.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae import Database, Table, errors, replicas, segments
from stelae.core.schema.durability import Durability
from stelae.core.schema.own_tables import is_own_table
from tests.cluster.row_clients import WELL_WITHIN_S, check_by_command
from tests.cluster.running import ClusterFixture, ServerProcesses
from tests.cluster.wal_faults import BATCHES, KEYS_PER_CLIENT, MEMBERS, WAL, LoadedTable
from tests.until import NO_LEADER, until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SPEC: dict[str, Any] = {
    "tservers": {"count": 4, "memory": "256MiB"},
    "safekeepers": {"count": MEMBERS + 1},
}
BUCKETS = 3
SEGMENTS, REPLICAS = segments("disk", "disk"), replicas(MEMBERS)
ROUND: tuple[Durability, ...] = (WAL, REPLICAS, SEGMENTS)
ALTERED_WITHIN_S = 60.0
KILL_EVERY_S, KILLED_FOR_S = 3.0, 75.0
MIDWAY_S = 1.0
"""An alter is taken back within so long after it was begun."""
STILL_ROWS = 20_000
"""Rows that nobody changes, so that an alter takes a while."""
FIRST_STILL = len(BATCHES) * KEYS_PER_CLIENT


class Alters:
    """Alters of the table of a load, each waited for; and what clients saw meanwhile."""

    def __init__(self, cluster: ClusterFixture, table: Table) -> None:
        self.cluster = cluster
        self.load = cluster.load
        self.table = table
        self.durability: Durability = SEGMENTS
        self.done: list[str] = []
        """In words."""
        self.spans: list[tuple[float, float]] = []
        """When each began and ended."""
        self.taken_back = 0

    def to(self, wanted: Durability) -> None:
        """Alter the table, and wait; what is not known to be done is asked for again."""
        began, writes = time.monotonic(), self.load.writes
        self._order(wanted, wait=True)
        self.spans.append((began, time.monotonic()))
        clients = self.load.clients
        pause_s = max(client.longest_pause_s(began) for client in clients)
        read_s = max(client.longest_read_s(began) for client in clients)
        self.done.append(
            f"{self.durability} to {wanted}: {self.spans[-1][1] - began:.1f} s, "
            f"{self.load.writes - writes} writes, longest pause of a writer {pause_s:.2f} s, "
            f"of a reader {read_s:.2f} s"
        )
        self.durability = wanted
        self._is_done()

    def there_and_back(self, wanted: Durability, after_s: float) -> None:
        """Alter it, and back before that is done, or else thereafter."""
        began = time.monotonic()
        self._order(wanted, wait=False)
        time.sleep(after_s)
        if not self.cluster.until(self._look, "the masters answer")[0]:
            self.taken_back += 1
        self._order(self.durability, wait=True)
        self.spans.append((began, time.monotonic()))
        self._is_done()

    def _look(self) -> tuple[bool]:
        return (self.table.is_alter_done(),)

    def _order(self, wanted: Durability, *, wait: bool) -> None:
        def order() -> bool:
            try:
                self.table.alter(durability=wanted, wait=wait, timeout=ALTERED_WITHIN_S)
            except errors.OutcomeUnknown:
                return False
            return True

        until(order, ALTERED_WITHIN_S, f"the table has {wanted}", retried=NO_LEADER)

    def _is_done(self) -> None:
        """The table has what it should, wherever one looks, and serves."""
        assert self._look() == (True,)
        tables = self.cluster.database.status()["tables"]
        (table,) = [each for each in tables if not is_own_table(each["name"])]
        assert (table["durability"], table["becoming"]) == (str(self.durability), None)
        self.load.wait_writes(f"with {self.durability}")


class Killer(threading.Thread):
    """Kills one server after the other until it is told to end: each kind in turn, and whoever
    leads the masters."""

    def __init__(self, servers: ServerProcesses) -> None:
        super().__init__(name="killer")
        self.killed: list[float] = []
        """When."""
        self.failure: BaseException | None = None
        self._servers, self._rng, self._end = servers, random.Random(13), threading.Event()

    def run(self) -> None:
        kinds = itertools.cycle(
            ["tserver", "master", "safekeeper", "tserver", "backup", "master", "tserver"]
        )
        try:
            while not self._end.wait(KILL_EVERY_S):
                self._kill(next(kinds))
        except BaseException as error:
            self.failure = error

    def _kill(self, kind: str) -> None:
        if kind == "master":
            os.kill(self._servers.leader(), signal.SIGKILL)
        elif not self._servers.kill_any(kind, self._rng):
            return
        self.killed.append(time.monotonic())

    def end(self) -> None:
        self._end.set()
        self.join()
        assert self.failure is None, repr(self.failure)


def still_rows() -> pa.Table:
    numbers = range(FIRST_STILL, FIRST_STILL + STILL_ROWS)
    return pa.table(
        {
            "id": numbers,
            "text": [f"row {number} ".ljust(300, ".") for number in numbers],
            "number": [number * 7 for number in numbers],
        }
    )


class StillRows:
    """Rows of the table that nobody changes: after each alter they are the same."""

    def __init__(self, table: Table) -> None:
        self._table = table
        table.upsert(still_rows())
        self._before = self._scan()

    def _scan(self) -> pa.Table:
        where = [("id", ">=", FIRST_STILL)]
        found = self._table.scan(where=where, with_versions=True, timeout=60.0)
        return found.sort_by("id").combine_chunks()

    def check(self) -> None:
        assert self._scan().equals(self._before), "a row that nobody changed is another one"

    def remove(self) -> None:
        self.check()
        self._table.delete(pa.table({"id": self._before["id"]}))


@contextlib.contextmanager
def altered_under_load(cluster: ClusterFixture) -> Iterator[tuple[Alters, StillRows]]:
    """A table that is written, and altered inside; in the end each row is as it must be."""
    loaded = LoadedTable(cluster, BUCKETS, SEGMENTS)
    try:
        still, alters = StillRows(loaded.table), Alters(cluster, loaded.table)
        cluster.load.wait_writes("before")
        yield alters, still
        still.remove()
        alters.done.append(loaded.end())
    finally:
        cluster.load.stop()
    cluster.check_whole(WELL_WITHIN_S)


def test_a_table_gets_each_durability_in_turn_under_load(
    launch_small: Callable[..., Database], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost or doubled, rows keep their contents and versions, and an alter that is
    taken back midway leaves the table as it was."""
    with (
        contextlib.closing(launch_small("altered", **SPEC)) as db,
        altered_under_load(ClusterFixture(db)) as (alters, still),
    ):
        for wanted in ROUND:
            alters.to(wanted)
            still.check()
        alters.there_and_back(REPLICAS, 0.0)
        still.check()
    with capsys.disabled():
        print("", *alters.done, sep="\n")
    assert alters.taken_back == 1


def test_servers_killed_while_a_table_is_altered_lose_and_double_nothing(
    launch_small: Callable[..., Database], ray_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tablet servers, safekeepers, backups and leaders of the masters die every few seconds: each
    alter ends, also those taken back, and every acknowledged row is there once."""
    rng = random.Random(17)
    with contextlib.closing(launch_small("killed", **SPEC)) as db:
        cluster = ClusterFixture(db)
        with altered_under_load(cluster) as (alters, still):
            killer = Killer(cluster.servers)
            killer.start()
            try:
                began = time.monotonic()
                for number, wanted in enumerate(itertools.cycle(ROUND)):
                    if number >= len(ROUND) and time.monotonic() - began > KILLED_FOR_S:
                        break
                    if number % 2:
                        alters.there_and_back(wanted, rng.uniform(0.0, MIDWAY_S))
                    alters.to(wanted)
                    still.check()
            finally:
                killer.end()
        code, document = check_by_command(ray_folder / "killed")
        assert code == 0, document["findings"]
    struck = [at for at in killer.killed if any(a <= at <= b for a, b in alters.spans)]
    with capsys.disabled():
        counts = f"{len(killer.killed)} kills, {len(struck)} of them while the table was altered; "
        print("", *alters.done, f"{counts}{alters.taken_back} alters taken back", sep="\n")
    assert len(struck) >= KILLED_FOR_S / KILL_EVERY_S / 4
    assert alters.taken_back >= 2
