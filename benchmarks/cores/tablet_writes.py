"""What a tablet itself costs per write and read: one process, no network, no disk, one loop.

The table has ``segments()``, so nothing is waited for but the tablet's own work: checking,
applying, encoding, and the log's bookkeeping. For comparing versions of the code with each other.

    python -m benchmarks.cores.tablet_writes [--calls N] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import uvloop

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.factory import segment_log_of
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.core.config.settings import Settings
from stelae.core.ids import ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.rows import Get, Write, WriteOp
from stelae.core.messages.servers import RecoveryEngine
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

TABLET = TabletId("a" * 32)
SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())]), ["id"]
)
TABLE = TableRecord(
    TableId("b" * 32), "rows", SCHEMA, Partitioning(), segments(), TableState.RUNNING
)
RECORD = TabletRecord(TABLET, TABLE.table_id, 0, TabletState.RUNNING, 1, ServerUuid("c" * 32), 1)
VALUE = "x" * 92


async def _no_epoch(segment: int, epoch: int) -> None:
    raise AssertionError("a segment without replicas has one epoch")


async def _timed(calls: int, one: Callable[[int], Awaitable[object]]) -> float:
    """Microseconds per call."""
    gc.collect()
    began = time.perf_counter()
    for n in range(calls):
        await one(n)
    return (time.perf_counter() - began) / calls * 1e6


async def measure(folder: Path, calls: int, rounds: int) -> None:
    """Print the best and the middle of all rounds, as others use the machine too."""
    peers = TcpPeers(Credentials("bench", bytes(32)), on_failure=lambda error: None)
    runtime = RealRuntime(peers, LocalDisk(folder))
    tasks = Tasks()
    intake = Intake()
    make_log = segment_log_of(
        runtime,
        Settings(),
        Membership(),
        SegmentTraffic(),
        table=TABLE,
        record=RECORD,
        raise_epoch=_no_epoch,
        intake=intake,
    )
    tablet = Tablet(
        runtime,
        Settings(),
        table=TABLE,
        record=RECORD,
        make_log=make_log,
        tasks=tasks,
        intake=intake,
    )
    await tablet.open((), RecoveryEngine.NATIVE)
    tablet.serve()
    sequence = 0

    async def write(n: int) -> None:
        nonlocal sequence
        sequence += 1
        request = RequestId(ClientId("c"), sequence, sequence)
        call = Call(Write(TABLET, 1, WriteOp.UPSERT, request, ((n % 50_000, VALUE),)), (), 10.0)
        await tablet.write(call, await tablet.read_rows(call), None)

    async def get(n: int) -> None:
        await tablet.get(Call(Get(TABLET, ((n % 50_000,),)), (), 10.0))

    found: dict[str, list[float]] = {"write": [], "get": []}
    for _ in range(rounds):
        found["write"].append(await _timed(calls, write))
        found["get"].append(await _timed(calls, get))
    for name, times in found.items():
        ranked = sorted(times)
        print(
            f"{name:6} {ranked[0]:6.2f} µs at best, {ranked[len(ranked) // 2]:6.2f} in the middle"
        )
    await tablet.close()
    await tasks.close()
    await runtime.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), given.calls, given.rounds))


if __name__ == "__main__":
    main()
