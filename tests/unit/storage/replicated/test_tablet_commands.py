"""Commands survive the log as they were, and carry the group's time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.rows import Write, WriteOp
from stelae.storage.entries.entry import decode_batch, encode_batch
from stelae.storage.replicated.commands import (
    AlterCommand,
    GroupClock,
    MarkCommand,
    Stamp,
    WriteCommand,
    decode_command,
    encode_alter,
    encode_mark,
    encode_write,
    is_stream_of,
)
from tests.unit.storage.replicated.group_model import record_of
from tests.unit.storage.rows.tablet_model import INT_KEY

STAMP = Stamp(12.5, -3.25)
REQUEST = RequestId(ClientId("client"), 7, 3)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)


@given(
    rows=st.lists(st.tuples(VALUES, VALUES), max_size=4),
    op=st.sampled_from(list(WriteOp)),
    conditions=st.lists(st.integers(0, (1 << 63) - 1), max_size=3),
)
def test_a_call_of_few_rows_survives(rows: Any, op: WriteOp, conditions: list[int]) -> None:
    """Every value that travels on the wire comes out of the log as it went in."""
    rows = tuple(rows)
    write = Write(TabletId("t"), 0, op, REQUEST, rows, ("a", "b"), tuple(conditions))
    command, blob = decode_command(encode_write(write, rows, None, schema_version=4, stamp=STAMP))
    wanted = WriteCommand(STAMP, REQUEST, op, 4, rows, ("a", "b"), tuple(conditions))
    assert command == wanted
    assert blob is None


@pytest.mark.parametrize("name_length", range(1, 18))
def test_a_batch_lies_in_the_command_where_arrow_can_read_it(name_length: int) -> None:
    """Whatever the header's length, the stream is aligned, and is read without a copy."""
    request = RequestId(ClientId("c" * name_length), 7, 3)
    batch = pa.record_batch({"id": list(range(50)), "x": [i / 4 for i in range(50)]})
    write = Write(TabletId("t"), 4, WriteOp.UPSERT, request, ())
    data = encode_write(write, batch, None, schema_version=4, stamp=STAMP)
    command, blob = decode_command(data)
    assert isinstance(command, WriteCommand)
    assert blob is not None
    assert pa.py_buffer(blob).address % 16 == 0
    found = decode_batch(blob, "blob")
    assert found.equals(batch)
    start = pa.py_buffer(data).address
    buffer = found.column("x").buffers()[1]
    assert start <= buffer.address < start + len(data)


def test_alters_and_marks_survive() -> None:
    """A record of a table, with all its schema says, comes out as it went in."""
    table = record_of(INT_KEY)
    assert decode_command(encode_alter(table, STAMP)) == (AlterCommand(STAMP, table), None)
    assert decode_command(encode_mark(STAMP)) == (MarkCommand(STAMP), None)


def test_a_stream_is_kept_only_if_it_is_the_batch() -> None:
    """Cast or compressed columns, and ones left out, are written anew; the rest as it came."""
    batch = pa.record_batch({"id": list(range(500)), "x": ["x" * 40] * 500})
    stream = encode_batch(batch)
    assert is_stream_of(stream, batch)
    assert not is_stream_of(stream, batch.select(["id"]))
    assert not is_stream_of(stream, batch.rename_columns(["id", "y"]))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    assert not is_stream_of(sink.getvalue(), batch)
    write = Write(TabletId("t"), 4, WriteOp.UPSERT, REQUEST, ())
    data = encode_write(write, batch, sink.getvalue(), schema_version=4, stamp=STAMP)
    blob = decode_command(data).blob
    assert blob is not None
    assert bytes(blob) == stream.to_pybytes()


def test_the_groups_time_goes_on_from_the_last_stamp() -> None:
    """A new leader's own clock counts what passes, not what time it is."""
    clock = GroupClock(1000.0, 5.0)
    assert clock.stamp(5.0, 60.0) == Stamp(1000.0, 940.0)
    assert clock.stamp(7.5, 60.0) == Stamp(1002.5, 942.5)
