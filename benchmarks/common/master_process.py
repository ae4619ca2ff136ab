"""One master in a process of its own, for benchmarks: the plain class on the real runtime.

It takes orders as lines of JSON and answers each with one. Its times are those of the machine's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import uvloop

from stelae.actors.master.server import Master
from stelae.actors.raft.replica import RoleChange
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.liveness.liveness import Noted
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import GET_TABLE, GetTable
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

CLUSTER = "bench"
SECRET = bytes(range(32))
SCHEMA = TableSchema.of(
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("reading", pa.float64())]), ["id"]
)


class MeasuredMaster(Master):
    """Notes when it became leader, and when it was ready to serve."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.times: dict[str, float] = {}
        self.beats = 0
        note = self.liveness.heartbeat

        def count(heartbeat: Heartbeat, now: float) -> Noted:
            self.beats += 1
            return note(heartbeat, now)

        self.liveness.heartbeat = count  # type: ignore[method-assign]

    async def locate(self, name: str, times: int) -> list[float]:
        """How many milliseconds each of so many look-ups of a table takes, encoding included."""
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            reply = await self._handlers()[GET_TABLE](Call(GetTable(name), (), 5.0))
            msgspec.msgpack.encode(reply.body)
            taken.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(0.002)
        return taken

    def _on_role_change(self, change: RoleChange) -> None:
        super()._on_role_change(change)
        if change.role.value != "leader":
            self.times.clear()
            return
        self.times.setdefault("elected", time.monotonic())
        if change.ready:
            self.times.setdefault("ready", time.monotonic())


async def populate(master: Master, name: str, tablets: list[list[Any]]) -> None:
    """Add a table whose tablets run already; each is (id, owner, incarnation)."""
    table = TableRecord(
        table_id=TableId(f"{name:0>32}"),
        name=name,
        schema=SCHEMA,
        partitioning=hash_partition("id", len(tablets)),
        durability=segments("disk", "disk"),
        state=TableState.RUNNING,
    )
    records = tuple(
        TabletRecord(
            tablet_id=TabletId(tablet_id),
            table_id=table.table_id,
            number=number,
            state=TabletState.RUNNING,
            term=1,
            owner=ServerUuid(owner),
            owner_incarnation=incarnation,
        )
        for number, (tablet_id, owner, incarnation) in enumerate(tablets)
    )
    if master.catalog.find(name) is None:  # or an attempt without an answer was carried out
        await master.lead().operations.change(lambda: CatalogBatch((table,), records))


def state_of(master: MeasuredMaster) -> dict[str, Any]:
    """What this master is, and what its process weighs."""
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    private = [line.split() for line in rollup if line.startswith(("Private_", "SwapPss:"))]
    return {
        "leads": master.is_leader,
        "times": master.times,
        "tablets": len(master.catalog.tablets),
        "heard": len(master.liveness.all()),
        "settled": sum(seen.picture.is_exact for seen in master.liveness.all()),
        "private_bytes": sum(int(words[1]) * 1024 for words in private),
        "cpu_s": time.process_time(),
        "beats": master.beats,
    }


async def serve(name: str, folder: str, masters: dict[str, Address]) -> None:
    """Run until standard input ends."""
    port = int(masters[name].rpartition(":")[2])
    peers = TcpPeers(Credentials(CLUSTER, SECRET), on_failure=_fail, port=port)
    runtime = RealRuntime(peers, LocalDisk(Path(folder)))
    master = MeasuredMaster(
        runtime, name=name, cluster=CLUSTER, masters=masters, settings=Settings()
    )
    await master.start()
    lines = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        order = json.loads(line)
        refused, taken = "", []
        if order["do"] == "locate":
            taken = await master.locate(order["table"], order["times"])
        if order["do"] == "populate":
            try:
                await populate(master, order["table"], order["tablets"])
            except StelaeError as error:
                refused = str(error)
        print(json.dumps({**state_of(master), "refused": refused, "taken_ms": taken}), flush=True)


def _fail(error: BaseException) -> None:
    print(f"a handler failed: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
