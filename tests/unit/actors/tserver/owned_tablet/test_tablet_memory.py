"""What a tablet keeps in memory: every row once, and nothing once it is closed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest

from stelae.actors.tserver.tablet.input import decode_rows, payload_of
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.rpc import Call
from stelae.storage.entries.entry import decode_batch, encode_batch
from stelae.storage.rows.memory import Executed, TabletMemory
from tests.unit.actors.tserver.owned_tablet.tablet_world import (
    SCHEMA,
    SETTINGS,
    TABLET,
    TabletWorld,
    run,
)

ROWS = pa.record_batch([pa.array(range(500)), pa.array(["x" * 100] * 500)], SCHEMA.arrow)


def _stored(blob: memoryview) -> tuple[Executed, pa.RecordBatch]:
    """What a tablet's memory makes of a stream of rows, and the rows as they were read."""
    memory = TabletMemory(SCHEMA, "rows")
    memory.new_head(1)
    rows = decode_rows(blob, SCHEMA, "rows", None)
    return memory.execute(WriteOp.UPSERT, rows, None, 1), rows


def test_a_batch_that_is_stored_as_it_came_stays_in_the_stream_that_it_came_in() -> None:
    """Memory and log hold one copy: the received bytes are the entry's payload."""
    blob = memoryview(encode_batch(ROWS))
    payload, shared_bytes = payload_of(*_stored(blob), [blob])
    assert payload is blob
    assert shared_bytes == blob.nbytes


def _compressed() -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, ROWS.schema, options=options) as writer:
        writer.write_batch(ROWS)
    return sink.getvalue()


OTHERS = {
    "of other types": encode_batch(ROWS.set_column(0, "id", pa.array(np.arange(500, dtype="i4")))),
    "of fewer columns": encode_batch(ROWS.select(["id"])),
    "in another order": encode_batch(ROWS.select(["value", "id"])),
    "compressed": _compressed(),
    "with much behind it": pa.py_buffer(encode_batch(ROWS).to_pybytes() + bytes(1 << 20)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_stream_that_is_not_what_the_table_holds_does_not_stand_in_the_log(what: str) -> None:
    """What recovery reads has the table's columns, and no bytes that nobody wants."""
    blob = memoryview(OTHERS[what])
    executed, rows = _stored(blob)
    payload, shared_bytes = payload_of(executed, rows, [blob])
    assert payload is not blob
    assert shared_bytes == 0
    assert executed.batch is not None
    assert decode_batch(payload, what).equals(executed.batch)


def test_rows_that_log_and_memory_share_count_once() -> None:
    """So that the memory limit is about memory."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        blob = memoryview(encode_batch(ROWS))
        before = here.tablet.memory_bytes
        call = Call(Write(TABLET, 1, WriteOp.UPSERT, here.request(), ()), (blob,), 5.0)
        await here.tablet.write(call, await here.tablet.read_rows(call), None)
        index = here.tablet._memory._store.index.nbytes
        assert blob.nbytes < here.tablet.memory_bytes - before < 1.1 * blob.nbytes + index

    run(scenario)


def test_a_closed_tablet_lets_its_rows_go_at_once() -> None:
    """Not when the collector comes by: on a quiet server it does not."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        for n in range(8):
            await here.write((n, "x" * 700))
        memory = weakref.ref(here.tablet._memory)
        segments = here.log.segments
        assert segments[0].image is not None
        assert segments[-1].length
        gc.disable()
        try:
            await here.tablet.close()
            assert memory() is None
            assert not any(segment.image or segment.length for segment in segments)
        finally:
            gc.enable()

    run(scenario, settings=SETTINGS)
