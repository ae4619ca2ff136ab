"""A tablet is copied to another server, beside a plain ``ray.get`` and write of as many bytes.

One replica moves to and fro between servers. The copy's time is what the receiver's disk says: from
the superblock by which it begins to the one by which it counts, all images synced.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from benchmarks.common.clusters import cluster, servers
from benchmarks.common.figures import Figure, at_least, median, shown
from stelae import replicas
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import DataState
from stelae.storage.files.superblock import decode_superblock

GIB = 1 << 30
BODY_BYTES = 1000
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("body", pa.string())])
LOAD_ROWS = 65_536
TIMEOUT_S = 120.0


def measure(quick: bool) -> list[Figure]:
    """Moves of one replica, and plain copies of as many bytes before and after each."""
    size_bytes, moves = (GIB // 16, 1) if quick else (GIB, 3)
    with (
        tempfile.TemporaryDirectory(prefix="stelae-bench-copied-", dir="/var/tmp") as name,
        cluster("tablet-copy", tservers={"count": 2, "memory": "4GiB"}, data_dir=name) as database,
    ):
        folder = Path(name)
        table = database.create_table("t", SCHEMA, key="id", durability=replicas(1))
        _fill(table, size_bytes)
        plain, taken, moved = [_plain_s(folder, size_bytes)], [], []
        copied_bytes = 0
        for _ in range(moves):
            time.sleep(3.0)  # the disk is at rest
            copy_s, move_s, copied_bytes = _move(database, folder)
            taken.append(copy_s * size_bytes / copied_bytes)
            moved.append(move_s)
            plain.append(_plain_s(folder, size_bytes))
        assert table.count() == size_bytes // BODY_BYTES, "rows are gone"
    # Beside the plain copies before and after each, so that both meet the same load.
    shares = [
        (before + after) / 2 / mine
        for mine, before, after in zip(taken, plain, plain[1:], strict=False)
    ]
    name = f"tablet copy of {copied_bytes / (1 << 20):,.0f} MiB"
    size = size_bytes / (1 << 20)
    note = f"a copy {min(taken):.2f}–{max(taken):.2f} s, plain {min(plain):.2f}–{max(plain):.2f} s"
    return [
        shown(name, size / median(taken), "MiB/s", note),
        shown("ray.get, write and sync of as many bytes", size / median(plain), "MiB/s"),
        at_least("tablet copy against that", median(shares) * 100, 40, "%"),
        shown("… the whole move, until the old replica is gone", median(moved), "s"),
    ]


def _fill(table: Any, size_bytes: int) -> None:
    count = size_bytes // BODY_BYTES
    generator = np.random.default_rng(11)
    for start in range(0, count, LOAD_ROWS):
        ids = np.arange(start, min(start + LOAD_ROWS, count))
        letters = np.frombuffer(generator.bytes(len(ids) * BODY_BYTES), np.uint8) % 26 + 97
        offsets = np.arange(0, (len(ids) + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
        body = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(letters))
        table.load(pa.table([pa.array(ids, pa.int64()), body], SCHEMA))


def _plain_s(folder: Path, size_bytes: int) -> float:
    """Seconds of ``ray.get`` of an object that another process made, a write and a sync of it."""

    def make() -> np.ndarray:
        return np.frombuffer(np.random.default_rng(1).bytes(size_bytes), np.uint8)

    made = ray.remote(num_cpus=0)(make).remote()
    ray.wait([made])
    path = folder / "plain"
    start = time.perf_counter()
    stored: Any = ray.get(made)
    data = memoryview(stored)
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    while data:
        data = data[os.write(file, data) :]
    os.fdatasync(file)
    taken_s = time.perf_counter() - start
    os.close(file)
    path.unlink()
    return taken_s


def _move(database: Any, folder: Path) -> tuple[float, float, int]:
    """Seconds of the copy, of the whole move, and bytes of images copied."""
    tablet = database.status()["tablets"][0]
    names = [server["id"] for server in servers(database, "tserver")]
    source = tablet["replicas"][0]["server"]
    target = next(name for name in names if name != source)
    errors: list[BaseException] = []

    def move() -> None:
        try:
            database.move_replica(tablet["id"], source, target)
        except BaseException as error:
            errors.append(error)

    start = time.perf_counter()
    mover = threading.Thread(target=move)
    mover.start()
    copy_s = _watch(folder / target, TabletId(tablet["id"]), errors)
    mover.join()
    if errors:
        raise errors[0]
    move_s = time.perf_counter() - start
    images = (folder / target / "data" / tablet["id"]).iterdir()
    return copy_s, move_s, sum(image.stat().st_size for image in images)


def _watch(folder: Path, tablet_id: TabletId, errors: list[BaseException]) -> float:
    """Seconds between the two superblocks."""
    path = folder / "tablet-meta" / tablet_id
    deadline = time.perf_counter() + TIMEOUT_S
    begun: float | None = None
    while not errors:
        now = time.perf_counter()
        if now > deadline:
            raise TimeoutError("the copy does not end")
        try:
            state = decode_superblock(str(path), tablet_id, path.read_bytes()).state
        except FileNotFoundError:
            state = DataState.ABSENT
        if state is DataState.COPYING and begun is None:
            begun = now
        if state is DataState.READY and begun is not None:
            return now - begun
        time.sleep(0.002)
    raise errors[0]
