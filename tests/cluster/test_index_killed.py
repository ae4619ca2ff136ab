"""A table with an index on real Ray, while the servers of its indexlet and tablets are killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae import Database, Table, errors, hash_partition, replicas, segments
from tests.cluster.running import ClusterFixture

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("dest", pa.string()), ("n", pa.int64())])
DESTS = ("LAX", "SFO", "OSL", None)
KEYS = 200
LOADED = 20_000
CALL_TIMEOUT_S = 60.0
WELL_WITHIN_S = 90.0


class Worker(threading.Thread):
    """Gives its own rows one destination after the other, and looks each of them up at once."""

    def __init__(self, table: Table, number: int) -> None:
        super().__init__(name=f"worker-{number}")
        self._table = table
        self._keys = range(LOADED + number * KEYS, LOADED + (number + 1) * KEYS)
        self._rng = random.Random(number)
        self.ends = threading.Event()
        self.failure: BaseException | None = None
        self.dest: dict[int, Any] = {}
        self.finds = 0
        self.longest_s = 0.0

    def run(self) -> None:
        try:
            while not self.ends.is_set():
                self._write(self._rng.choice(self._keys), self._rng.choice(DESTS))
        except BaseException as error:
            self.failure = error

    def _write(self, key: int, dest: Any) -> None:
        self._patiently(lambda: self._table.upsert({"id": key, "dest": dest, "n": self.finds}))
        self.dest[key] = dest
        began = time.monotonic()
        found = self._patiently(
            lambda: self._table.find("dest", dest, columns=["id", "n"], timeout=CALL_TIMEOUT_S)
        )
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        own = {key for key, own in self.dest.items() if own == dest}
        ids = set(found["id"].to_pylist())
        missing = own - ids
        strange = (ids & set(self._keys)) - own
        assert not missing, f"find({dest!r}) left out {missing}"
        assert not strange, f"find({dest!r}) has {strange}"
        self.finds += 1

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Upserts of own rows and reads may be repeated."""
        until = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                return call()
            except (errors.RetryLater, errors.RetryElsewhere, errors.OutcomeUnknown):
                if time.monotonic() > until:
                    raise


def servers_of(db: Database, table: str) -> tuple[str, str]:
    """Who has the indexlet of a table's index, and who one of its tablets."""
    status = db.status()
    (index,) = [each for each in status["indexes"] if each["table"] == table]
    tablet = next(each for each in status["tablets"] if each["table"] == table)
    return index["indexlets"][0]["server"], tablet["leader"]


@pytest.fixture(scope="module")
def db(launch_small: Callable[..., Database]) -> Database:
    """One cluster for both durabilities."""
    return launch_small("indexed", tservers={"count": 4})


@pytest.mark.parametrize("durability", [segments("disk", "disk"), replicas(3)], ids=str)
def test_every_look_up_is_right_when_servers_of_index_and_tablet_are_killed(
    db: Database, durability: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under load: each row is found by its newest value at once, before, while and after the
    indexlet's server, a tablet's server and both are killed; the check finds nothing then."""
    name = type(durability).__name__.lower()
    table = db.create_table(
        name, SCHEMA, key="id", partition=hash_partition("id", 3), durability=durability
    )
    loaded = {"id": range(LOADED), "dest": [f"D{n % 100}" for n in range(LOADED)]}
    table.load(pa.table({**loaded, "n": [0] * LOADED}))
    workers = [Worker(table, number) for number in range(2)]
    db.create_index(name, "dest")
    for worker in workers:
        worker.start()
    servers = ClusterFixture(db).servers
    for both in (False, False, True):
        time.sleep(3.0)
        holder, leader = servers_of(db, name)
        servers.kill(holder if not both else leader)
        if both:
            servers.kill(holder)
        time.sleep(3.0)
        _, leader = servers_of(db, name)
        servers.kill(leader)
        assert db.check(wait=WELL_WITHIN_S, timeout=WELL_WITHIN_S).is_well
    for worker in workers:
        worker.ends.set()
        worker.join(2 * CALL_TIMEOUT_S)
        assert worker.failure is None, worker.failure
    found = table.find("dest", between=(None, None), timeout=CALL_TIMEOUT_S)
    scanned = table.scan(where=[("dest", "!=", "")])
    assert found.sort_by("id").equals(scanned.sort_by("id").combine_chunks())
    finds = sum(worker.finds for worker in workers)
    longest_s = max(worker.longest_s for worker in workers)
    with capsys.disabled():
        print(f"\n{durability}: {finds} look-ups, the longest took {longest_s:.2f} s")
    assert finds > 20
