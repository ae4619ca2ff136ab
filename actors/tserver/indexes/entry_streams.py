"""Index entries as Arrow IPC streams, checked before they are believed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae.core.errors import InvalidArgument

ENTRY = pa.field("entry", pa.binary())
ENTRIES = pa.schema([ENTRY])
COPIED = pa.schema(
    [
        ENTRY,
        pa.field("tablet", pa.uint32()),
        pa.field("epoch", pa.uint64()),
        pa.field("sequence", pa.uint64()),
        pa.field("is_removed", pa.bool_()),
    ]
)


def entries_in(blob: memoryview | pa.Buffer) -> pa.BinaryArray:
    """The entries of an Arrow IPC stream. Raises InvalidArgument: it is none."""
    return batch_in(blob, ENTRIES).column(0)


def batch_in(blob: memoryview | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of an Arrow IPC stream, in this schema. Raises InvalidArgument: it is none."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        batch = table.cast(schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"not an Arrow IPC stream of index entries: {error}") from error
    if any(column.null_count for column in batch.columns):
        raise InvalidArgument("index entries are never null")
    columns = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def stream_of(entries: pa.BinaryArray, *columns: Any) -> pa.Buffer:
    """Entries as an Arrow IPC stream; with ``columns``, what else is told of each (`COPIED`)."""
    schema = COPIED if columns else ENTRIES
    arrays = [entries]
    for values, field in zip(columns, list(schema)[1:], strict=True):
        arrays.append(pa.array(values, field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
