"""What tasks of Ray Data do with tables: read a pinned tablet, write blocks so that once is enough.

Runs in Ray's workers, over Stelae's own TCP; nothing here imports Ray. The datasets around it are
made by `stelae.data`. Implements design §12.

A task may be run again, whole or from any place on, on another machine, at the same time as itself,
or long after; its rows may come in another order. So each piece of its rows (a window of a few
calls) is written under an id made of the write, the task, the place and the rows themselves, and
tablets tell an id that they know (`stelae.storage.entries.client_results`). Invariants: a task that
runs again with the same rows writes none twice, for as long as tablets know them (of a job an hour,
or 150 s where more than 10,000 pieces come into one; of a stream until its next batch); with other
rows it writes them, never taking a piece for another one; of a stream, no task of a batch that is
over writes to a tablet that has heard of a later one.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.client.input.convert import to_arrow
from stelae.client.input.filters import WireFilters
from stelae.client.routing.locations import TableCache, look_up
from stelae.client.routing.masters import MastersClient
from stelae.client.table.snapshots import (
    PinnedTablet,
    TableSnapshot,
    let_go,
    pin_table,
    read_pinned,
)
from stelae.client.table.snapshots import keep as keep_snapshot
from stelae.client.table.table import AsyncTable
from stelae.core.errors import RowExists, StelaeError
from stelae.core.ids import ClientId, job_client, stream_client
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.sizes import size_cuts
from stelae.recovery.spark_link import ClusterLink, Run
from stelae.runtime.client import client_runtime
from stelae.runtime.real import RealRuntime

logger = logging.getLogger(__name__)

PIN_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 120.0
KEEP_S = 120.0
"""Pins outlive a process that made them by so much."""
BLOCK_BYTES = 32 << 20
"""A read task hands out its rows in tables of about so much."""
CALL_BYTES = 8 << 20
"""Of rows in one writing call: far below its limit, whatever the table's types make of them."""
WINDOW_CALLS = 8
"""So many calls share a client id, of which tablets remember the last one."""


@contextmanager
def connected(link: ClusterLink) -> Iterator[tuple[RealRuntime, Run]]:
    """A client's runtime on a loop in a thread of its own: pieces arrive while others are used, and
    it works where a loop runs already, as in a notebook."""
    loop = Loop()

    async def connect() -> RealRuntime:
        return client_runtime(link.cluster, link.secret, tls=link.tls)

    try:
        runtime = loop.run(connect())
        try:
            yield runtime, loop.run
        finally:
            loop.run(runtime.close())
    finally:
        loop.close()


# ---- reading --------------------------------------------------------------------------------


def pin(link: ClusterLink, table: str, keep_s: float) -> TableSnapshot:
    """Pin all of a table. Blocks. Raises `TableNotFound`, and as `pin_table` does."""
    with connected(link) as (runtime, run):
        masters = MastersClient(runtime, link.masters)
        cache = TableCache(masters, run(look_up(masters, table)))
        return run(pin_table(runtime, cache, keep_s=keep_s, timeout_s=PIN_TIMEOUT_S))


def keep(link: ClusterLink, snapshot: TableSnapshot) -> list[PinnedTablet]:
    """See `stelae.client.table.snapshots.keep`. Blocks."""
    with connected(link) as (runtime, run):
        return run(keep_snapshot(runtime, snapshot))


def release(link: ClusterLink, snapshot: TableSnapshot) -> None:
    """See `stelae.client.table.snapshots.let_go`. Blocks."""
    with connected(link) as (runtime, run):
        run(let_go(runtime, snapshot))


class Held:
    """Keeps a snapshot while it is referenced, by a thread that asks the servers to."""

    def __init__(self, link: ClusterLink, snapshot: TableSnapshot) -> None:
        ended = threading.Event()
        work = (link, snapshot, ended)
        self.thread = threading.Thread(target=_hold, args=work, daemon=True, name="stelae snapshot")
        self.thread.start()
        self._finalizer = weakref.finalize(self, ended.set)

    def end(self) -> None:
        """Let it go now."""
        self._finalizer()

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return self

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _not_held, ()  # in another process it is not for the copy to keep it


def _not_held() -> None:
    return None


def _hold(link: ClusterLink, snapshot: TableSnapshot, ended: threading.Event) -> None:
    try:
        while not ended.wait(snapshot.keep_s / 3):
            if lost := keep(link, snapshot):
                logger.warning(
                    "the snapshot of table %r is lost: %d of its %d tablets are not kept any more",
                    snapshot.table.name,
                    len(lost),
                    len(snapshot.tablets),
                )
                break
        release(link, snapshot)
    except StelaeError:
        logger.warning("the snapshot of table %r cannot be kept", snapshot.table.name)


def read_tablets(
    link: ClusterLink,
    snapshot: TableSnapshot,
    tablets: Sequence[PinnedTablet],
    columns: tuple[str, ...],
    where: WireFilters,
    target: pa.Schema,
    limit: int = 0,
) -> Generator[pa.Table, None, None]:
    """Runs in a read task: the matching rows of pinned tablets, in the columns of ``target``.

    Run again it gives the same tables: that is what Ray believes when it makes a lost block anew.

    Raises:
        SnapshotLost: the rows are not kept any more.
    """
    with connected(link) as (runtime, run):
        for tablet in tablets:
            rows = read_pinned(runtime, snapshot, tablet, columns, where, limit=limit)
            try:
                step = max(1, BLOCK_BYTES * tablet.row_count // max(1, tablet.size_bytes))
                yield from _tables(rows, run, target, step)
            finally:
                run(_closed(rows))


def _tables(
    rows: AsyncGenerator[pa.RecordBatch, None], run: Run, target: pa.Schema, step: int
) -> Iterator[pa.Table]:
    """Tables of ``step`` rows, and a last one, however the rows come in batches."""
    gathered: list[pa.RecordBatch] = []
    count = 0
    while (batch := run(_next(rows))) is not None:
        while count + batch.num_rows >= step:
            gathered.append(batch.slice(0, step - count))
            yield _table(gathered, target)
            batch = batch.slice(step - count)
            gathered, count = [], 0
        if batch.num_rows:
            gathered.append(batch)
            count += batch.num_rows
    if gathered:
        yield _table(gathered, target)


async def _closed(rows: AsyncGenerator[pa.RecordBatch, None]) -> None:
    await rows.aclose()


async def _next(rows: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch | None:
    return await anext(rows, None)


def _table(batches: list[pa.RecordBatch], target: pa.Schema) -> pa.Table:
    found = pa.Table.from_batches(batches)
    return found.select(target.names).cast(target)


# ---- writing --------------------------------------------------------------------------------


class WriteId(NamedTuple):
    """The same for all tasks of a write, and for what is run again of it."""

    name: str
    batch: int | None = None
    """Of a stream: one is begun only once those before it are over, never to be run again. Tablets
    then forget them."""


OnExists = Callable[[AsyncTable, pa.Table], Coroutine[Any, Any, int]]
"""What becomes of a call that met a row which is there; returns how many rows it had."""


def write_blocks(
    link: ClusterLink,
    table: str,
    op: WriteOp,
    blocks: Iterable[Any],
    write_id: WriteId,
    task: int,
    on_exists: OnExists | None = None,
) -> int:
    """Runs in a write task: write blocks; returns how many rows. Run again with the same blocks it
    writes nothing twice, whatever else has been written meanwhile.

    The request ids are made of the write, the task, the place and the rows themselves: should the
    blocks come out differently the second time, as those of a random step may, they are other
    requests, and are carried out.

    Raises:
        StelaeError: some rows were not written, or it is not known; others may have been.
    """
    count = 0
    with connected(link) as (runtime, run):
        database = AsyncDatabase(runtime, link.masters, link.settings)
        opened = run(database.table(table))
        calls = _calls(blocks, opened.schema)
        number = 0
        while window := _window(calls):
            client_id = _client_id(write_id, task, number, window)
            for sequence, rows in enumerate(window, 1):
                work = opened.writer.write_once(op, rows, client_id, sequence, WRITE_TIMEOUT_S)
                try:
                    count += run(work)
                except RowExists:
                    if on_exists is None:
                        raise
                    count += run(on_exists(opened, rows))
            number += 1
    return count


def _window(calls: Iterator[pa.Table]) -> list[pa.Table]:
    return [rows for _, rows in zip(range(WINDOW_CALLS), calls, strict=False)]


def _client_id(write_id: WriteId, task: int, number: int, window: list[pa.Table]) -> ClientId:
    name, batch = write_id
    digest = hashlib.blake2b(f"{name}/{task}/{number}".encode(), digest_size=16)
    for rows in window:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        digest.update(sink.getvalue())
    if batch is None:
        return job_client(digest.hexdigest())
    series = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return stream_client(series, batch, digest.hexdigest())


def _calls(blocks: Iterable[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of blocks in the order given, cut into calls; the cuts depend on the rows alone."""
    for block in blocks:
        rows = to_arrow(block, schema).combine_chunks()
        for first, count in size_cuts(rows, CALL_BYTES):
            yield rows.slice(first, count)
