"""The command line on real Ray: the page about it as it stands, and a dead server's log."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster.running import ServerProcesses
from tests.front.cli_process import stelae
from tests.front.pages import DOCS, Reader, blocks_of
from tests.until import until

pytestmark = pytest.mark.ray

LIMIT_S = 120.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
SPEC = """apiVersion: stelae/v1
kind: Cluster
cluster: test
ray: {{address: local}}
data_dir: {data_dir}
"""


def test_the_page_is_followed_and_a_dead_server_has_a_log(
    ray_folder: Path, launch_small: Callable[..., Any]
) -> None:
    """Tables are created, read, written, imported, exported and dropped by the commands that the
    page shows; the audit log has that, and what Python does. A server that is killed has the logs
    of both its processes, and the second is shown by ps under the server's name."""
    database = launch_small("data")
    (ray_folder / "cluster.yaml").write_text(SPEC.format(data_dir=ray_folder / "data"))
    page = DOCS / "how-to" / "command-line.md"
    assert Reader(ray_folder).follow(page) == len(blocks_of(page)) == 3
    assert database.tables() == ["orders"]
    found = {row["id"]: row["price"] for row in database["orders"].scan().to_pylist()}
    assert found == {1: Decimal("49.90"), 3: Decimal("120.00"), 4: Decimal("15.50")}
    exported = pq.read_table(ray_folder / "orders.parquet").sort_by("id")
    assert exported.equals(database["orders"].scan().sort_by("id"))
    assert stelae("table", "get", "orders", "2", cwd=ray_folder, timeout=LIMIT_S).returncode == 1

    database.create_table("of_python", SCHEMA, key="id")
    audit = stelae("audit", "--json", cwd=ray_folder, timeout=LIMIT_S)
    assert audit.returncode == 0, audit.stderr
    noted = {(e["method"], e["path"], e["outcome"]) for e in json.loads(audit.stdout)["entries"]}
    assert {
        ("cli", "create_table orders", "done"),
        ("cli", "delete_table copies", "done"),
        ("python", "create_table of_python", "done"),
    } <= noted

    servers = ServerProcesses(database, LIMIT_S)
    first = servers.processes("tserver", 3)["tserver-1"]
    os.kill(first, signal.SIGKILL)
    second = until(lambda: _other(servers, first), LIMIT_S, "tserver-1 lives in another process")
    until(lambda: _has_title(second, "test/tserver-1"), LIMIT_S, "ps shows the server's name")
    log = stelae("logs", "tserver-1", "--json", "-n", "10000", cwd=ray_folder, timeout=LIMIT_S)
    assert log.returncode == 0, log.stderr
    entries = [json.loads(line) for line in log.stdout.splitlines()]
    assert {each["server"] for each in entries if "server" in each} == {"tserver-1"}
    runs = [each["incarnation"] for each in entries if "incarnation" in each]
    assert len(set(runs)) == 2
    unknown = stelae("logs", "nobody", cwd=ray_folder, timeout=LIMIT_S)
    assert (unknown.returncode, "tserver-3" in unknown.stderr) == (2, True), unknown.stderr


def _other(servers: ServerProcesses, former: int) -> int:
    """The process of tserver-1 that lives, if it is another one."""
    now = servers.live("tserver").get("tserver-1")
    return 0 if now is None or now["pid"] == former else int(now["pid"])


def _has_title(process: int, part: str) -> bool:
    return part in " ".join(psutil.Process(process).cmdline())
