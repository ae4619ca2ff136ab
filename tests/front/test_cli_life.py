"""A cluster's life by the command line, in a real Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.front.cli_process import stelae
from tests.until import until

LIMIT_S = 300.0
"""Upper bound of each command and each wait; the longest usually takes a tenth of it."""
SPEC = """apiVersion: stelae/v1
kind: Cluster
cluster: small
ray: {address: local, num_cpus: 2}
data_dir: data
masters: {count: 1}
tservers: {count: 2, memory: 128MiB}
backups: {count: 2}
segment_size: 1MiB
serve: {port: 0}
spark: null
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder with a cluster.yaml; whatever runs in it is ended."""
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    (made / "cluster.yaml").write_text(SPEC)
    yield made
    stelae("down", cwd=made, env=_env(made))
    shutil.rmtree(made, ignore_errors=True)


def _env(folder: Path) -> dict[str, str]:
    ray = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**ray, "RAY_TMPDIR": str(folder / "r")}


@pytest.mark.ray
def test_a_cluster_by_the_command_line_survives_the_death_of_everything(folder: Path) -> None:
    """up, a second up, status, tables; SIGKILL of all its processes at once; up again: the rows
    are there, and what was noted of the commands; down: no process is left."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return stelae(*arguments, cwd=folder, env=_env(folder), timeout=LIMIT_S)

    first = run("up", "--json")
    assert first.returncode == 0, first.stderr
    up = json.loads(first.stdout)
    assert up["data_dir"] == str(folder / "data")
    token = Path(up["token_file"])
    assert token.stat().st_mode & 0o777 == 0o600

    second = run("up")
    assert second.returncode == 1
    assert f"in use by process {up['pid']}" in second.stderr

    _write_and_read(folder, up["http"], token.read_text().strip())
    listed = json.loads(run("table", "list", "--json").stdout)["tables"]
    assert [(table["name"], table["key"]) for table in listed] == [("t", ["id"])]
    described = json.loads(run("table", "describe", "t", "--json").stdout)
    assert [column["type"] for column in described["columns"]] == ["int64", "string"]
    assert described["partition"]["hash"] == {"type": "hash", "columns": ["id"], "buckets": 2}
    assert run("table", "describe", "nowhere").returncode == 1
    _alter(run)
    status = run("status")
    assert status.returncode == 0, status.stdout
    assert "all is well" in status.stdout
    _operate(run)
    _scrape(run, folder)

    keeper = psutil.Process(up["pid"])
    everything = [keeper, *keeper.children(recursive=True)]
    for process in everything:
        process.kill()
    _, left = psutil.wait_procs(everything, LIMIT_S)
    assert not left
    assert run("status").returncode == 1

    again = json.loads(run("up", "--json").stdout)
    assert _count(folder) == 1000
    audit = json.loads(run("audit", "--json").stdout)["entries"]
    noted = [each["path"] for each in audit if each["method"] == "cli"]
    assert noted.count("up") == 2, noted
    assert "alter_table t" in noted
    keeper = psutil.Process(again["pid"])
    everything = [keeper, *keeper.children(recursive=True)]
    down = run("down")
    assert (down.returncode, down.stdout.strip()) == (0, "down"), down.stderr
    _, left = psutil.wait_procs(everything, LIMIT_S)
    assert not left
    assert run("status").returncode == 1


def _alter(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Columns and name by the command line, there and back."""
    done = run("table", "alter", "t", "--add", "n:int8 not null", "--default", "n=3", "--json")
    assert done.returncode == 0, done.stderr
    names = [column["name"] for column in json.loads(done.stdout)["columns"]]
    assert names == ["id", "name", "n"]
    done = run("table", "alter", "t", "--drop", "n", "--rename", "name=title")
    assert (done.returncode, done.stdout) == (0, "t has the columns id int64, title string\n")
    assert run("table", "alter", "t", "--drop", "id").returncode == 2
    assert run("table", "alter", "t", "--rename", "title=name", "--no-wait").returncode == 0
    assert run("table", "rename", "t", "u").stdout == "t is now u\n"
    assert json.loads(run("table", "rename", "u", "t", "--json").stdout) == {"name": "t"}


def _operate(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The check finds nothing; servers are listed and marked; rebalancing is switched."""
    checked = run("check", "--wait", "100", "--checksums", "--json")
    document = json.loads(checked.stdout)
    assert checked.returncode == 0, document["findings"]
    assert [master["state"] for master in document["masters"]] == ["voter"]
    tables = [t for t in document["tables"] if not t["name"].startswith("_stelae.")]
    assert [(t["name"], t["tablets"], t["healthy"]) for t in tables] == [("t", 2, 2)]
    assert run("check", "--table", "nowhere").returncode == 1
    marked = run("server", "maintenance", "tserver-1", "on", "--json")
    assert json.loads(marked.stdout)["maintenance"] is True
    listed = json.loads(run("server", "list", "--kind", "tserver", "--json").stdout)["servers"]
    assert [(s["name"], s["maintenance"]) for s in listed] == [
        ("tserver-1", True),
        ("tserver-2", False),
    ]
    assert run("check").returncode == 0, "maintenance is meant"
    assert run("server", "maintenance", "tserver-1", "off").returncode == 0
    retired = run("server", "retire", "tserver-2")
    assert retired.returncode == 0
    assert "tserver-2 has no" in retired.stdout or "tserver-2 has nothing" in retired.stdout
    assert "not to be retired" in run("server", "retire", "tserver-2", "--cancel").stdout
    assert run("server", "retire", "nobody").returncode == 2
    assert json.loads(run("rebalance", "on", "--after", "9", "--json").stdout)["after_s"] == 9.0
    assert run("rebalance", "off").returncode == 0
    assert "off" in run("rebalance", "status").stdout


def _scrape(run: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
    """A Prometheus is told where Ray's metrics are, and finds those of the cluster there."""
    import httpx

    assert run("grafana", "targets", "--output", "stelae.json").returncode == 0
    ((target,),) = [each["targets"] for each in json.loads((folder / "stelae.json").read_text())]
    until(
        lambda: "stelae_" in httpx.get(f"http://{target}/metrics", timeout=LIMIT_S).text,
        LIMIT_S,
        "Ray exports metrics of Stelae",
        poll_s=0.5,
    )
    assert json.loads(run("grafana", "targets").stdout)[0]["targets"] == [target]


def _write_and_read(folder: Path, url: str, token: str) -> None:
    """Rows in by a client of the data_dir, out over HTTP."""
    import httpx

    from stelae import connect, hash_partition

    schema = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
    with connect(folder / "data") as db:
        table = db.create_table("t", schema, key="id", partition=hash_partition("id", 2))
        table.upsert(pa.table({"id": range(1000), "name": ["x"] * 1000}, schema=schema))
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{url}/v1/tables/t/rows/7", headers=headers).json() == {"id": 7, "name": "x"}
    assert httpx.get(f"{url}/v1/tables/t/rows/7").status_code == 401


def _count(folder: Path) -> int:
    from stelae import connect

    with connect(folder / "data") as db:
        return len(db.table("t"))
