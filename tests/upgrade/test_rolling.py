"""A cluster that is upgraded server by server under load, and downgraded again.

Each server is a process of its own, first of an older version. Two clients, one of each version,
write and read all the time, and end with an error at the first answer that is wrong or missing.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.database import AsyncDatabase
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, OutcomeUnknown, RetryElsewhere, RetryLater
from stelae.core.ids import Address
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import hash_partition
from tests.cluster_fixture import free_ports
from tests.until import until_async
from tests.upgrade.make_input import ROOT, environment, older_tree
from tests.upgrade.server import runtime_of

pytestmark = pytest.mark.soak

OLDER_COMMIT = "bfe2ec5"
CLUSTER = "rolling"
SERVERS = {"master": 3, "backup": 3, "safekeeper": 3, "tserver": 3}
SETTINGS: dict[str, Any] = {
    "heartbeat_s": 0.2,
    "lease_s": 4.0,
    "dead_after_s": 6.0,
    "raft_tick_s": 0.1,
    "segment_bytes": 64 << 10,
    "raft_snapshot_entries": 20,
}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("value", pa.int64()), ("label", pa.string())]
)
TABLES: dict[str, Durability] = {
    "of_segments": segments("disk", "disk"),
    "of_replicas": replicas(3),
    "of_wal": wal(3, ("disk", "disk")),
}
HEALTHY_S = 120.0
STOPPED_S = 60.0
KERNELS = ("stelae.storage.kernels.compiled", "stelae.storage.kernels.index_compiled")
RUNNERS = ("server.py", "workload.py")


class Fleet:
    """All servers and clients, each a process of one of two trees."""

    def __init__(self, folder: Path, older: Path) -> None:
        self.folder = folder
        self.trees = {"older": older, "newer": ROOT}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        names = [(kind, f"{kind}-{n}") for kind, count in SERVERS.items() for n in range(count)]
        ports = free_ports(len(names))
        masters = {
            name: f"127.0.0.1:{port}"
            for (kind, name), port in zip(names, ports, strict=True)
            if kind == "master"
        }
        self.common: dict[str, Any] = {"cluster": CLUSTER, "settings": SETTINGS, "masters": masters}
        self.plans = {
            name: {**self.common, "kind": kind, "name": name, "port": port}
            for (kind, name), port in zip(names, ports, strict=True)
        }

    def start(self, name: str, tree: str, module: str = "server", **more: Any) -> None:
        """Start a server, or a client that ``more`` is the plan of."""
        plan = self.plans.get(name, self.common) | more | {"folder": str(self.folder / name)}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(plan))
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"tests.upgrade.{module}", str(path)],
                cwd=self.trees[tree],
                env=environment(self.trees[tree]),
                stdout=(self.folder / f"{name}.out").open("wb"),
                stderr=log,
            )

    async def stop(self, name: str) -> None:
        """End a process in order."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(process.wait, STOPPED_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        assert code == 0, f"{name} ended with {code}:\n{self.log(name)}"

    def log(self, name: str) -> str:
        """The end of what it has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def check_running(self) -> None:
        """Nothing has ended by itself."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended:\n{self.log(name)}"

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    async def wait_healthy(self, database: AsyncDatabase) -> None:
        """Wait until every server lives, and every tablet is served with all of its replicas."""

        found = ""

        async def healthy() -> bool:
            nonlocal found
            self.check_running()
            try:
                report = await database.check(timeout=10.0)
                status = await database.status()
            except (RetryLater, RetryElsewhere, OutcomeUnknown) as error:
                found = str(error)
                return False
            live = {s["id"]: s["pid"] for s in status["servers"] if s["state"] == "live"}
            found = f"live are {live}; {report}"
            # By process: one that has just been replaced may still be taken for live.
            return report.is_well and live == {n: self.processes[n].pid for n in self.plans}

        await until_async(
            healthy,
            HEALTHY_S,
            lambda: f"a healthy cluster: {found}",
            poll_s=0.5,
        )


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the older version, with the runners of this folder."""
    tree = tmp_path_factory.mktemp("older") / "tree"
    older_tree(OLDER_COMMIT, tree)
    (tree / "tests" / "upgrade").mkdir(exist_ok=True)
    for name in RUNNERS:
        text = Path(__file__).with_name(name).read_text()
        (tree / "tests" / "upgrade" / name).write_text(text)
    # Compiled once, or every server would do so while it is to serve.
    imports = ", ".join(KERNELS)
    subprocess.run(
        [sys.executable, "-c", f"import {imports}"], cwd=tree, env=environment(tree), check=True
    )
    return tree


@pytest.fixture
def fleet(tmp_path: Path, older: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, older)
    yield made
    made.kill()


@asynccontextmanager
async def client_of(fleet: Fleet) -> AsyncIterator[AsyncDatabase]:
    """A client of the checkout's version."""
    runtime = runtime_of(CLUSTER, fleet.folder / "operator")
    masters = [Address(address) for address in fleet.common["masters"].values()]
    yield AsyncDatabase(runtime, masters, Settings(**SETTINGS))
    await runtime.close()


async def roll(fleet: Fleet, database: AsyncDatabase, names: Sequence[str], tree: str) -> None:
    """Replace one server after the other, each once all is well."""
    for name in names:
        began = time.monotonic()
        await fleet.stop(name)
        fleet.start(name, tree)
        await fleet.wait_healthy(database)
        print(f"{name} is {tree}: {time.monotonic() - began:.1f} s", flush=True)


@pytest.mark.parametrize("order", ["masters last", "masters first"])
async def test_a_cluster_is_upgraded_and_downgraded_server_by_server_under_load(
    fleet: Fleet, order: str
) -> None:
    """No acknowledged write is lost and every read is the last write, for clients of both
    versions, whatever the servers' versions are."""
    masters = [name for name in fleet.plans if name.startswith("master")]
    others = [name for name in fleet.plans if not name.startswith("master")]
    names = others + masters if order == "masters last" else masters + others
    for name in fleet.plans:
        fleet.start(name, "older")
    async with client_of(fleet) as database:
        await fleet.wait_healthy(database)
        for name, durability in TABLES.items():
            await database.create_table(
                name,
                SCHEMA,
                key="id",
                partition=hash_partition("id", buckets=2),
                durability=durability,
                indexes=("label",),
                timeout=HEALTHY_S,
            )
        await fleet.wait_healthy(database)
        with pytest.raises(InvalidArgument, match="has no method"):
            await database.put_token("limited", "read", "0" * 64, tables=["of_wal"])
        clients = {"older-client": ("older", 1000), "newer-client": ("newer", 2000)}
        for name, (tree, first_key) in clients.items():
            fleet.start(name, tree, "workload", tables=list(TABLES), first_key=first_key)
        await roll(fleet, database, names, "newer")
        await database.put_token("limited", "read", "0" * 64, tables=["of_wal"])
        await database.revoke_token("limited")
        await roll(fleet, database, names[::-1], "older")
        fleet.check_running()
        for name in clients:
            await fleet.stop(name)
            found = json.loads((fleet.folder / f"{name}.out").read_text())
            steps = sum(row["value"] for _, row, _ in found["rows"])
            print(f"{name}: {steps} writes, the slowest {found['slowest_s']:.1f} s", flush=True)
            for table_name, row, version in found["rows"]:
                assert row["value"] > len(names), "it went on while servers were replaced"
                table = await database.table(table_name)
                assert await table.get(row["id"], with_version=True) == {**row, "_version": version}
