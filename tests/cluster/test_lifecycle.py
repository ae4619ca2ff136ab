"""A cluster's life on real Ray: launched once only, found, closed, back from its disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import ray

import stelae
from stelae import errors, hash_partition
from stelae.demo_writers import check_table, load_table

pytestmark = pytest.mark.ray

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
ROWS = pa.table({"id": range(20_000), "name": [f"row {i}" for i in range(20_000)]}, schema=SCHEMA)
READ_IN_ANOTHER_PROCESS = """
import sys, stelae
with stelae.connect(sys.argv[1]) as db:
    print(db.table("t").get(7))
"""


def test_a_cluster_is_launched_once_closed_whole_and_comes_back_from_disk(
    ray_folder: Path,
    launch_small: Callable[..., Any],
    small_spec: Callable[..., dict[str, Any]],
) -> None:
    """While it runs no second launch gets at its data; after close() nothing of it runs; launched
    again on its data_dir, every row and version is there, and deleted rows are not."""
    folder = ray_folder / "life"
    db = launch_small("life")
    table = db.create_table("t", SCHEMA, key="id", partition=hash_partition("id", 4))
    ledger = table._loop.run(load_table(table._table, ROWS, lambda _: None))
    (version,) = table.upsert({"id": 7, "name": "again"})
    ledger.written[7] = ({"id": 7, "name": "again"}, int(version))
    table.upsert({"id": 30_000, "name": "gone"})
    table.delete(30_000)

    with pytest.raises(errors.AlreadyRunning, match="in use by process"):
        stelae.launch(small_spec(folder))
    with pytest.raises(errors.AlreadyRunning, match="running already in this Ray"):
        stelae.launch(small_spec(ray_folder / "elsewhere"))
    with pytest.raises(errors.InvalidArgument, match=r"not a cluster's data_dir"):
        stelae.connect(ray_folder)
    with pytest.raises(errors.Unavailable, match="does not run in this Ray"):
        stelae.connect("another")
    with stelae.connect("test") as by_name:
        assert by_name.table("t").get(7) == {"id": 7, "name": "again"}
    answer = subprocess.run(
        [sys.executable, "-c", READ_IN_ANOTHER_PROCESS, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.strip() == "{'id': 7, 'name': 'again'}"

    pids = [server["pid"] for server in db.status()["servers"]]
    db.close()
    db.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not ray.is_initialized()
    with pytest.raises(errors.InvalidArgument, match="holds cluster 'test', not 'other'"):
        stelae.launch(small_spec(folder, cluster="other"))

    db = launch_small("life")
    table = db.table("t")
    checked = table._loop.run(check_table(table._table, ledger))
    assert checked.is_right, checked.problems
    assert checked.rows == ROWS.num_rows
    (later,) = table.upsert({"id": 7, "name": "third"})
    assert later > version
