"""What a server's process imports: each start, and each restart after a crash, pays for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from stelae.actors.ray_host.host import load_server
from stelae.core.records.records import ServerKind
load_server(ServerKind(sys.argv[1]))
print(json.dumps(sorted(sys.modules)))
"""
OF_DRIVERS = {"pydantic", "stelae.core.config.spec", "stelae.serve", "httpx", "fastapi"}
OF_SPARK = {
    "stelae.actors.ray_host.spark_host",
    "stelae.actors.ray_host.spark_process",
    "stelae.recovery.spark_job",
    "pyspark",
}
OF_TSERVERS = {"numba", "stelae.actors.tserver.server"}


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("master", OF_TSERVERS | {"stelae.actors.backup.server"}),
        ("tserver", {"stelae.actors.master.server", "stelae.actors.backup.server", "pandas"}),
        ("backup", OF_TSERVERS | {"stelae.actors.master.server", "pandas"}),
        ("safekeeper", OF_TSERVERS | {"stelae.actors.master.server"}),
    ],
)
def test_a_server_imports_only_what_its_kind_needs(kind: str, others: set[str]) -> None:
    """Neither the models of cluster.yaml, nor Spark's session, nor servers of other kinds."""
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    imported = set(json.loads(made.stdout))
    assert f"stelae.actors.{kind}.server" in imported
    assert not imported & (OF_DRIVERS | OF_SPARK | others)
