"""What Spark's executors fork their Python workers from: PySpark's daemon, with a recovery's code
loaded, and used once, already.

A worker that PySpark starts by itself takes seconds until it has imported everything and loaded the
kernels, and Spark ends workers that were idle for a minute: even a warm session would pay for that
in the middle of a recovery. A fork of this process has all of it at once, and most of its memory is
shared. Nothing here leaves a thread or an open file that a fork would inherit.

Named by ``spark.python.daemon.module``; runs in an executor's child process. Spark 3.5.
"""

from __future__ import annotations

import asyncio
import gc
import select
import socket
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from pyspark import daemon

from stelae.core.config.settings import Settings
from stelae.core.schema.schema import TableSchema
from stelae.recovery import spark_job, spark_tables
from stelae.recovery.spark_link import ClusterLink, connected
from stelae.runtime.tcp.handshake import SECRET_BYTES
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.winners import find_winners
from stelae.storage.segments.image import (
    IMAGE_TRAILER_BYTES,
    ImageMeta,
    build_image,
    read_tail,
    summary_range,
)
from stelae.storage.segments.layout import Layout, versions_from

LOADED = (spark_job, spark_tables)
"""What tasks import, here once for all workers."""
_ROWS = 16


def rehearse() -> int:
    """Do once what a task does, but for calls to servers: pyarrow, pandas behind it, and others
    load parts of themselves when they are first used. Returns the number of rows that won."""
    with connected(ClusterLink("rehearsal", (), bytes(SECRET_BYTES), Settings())) as (_, run):
        run(asyncio.sleep(0))
    won = 0
    for kind in (pa.int64(), pa.string()):
        schema = TableSchema.of(pa.schema([pa.field("key", kind, False), ("n", pa.int64())]), "key")
        numbers = pa.array(range(_ROWS), pa.int64())
        rows = pa.RecordBatch.from_arrays([numbers.cast(kind), numbers], names=["key", "n"])
        stored = Layout.of(schema).store(rows, np.zeros(_ROWS, np.uint8), versions_from(1, _ROWS))
        meta = ImageMeta("", "", 1, 1, 0, 0, _ROWS, _ROWS + 1, schema.version)
        image = build_image(stored, meta, KeyCodec(schema))
        trailer = image.slice(image.size - IMAGE_TRAILER_BYTES)
        offset, _ = summary_range(trailer, image.size, "a rehearsal")
        tail = read_tail(image.slice(offset), "a rehearsal")
        won += int(find_winners([tail.summary])[0].sum())
    return won


def serve_task(connection: socket.socket, authenticated: bool) -> int:
    """PySpark's ``worker``: waits for one task, in a fork, and carries it out.

    Executor and worker write in small pieces. Without these options a piece waits until the one
    before it is acknowledged, which kernels put off for 40 ms.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    select.select([connection], [], [])
    # Holds until the next answer goes out; so set when the task has come, not once for all.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return int(_serve_task(connection, authenticated))


_serve_task: Callable[[socket.socket, bool], int] = daemon.worker


if __name__ == "__main__":
    rehearse()
    gc.collect()
    gc.freeze()  # PySpark collects after each task: not what all workers share
    daemon.worker = serve_task
    daemon.manager()
