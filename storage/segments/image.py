"""Sealed segments: the columnar form in memory, on backups and for Spark.

An image is ``rows | summary | meta | trailer``, each part padded to 64 bytes (the trailer is last
and fixed in size). ``rows`` is an Arrow IPC stream of one batch with the columns of
`TableSchema.stored`, so that any Arrow stream reader can read the image and stops after it; each
column's field carries its id, by which a later schema finds it whatever its name is by then.
``summary`` is an Arrow IPC stream of (hash, version, op and, if keys are not exact, key) per row;
without versions that rise one by one from ``first_version`` of the meta, and without ops if all are
rows: so it has 8 bytes a row, mostly. Versions are to be added to that one if they have 4 bytes.
The **tail** (summary to the end) can be read and checked by itself: recovery merges from tails.
Every byte is under one of the trailer's CRC-32Cs. Implements design §6 and §9 (metadata first).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.rpc import Blob
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Summary, compact_versions

FORMAT_VERSION = 4
_READ_VERSIONS = (2, 3, 4)
"""Format 2 has all columns in its summary. Formats 2 and 3 are of tables with the first key seed:
software that knows no other must not read hashes made with one."""
_MAGIC = b"STELIMG1"
_TRAILER = struct.Struct("<QQQIIIIQ8sI")
"""Lengths of rows, summary and meta; their CRCs; format; reserved; magic; CRC of the trailer."""
IMAGE_TRAILER_BYTES = _TRAILER.size
_ALIGNMENT = 64
BLOCK_BYTES = 16 << 10
"""Rows have a checksum for each block of so many bytes, so that some can be read by themselves."""
_HASH = pa.field("hash", pa.uint64(), False)
_VERSION = pa.field("version", pa.uint64(), False)
_VERSION_OFFSET = pa.field("version", pa.uint32(), False)
_OP = pa.field("op", pa.uint8(), False)
_KEY = pa.field("key", pa.binary(), False)


class ImageMeta(msgspec.Struct, frozen=True):
    """What an image says of its segment."""

    table_id: str
    tablet_id: str
    segment_id: int
    term: int
    first_index: int
    """Log indexes of its entries; 0 and 0 if it has none."""
    last_index: int
    row_count: int
    next_version: int
    """Above every version in it, and no lower than its prologue's safe version."""
    schema_version: int
    """The one that its rows were written with."""
    columns: bytes = b""
    """Its stored columns, as an Arrow schema; images of before have none, and are read whole."""
    first_version: int = 0
    """As `Summary.first_version`."""
    block_crcs: bytes = b""
    """CRC-32C of each block of rows, four bytes each; images of before have none."""

    def stored_columns(self, where: str) -> pa.Schema | None:
        """What ``columns`` says. Raises CorruptData."""
        if not self.columns:
            return None
        try:
            return pa.ipc.read_schema(pa.py_buffer(self.columns))
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(where, 0, f"the image's columns are unreadable: {error}") from error


class Tail(NamedTuple):
    """The part of an image that recovery merges."""

    summary: Summary
    meta: ImageMeta
    trailer: bytes
    """The image's end, with the checksums of all of it: the same bytes, the same image."""


class _Trailer(NamedTuple):
    rows_length: int
    summary_length: int
    meta_length: int
    rows_crc: int
    summary_crc: int
    meta_crc: int

    @property
    def tail_length(self) -> int:
        return self.summary_length + _padded(self.meta_length) + IMAGE_TRAILER_BYTES


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) & -_ALIGNMENT


# ---- writing --------------------------------------------------------------------------------


def summarize(batch: pa.RecordBatch, codec: KeyCodec) -> Summary:
    """The summary of a batch of `TableSchema.stored` columns."""
    versions, first = compact_versions(batch.column(VERSION_COLUMN).to_numpy(zero_copy_only=True))
    kinds = batch.column(OP_COLUMN).to_numpy(zero_copy_only=True)
    return Summary(
        hashes=codec.hash_batch(batch),
        versions=versions,
        kinds=kinds if kinds.any() else None,
        keys=None if codec.exact else codec.encode_batch(batch),
        first_version=first,
    )


def _summary_batch(summary: Summary) -> pa.RecordBatch:
    fields, columns = [_HASH], [pa.array(summary.hashes)]
    if summary.versions is not None:
        wide = summary.versions.dtype == np.uint64
        fields.append(_VERSION if wide else _VERSION_OFFSET)
        columns.append(pa.array(summary.versions))
    if summary.kinds is not None:
        fields.append(_OP)
        columns.append(pa.array(summary.kinds))
    if summary.keys is not None:
        fields.append(_KEY)
        columns.append(summary.keys)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def build_image(batch: pa.RecordBatch, meta: ImageMeta, codec: KeyCodec) -> pa.Buffer:
    """Build the image of ``batch``, which has the columns of `TableSchema.stored`.

    About 1 ms per MiB; may run off the event loop.
    """
    assert batch.num_rows == meta.row_count, "an image holds all rows of its segment"
    summary = summarize(batch, codec)
    parts = (batch, _summary_batch(summary))
    rows_length, summary_length = (_padded(_stream_length(part)) for part in parts)
    meta = msgspec.structs.replace(
        meta,
        columns=batch.schema.serialize().to_pybytes(),
        first_version=summary.first_version,
        block_crcs=bytes(4 * -(-rows_length // BLOCK_BYTES)),
    )
    meta_length = len(msgspec.msgpack.encode(meta))
    meta_start = rows_length + summary_length
    end = meta_start + _padded(meta_length)
    image = pa.allocate_buffer(end + IMAGE_TRAILER_BYTES)
    sink = pa.FixedSizeBufferWriter(image)
    for part in parts:
        _write_stream(sink, part)
    sink.close()
    view = memoryview(image).cast("B")
    meta = msgspec.structs.replace(meta, block_crcs=_block_crcs(view[:rows_length]))
    view[meta_start:end] = msgspec.msgpack.encode(meta).ljust(end - meta_start, b"\0")
    trailer = _Trailer(
        rows_length,
        summary_length,
        meta_length,
        crc32c(view[:rows_length]),
        crc32c(view[rows_length:meta_start]),
        crc32c(view[meta_start:end]),
    )
    view[end:] = _pack_trailer(trailer)
    return image


def _block_crcs(rows: memoryview) -> bytes:
    crcs = [crc32c(rows[at : at + BLOCK_BYTES]) for at in range(0, len(rows), BLOCK_BYTES)]
    return np.array(crcs, "<u4").tobytes()


def _stream_length(batch: pa.RecordBatch) -> int:
    """Bytes of the batch's stream, learnt without copying it."""
    counter = pa.MockOutputStream()
    with pa.ipc.new_stream(counter, batch.schema) as writer:
        writer.write_batch(batch)
    return int(counter.size())


def _write_stream(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    end = sink.tell()
    sink.write(bytes(_padded(end) - end))


def _pack_trailer(trailer: _Trailer) -> bytes:
    packed = _TRAILER.pack(*trailer, FORMAT_VERSION, 0, _MAGIC, 0)
    return packed[:-4] + crc32c(packed[:-4]).to_bytes(4, "little")


# ---- reading --------------------------------------------------------------------------------


def _unpack_trailer(data: memoryview, where: str) -> _Trailer:
    """Check and unpack the trailer at the end of ``data``."""
    start = len(data) - IMAGE_TRAILER_BYTES
    if start < 0:
        raise CorruptData(where, 0, f"{len(data)} bytes are no image")
    packed = data[start:]
    *lengths, version, _, magic, crc = _TRAILER.unpack(packed)
    if magic != _MAGIC or crc32c(packed[:-4]) != crc:
        raise CorruptData(where, start, "no trailer of a sealed segment is here")
    if version not in _READ_VERSIONS:
        known = ", ".join(map(str, _READ_VERSIONS))
        raise UnknownFormat(f"{where}, image of a segment", str(version), known)
    return _Trailer(*lengths)


def summary_range(trailer: Blob, image_length: int, where: str) -> tuple[int, int]:
    """(offset, length) of the tail of an image, from its last `IMAGE_TRAILER_BYTES` bytes."""
    found = _unpack_trailer(memoryview(trailer), where)
    offset = image_length - found.tail_length
    if offset != found.rows_length:
        raise CorruptData(where, image_length, "the trailer does not fit the image's length")
    return offset, found.tail_length


def meta_range(trailer: Blob, image_length: int, where: str) -> tuple[int, int, int]:
    """Of an image's rows the length; of its meta (offset, length)."""
    offset, _ = summary_range(trailer, image_length, where)
    found = _unpack_trailer(memoryview(trailer), where)
    return offset, offset + found.summary_length, _padded(found.meta_length)


def read_meta(trailer: Blob, data: Blob, where: str) -> ImageMeta:
    """Check and read an image's meta. Raises CorruptData."""
    found, view = _unpack_trailer(memoryview(trailer), where), memoryview(data)
    if crc32c(view) != found.meta_crc:
        raise CorruptData(where, found.summary_length, "bad checksum of a segment's meta")
    try:
        return msgspec.msgpack.decode(view[: found.meta_length], type=ImageMeta)
    except msgspec.DecodeError as error:
        raise CorruptData(where, found.summary_length, f"unreadable meta: {error}") from error


def read_tail(tail: Blob, where: str) -> Tail:
    """Check and read the tail of an image. Arrays are views into ``tail``.

    Raises:
        CorruptData: a part is cut, or does not match its checksum.
    """
    view = memoryview(tail)
    trailer = _unpack_trailer(view, where)
    if len(view) != trailer.tail_length:
        raise CorruptData(where, len(view), f"the tail is to be {trailer.tail_length} bytes long")
    end = trailer.summary_length
    if crc32c(view[:end]) != trailer.summary_crc:
        raise CorruptData(where, 0, "bad checksum of a summary")
    meta = read_meta(view[-IMAGE_TRAILER_BYTES:], view[end:-IMAGE_TRAILER_BYTES], where)
    batch = _read_stream(pa.py_buffer(tail).slice(0, end), where)
    if batch.num_rows != meta.row_count:
        raise CorruptData(where, 0, f"a summary of {batch.num_rows} rows for {meta.row_count}")
    names = batch.schema.names
    hashes, versions, kinds = (
        batch.column(name).to_numpy(zero_copy_only=True) if name in names else None
        for name in ("hash", "version", "op")
    )
    if hashes is None:
        raise CorruptData(where, 0, "a summary without hashes")
    keys = batch.column("key") if "key" in names else None
    summary = Summary(hashes, versions, kinds, keys, meta.first_version)
    return Tail(summary, meta, bytes(view[-IMAGE_TRAILER_BYTES:]))


def _read_stream(data: pa.Buffer, where: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise CorruptData(where, 0, f"unreadable batch: {error}") from error


class Image:
    """An image that has been checked. Everything read from it is a view into its buffer."""

    __slots__ = ("_tail", "batch", "buffer", "where")

    def __init__(self, buffer: pa.Buffer, batch: pa.RecordBatch, tail: Tail, where: str) -> None:
        self.buffer = buffer
        self.batch: pa.RecordBatch = batch
        """All rows in log order, with the columns of `TableSchema.stored`."""
        self._tail = tail
        self.where = where

    @staticmethod
    def open(buffer: Blob, where: str, *, check_rows: bool = True) -> Image:
        """Check and open an image.

        ``check_rows=False`` leaves out the checksum over the rows, for a buffer that this process
        has built or checked itself.

        Raises:
            CorruptData: it is cut, or a part does not match its checksum.
        """
        data = pa.py_buffer(buffer)
        view = memoryview(data)
        trailer = _unpack_trailer(view, where)
        offset, _ = summary_range(view[-IMAGE_TRAILER_BYTES:], len(view), where)
        if check_rows and crc32c(view[:offset]) != trailer.rows_crc:
            raise CorruptData(where, 0, "bad checksum of a segment's rows")
        tail = read_tail(data.slice(offset), where)
        batch = _read_stream(data.slice(0, offset), where)
        if batch.num_rows != tail.meta.row_count:
            raise CorruptData(where, 0, f"{batch.num_rows} rows; {tail.meta.row_count} were sealed")
        return Image(data, batch, tail, where)

    @property
    def meta(self) -> ImageMeta:
        return self._tail.meta

    @property
    def trailer(self) -> bytes:
        """As `Tail.trailer`."""
        return self._tail.trailer

    def summary(self) -> Summary:
        """Hash, version and kind of each row, and its encoded key if keys are not exact."""
        return self._tail.summary
