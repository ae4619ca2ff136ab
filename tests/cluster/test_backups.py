"""Backups on real Ray: under load, with a server killed in the middle, what comes back is right."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stelae
from stelae.core.errors import CorruptData
from tests.cluster.running import ClusterFixture

pytestmark = [pytest.mark.ray, pytest.mark.soak]

ROWS = 40_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("n", pa.int64()), ("pad", pa.binary())])


def rows_of(ids: Any, n: int) -> pa.Table:
    ids = np.asarray(ids)
    pad = [b"%080d" % (i * 7919) for i in ids]
    return pa.table([pa.array(ids), pa.array([n] * len(ids)), pa.array(pad)], schema=SCHEMA)


@pytest.fixture(scope="module")
def database(launch_small: Callable[..., Any]) -> Any:
    found = launch_small("backups")
    table = found.create_table(
        "t",
        SCHEMA,
        key="id",
        partition=stelae.hash_partition("id", 8),
        durability=stelae.segments("disk", "disk"),
    )
    table.load(rows_of(range(ROWS), 0))
    return found


class Writer:
    """Writes ever larger numbers to a hundred rows, and knows which are acknowledged."""

    def __init__(self, database: Any) -> None:
        self._table = database["t"]
        self.begun = self.acknowledged = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._ended.is_set():
            self.begun += 1
            self._table.upsert(rows_of(range(100), self.begun), timeout=60.0)
            self.acknowledged = self.begun


def test_under_load_and_a_kill_each_backup_is_right(
    database: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second stores little; the third outlives a server; what is restored is of its time."""
    url = str(tmp_path / "archive")
    caplog.set_level(logging.INFO, "stelae.archive.backup")
    with Writer(database) as writer:
        first = database.backup(url)
        database["t"].upsert(rows_of(range(1000, 1400), -1))
        second = database.backup(url)
        assert second["stored_bytes"] < first["stored_bytes"] / 10
        killed: list[int] = []

        def kill(done: int, total: int) -> None:
            """When the first rows are there; of the last tablet none is read by then."""
            if not killed and done:
                servers = ClusterFixture(database).servers
                killed.append(servers.kill_at(database.locate_table("t")[-1].address))

        database["t"].upsert(rows_of(range(2000, 2400), -2))
        before = writer.acknowledged
        third = database.backup(url, full=True, progress=kill)
        after = writer.begun
    assert any(killed)
    assert "is pinned anew" in caplog.text
    assert third["rows"] == ROWS
    made = database.restore(url, {"t": "copy"})
    assert made["backup"] == third["id"]
    found = database["copy"].scan().sort_by("id")
    assert found["id"].to_pylist() == list(range(ROWS))
    numbers = found["n"].to_numpy()
    assert before <= numbers[:100].min() <= numbers[:100].max() <= after
    assert set(numbers[1000:1400]) == {-1}
    assert set(numbers[2000:2400]) == {-2}
    assert found.slice(100).equals(database["t"].scan().sort_by("id").slice(100))
    database.restore(url, {"t": "older"}, backup=second["id"])
    assert set(database["older"].scan().sort_by("id")["n"].to_numpy()[2000:2400]) == {0}
    assert database["older"].count() == ROWS


def test_a_damaged_archive_is_told_and_nothing_is_restored(database: Any, tmp_path: Path) -> None:
    """Not one row, and no table."""
    url = str(tmp_path / "archive")
    database.backup(url, ["t"])
    [file, *_] = sorted((tmp_path / "archive" / "data").glob("*.rows"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    [damage] = stelae.verify_backups(url)["damaged"]
    assert damage["file"] == str(file)
    names = database.tables()
    with pytest.raises(CorruptData, match="checksum"):
        database.restore(url, {"t": "hurt"})
    assert database.tables() == names
