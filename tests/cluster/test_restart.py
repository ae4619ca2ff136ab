"""Tablet servers on real Ray are restarted one after the other, under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stelae
from stelae import errors

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
LONGEST_PAUSE_S = 2.0


def test_servers_restart_one_by_one_while_a_table_of_replicas_is_written(
    ray_folder: Path, small_spec: Callable[..., dict[str, Any]], ends_processes: None
) -> None:
    """Each hands over first and is back before the next goes; every row is there at the end."""
    with stelae.launch(small_spec(ray_folder / "data")) as database:
        table = database.create_table("t", SCHEMA, key="id", durability=stelae.replicas(3))
        stop, pauses, written = threading.Event(), [0.0], [0]

        def write() -> None:
            while not stop.is_set():
                began = time.monotonic()
                table.upsert({"id": written[0], "name": "x"}, timeout=30.0)
                pauses.append(time.monotonic() - began)
                written[0] += 1

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        told: list[str] = []
        for number in (1, 2, 3):
            database.restart_server(f"tserver-{number}", progress=told.append)
        stop.set()
        writer.join(30.0)
        assert not writer.is_alive()
        print(f"longest pause {max(pauses):.3f} s of {written[0]} writes; {told}")
        assert table.count() == written[0] > 0
        assert max(pauses) < LONGEST_PAUSE_S, told
        assert database.check(checksums=True, wait=20).is_well
        database.restart_server("master-1", progress=told.append)
        assert database.check(wait=20).is_well
        _restart_backups(database, told)


def _restart_backups(database: Any, told: list[str]) -> None:
    """They come back with what they have on disk; what is in memory alone keeps one from going."""
    disks = database.create_table("d", SCHEMA, key="id", durability=stelae.segments("disk", "disk"))
    disks.upsert([{"id": n, "name": "x"} for n in range(1000)])

    def restart_all() -> None:
        for number in (1, 2, 3):
            database.restart_server(f"backup-{number}", progress=told.append)

    restart_all()
    assert disks.count() == 1000
    assert database.check(wait=20).is_well
    database.create_table("m", SCHEMA, key="id", durability=stelae.segments("ram")).upsert(
        {"id": 1, "name": "x"}
    )
    with pytest.raises(errors.InvalidArgument, match="segments of m are in its memory"):
        restart_all()
    lonely = database.create_table("s", SCHEMA, key="id", durability=stelae.segments())
    lonely.upsert({"id": 1, "name": "x"})
    (owner,) = [t["leader"] for t in database.status()["tablets"] if t["table"] == "s"]
    with pytest.raises(errors.InvalidArgument, match="rows of s"):
        database.restart_server(owner)
    assert lonely.count() == 1
