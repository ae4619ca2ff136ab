"""Speeds of the storage kernels on one core.

    python -m benchmarks.cores.kernels [rows in millions]

Prints the median of some runs in seconds and nanoseconds a row. Memory is touched once before: a
virtual machine's first use of a page costs more than the work measured here.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.core.messages.rows import WriteOp
from stelae.core.schema.partition import hash_partition, range_partition
from stelae.core.schema.schema import TableSchema
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.decoding import exact_value
from stelae.storage.keys.hash_index import HashIndex
from stelae.storage.keys.merge import Merged, Summary, merge
from stelae.storage.keys.partitioner import Partitioner
from stelae.storage.rows.memory import TabletMemory

RUNS = 3
SEGMENT_ROWS = 70_000


def measure(name: str, work: Callable[[], object], rows: int) -> None:
    """Print how long ``work`` takes; one run before does not count."""
    work()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(f"{name:52s} {median:8.3f} s {median / rows * 1e9:9.1f} ns a row")


def measure_keys(rows: int) -> None:
    """Hashing, encoding, partitioning."""
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 40, rows))
    texts = pa.array(np.char.mod("%020d", np.arange(rows)).tolist())
    batch = pa.record_batch({"n": numbers, "t": texts})
    for key in (["n"], ["t"], ["n", "t"]):
        schema = TableSchema.of(batch.schema, key)
        codec = KeyCodec(schema)
        measure(f"hash a batch, key {key}", partial(codec.hash_batch, batch), rows)
        one = tuple(batch.column(name)[7].as_py() for name in key)
        measure(f"hash one, key {key}", partial(_repeat, codec.hash_one, one), 1000)
        cut = Partitioner(hash_partition(key[0], 16), schema)
        measure(f"tablet numbers, hash of {key[:1]}", partial(cut.tablet_numbers, batch), rows)
        measure("tablet number of one", partial(_repeat, cut.tablet_number, one), 1000)
    numbers_of = Partitioner(hash_partition("n", 16), TableSchema.of(batch.schema, ["n"]))
    cuts = numbers_of.tablet_numbers(batch)
    measure("split into 16 tablets", lambda: numbers_of.split(batch, cuts), rows)
    splits = [f"{rows * i // 16:020d}" for i in range(1, 16)]
    cut = Partitioner(range_partition("t", splits), TableSchema.of(batch.schema, ["t"]))
    measure("tablet numbers, 16 ranges of text", lambda: cut.tablet_numbers(batch), rows)


def _repeat(work: Callable[[tuple[Any, ...]], object], key: tuple[Any, ...]) -> None:
    for _ in range(1000):
        work(key)


def measure_index(rows: int) -> None:
    """The hash index with this many entries."""
    rng = np.random.default_rng(2)
    hashes = rng.integers(0, 1 << 64, rows, dtype=np.uint64)
    positions = np.arange(rows)
    measure("index: build, any order", lambda: HashIndex.build(hashes, positions), rows)
    ordered = np.sort(hashes)
    measure("index: build, in order of hashes", lambda: HashIndex.build(ordered, positions), rows)
    index = HashIndex.build(hashes, positions)
    some = hashes[rng.permutation(rows)[: min(rows, 1_000_000)]]
    found = index.find(some)

    def find(batches: Sequence[slice]) -> None:
        for each in batches:
            index.find(some[each])

    def plan(batches: Sequence[slice]) -> None:
        for each in batches:
            index.plan(some[each])

    def move(batches: Sequence[slice]) -> None:
        for each in batches:
            index.replace(some[each], found[each], found[each])

    for size in (100, 10_000, len(some)):
        cut = [slice(i, i + size) for i in range(0, len(some), size)]
        label = f"in batches of {size}"
        measure(f"index: find {label}", partial(find, cut), len(some))
        measure(f"index: plan {label}", partial(plan, cut), len(some))
        measure(f"index: move {label}", partial(move, cut), len(some))
    keys = some[:1000].tolist()
    measure("index: find_one", lambda: [index.find_one(key) for key in keys], 1000)

    def grow() -> HashIndex:
        grown = HashIndex()
        nothing = np.full(10_000, -1)
        for i in range(0, rows, 10_000):
            part = hashes[i : i + 10_000]
            grown.replace(part, nothing[: len(part)], positions[i : i + 10_000])
        return grown

    measure("index: insert into a growing one, by 10 000", grow, rows)
    print(f"index: {grow().nbytes / rows:.1f} bytes an entry after growing")


def measure_chosen_keys(rows: int) -> None:
    """An upsert of keys chosen to collide with a seed that is known, and of the same keys where the
    table has another: what a client could do before tables had seeds, and can do now."""
    schema = TableSchema.of(pa.schema([pa.field("k", pa.int64(), False)]), ["k"])
    value = exact_value(pa.int64(), schema.key_seed)
    assert value is not None
    chosen = [value(0x12345678 << 32 | n) for n in range(rows)]
    batches = {
        "ordinary": pa.record_batch({"k": pa.array(range(rows))}),
        "chosen": pa.record_batch({"k": pa.array(chosen, pa.int64())}),
    }
    other = msgspec.structs.replace(schema, key_seed=schema.key_seed ^ 0xA5A5A5A5A5A5A5A5)
    for seed, each in (("known", schema), ("its own", other)):
        for keys, batch in batches.items():
            label = f"upsert, {keys} keys, seed {seed}"
            measure(label, partial(_upsert, each, batch), rows)


def _upsert(schema: TableSchema, batch: pa.RecordBatch) -> None:
    memory = TabletMemory(schema, "t")
    memory.new_head(1)
    memory.execute(WriteOp.UPSERT, batch, None, 1)


def measure_merge(rows: int) -> None:
    """Recovery's merge of segments with 1.5 writes to a key on average, and 2 % of deletes."""
    rng = np.random.default_rng(3)
    summaries = []
    for start in range(0, rows, SEGMENT_ROWS):
        count = min(SEGMENT_ROWS, rows - start)
        hashes = rng.integers(0, rows * 2 // 3, count).astype(np.uint64)
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        kinds = (rng.random(count) < 0.02).astype(np.uint8)
        summaries.append(
            Summary(hashes, np.arange(start + 1, start + count + 1, dtype="u8"), kinds)
        )
    measure("merge, keys known by hash", lambda: merge(summaries), rows)
    half = len(summaries) // 2
    measure("merge, halves on two threads", lambda: _both(summaries, half), rows)
    keyed = [Summary(s.hashes, s.versions, s.kinds, _keys(s.hashes)) for s in summaries[: half + 1]]
    measured = sum(map(len, keyed))
    measure(f"merge, {measured} rows with 20-byte keys", lambda: merge(keyed), measured)


def _both(summaries: list[Summary], half: int) -> None:
    done: list[Merged] = []

    def work(part: list[Summary]) -> None:
        done.append(merge(part))

    threads = [
        threading.Thread(target=work, args=(part,)) for part in (summaries[:half], summaries[half:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) != 2:
        raise RuntimeError("a thread failed")


def _keys(hashes: np.ndarray) -> pa.BinaryArray:
    data = np.zeros((len(hashes), 20), np.uint8)
    data[:, :8] = hashes.view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(hashes) + 1, dtype=np.int32) * 20
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(hashes), buffers)


def main() -> None:
    """Measure all; the argument is the number of rows of the merge, in millions."""
    rows = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 9_000_000
    np.full(rows * 8, 1)  # touch the memory that will be used
    measure_keys(min(rows, 1_000_000))
    measure_index(min(rows, 5_000_000))
    measure_chosen_keys(min(rows, 50_000))
    measure_merge(rows)


if __name__ == "__main__":
    main()
