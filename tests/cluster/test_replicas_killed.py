"""Tables of replicas on real Ray, while tablet servers are killed again and again.

Each client has rows that nobody else writes, and knows of each whether it is there, with which
content and in which version. Every write of a row that is there, and every delete, is bound to that
version, and every other one is an insert: a write that was lost or carried out twice makes the
next one of its row fail, at once.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae import (
    Database,
    Table,
    errors,
    hash_and_range,
    hash_partition,
    range_partition,
    replicas,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KILL_EVERY_S, KILLED_FOR_S = 5.0, 120.0
WELL_WITHIN_S = 90.0
CALL_TIMEOUT_S = 60.0
CLIENTS_PER_TABLE = 2
KEYS_PER_CLIENT = 50
PAUSE_MAX_S = 30.0
TEXT_BYTES = 2000
DAY = datetime.date(2020, 1, 1)
VALUES = [("text", pa.string()), ("number", pa.int64())]
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


def key_of(shape: str, client: int, number: int) -> dict[str, Any]:
    """The key columns of one of a client's rows."""
    place = client * KEYS_PER_CLIENT + number
    if shape == "hashed":
        return {"id": place}
    if shape == "ranges":
        return {"name": f"{place % 10}-{place}"}
    return {"day": DAY + datetime.timedelta(days=place), "id": place * 7919}


@dataclass
class Held:
    """A row as it must be: None if it is absent."""

    row: dict[str, Any] | None = None
    version: int = 0
    maybe: list[dict[str, Any] | None] = field(default_factory=list)
    """If nobody can tell what became of a write: what it would have made. Not written any more."""

    def allows(self, found: dict[str, Any] | None) -> bool:
        if found is None:
            return self.row is None or None in self.maybe
        row = {name: value for name, value in found.items() if name != "_version"}
        if self.row == row and self.version == found["_version"]:
            return True
        return row in self.maybe


class Client(threading.Thread):
    """Writes, deletes and reads its own rows of one table until it is told to end."""

    def __init__(self, table: Table, shape: str, number: int) -> None:
        super().__init__(name=f"{shape}-{number}")
        self.table = table
        self.keys = [key_of(shape, number, n) for n in range(KEYS_PER_CLIENT)]
        self.held = [Held() for _ in self.keys]
        self.acknowledged: list[float] = []
        """When each of its writes was."""
        self.unknown = 0
        self.failure: BaseException | None = None
        self._rng = random.Random(self.name)
        self._end = threading.Event()
        self._number = 0

    def run(self) -> None:
        try:
            while not self._end.is_set():
                place = self._rng.randrange(len(self.keys))
                held = self.held[place]
                if held.maybe or self._rng.random() < 0.1:
                    self._read(place)
                else:
                    self._write(place)
        except BaseException as error:
            self.failure = error

    def _read(self, place: int) -> None:
        key, held = self.keys[place], self.held[place]
        found = self.table.get(key, with_version=True, timeout=CALL_TIMEOUT_S)
        assert held.allows(found), f"{key}: found {found}, and it must be {held}"

    def _write(self, place: int) -> None:
        key, held = self.keys[place], self.held[place]
        self._number += 1
        text = f"{self.name} {self._number} ".ljust(TEXT_BYTES, ".")
        new: dict[str, Any] | None = {**key, "text": text, "number": self._number}
        options = {"timeout": CALL_TIMEOUT_S}
        dice = self._rng.random()
        try:
            if held.row is None:
                (version,) = self.table.insert(new, **options)
            elif dice < 0.2:
                new = None
                (version,) = self.table.delete(key, if_version=held.version, **options)
            elif dice < 0.5:
                new = {**held.row, "number": self._number}
                change = {**key, "number": self._number}
                (version,) = self.table.update(change, if_version=held.version, **options)
            else:
                (version,) = self.table.upsert(new, if_version=held.version, **options)
        except errors.OutcomeUnknown:
            held.maybe.append(new)
            self.unknown += 1
            return
        assert version > held.version, f"{key}: version {version} after {held.version}"
        held.row, held.version = new, int(version)
        self.acknowledged.append(time.monotonic())

    def end(self) -> None:
        self._end.set()
        self.join()

    def longest_pause_s(self) -> float:
        times = self.acknowledged
        return max(later - before for before, later in itertools.pairwise(times))


def kill_one(db: Database, rng: random.Random) -> int:
    """Kill a random tablet server, and count it; 0 if none is back from its last death yet."""
    servers = [s for s in db.status()["servers"] if s["kind"] == "tserver"]
    live = [s for s in servers if s["state"] == "live"]
    if live:
        os.kill(rng.choice(live)["pid"], signal.SIGKILL)
    return min(len(live), 1)


def check_rows(clients: list[Client]) -> int:
    """All that a scan finds is what the table's clients know, and the other way round."""
    (name,) = {client.table.name for client in clients}
    table = clients[0].table
    found = {
        tuple(row[column] for column in table.key): row
        for row in table.scan(with_versions=True, timeout=CALL_TIMEOUT_S).to_pylist()
    }
    for client in clients:
        for key, held in zip(client.keys, client.held, strict=True):
            row = found.pop(tuple(key.values()), None)
            assert held.allows(row), f"{name}, {key}: found {row}, and it must be {held}"
    assert not found, f"{name}: rows of nobody: {list(found)[:5]}"
    return sum(held.row is not None for client in clients for held in client.held)


def check_by_command(folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of ``stelae check``. It waits: the last one killed may come late."""
    command = [sys.executable, "-m", "stelae", "check", "--checksums", "--json"]
    done = subprocess.run(
        [*command, "--wait", str(WELL_WITHIN_S), "--cluster", str(folder)],
        capture_output=True,
        text=True,
        timeout=2 * WELL_WITHIN_S,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


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
        Client(table, shape, number)
        for shape, table in tables.items()
        for number in range(CLIENTS_PER_TABLE)
    ]
    for client in clients:
        client.start()
    began, killed, rng = time.monotonic(), 0, random.Random(5)
    while time.monotonic() - began < KILLED_FOR_S:
        time.sleep(KILL_EVERY_S)
        killed += kill_one(db, rng)
    for client in clients:
        client.end()
    failures = [f"{client.name}: {client.failure!r}" for client in clients if client.failure]
    assert not failures, failures
    report = db.check(wait=WELL_WITHIN_S, timeout=WELL_WITHIN_S)
    assert report.is_well, [str(problem) for problem in report.problems]
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
