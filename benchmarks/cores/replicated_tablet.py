"""Writes and reads of one tablet with ``replicas(3)``: three tservers in this process, real files.

Not a picture of a cluster: servers and clients share one process and one disk. It shows what the
write path costs in all, and what a flush and a restart take.

    python -m benchmarks.cores.replicated_tablet [--folder DIR] [--seconds S]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.server import TabletServer
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ClientId, OpId, RequestId, TableId, TabletId
from stelae.core.messages.replicas import CREATE_REPLICA, CreateReplica
from stelae.core.messages.rows import GET, WRITE, Get, Write, WriteOp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.replication import Configuration, Peer
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from stelae.storage.entries.entry import encode_batch

TABLET = TabletId("a" * 32)
SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())]), ["id"]
)
TABLE = TableRecord(
    TableId("b" * 32), "rows", SCHEMA, Partitioning(), replicas(3), TableState.RUNNING
)
VALUE = "x" * 92
BATCH_ROWS = 1000


def _fail(error: BaseException) -> None:
    raise SystemExit(f"a handler failed: {error!r}")


class Three:
    """Three tservers, and a client's runtime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks: dict[str, LocalDisk] = {}
        self.client = self._runtime("client")
        self.servers: list[TabletServer] = []
        self.runtimes: list[RealRuntime] = []
        self.sequence = 0

    def _runtime(self, name: str) -> RealRuntime:
        peers = TcpPeers(Credentials("bench", bytes(32)), on_failure=_fail)
        if name not in self.disks:  # a restarted server has the same one
            self.disks[name] = LocalDisk(self.folder / name, sync_in_thread=True)
        return RealRuntime(peers, self.disks[name])

    async def start(self) -> None:
        self.servers = []
        for n in range(3):
            self.runtimes.append(self._runtime(f"tserver-{n}"))
            server = TabletServer(
                self.runtimes[-1],
                name=f"tserver-{n}",
                cluster="bench",
                masters=[Address("127.0.0.1:1")],
                settings=Settings(),
                memory_limit_bytes=8 << 30,
            )
            await server.start()
            self.servers.append(server)
        for server in self.servers:  # as the masters' answers to heartbeats do
            server.members.update([other.info for other in self.servers])

    async def create(self) -> None:
        infos = sorted([server.info for server in self.servers], key=lambda info: info.uuid)
        peers = tuple([Peer(info.uuid, info.address, True, info.name) for info in infos])
        order = CreateReplica(TABLET, TABLE, Configuration(OpId(0, 0), peers))
        for info in infos:
            await self.client.peers.call(info.address, CREATE_REPLICA, order, timeout_s=5.0)

    async def leader(self) -> Address:
        while True:
            for server in self.servers:
                tablet = server.replicas.tablet(TABLET)
                ready = tablet is not None and tablet.replica.leader_ready
                if tablet is not None and ready and tablet.machine.is_founded:
                    return server.info.address
            await asyncio.sleep(0.01)

    async def write(self, address: Address, rows: Any, blobs: Any = ()) -> None:
        self.sequence += 1
        request = RequestId(ClientId(f"c{self.sequence % 997}"), self.sequence, self.sequence)
        call = Write(TABLET, 1, WriteOp.UPSERT, request, rows)
        await self.client.peers.call(address, WRITE, call, timeout_s=10.0, blobs=blobs)

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()
        while self.runtimes:
            await self.runtimes.pop().close()


async def measure(
    name: str, seconds: float, callers: int, one: Callable[[int], Awaitable[None]], rows: int = 1
) -> None:
    """Calls per second of so many callers, and what one call takes."""
    times: list[float] = []
    began = time.perf_counter()

    async def call(number: int) -> None:
        while (now := time.perf_counter()) - began < seconds:
            await one(number * 1_000_003 + len(times))
            times.append(time.perf_counter() - now)

    await asyncio.gather(*[call(number) for number in range(callers)])
    took = time.perf_counter() - began
    times.sort()
    rate = len(times) * rows / took
    half, most = times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
    print(f"{name:34} {rate:10.0f} rows/s   median {half:7.2f} ms   99 % {most:7.2f} ms")


async def run(folder: Path, seconds: float) -> None:
    three = Three(folder)
    await three.start()
    await three.create()
    address = await three.leader()

    async def single(number: int) -> None:
        await three.write(address, ((number, VALUE),))

    async def bulk(number: int) -> None:
        first = number * BATCH_ROWS
        ids = pa.array(range(first, first + BATCH_ROWS), pa.int64())
        batch = pa.record_batch([ids, pa.array([VALUE] * BATCH_ROWS)], schema=SCHEMA.arrow)
        await three.write(address, (), [encode_batch(batch)])

    async def read(number: int) -> None:
        await three.client.peers.call(address, GET, Get(TABLET, ((number,),)), timeout_s=10.0)

    await measure("single rows, 1 caller", seconds, 1, single)
    await measure("single rows, 64 callers", seconds, 64, single)
    await measure("linearizable gets, 1 caller", seconds, 1, read)
    await measure("linearizable gets, 64 callers", seconds, 64, read)
    await measure(f"batches of {BATCH_ROWS} rows, 4 callers", seconds, 4, bulk, BATCH_ROWS)
    began = time.perf_counter()
    for server in three.servers:
        tablet = server.replicas.tablet(TABLET)
        assert tablet is not None
        await tablet.flush()
    print(f"flush of all three: {time.perf_counter() - began:.2f} s")
    rows = [report.row_count for server in three.servers for report in server.reports()]
    await three.stop()
    began = time.perf_counter()
    await three.start()
    await three.leader()
    print(f"restart of all three with {rows} rows: {time.perf_counter() - began:.2f} s")
    await three.stop()
    await three.client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        asyncio.run(run(Path(folder), options.seconds))


if __name__ == "__main__":
    main()
