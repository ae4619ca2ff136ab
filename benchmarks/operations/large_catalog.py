"""A catalog of 10,000 tablets in 100 tables, with 200 tservers that report to three real masters.

The masters run in processes of their own, over TCP. The tservers are real ones whose tablets are
only said to be there; they and their files live in this process. One of them has 1,000 tablets.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.common.figures import Figure, at_most, median, percentile, shown
from benchmarks.common.master_process import CLUSTER, SECRET
from stelae.actors.tserver.server import TabletServer
from stelae.client.routing.masters import MastersClient
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, TabletId
from stelae.core.messages.catalog import GET_TABLE, GetTable
from stelae.core.messages.reports import Reporter, tablet_fingerprint
from stelae.core.messages.servers import HEARTBEAT, TabletProgress, TabletReport
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

MASTERS = 3
PROGRAM = "benchmarks.common.master_process"
WRITTEN_EVERY = 10
"""One tablet of so many has new rows in each report."""
REPORTS, LOOK_UPS = 11, 200


@dataclass
class Size:
    """How large a catalog, and how many servers."""

    tables: int = 100
    tablets_each: int = 100
    tservers: int = 200
    largest: int = 1000
    """Tablets of one tserver."""
    seconds: float = 20.0
    """How long heartbeats are measured."""


@dataclass
class SaidTablet:
    """A tablet that is served, as far as its server says."""

    tablet_id: TabletId
    is_written: bool
    rows: int = 1000
    memory_bytes: int = 1 << 20
    live_bytes: int = 1 << 20
    term: int = 1
    progress: TabletProgress = TabletProgress.SERVING
    lacks_memory: bool = False
    said: TabletReport | None = None

    def report(self) -> TabletReport:
        if self.said is None or self.is_written:
            self.rows += 1
            self.said = TabletReport(
                self.tablet_id, self.term, self.progress, row_count=self.rows, segment_count=3
            )
        return self.said

    def serve(self) -> None:
        """It does."""

    def may_clean(self) -> bool:
        return False

    def may_compact(self) -> bool:
        return False

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Bench:
    """The processes and servers of one run."""

    size: Size
    folder: Path
    masters: dict[str, Address] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    tservers: list[TabletServer] = field(default_factory=list)
    runtimes: list[RealRuntime] = field(default_factory=list)

    def runtime(self, name: str) -> RealRuntime:
        peers = TcpPeers(Credentials(CLUSTER, SECRET), on_failure=_fail)
        self.runtimes.append(RealRuntime(peers, LocalDisk(self.folder / name)))
        return self.runtimes[-1]

    async def start_masters(self) -> None:
        for name in (f"master-{n}" for n in range(1, MASTERS + 1)):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.masters[name] = Address(f"127.0.0.1:{free.getsockname()[1]}")
        for name in self.masters:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                PROGRAM,
                name,
                str(self.folder / name),
                json.dumps(self.masters),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )

    async def start_tservers(self) -> None:
        for number in range(self.size.tservers):
            name = f"tserver-{number}"
            server = TabletServer(
                self.runtime(name),
                name=name,
                cluster=CLUSTER,
                masters=list(self.masters.values()),
                settings=Settings(),
                memory_limit_bytes=1 << 30,
            )
            await server.start()
            self.tservers.append(server)

    async def ask(self, name: str, **order: Any) -> dict[str, Any]:
        """Give a master an order; what it is then."""
        process = self.processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": "tell", **order}).encode() + b"\n")
        found: dict[str, Any] = json.loads(await process.stdout.readline())
        return found

    async def leader(self) -> str:
        """The master that leads."""
        while True:
            for name in self.processes:
                if (await self.ask(name))["leads"]:
                    return name
            await asyncio.sleep(0.02)

    async def wait(self, name: str, done: Callable[[dict[str, Any]], bool], limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            while not done(await self.ask(name)):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    async def populate(self, leader: str) -> str:
        """Give every tserver its tablets, and the catalog all of them; returns who leads then."""
        size, others = self.size, self.tservers[1:]
        owners = [self.tservers[0]] * size.largest
        rest = size.tables * size.tablets_each - size.largest
        owners += [others[number % len(others)] for number in range(rest)]
        ids = [TabletId(uuid.uuid4().hex) for _ in owners]
        for number, (tablet_id, owner) in enumerate(zip(ids, owners, strict=True)):
            tablet: Any = SaidTablet(tablet_id, number % WRITTEN_EVERY == 0)
            owner._tablets[tablet_id] = tablet
        rows = [
            [i, owner.info.uuid, owner.info.incarnation]
            for i, owner in zip(ids, owners, strict=True)
        ]
        for table in range(size.tables):
            # Every table has tablets of all kinds of servers.
            part = rows[table :: size.tables]
            while (await self.ask(leader, do="populate", table=f"table{table}", tablets=part))[
                "refused"
            ]:
                leader = await self.leader()
        return await self.leader()

    async def close(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
        for server in self.tservers:
            await server.tasks.close()
        for runtime in self.runtimes:
            await runtime.close()


def _fail(error: BaseException) -> None:
    raise error


def measure(quick: bool) -> list[Figure]:
    """All figures of the large catalog."""
    size = Size(10, 20, 20, 50, 2.0) if quick else Size()
    figures: list[Figure] = uvloop.run(_measure(size))
    return figures


async def _measure(size: Size) -> list[Figure]:
    bench = Bench(size, Path(tempfile.mkdtemp(prefix="stelae-bench-masters-", dir="/var/tmp")))
    try:
        await bench.start_masters()
        leader = await bench.leader()  # from now on all their ports are taken
        await bench.start_tservers()
        await bench.wait(leader, lambda state: state["heard"] >= size.tservers, 60.0)
        before = await bench.ask(leader)
        assert await bench.populate(leader) == leader, "leadership changed: the machine is too busy"
        await asyncio.sleep(3.0)
        after = await bench.ask(leader)
        figures = [_memory(size, before, after)]
        figures += await _heartbeats(bench, leader)
        figures += await _full_reports(bench, leader)
        figures += await _look_ups(bench, leader)
        return figures + await _failover(bench, leader)
    finally:
        await bench.close()
        shutil.rmtree(bench.folder, ignore_errors=True)


def _memory(size: Size, before: dict[str, Any], after: dict[str, Any]) -> Figure:
    count = size.tables * size.tablets_each
    assert after["tablets"] == count, f"{after['tablets']} of {count} tablets"
    added = (after["private_bytes"] - before["private_bytes"]) / 1e6
    note = "private memory of the leader: catalog, reports and log"
    return at_most(f"memory of {count:,} tablets in {size.tables} tables", added, 100, "MB", note)


async def _heartbeats(bench: Bench, leader: str) -> list[Figure]:
    """CPU time of each master while nothing happens but heartbeats."""
    states = {name: await bench.ask(name) for name in bench.processes}
    start = time.monotonic()
    await asyncio.sleep(bench.size.seconds)
    shares: dict[str, float] = {}
    rates: dict[str, float] = {}
    for name in bench.processes:
        now, taken = await bench.ask(name), time.monotonic() - start
        shares[name] = 100 * (now["cpu_s"] - states[name]["cpu_s"]) / taken
        rates[name] = (now["beats"] - states[name]["beats"]) / taken
    what = f"heartbeats of {bench.size.tservers} tservers"
    followers = [share for name, share in shares.items() if name != leader]
    note = f"one core, leader, {rates[leader]:.0f}/s came; of {WRITTEN_EVERY} tablets one grows"
    return [
        at_most(what, shares[leader], 20, "%", note),
        shown("… a follower", max(followers), "%"),
    ]


async def _timed(call: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


async def _full_reports(bench: Bench, leader: str) -> list[Figure]:
    """A report of everything, in which everything is new, until it is answered."""
    server = bench.tservers[0]
    address, times = bench.masters[leader], []
    runtime = bench.runtimes[0]
    for number in range(REPORTS):
        reports = tuple(
            msgspec.structs.replace(report, problem=f"as of {number}")
            for report in server.reports()
        )
        beat, _ = server._beat(Reporter(tablet_fingerprint))
        full = msgspec.structs.replace(
            beat, tablets=reports, number=(1 << 40) + number, sent=runtime.clock.monotonic()
        )

        async def report(full: Any = full) -> None:
            reply = await runtime.peers.call(address, HEARTBEAT, full, timeout_s=10.0)
            assert reply.body.is_leader
            assert reply.body.processed, "the report was not taken"

        times.append(await _timed(report))
        await asyncio.sleep(0.2)
    name = f"full report of {bench.size.largest} tablets, until answered"
    note = f"median {median(times):.3g} ms, worst of {len(times)}"
    return [at_most(name, max(times), 200, "ms", note)]


async def _look_ups(bench: Bench, leader: str) -> list[Figure]:
    """Where a table's tablets are, asked over TCP while all heartbeats go on."""
    client = MastersClient(bench.runtime("client"), list(bench.masters.values()))
    times, located = list[float](), list[bool]()
    for number in range(LOOK_UPS):
        name = f"table{number % bench.size.tables}"

        async def look(name: str = name) -> None:
            found = await client.call(GET_TABLE, GetTable(name), timeout_s=10.0)
            assert len(found.tablets) == bench.size.tablets_each
            located.extend(bool(location.address) for location in found.tablets)

        times.append(await _timed(look))
        await asyncio.sleep(0.005)
    inside = (await bench.ask(leader, do="locate", table="table1", times=LOOK_UPS))["taken_ms"]
    name = f"locations of a table of {bench.size.tablets_each} tablets, at the master"
    seen = "… seen by a client"
    note = f"99th percentile {percentile(times, 0.99):.3g} ms; median of {len(times)}; "
    note += f"{sum(located) / len(located):.1%} of the tablets served"
    worst = f"99th percentile {percentile(inside, 0.99):.3g} ms; median of {len(inside)}"
    return [
        at_most(name, median(inside), 5, "ms", worst),
        shown(seen, median(times), "ms", note),
    ]


async def _failover(bench: Bench, leader: str) -> list[Figure]:
    """The leader is killed: how long the next one takes from its election until it serves."""
    client = MastersClient(bench.runtime("watcher"), list(bench.masters.values()))
    await client.call(GET_TABLE, GetTable("table0"), timeout_s=10.0)
    process = bench.processes.pop(leader)
    process.kill()
    killed = time.monotonic()
    found = await client.call(GET_TABLE, GetTable("table0"), timeout_s=30.0)
    answered = time.monotonic()
    served = len([location for location in found.tablets if location.address])
    await process.wait()
    new = await bench.leader()
    times = (await bench.ask(new))["times"]
    await bench.wait(new, lambda state: state["settled"] >= bench.size.tservers, 60.0)
    settled = time.monotonic()
    ready = max(times["ready"], answered) - times["elected"]
    note = f"elected {times['elected'] - killed:.2f} s after the kill; {served} tablets located"
    return [
        at_most("new leader answers, after its election", ready, 1.0, "s", note),
        shown("… every tserver's full report taken", settled - times["elected"], "s"),
    ]
