"""What reaches a tablet over the network, checked before it is believed; and rows going back.

A caller has the cluster's secret, and may still be of another version or wrong: whatever it sends
ends in an error of ours, never in a broken server. Rows are checked in `stelae.core.values` and
`stelae.storage.shapes`; here is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stelae.core.errors import InvalidArgument
from stelae.core.ids import RequestId
from stelae.core.rpc import Blob
from stelae.core.schema import TableSchema
from stelae.core.values import check_batch
from stelae.storage.versions import SchemaView
from stelae.storage.write import Executed

MAX_CLIENT_ID_LENGTH = 256
_SEQUENCE_END = 1 << 63
_STREAM_ROOM_BYTES = 64 << 10
"""For schema, padding and what else a stream has besides the columns' buffers."""


def decode_rows(
    blob: memoryview, schema: TableSchema, table: str, columns: tuple[str, ...] | None
) -> pa.RecordBatch:
    """The batch of an Arrow IPC stream, checked against the table. May run off the loop."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            batch = reader.read_next_batch()
            if any(more.num_rows for more in reader):
                raise InvalidArgument("an Arrow IPC stream of more than one batch")
        _ = batch.schema.names  # which are decoded here, and may be no UTF-8
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not an Arrow IPC stream of one batch: {error}") from error
    return check_batch(batch, schema, columns=columns, table=table, validate=True)


def check_request(request: RequestId) -> None:
    """Ids stand in every prologue until they are forgotten: they have to be small, and encodable.

    Raises:
        InvalidArgument: this one is not as clients make them.
    """
    fine = 0 <= request.first_incomplete <= request.sequence < _SEQUENCE_END
    if not fine or not 0 < len(request.client_id) <= MAX_CLIENT_ID_LENGTH:
        raise InvalidArgument(
            f"request id {request.sequence} from {request.first_incomplete} on, of client "
            f"{request.client_id[:MAX_CLIENT_ID_LENGTH]!r}: 0 <= first incomplete <= sequence, and "
            f"a client id has 1 to {MAX_CLIENT_ID_LENGTH} characters"
        )


def payload_of(executed: Executed, rows: Any, blobs: Sequence[memoryview]) -> tuple[Blob, int]:
    """What the log holds of a write, and how much of it are buffers of the rows in memory.

    A batch that was stored as it came stays in the stream that it came in, for memory and log: not
    if columns were cast or left out, the stream is compressed, or has much besides its batch.
    """
    batch = executed.batch
    if batch is None or batch is not rows or not blobs:
        return executed.payload(), 0
    stream = blobs[0]
    if not batch.nbytes <= stream.nbytes <= batch.nbytes + _STREAM_ROOM_BYTES:
        return executed.payload(), 0
    if not pa.ipc.read_schema(pa.py_buffer(stream)).equals(batch.schema):
        return executed.payload(), 0
    return stream, stream.nbytes


def encode_found(located: Any, columns: Sequence[str], view: SchemaView | None) -> pa.Buffer:
    """The rows of a `Located` as an Arrow IPC stream, named as in ``view``. Runs off the loop."""
    rows = located.gather(columns)
    if view is not None:
        rows = rows.rename_columns(view.shown(rows.schema.names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()
