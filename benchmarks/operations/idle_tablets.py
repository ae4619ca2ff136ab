"""What many tablets cost at rest: 200 tablets of ``replicas(3)`` on three tservers, nobody calls.

Three masters and three tservers run in processes of their own, over the sockets that they always
use, without Ray. Each tserver leads about a third of the tablets and follows the others. Then one
tserver is killed, to show that the others still see it soon.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import uvloop

from benchmarks.common.figures import Figure, at_most, shown
from benchmarks.common.master_process import CLUSTER, SECRET
from stelae.client.database import AsyncDatabase
from stelae.core.ids import Address
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

SERVERS = 3
TABLETS = 200
START_LIMIT_S = 180.0
SETTLE_S = 5.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
MASTER, TSERVER = [f"benchmarks.common.{kind}_process" for kind in ("master", "tserver")]
Process = asyncio.subprocess.Process


@dataclass
class Servers:
    """The processes of one run, and a client."""

    folder: Path
    masters: dict[str, Address] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    runtime: RealRuntime | None = None

    async def start(self) -> None:
        for number in range(1, SERVERS + 1):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.masters[f"master-{number}"] = Address(f"127.0.0.1:{free.getsockname()[1]}")
        for name in self.masters:
            await self._spawn(MASTER, name, json.dumps(self.masters))
        for number in range(1, SERVERS + 1):
            await self._spawn(TSERVER, f"tserver-{number}", json.dumps([*self.masters.values()]))

    async def _spawn(self, program: str, name: str, masters: str) -> None:
        self.processes[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            program,
            name,
            str(self.folder / name),
            masters,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    def client(self) -> AsyncDatabase:
        peers = TcpPeers(Credentials(CLUSTER, SECRET), on_failure=_fail)
        self.runtime = RealRuntime(peers, LocalDisk(self.folder / "client"))
        return AsyncDatabase(self.runtime, [*self.masters.values()])

    @property
    def tservers(self) -> list[str]:
        return [name for name in self.processes if name.startswith("tserver")]

    async def ask(self, name: str) -> dict[str, Any]:
        """What a server is just now."""
        process = self.processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"do": "tell"}\n')
        found: dict[str, Any] = json.loads(await process.stdout.readline())
        return found

    async def wait(self, done: Callable[[list[dict[str, Any]]], bool], limit_s: float) -> None:
        """Until what all tservers say is as it should be."""
        async with asyncio.timeout(limit_s):
            while not done([await self.ask(name) for name in self.tservers]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        if self.runtime is not None:
            await self.runtime.close()
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


def _fail(error: BaseException) -> None:
    raise error


def led(states: list[dict[str, Any]]) -> int:
    """Tablets that have a leader which serves."""
    return sum(state["roles"].get("leader", 0) for state in states)


def measure(quick: bool) -> list[Figure]:
    """CPU at rest, and how soon a dead server's tablets are led again."""
    measured = _measure(20 if quick else TABLETS, 3.0 if quick else 20.0)
    figures: list[Figure] = uvloop.run(measured)
    return figures


async def _measure(tablets: int, seconds: float) -> list[Figure]:
    servers = Servers(Path(tempfile.mkdtemp(prefix="stelae-bench-idle-", dir="/var/tmp")))
    try:
        await servers.start()
        started = time.monotonic()
        await servers.client().create_table(
            "idle",
            SCHEMA,
            key="id",
            partition=hash_partition("id", tablets),
            durability=replicas(SERVERS),
            timeout=START_LIMIT_S,
        )
        await servers.wait(lambda states: led(states) == tablets, START_LIMIT_S)
        created_s = time.monotonic() - started
        await asyncio.sleep(SETTLE_S)
        figures = await _at_rest(servers, tablets, seconds)
        figures.append(await _after_a_kill(servers, tablets))
        return [*figures, shown(f"… creation of the {tablets} tablets", created_s, "s")]
    finally:
        await servers.close()
        shutil.rmtree(servers.folder, ignore_errors=True)


def _cpu_s(process: Process) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


async def _at_rest(servers: Servers, tablets: int, seconds: float) -> list[Figure]:
    """Of one core, in per cent, each process while nothing happens."""
    before = {name: _cpu_s(process) for name, process in servers.processes.items()}
    began = time.monotonic()
    await asyncio.sleep(seconds)
    taken_s = time.monotonic() - began
    shares = {
        name: 100 * (_cpu_s(process) - before[name]) / taken_s
        for name, process in servers.processes.items()
    }
    busiest = max(servers.tservers, key=lambda name: shares[name])
    roles = (await servers.ask(busiest))["roles"]
    others = ", ".join(f"{share:.2g} %" for name, share in shares.items() if name != busiest)
    note = f"leads {roles.get('leader', 0)}, follows {roles.get('follower', 0)}"
    return [
        at_most(
            f"tserver with {tablets} idle tablets, of one core", shares[busiest], 10, "%", note
        ),
        shown("… the busiest master", max(shares[name] for name in servers.masters), "%", others),
    ]


async def _after_a_kill(servers: Servers, tablets: int) -> Figure:
    """From the kill of the server that leads most until every tablet is led again."""
    states = {name: await servers.ask(name) for name in servers.tservers}
    victim = max(states, key=lambda name: states[name]["roles"].get("leader", 0))
    had = states[victim]["roles"]["leader"]
    process = servers.processes.pop(victim)
    process.kill()
    killed = time.monotonic()
    await process.wait()
    await servers.wait(lambda found: led(found) == tablets, 60.0)
    name = f"all {had} tablets that a killed server led, led again"
    return at_most(name, time.monotonic() - killed, 2.0, "s")


if __name__ == "__main__":
    for figure in measure("--quick" in sys.argv):
        print(f"{figure.name:60} {figure.measured:>10}  {figure.target:10} {figure.note}")
