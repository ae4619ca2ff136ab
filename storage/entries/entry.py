"""Entries of a tablet's segment log: how they are encoded, certified and read back.

An entry is ``header | meta | payload``, each padded to 8 bytes. The header carries a CRC-32C over
all the rest of the entry. The **certificate** of a log is (its length, a running CRC-32C over its
headers); because each header holds its entry's CRC, the certificate vouches for every byte. It
travels and is stored beside the log and is the commit point: nothing past the last one exists.
Implements design §6; the certificate is RAMCloud's (``Segment``, ``SegmentIterator``).

Invariants: first_version + i is the version of row i of an entry (IMPORT entries say the versions
themselves), and versions rise in log order;
nothing of a log is delivered before its whole chain of headers has matched the certificate.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.ids import RequestId
from stelae.core.messages.backups import Certified
from stelae.core.records.losses import SegmentFacts
from stelae.core.rpc import Blob
from stelae.core.schema.schema import TableSchema

Certificate = Certified
"""(length in bytes, running CRC-32C over all entry headers)."""

FORMAT_VERSION = 2
_MAGIC = 0x4C54  # "TL"
_HEADER = struct.Struct("<IHBBIIQQQI4x")
"""crc, magic, format, kind, meta length, payload length, term, index, first version, row count."""
HEADER_BYTES = _HEADER.size
_ALIGNMENT = 8
_ZEROS = bytes(_ALIGNMENT)


class EntryKind(enum.IntEnum):
    """What an entry's payload is."""

    PROLOGUE = 0
    """msgpack of `Prologue`; the first entry of each segment."""
    ROWS = 1
    """msgpack of (one `RowKind` byte per row, rows as tuples of wire values)."""
    BATCH = 2
    """Arrow IPC stream of one batch of the user's columns: rows written."""
    TOMBSTONES = 3
    """Arrow IPC stream of one batch of the key columns: rows deleted."""
    IMPORT = 4
    """Arrow IPC stream of one batch of stored columns: rows and tombstones of another tablet, with
    the versions that they had there."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What a client's request came to, so that a retry gets the same answer (exactly once)."""

    client_id: str
    sequence: int
    first_incomplete: int
    outcome: bytes
    """msgpack of `WriteReply`, or `encode_error` of the refusal: the shell's to tell apart."""


class Prologue(msgspec.Struct, frozen=True):
    """The first entry of each segment: what a recovery must know besides the rows."""

    table_id: str
    tablet_id: str
    segment_id: int
    term: int
    digest: tuple[int, ...]
    """The ids of all segments that make up the log, this one included."""
    safe_version: int
    """No version at or above it had been given when the segment was opened."""
    schema: TableSchema
    """Of all rows of the segment, whatever the table's schema is by now."""
    results: tuple[Result, ...]
    """All results that clients may still ask for, as of the segment's opening."""
    forgot_below: int = 0
    """The log has forgotten tombstones with versions below."""
    facts: tuple[SegmentFacts, ...] = ()
    """Of the other segments of the digest, as far as they are known: to be told if one is lost."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log. Row i has version ``first_version + i``."""

    term: int
    index: int
    kind: EntryKind
    first_version: int
    row_count: int
    results: tuple[Result, ...]
    payload: Blob


_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(tuple[Result, ...]).decode
_decode_prologue = msgspec.msgpack.Decoder(Prologue).decode
_decode_rows = msgspec.msgpack.Decoder(tuple[bytes, list[tuple[Any, ...]]]).decode
_NO_RESULTS = b""
_JOIN_BYTES = 4096
"""Payloads up to this size are copied behind their header: one buffer costs less than three."""


def encode_entry(entry: Entry) -> list[Blob]:
    """Encode as buffers to be written one after the other; a large payload is not copied.

    The first buffer begins with the header (`HEADER_BYTES`), which `CertificateBuilder` wants.
    """
    meta = _encode_meta(entry.results) if entry.results else _NO_RESULTS
    payload = entry.payload
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    meta_length = len(meta)
    if meta_length % _ALIGNMENT:
        meta += _ZEROS[meta_length % _ALIGNMENT :]
    tail = _ZEROS[size % _ALIGNMENT :] if size % _ALIGNMENT else b""
    header = _HEADER.pack(
        0,
        _MAGIC,
        FORMAT_VERSION,
        entry.kind,
        meta_length,
        size,
        entry.term,
        entry.index,
        entry.first_version,
        entry.row_count,
    )
    head = header[4:] + meta
    if size <= _JOIN_BYTES:
        rest = b"".join((head, payload, tail))
        return [crc32c(rest).to_bytes(4, "little") + rest]
    crc = crc32c(payload, crc32c(head))
    if tail:
        crc = crc32c(tail, crc)
        return [crc.to_bytes(4, "little") + head, payload, tail]
    return [crc.to_bytes(4, "little") + head, payload]


def entry_length(head: Blob) -> int:
    """Bytes of the whole entry whose first buffer (from `encode_entry`) is given."""
    return _length(*_HEADER.unpack_from(head)[4:6])


def _length(meta_length: int, payload_length: int) -> int:
    return HEADER_BYTES + _padded(meta_length) + _padded(payload_length)


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) & -_ALIGNMENT


class CertificateBuilder:
    """The running certificate of a log that is being appended to."""

    __slots__ = ("_crc", "_length")

    def __init__(self, start: Certificate | None = None) -> None:
        self._length = start.length if start else 0
        self._crc = start.crc if start else 0

    @property
    def certificate(self) -> Certificate:
        """What vouches for everything appended so far."""
        return Certificate(self._length, self._crc)

    def extend(self, header: Blob, length: int) -> Certificate:
        """Take one entry in: its header (or anything that begins with it) and its whole length."""
        self._crc = crc32c(memoryview(header)[:HEADER_BYTES], self._crc)
        self._length += length
        return Certificate(self._length, self._crc)


def certify_entries(start: Certificate, data: Blob, where: str) -> Certificate:
    """The certificate of ``start`` prolonged by the entries in ``data``: each whole, its CRC right.

    In one pass and without decoding anything, for whoever keeps entries that others will read.

    Raises:
        CorruptData: an entry is cut or damaged.
    """
    view = memoryview(data).cast("B")
    end, offset, crc = len(view), 0, start.crc
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise CorruptData(where, start.length + offset, "no whole entry header is left")
        found, magic, version, kind, meta_length, payload_length, *_ = _HEADER.unpack_from(
            view, offset
        )
        if magic != _MAGIC or (kind > EntryKind.IMPORT and version == FORMAT_VERSION):
            raise CorruptData(where, start.length + offset, "no entry begins here")
        stop = offset + _length(meta_length, payload_length)
        if stop > end:
            raise CorruptData(where, start.length + offset, f"an entry is cut at {end - offset}")
        if crc32c(view[offset + 4 : stop]) != found:
            raise CorruptData(where, start.length + offset, "bad checksum of an entry")
        if version != FORMAT_VERSION:  # whole, so a newer version of Stelae wrote it
            raise UnknownFormat(f"{where}, entry of a log", str(version), str(FORMAT_VERSION))
        crc = crc32c(view[offset : offset + HEADER_BYTES], crc)
        offset = stop
    return Certificate(start.length + end, crc)


def _chain(data: memoryview, end: int, where: str) -> tuple[list[tuple[int, int]], int]:
    """Walk the headers in ``data[:end]``; return each entry's (offset, length), and their CRC."""
    places: list[tuple[int, int]] = []
    offset = 0
    crc = 0
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise CorruptData(where, offset, f"{end - offset} bytes are no whole entry header")
        _, magic, version, kind, meta_length, payload_length, *_ = _HEADER.unpack_from(data, offset)
        if magic != _MAGIC or (kind > EntryKind.IMPORT and version == FORMAT_VERSION):
            raise CorruptData(where, offset, "no entry begins here")
        if version != FORMAT_VERSION:
            raise UnknownFormat(f"{where}, entry of a log", str(version), str(FORMAT_VERSION))
        length = _length(meta_length, payload_length)
        if length > end - offset:
            raise CorruptData(where, offset, f"an entry of {length} bytes is cut at {end - offset}")
        crc = crc32c(data[offset : offset + HEADER_BYTES], crc)
        places.append((offset, length))
        offset += length
    return places, crc


def read_entries(data: Blob, certificate: Certificate | None, where: str) -> Iterator[Entry]:
    """Read the entries that ``certificate`` vouches for; without one, all of ``data``.

    The chain of headers is checked at the call, each entry's CRC as it is reached. Payloads are
    views into ``data``. ``where`` names the source in errors.

    Raises:
        CorruptData: with the offset at which the log and its certificate disagree.
    """
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
    end = len(view) if certificate is None else certificate.length
    if end > len(view):
        raise CorruptData(where, len(view), f"the certificate promises {end} bytes")
    places, crc = _chain(view, end, where)
    if certificate is not None and crc != certificate.crc:
        raise CorruptData(where, end, "the entry headers do not match the certificate")
    return (_read_entry(view, offset, length, where) for offset, length in places)


def _read_entry(data: memoryview, offset: int, length: int, where: str) -> Entry:
    found, _, _, kind, meta_length, payload_length, term, index, first_version, row_count = (
        _HEADER.unpack_from(data, offset)
    )
    if crc32c(data[offset + 4 : offset + length]) != found:
        raise CorruptData(where, offset, "bad checksum of an entry")
    start = offset + HEADER_BYTES
    body = start + _padded(meta_length)
    try:
        results = _decode_meta(data[start : start + meta_length]) if meta_length else ()
    except msgspec.DecodeError as error:
        raise CorruptData(where, start, f"unreadable results: {error}") from error
    payload = data[body : body + payload_length]
    return Entry(term, index, EntryKind(kind), first_version, row_count, results, payload)


# ---- payloads -------------------------------------------------------------------------------


def encode_prologue(prologue: Prologue) -> bytes:
    """The payload of a PROLOGUE entry."""
    return _encode_meta(prologue)


def decode_prologue(payload: Blob, where: str) -> Prologue:
    """Raises `CorruptData` if it is none."""
    try:
        return _decode_prologue(memoryview(payload))
    except msgspec.DecodeError as error:
        raise CorruptData(where, 0, f"unreadable prologue: {error}") from error


def encode_rows(kinds: bytes, rows: Sequence[tuple[Any, ...]]) -> bytes:
    """The payload of a ROWS entry: one `RowKind` byte and one tuple of all columns per row."""
    return _encode_meta((kinds, rows))


def decode_rows(payload: Blob, where: str) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Raises `CorruptData` if the payload is not what `encode_rows` makes."""
    try:
        kinds, rows = _decode_rows(memoryview(payload))
    except msgspec.DecodeError as error:
        raise CorruptData(where, 0, f"unreadable rows: {error}") from error
    if len(kinds) != len(rows):
        raise CorruptData(where, 0, f"{len(kinds)} row kinds for {len(rows)} rows")
    return kinds, rows


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """The payload of a BATCH or TOMBSTONES entry; may run off the event loop."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_batch(payload: Blob, where: str) -> pa.RecordBatch:
    """The one batch in the payload; its columns are views into it."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return reader.read_next_batch()
    except pa.ArrowMemoryError:
        raise  # this machine's affair, and not the data's
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise CorruptData(where, 0, f"unreadable batch: {error}") from error


def result_of(request: RequestId, outcome: bytes) -> Result:
    """The record of ``request``'s outcome that goes into its entry."""
    return Result(request.client_id, request.sequence, request.first_incomplete, outcome)
