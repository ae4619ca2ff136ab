"""A process that launched a cluster forks: the child writes, exits by itself, and harms nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

PROGRAM = """
import os, sys
import pyarrow as pa
import stelae
from stelae import segments

spec = {"cluster": "forked", "data_dir": sys.argv[1], "masters": {"count": 1},
        "tservers": {"count": 1, "memory": "256MiB"}, "backups": {"count": 1},
        "safekeepers": {"count": 0}, "serve": None, "spark": None, "ray": {"address": "local"}}
with stelae.launch(spec) as db:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("by", pa.string())])
    table = db.create_table("t", schema, key="id", durability=segments("disk"))
    table.upsert({"id": 0, "by": "parent"})
    child = os.fork()
    if not child:
        table.upsert({"id": 1, "by": "child"})
        db.close()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    table.upsert({"id": 2, "by": "parent"})
    rows = table.scan().sort_by("id")["by"].to_pylist()
    print("child ended with", status, "rows", rows, flush=True)
"""


def test_a_forked_child_that_exits_leaves_its_parents_cluster_alone(tmp_path: Path) -> None:
    """Ray's exit handlers are its parent's: they would end the cluster, or crash the child."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "child ended with 0 rows ['parent', 'child', 'parent']" in found.stdout, found.stderr
    assert found.returncode == 0, found.stderr
