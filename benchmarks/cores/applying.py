"""Speed of a replicated tablet's state machine on one core.

    python -m benchmarks.cores.applying

Prints rows a second and microseconds a command, medians of some runs: encoding a command at the
leader, executing it on each replica, flushing (images, manifest), loading after a restart, and the
checksum over all rows. No network, disk or consensus.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from benchmarks.common.generated import SCHEMA, rows
from stelae.core.ids import ClientId, OpId, RequestId, TableId, TabletId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows
from stelae.storage.entries.entry import encode_batch
from stelae.storage.replicated.commands import Stamp, encode_alter, encode_write
from stelae.storage.replicated.manifest import decode_manifest, open_image
from stelae.storage.replicated.state_machine import TabletStateMachine

RUNS = 5
BATCH_ROWS = 1_000
SEGMENT_BYTES = 8 << 20
TABLET = TabletId("t" * 32)
TABLE = TableRecord(
    TableId("a" * 32),
    "rows",
    TableSchema.of(SCHEMA, ["id"]),
    Partitioning(),
    segments(),
    TableState.RUNNING,
)
STAMP = Stamp(1.0, 0.0)


def tell(name: str, times: Sequence[float], row_count: int, commands: int) -> None:
    """Print the median of some runs."""
    median = statistics.median(times)
    per_command = f"{median / commands * 1e6:9.1f} µs a command" if commands else ""
    print(f"{name:44s} {row_count / median:12,.0f} rows/s {per_command}")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def empty() -> TabletStateMachine:
    """A tablet that knows its table."""
    machine = TabletStateMachine(TABLET, TABLE)
    machine.apply(1, 1, encode_alter(TABLE, STAMP))
    return machine


def execute(machine: TabletStateMachine, commands: Sequence[bytes], *, flush: bool) -> None:
    """Execute commands in order; with ``flush``, seal and install heads as they fill."""
    for index, command in enumerate(commands, machine.applied_index + 1):
        machine.apply(index, 1, command)
        if flush and machine.flush_due(SEGMENT_BYTES):
            put_away(machine)


def put_away(machine: TabletStateMachine) -> tuple[bytes, dict[int, pa.Buffer]]:
    """One flush, without a disk: its manifest, and the images it built."""
    flush = machine.begin_flush(OpId(1, machine.applied_index))
    images = {}
    for slot in flush.unsealed:
        sealed = machine.seal(flush, slot)
        machine.installed(sealed)
        images[sealed.file.segment_id] = sealed.content
    manifest = machine.manifest(flush)
    machine.flushed(flush)
    return manifest, images


def request(sequence: int) -> RequestId:
    return RequestId(ClientId("client"), sequence, max(1, sequence - 31))


def bulk_commands(ids: np.ndarray, first: int, times: list[float] | None = None) -> list[bytes]:
    """Upserts of `BATCH_ROWS` rows each."""
    commands = []
    table = rows(ids)
    for i, start in enumerate(range(0, len(ids), BATCH_ROWS)):
        batch = table.slice(start, BATCH_ROWS).combine_chunks().to_batches()[0]
        stream = encode_batch(batch)
        write = Write(TABLET, 1, WriteOp.UPSERT, request(first + i), ())
        started = time.perf_counter()
        commands.append(encode_write(write, batch, stream, schema_version=1, stamp=STAMP))
        if times is not None:
            times.append(time.perf_counter() - started)
    return commands


def single_commands(ids: np.ndarray, first: int, op: WriteOp = WriteOp.UPSERT) -> list[bytes]:
    """Writes of one row each."""
    commands = []
    for i, row in enumerate(batch_to_rows(rows(ids).combine_chunks().to_batches()[0])):
        write = Write(TABLET, 1, op, request(first + i), (row,))
        commands.append(encode_write(write, (row,), None, schema_version=1, stamp=STAMP))
    return commands


def measure(name: str, make: Callable[[int], list[bytes]], row_count: int, *, flush: bool) -> None:
    """The same commands again and again, each time with new request ids."""
    machine, times, count = empty(), [], 0
    for run in range(RUNS + 1):
        commands = make(1 + run * 1_000_000)
        count = len(commands)
        times.append(timed(lambda c=commands: execute(machine, c, flush=flush)))  # type: ignore[misc]
    tell(name, times[1:], row_count, count)


def main() -> None:
    """Measure all; the argument is the number of rows of the large runs, in thousands."""
    large = int(float(sys.argv[1]) * 1000) if len(sys.argv) > 1 else 400_000
    ids = np.random.default_rng(1).permutation(large)
    few = ids[:20_000]
    encoding: list[float] = []
    bulk_commands(ids, 1, encoding)
    tell("encode batches of 1,000", [sum(encoding)], large, len(encoding))
    measure("batches of 1,000", lambda n: bulk_commands(ids, n), large, flush=False)
    measure("batches of 1,000, with flushes", lambda n: bulk_commands(ids, n), large, flush=True)
    tell(
        "encode single rows",
        [timed(lambda: single_commands(few, 1)) for _ in range(RUNS)],
        len(few),
        len(few),
    )
    measure("single rows", lambda n: single_commands(few, n), len(few), flush=False)
    measure("single rows, with flushes", lambda n: single_commands(few, n), len(few), flush=True)
    refused = WriteOp.INSERT
    measure(
        "single inserts, refused", lambda n: single_commands(few, n, refused), len(few), flush=False
    )
    machine = empty()
    kept: dict[int, pa.Buffer] = {}
    for index, command in enumerate(bulk_commands(ids, 1), 2):
        machine.apply(index, 1, command)
        if machine.flush_due(SEGMENT_BYTES):
            kept |= put_away(machine)[1]
    manifest, images = put_away(machine)
    kept |= images

    def load() -> None:
        named = decode_manifest("manifest", TABLET, manifest).images
        opened = [open_image(file, TABLET, kept[file.segment_id], file.name) for file in named]
        TabletStateMachine(TABLET, TABLE).load(manifest, opened)

    tell(f"load ({len(kept)} images)", [timed(load) for _ in range(RUNS)], large, 0)
    source = machine.checksum(machine.applied_index)
    assert source is not None
    tell("checksum", [timed(source.compute) for _ in range(RUNS)], large, 0)


if __name__ == "__main__":
    main()
