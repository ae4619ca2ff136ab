"""Arrow IPC streams from the network: read, bounded and checked before anybody believes them.

A stream may claim far more than it carries: compressed buffers say how large they will be, a column
of type null has rows but no bytes, a dictionary's one long value may stand in a million rows. So
claims are added up before anything is unpacked, and offsets and text are validated after.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from stelae.core.errors import InvalidArgument, TooLarge
from stelae.core.schema.sizes import value_sizes
from stelae.serve.bodies.problems import MalformedBody

SCHEMA, DICTIONARY, _HEADER_BATCH = 1, 2, 3
"""Kinds of messages."""
_CONTINUES = 0xFFFFFFFF
MAX_MESSAGES = 10_000


def read_stream(data: bytes, *, size_bytes_max: int, rows_max: int) -> pa.Table:
    """The table in a stream, every buffer of it validated.

    Raises:
        MalformedBody: it is not a whole Arrow IPC stream.
        TooLarge: unpacked, it has more than ``size_bytes_max``.
        InvalidArgument: more than ``rows_max`` rows.
    """
    try:
        _check_claims(data, size_bytes_max)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            schema = reader.schema
            batches = []
            rows = 0
            for batch in reader:
                rows += batch.num_rows
                check_row_count(rows, rows_max)
                batch.validate(full=True)
                batches.append(batch)
        table = pa.Table.from_batches(batches, schema=schema)
        _check_decoded(table, size_bytes_max)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, struct.error) as error:
        raise MalformedBody(f"the body is not an Arrow IPC stream: {error}") from None
    return table


def message_head(data: bytes | bytearray) -> tuple[int | None, int] | None:
    """Of the message at the beginning of ``data``: its kind, and how many bytes it has in all.

    With its metadata not here yet: no kind, and how many bytes are needed to tell. None: it is the
    end of the stream. Raises MalformedBody. ``data`` has 8 bytes at least.
    """
    mark, size = struct.unpack_from("<II", data, 0)
    if mark != _CONTINUES:
        raise MalformedBody("the body is not an Arrow IPC stream")
    if not size:
        return None
    if len(data) < 8 + size:
        return None, 8 + size
    try:
        table = _Flat(bytes(data[8 : 8 + size]), 0).follow()
        kind, body = table.byte(1), table.long(3)
    except struct.error as error:
        raise MalformedBody(f"the body is not an Arrow IPC stream: {error}") from None
    if body < 0 or kind not in (SCHEMA, DICTIONARY, _HEADER_BATCH):
        raise MalformedBody("the body is not an Arrow IPC stream of rows")
    return kind, 8 + size + body


def check_row_count(rows: int, rows_max: int) -> None:
    """Raises InvalidArgument."""
    if rows > rows_max:
        raise InvalidArgument(f"{rows} rows in one call; the limit is {rows_max}")


def write_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """A whole stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _check_claims(data: bytes, size_bytes_max: int) -> None:
    """Add up what all messages say they will unpack to."""
    claimed = 0
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    for count, message in enumerate(_messages(messages)):
        if count > MAX_MESSAGES:
            raise MalformedBody(f"the stream has more than {MAX_MESSAGES} messages")
        claimed += _claimed_bytes(message)
        if claimed > size_bytes_max:
            raise TooLarge("the body, unpacked,", claimed, size_bytes_max)


def _messages(reader: pa.ipc.MessageReader) -> Iterable[pa.ipc.Message]:
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _claimed_bytes(message: pa.ipc.Message) -> int:
    """What a message's body unpacks to, read from its flatbuffer (Arrow's Message.fbs)."""
    body = message.body
    size = 0 if body is None else body.size
    table = _Flat(bytes(message.metadata), 0).follow()
    kind = table.byte(1)
    if kind not in (DICTIONARY, _HEADER_BATCH) or body is None:
        return size
    batch = table.child(2)
    if kind == DICTIONARY:
        batch = batch.child(1)
    if not batch.has(3):
        return size
    view = memoryview(body)
    for offset, length in batch.pairs(2):
        if length >= 8:
            (plain,) = struct.unpack_from("<q", view, offset)
            size += max(plain, 0)  # -1: stored as it is
    return size


class _Flat:
    """Just enough of a flatbuffers reader. Out of bounds is struct.error; negative is refused."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise struct.error("a negative offset")
        return int(struct.unpack_from(form, self._data, at)[0])

    def follow(self) -> _Flat:
        return _Flat(self._data, self._at + self._read("<I", self._at))

    def _field(self, number: int) -> int:
        """Where a field lies; 0 if it is absent."""
        vtable = self._at - self._read("<i", self._at)
        size = self._read("<H", vtable)
        place = 4 + 2 * number
        offset = self._read("<H", vtable + place) if place < size else 0
        return self._at + offset if offset else 0

    def has(self, number: int) -> bool:
        return self._field(number) != 0

    def byte(self, number: int) -> int:
        at = self._field(number)
        return self._read("<B", at) if at else 0

    def long(self, number: int) -> int:
        at = self._field(number)
        return self._read("<q", at) if at else 0

    def child(self, number: int) -> _Flat:
        at = self._field(number)
        if not at:
            raise struct.error("a part is missing")
        return _Flat(self._data, at).follow()

    def pairs(self, number: int) -> Iterable[tuple[int, int]]:
        """A vector of structs of two int64."""
        at = self._field(number)
        if not at:
            return
        start = _Flat(self._data, at).follow()._at
        for item in range(self._read("<I", start)):
            place = start + 4 + 16 * item
            offset, length = self._read("<q", place), self._read("<q", place + 8)
            if offset < 0:
                raise struct.error("a negative offset")
            yield offset, length


def _check_decoded(table: pa.Table, size_bytes_max: int) -> None:
    """Dictionary columns are stored decoded: how large would they be?"""
    size = table.nbytes
    for column in table.columns:
        for chunk in column.chunks:
            if isinstance(chunk, pa.DictionaryArray):
                sizes = value_sizes(chunk.dictionary)
                indices = chunk.indices.drop_null().to_numpy(zero_copy_only=False)
                counts = np.bincount(indices.astype(np.int64), minlength=len(sizes))
                size += int(counts @ sizes)
    if size > size_bytes_max:
        raise TooLarge("the body, decoded,", size, size_bytes_max)
