"""One cluster with tables of every durability: each kind of server is killed once under load.

The tests share the cluster and run in order. Clients write all the time, in Python and over HTTP.
After each kill the writes go on and the cluster heals; the tests judge no speed. In the end every
row is as it was acknowledged, also after a cold start. ``make soak-cluster`` has the long variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pyarrow as pa
import pytest

import stelae
from stelae import Database, Table, errors, hash_partition, replicas, segments, wal
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import TimelineView
from stelae.core.schema.durability import Durability
from tests.cluster.row_clients import VALUES, check_by_command
from tests.cluster.running import ClusterFixture
from tests.cluster.wal_faults import is_at_rest
from tests.until import NO_LEADER, until

if TYPE_CHECKING:
    from stelae.cluster import LaunchedDatabase

pytestmark = pytest.mark.ray

LIMIT_S = 180.0
"""Upper bound of each wait: a healthy cluster on two cores needs a tenth of it."""
SAFEKEEPERS = 4
"""One more than a table of ``wal(3)`` needs: its logs can move."""
SPEC: dict[str, Any] = {
    "safekeepers": {"count": SAFEKEEPERS},
    "cas_store": {"url": "sqlite:///cas.db"},
    "serve": {"host": "127.0.0.1", "port": 0, "replicas": 2},
}
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), *VALUES])
DURABILITIES: dict[str, Durability] = {
    "segmented": segments("disk", "disk"),
    "replicated": replicas(3),
    "walled": wal(3, ("disk", "disk")),
}
INDEXED = "segmented"
KEYS = 100
"""Rows of each client."""
WRITES = 20
"""Acknowledged calls of each client that prove that writes go on."""


class LoadedTables:
    """A running cluster with a table of each durability, and the clients that write to them."""

    def __init__(self, database: LaunchedDatabase) -> None:
        self.database = database
        self.cluster = ClusterFixture(database, limit_s=LIMIT_S)
        self.http = stelae.connect(database.http_url, token=database.admin_token)
        for name, durability in DURABILITIES.items():
            table = database.create_table(
                name,
                SCHEMA,
                key="id",
                partition=hash_partition("id", 3),
                durability=durability,
                indexes=["number"] if name == INDEXED else [],
            )
            for number, (door, batch) in enumerate([(table, 1), (self.http.table(name), 20)]):
                keys = [{"id": number * KEYS + n} for n in range(KEYS)]
                self.cluster.load.add(door, f"{name}-{number}", keys, batch=batch)
        self.cluster.load.start()

    def wait_writes(self, what: str) -> None:
        """Wait until each client has had more of its calls acknowledged."""
        self.cluster.load.wait_each(what, WRITES)

    def check(self, database: Database) -> None:
        """Compare all rows of all tables, and the index, with what the clients know."""
        for name in DURABILITIES:
            assert self.cluster.load.check_rows(name, database.table(name)) > 0
        table: Table = database.table(INDEXED)
        columns = ["id", "number"]
        found = table.find("number", between=(None, None), columns=columns, timeout=LIMIT_S)
        rows = table.scan(columns=columns, timeout=LIMIT_S)
        assert sorted(found.to_pylist(), key=by_id) == sorted(rows.to_pylist(), key=by_id)


def by_id(row: dict[str, Any]) -> int:
    """Return the key of a row, to sort by."""
    return int(row["id"])


@pytest.fixture(scope="module")
def loaded(launch_small: Callable[..., LaunchedDatabase]) -> Iterator[LoadedTables]:
    """The cluster under load. The last test closes it."""
    found = LoadedTables(launch_small("killed", **SPEC))
    try:
        found.wait_writes("before the first kill")
        yield found
    finally:
        found.cluster.load.stop()
        found.http.close()


# ---- one kind after the other ---------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["tserver", "backup", "safekeeper", "leader master", "follower master", "cas_store"],
)
def test_a_server_killed_under_load_loses_nothing_and_is_replaced(
    loaded: LoadedTables, kind: str
) -> None:
    """After SIGKILL each client goes on, the server lives again, and nothing is missing."""
    victims = loaded.cluster.servers.victims(kind)
    assert victims
    loaded.cluster.servers.replace(victims)
    loaded.wait_writes(f"after the {kind} was killed")
    loaded.cluster.check_whole(LIMIT_S)


def test_logs_move_after_the_configuration_store_was_killed(loaded: LoadedTables) -> None:
    """The store that came back knows the configuration, and takes the next one."""
    database = loaded.database
    tablet = next(each.tablet.tablet_id for each in database.locate_table("walled"))
    view = at_rest(database, tablet)
    (spare,) = set(range(1, SAFEKEEPERS + 1)) - {*view.configuration.sk_set}
    desired = (*view.configuration.sk_set[1:], spare)
    (move,) = loaded.cluster.until(
        lambda: database.migrate_timeline(tablet, desired), "the move is accepted"
    )
    database.wait_migrated(move, timeout=LIMIT_S)
    assert sorted(at_rest(database, tablet).configuration.sk_set) == sorted(desired)
    loaded.wait_writes("after the log moved")


def at_rest(database: Database, tablet: TabletId) -> TimelineView:
    """The view of this log, once no migration of it runs."""

    def look() -> TimelineView | None:
        view = database.locate_timeline(tablet)
        return view if is_at_rest(view) else None

    return until(look, LIMIT_S, "the log is at rest", retried=NO_LEADER)


@pytest.mark.parametrize("words", [("ServeReplica",), ("haproxy", "ProxyActor")], ids=" ".join)
def test_a_process_of_the_http_front_killed_under_load_costs_no_write(
    loaded: LoadedTables, words: tuple[str, ...]
) -> None:
    """Clients over HTTP repeat their calls under the same request ids, and Serve replaces it."""
    before = processes(*words)
    assert before, f"no process {words}"
    before[0].kill()
    loaded.wait_writes(f"after {words} was killed")

    def is_replaced() -> bool:
        found = processes(*words)
        return before[0] not in found and len(found) >= len(before)

    loaded.cluster.until(is_replaced, f"{words} is replaced")
    answer = httpx.get(f"{loaded.database.http_url}/healthz", timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text


def processes(*words: str) -> list[psutil.Process]:
    """Processes of this process's Ray whose command line has one of these words."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if any(word in line for word in words):
            found.append(process)
    return found


# ---- all at once, and cold ------------------------------------------------------------------


def test_all_servers_killed_at_once_under_load_come_back_with_every_row(
    loaded: LoadedTables, ray_folder: Path
) -> None:
    """All three durabilities are on disk: nothing in memory is needed. Then the load ends, and
    every acknowledged write of the module stands, once."""
    loaded.cluster.servers.replace(loaded.cluster.servers.live().values())
    loaded.wait_writes("after all servers were killed")
    loaded.cluster.check_whole(LIMIT_S)
    loaded.cluster.load.end()
    loaded.check(loaded.database)
    code, document = check_by_command(ray_folder / "killed")
    assert code == 0, document["findings"]


def test_a_cold_start_finds_every_row_on_disk(
    loaded: LoadedTables, launch_small: Callable[..., Any]
) -> None:
    """Closed and launched again, the cluster serves the same rows in the same versions.

    Without HTTP: ``test_relaunch.py`` has the front of a second launch.
    """
    loaded.cluster.load.end()
    loaded.database.close()
    with closing(launch_small("killed", **{**SPEC, "serve": None})) as database:
        loaded.check(database)
        report = database.check(wait=LIMIT_S, timeout=LIMIT_S)
        assert report.is_well, [str(problem) for problem in report.problems]
        table = database.table("replicated")
        (version,) = table.upsert({"id": -1, "text": "new", "number": 1}, timeout=LIMIT_S)
        with pytest.raises(errors.RowExists):
            table.insert({"id": -1, "text": "newer", "number": 2}, timeout=LIMIT_S)
        assert table.get(-1, with_version=True, timeout=LIMIT_S)["_version"] == version
