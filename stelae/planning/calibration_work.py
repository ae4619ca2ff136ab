"""Measures what this machine does in a recovery, in some seconds: the work behind
`stelae.planning.calibration`, which runs it as a process of its own.

Each measurement is bounded by bytes and by time, and works on files in one folder, which the caller
removes. Work of the CPU is counted in CPU time, so that what else runs here hardly shows in it;
disks and new memory in elapsed time, as a recovery waits for them.
"""

from __future__ import annotations

import mmap
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
PIECE_BYTES = 8 * MIB
FILE_BYTES_MAX = 256 * MIB
STEP_S = 1.5
"""Of each measurement, about."""
TOUCH_BYTES = 192 * MIB
STREAM_BYTES_MAX = 1024 * MIB
SEEKS = 100
SEGMENTS = 16
"""About as many as a tablet of a gigabyte in eight has: the merge's table is beyond caches."""
SEGMENT_ROWS = 70_000
RUNS = 4
TOUCH_ROUNDS = 3
ROW_BODY_BYTES = 84
SEED = 13


@dataclass(frozen=True, slots=True)
class Step:
    """A measurement: its name for people, and what it adds to the figures."""

    name: str
    measure: Callable[[Path], dict[str, float]]


def steps() -> Iterator[Step]:
    """All of them, in order: the disk's reads need the file of its writes."""
    yield Step("disk: writing and syncing", measure_writes)
    yield Step("disk: reading", measure_reads)
    yield Step("memory: touching new pages", measure_memory)
    yield Step("loopback: sending and receiving", measure_stream)
    yield Step("replay: checking and merging segments", measure_replay)


def measure_writes(folder: Path) -> dict[str, float]:
    """Append pieces of a segment's size, each synced."""
    piece = random.Random(SEED).randbytes(PIECE_BYTES)
    written, started = 0, time.perf_counter()
    descriptor = os.open(_file(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while written < FILE_BYTES_MAX and (_since(started) < STEP_S or written < 4 * PIECE_BYTES):
            written += os.write(descriptor, piece)
            os.fdatasync(descriptor)
        return {"disk_write_bytes_per_s": written / _since(started)}
    finally:
        os.close(descriptor)


def measure_reads(folder: Path) -> dict[str, float]:
    """Read them: from the disk, then out of the page cache, and at random places."""
    descriptor = os.open(_file(folder), os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        buffer = bytearray(PIECE_BYTES)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        read = _read_all(descriptor, buffer, size)
        disk_rate = read / _since(started)
        cpu = time.process_time()
        read = sum(_read_all(descriptor, buffer, size) for _ in range(2))
        cached_rate = read / max(1e-9, time.process_time() - cpu)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        dice = random.Random(SEED)
        times = []
        for _ in range(SEEKS):
            started = time.perf_counter()
            os.pread(descriptor, 4096, dice.randrange(size // 4096) * 4096)
            times.append(_since(started))
    finally:
        os.close(descriptor)
    seek_s = max(0.0, statistics.median(times))
    return {
        "disk_read_bytes_per_s": disk_rate,
        "cached_read_bytes_per_core_s": cached_rate,
        "disk_seek_s": seek_s,
    }


def _read_all(descriptor: int, buffer: bytearray, size: int) -> int:
    offset, started = 0, time.perf_counter()
    while offset < size and _since(started) < STEP_S:
        count = os.preadv(descriptor, [buffer], offset)
        if not count:
            break
        offset += count
    return offset


def measure_memory(_: Path) -> dict[str, float]:
    """Copy into memory that was never used, on all cores at once: a recovery needs as much as it
    brings back, and the first touch of a page is the dear part of it. In elapsed time: what a
    virtual machine's host takes for a page is nobody's CPU time inside. The best of some rounds."""
    from stelae.core.memory import populate

    cores = cpu_count()
    each = TOUCH_BYTES // cores // PIECE_BYTES * PIECE_BYTES or PIECE_BYTES
    source = memoryview(random.Random(SEED).randbytes(PIECE_BYTES))

    def touch(_: int) -> float:
        started = time.perf_counter()
        with mmap.mmap(-1, each, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            for start in range(0, each, PIECE_BYTES):
                view = memoryview(memory)[start : start + PIECE_BYTES]
                populate(view)
                view[:] = source
                view.release()
            return _since(started)

    with ThreadPoolExecutor(cores) as pool:
        times = [max(pool.map(touch, range(cores))) for _round in range(TOUCH_ROUNDS)]
    return {"new_memory_bytes_per_core_s": each / min(times)}


def measure_stream(_: Path) -> dict[str, float]:
    """Send through a TCP connection over loopback; both ends' CPU time, halved for one of them."""
    piece = bytes(MIB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        received = [0]

        def receive() -> None:
            connection, _address = server.accept()
            buffer = bytearray(PIECE_BYTES)
            with connection:
                connection.settimeout(10 * STEP_S)
                while count := connection.recv_into(buffer):
                    received[0] += count

        thread = threading.Thread(target=receive, name="calibration-receiver", daemon=True)
        thread.start()
        cpu, started, sent = time.process_time(), time.perf_counter(), 0
        with socket.create_connection(server.getsockname(), timeout=10 * STEP_S) as connection:
            while sent < STREAM_BYTES_MAX and _since(started) < STEP_S:
                connection.sendall(piece)
                sent += len(piece)
        thread.join(10 * STEP_S)
        cpu_s = max(1e-9, time.process_time() - cpu)
    if received[0] != sent:
        raise ConnectionError(f"{received[0]:,} of {sent:,} bytes came through loopback")
    return {"stream_bytes_per_core_s": 2 * sent / cpu_s}


def measure_replay(_: Path) -> dict[str, float]:
    """Check segments as they come from backups, merge them, and build the index: the kernels that
    a recovery uses, on rows of 100 bytes of which half overwrite others."""
    from stelae.storage.keys.merge import merge
    from stelae.storage.segments.image import Image

    images = _segments()
    size = sum(image.size for image in images)
    check, join = [], []
    for run in range(RUNS):
        cpu = time.process_time()
        opened = [Image.open(image, "calibration") for image in images]
        middle = time.process_time()
        merge([image.summary() for image in opened])
        if run:  # the first one compiles, and touches memory
            check.append(middle - cpu)
            join.append(time.process_time() - middle)
    return {
        "check_bytes_per_core_s": size / max(1e-9, statistics.median(check)),
        "merge_rows_per_core_s": SEGMENTS * SEGMENT_ROWS / max(1e-9, statistics.median(join)),
    }


def _segments() -> list[Any]:
    """Sealed images of rows like those that benchmarks store."""
    import numpy as np
    import pyarrow as pa

    from stelae.core.schema.schema import TableSchema
    from stelae.storage.keys.codec import KeyCodec
    from stelae.storage.segments.image import ImageMeta, build_image
    from stelae.storage.segments.layout import Layout, versions_from

    columns = [("id", pa.int64()), ("x", pa.float64()), ("body", pa.string())]
    schema = TableSchema.of(pa.schema(columns), ["id"])
    span = SEGMENTS * SEGMENT_ROWS // 2
    drawn = random.Random(SEED).randbytes(8 * SEGMENTS * SEGMENT_ROWS)
    drawn_ids = (np.frombuffer(drawn, np.uint64) % span).astype(np.int64)
    body = pa.array(["x" * ROW_BODY_BYTES] * SEGMENT_ROWS)
    made = []
    for number in range(SEGMENTS):
        ids = drawn_ids[number * SEGMENT_ROWS : (number + 1) * SEGMENT_ROWS]
        batch = pa.record_batch([pa.array(ids), pa.array(ids / 2), body], names=schema.arrow.names)
        first = 1 + number * SEGMENT_ROWS
        kinds = np.zeros(SEGMENT_ROWS, np.uint8)
        stored = Layout.of(schema).store(batch, kinds, versions_from(first, SEGMENT_ROWS))
        meta = ImageMeta("t", "t", number, 1, 1, 1, SEGMENT_ROWS, first + SEGMENT_ROWS, 1)
        made.append(build_image(stored, meta, KeyCodec(schema)))
    return made


def cpu_count() -> int:
    """Cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def _file(folder: Path) -> Path:
    return folder / "calibration.data"


def _since(started: float) -> float:
    return max(1e-9, time.perf_counter() - started)
