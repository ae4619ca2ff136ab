"""What reaches a tablet over the network, checked before it is believed; and rows going back.

A caller has the cluster's secret, and may still be of another version or wrong: whatever it sends
ends in an error of ours, never in a broken server. Rows are checked in `stelae.core.schema.values`
and `stelae.storage.rows.shapes`; here is the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.errors import InvalidArgument, SchemaChanged
from stelae.core.ids import RequestId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.rpc import Blob, Call
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import check_batch
from stelae.storage.replicated.commands import is_stream_of
from stelae.storage.rows.gather import Located
from stelae.storage.rows.schemas import TabletSchemas
from stelae.storage.rows.shapes import check_names
from stelae.storage.rows.versions import SchemaView
from stelae.storage.rows.write import Executed

MAX_CLIENT_ID_LENGTH = 256
_SEQUENCE_END = 1 << 63
SMALL_BATCH_BYTES = 64 << 10
"""Up to about this size batches are read and written on the event loop."""


async def read_rows(
    runtime: Runtime,
    schemas: TabletSchemas,
    known: Callable[[RequestId], object],
    call: Call[Write],
) -> Any:
    """A write's rows, checked as far as they can be without looking at the tablet's: a batch, or
    the tuples as they came. ``known`` gives the answer of a repeated request, or None.

    Raises:
        InvalidArgument, ColumnNotFound, TooLarge: the call cannot be carried out.
        SchemaChanged, TabletNotReady: it was made with a schema that is not known here.
    """
    request = call.body
    check_request(request.request)
    if not call.blobs:
        return request.rows
    try:
        schema = schemas.asked(request.schema_version)
    except SchemaChanged:
        if known(request.request) is None:
            raise
        return ()  # its answer is known, whatever its rows mean
    blob = call.blobs[0]
    columns: tuple[str, ...] | None = request.columns or None
    if request.op is WriteOp.DELETE:
        columns = schema.key
    name = schemas.table.name
    if columns is not None:
        partial = request.op in (WriteOp.UPDATE, WriteOp.DELETE)
        check_names(schema, name, columns, partial=partial)
    if blob.nbytes <= SMALL_BATCH_BYTES:
        return decode_rows(blob, schema, name, columns)
    return await runtime.offload(decode_rows, blob, schema, name, columns)


def decode_rows(
    blob: memoryview, schema: TableSchema, table: str, columns: tuple[str, ...] | None
) -> pa.RecordBatch:
    """The batch of an Arrow IPC stream, checked against the table. May run off the loop."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            batch = reader.read_next_batch()
            if any(more.num_rows for more in reader):
                raise InvalidArgument("an Arrow IPC stream of more than one batch")
        _decode_names(list(batch.schema))
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not an Arrow IPC stream of one batch: {error}") from error
    return check_batch(batch, schema, columns=columns, table=table, validate=True)


def _decode_names(fields: Sequence[pa.Field]) -> None:
    """Raise UnicodeDecodeError if a name, at any depth, is no UTF-8: Arrow decodes each when it is
    read, wherever that is."""
    for field in fields:
        _ = field.name
        kind = field.type
        _decode_names([kind.field(place) for place in range(kind.num_fields)])


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

    A batch that was stored as it came stays in the stream that it came in, for memory and log.
    """
    batch = executed.batch
    if batch is None or batch is not rows or not blobs or not is_stream_of(blobs[0], batch):
        return executed.payload(), 0
    return blobs[0], blobs[0].nbytes


def encode_found(
    located: Located, columns: Sequence[str], view: SchemaView | None, bytes_max: int, guess: int
) -> tuple[pa.Buffer, NDArray[np.int32]]:
    """The first rows of a `Located`, of up to ``bytes_max`` bytes (0: all) but one at least, as an
    Arrow IPC stream, named as in ``view``; and the places of their keys. Runs off the loop.

    ``guess``: number of rows that are expected to fit; at most twice as many are gathered first.
    """
    part, rows = _first_rows(located, columns, bytes_max, guess)
    if view is not None:
        rows = rows.rename_columns(view.shown(rows.schema.names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue(), part.found


def _first_rows(
    located: Located, columns: Sequence[str], bytes_max: int, guess: int
) -> tuple[Located, pa.RecordBatch]:
    """The first of them, of up to ``bytes_max`` bytes; at least half of that, if there are more."""
    total = len(located.found)
    count = min(total, 2 * guess) if bytes_max else total
    grows = bool(bytes_max)
    while True:
        part = located if count == total else located.first(count)
        rows = part.gather(columns)
        size_bytes = max(1, rows.nbytes)
        if bytes_max and size_bytes > bytes_max and count > 1:
            # Rows differ in size: each step takes at most half of those before, so there are few.
            count, grows = max(1, min(count // 2, count * bytes_max // size_bytes)), False
        elif grows and count < total and 2 * size_bytes <= bytes_max:
            # The chosen columns may be a small part of the rows. Each step at least doubles.
            count = min(total, count * bytes_max // size_bytes)
        else:
            return part, rows
