"""A Ray with several nodes: servers on the machines that a label names; a whole one is killed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from ray.cluster_utils import Cluster

import stelae
from stelae.actors.ray_host import host as ray_host
from stelae.actors.ray_host import kept_files
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.schema.own_tables import is_own_table
from stelae.deploy.cluster_state import load_state
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("value", pa.string())])
ROWS = 20_000
BACK_TIMEOUT_S = 90.0


@pytest.fixture
def nodes(ray_folder: Path) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """A head without a disk, and three nodes that each have one."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        labelled = {m: made.add_node(num_cpus=1, labels={"disk": m}) for m in ("a", "b", "c")}
        yield made, labelled
    finally:
        ray.shutdown()
        made.shutdown()


class Writer(threading.Thread):
    """Writes one row after another, each to every table; what was acknowledged is remembered."""

    def __init__(self, tables: list[Any]) -> None:
        super().__init__(daemon=True)
        self._tables = tables
        self._ends = threading.Event()
        self.acknowledged: list[int] = []
        self.slowest_s = 0.0

    def run(self) -> None:
        number = ROWS
        while not self._ends.is_set():
            number += 1
            began = time.monotonic()
            for table in self._tables:
                table.upsert({"id": number, "value": f"late {number}"}, timeout=60.0)
            self.acknowledged.append(number)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            time.sleep(0.01)

    def end(self) -> None:
        self._ends.set()
        self.join(90.0)
        assert not self.is_alive()


def _servers(database: Any) -> dict[str, dict[str, Any]]:
    return {server["id"]: server for server in database.status()["servers"]}


def _wait(condition: Callable[[], bool], what: str) -> None:
    """Wait through moments in which no master leads, or a server is away."""
    until(condition, BACK_TIMEOUT_S, what, poll_s=0.2, retried=(StelaeError,))


def test_a_machine_is_killed_whole_and_comes_back(
    nodes: tuple[Cluster, dict[str, Any]],
    ray_folder: Path,
    small_spec: Callable[..., dict[str, Any]],
) -> None:
    """Each machine has a server of each kind. One is lost with all of its own: writes go on, every
    row is there. When it is back, on a new node of Ray's, its servers find their disks."""
    cluster, labelled = nodes
    spec = small_spec(
        ray_folder / "data",
        ray={"address": cluster.address},
        placement={"label": "disk"},
        tservers={"count": 3, "memory": "64MiB"},
    )
    with stelae.launch(spec) as database:
        before = _servers(database)
        assert Counter((s["kind"], s["node"]) for s in before.values()) == Counter(
            {(kind, node): 1 for kind in ("master", "tserver", "backup") for node in "abc"}
        )
        tables = [
            database.create_table("taken_over", SCHEMA, key="id"),
            database.create_table("replicated", SCHEMA, key="id", durability=stelae.replicas(3)),
        ]
        rows = pa.table(
            [pa.array(range(ROWS)), pa.array([f"row {i}" for i in range(ROWS)])], schema=SCHEMA
        )
        for table in tables:
            table.load(rows)
        writer = Writer(tables)
        writer.start()
        users = [t for t in database.status()["tablets"] if not is_own_table(t["table"])]
        lost = before[users[0]["leader"]]["node"]
        time.sleep(1.0)
        cluster.remove_node(labelled[lost], allow_graceful=False)
        killed = len(writer.acknowledged)
        _wait(lambda: len(writer.acknowledged) > killed + 50, "writes go on")
        cluster.add_node(num_cpus=1, labels={"disk": lost})
        _wait(lambda: all(s["state"] == "live" for s in _servers(database).values()), "all back")
        writer.end()
        after = _servers(database)
        assert {name: (s["uuid"], s["node"]) for name, s in after.items()} == {
            name: (s["uuid"], s["node"]) for name, s in before.items()
        }
        assert {n for n in before if before[n]["pid"] != after[n]["pid"]} == {
            name for name, server in before.items() if server["node"] == lost
        }
        for table in tables:
            found = table.scan(columns=["id"])["id"].to_pylist()
            assert sorted(found) == [*range(ROWS), *found_late(found)]
            assert set(writer.acknowledged) <= set(found)
        print(f"the slowest write took {writer.slowest_s:.2f} s; {os.cpu_count()} CPUs")


def test_an_operator_elsewhere_finds_the_cluster_changes_it_and_has_its_files_back(
    nodes: tuple[Cluster, dict[str, Any]],
    ray_folder: Path,
    small_spec: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """The folder of the launch is lost; by name everything goes on, `apply` and `down` too, and a
    launch from an empty folder finds on the machines what it needs. What the machines do not have
    is told before anything is started there."""
    cluster, _ = nodes
    data = ray_folder / "lost"
    blocked = tmp_path / "file"
    blocked.touch()
    small = {
        "ray": {"address": cluster.address},
        "placement": {"label": "disk"},
        "tservers": {"count": 3, "memory": "64MiB"},
    }
    far = {"disk": {"path": "disk"}, "far": {"path": str(blocked / "far")}}
    spec = small_spec(data, **small)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        front = {"port": taken.getsockname()[1]}
        with pytest.raises(InvalidArgument) as caught:
            stelae.launch({**spec, "media": far, "serve": front})
    assert _where(str(caught.value).split("\n")) == {
        "Ray's head: serve.port",
        *(f"machine disk={machine}: media.far" for machine in "abc"),
    }
    assert not ray_host.cluster_actors("test")
    database = stelae.launch(spec)
    table = database.create_table("kept", SCHEMA, key="id")
    table.upsert({"id": 1, "value": "a"})
    database.leave()
    for name in kept_files.NAMES:
        (data / name).unlink(missing_ok=True)
    file = tmp_path / "cluster.yaml"
    first = {"apiVersion": "stelae/v1", "kind": "Cluster"}
    file.write_text(json.dumps({**first, **small_spec(data, **small, backups={"count": 4})}))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(json.dumps({**json.loads(file.read_text()), "media": far}))
    refused = _command("apply", str(wrong), "--dry-run", "--json")
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert _where(json.loads(refused.stdout)["refused"]) == {
        f"machine disk={machine}: media.far" for machine in "abc"
    }
    with stelae.connect("test") as elsewhere:
        assert elsewhere.table("kept").get(1) == {"id": 1, "value": "a"}
    done = _command("apply", str(file), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["done"]
    status = json.loads(_command("status", "--json", str(file)).stdout)
    assert sum(s["kind"] == "backup" and s["state"] == "live" for s in status["servers"]) == 4
    kept = kept_files.read_files(data)
    assert kept is not None, "the machines keep what was changed"
    assert kept.files.keys() >= {"secret", "cluster.json", "spec.json"}
    into = tmp_path / "attached"
    assert _command("attach", str(file), "--into", str(into)).returncode == 0
    assert kept_files.read_files(into) == kept
    assert _command("table", "list", "-c", str(into), "--json").returncode == 0
    for name in kept_files.NAMES:
        (data / name).unlink(missing_ok=True)
    assert json.loads(_command("down", str(file), "--json").stdout)["was_up"]
    assert load_state(data).ray_address == "", "machines know that it does not run"
    empty = {**json.loads(file.read_text())}
    with stelae.launch(empty) as again:
        assert again.table("kept").get(1) == {"id": 1, "value": "a"}


def _where(problems: list[str]) -> set[str]:
    """Of problems of nodes: which node, and what of cluster.yaml."""
    found = (re.match(r"\s*on (.*) \([\d.]+\): ([\w.]+)", problem) for problem in problems)
    return {f"{each[1]}: {each[2]}" for each in found if each}


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stelae", *arguments], capture_output=True, text=True, timeout=240
    )


def found_late(found: list[int]) -> list[int]:
    """Of the rows, those of the writer; the last one may be there without its acknowledgement."""
    return sorted(number for number in found if number >= ROWS)
