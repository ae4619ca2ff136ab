"""The bytes of one frame, and of one message inside frames. Pure functions, no sockets.

A *message* is a request, a reply or an error. One of up to `SINGLE_BYTES_MAX` travels as one frame;
a larger one as a row of `PART` frames, between which other frames may go. (design.md §4)

Frame, little-endian::

    head_crc u32 | length u32 | payload_crc u32 | kind u8 | whole u8 | 0 u16
    call_id u64 | total u64 | payload, ``length`` bytes

``head_crc`` is the CRC-32C of the rest of the head, ``payload_crc`` that of the payload. Invariant:
no byte of a frame is believed before the CRC over it held; a length above the bound is refused
before anything is allocated. ``whole`` and ``total`` are set in parts only: kind and size of the
message.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from stelae.core.current import is_sane_id
from stelae.core.memory import populate
from stelae.core.rpc import SINGLE_BYTES_MAX, Blob
from stelae.core.tracing import sane_parent

HEAD_BYTES = 32
PART_BYTES = 256 * 1024
MESSAGE_BYTES_MAX = 128 * 1024 * 1024
BLOBS_MAX = 4096
POPULATED_BYTES = 1024 * 1024  # at once: about a millisecond
BLOB_ALIGNMENT = 64  # what Arrow wants of its buffers, so that they can be used where they lie
NO_DESTINATION = bytes(16)
ASKED_BY = b"\0"
"""Between a method's name, the id of the request that the call is for, and its trace, where there
are any."""

_HEAD_CRC = struct.Struct("<I")
_HEAD_REST = struct.Struct("<IIBBHQQ")
_HEAD = struct.Struct("<IIIBBHQQ")
_REQUEST = struct.Struct("<IHHI16s")  # timeout_ms, name bytes, blobs, body bytes, destination
_REPLY = struct.Struct("<HHI")  # blobs, 0, body bytes

assert _HEAD.size == HEAD_BYTES


class Kind(enum.IntEnum):
    """What a frame holds."""

    REQUEST = 1
    REPLY = 2
    ERROR = 3
    """A `StelaeError`, from `encode_error`."""
    FAILED = 4
    """The handler broke down; whether it did its work is not known. Empty."""
    PART = 5
    ABANDON = 6
    """The sender gives up a message of which it has sent parts. Empty."""


_KINDS = {kind.value: kind for kind in Kind}


class FrameError(Exception):
    """Bytes that no correct peer sends; the connection must be closed."""


class Head(NamedTuple):
    """A frame's head whose CRC held."""

    length: int
    payload_crc: int
    kind: Kind
    whole: int
    call_id: int
    total: int


class Request(NamedTuple):
    """A request message, taken apart; ``body`` and ``blobs`` are views into it."""

    timeout_ms: int
    destination: bytes
    name: bytes
    body: memoryview
    blobs: list[memoryview]


def byte_view(buffer: Blob) -> memoryview:
    """See any buffer as a row of bytes, without a copy."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def encode_head(
    kind: Kind, call_id: int, length: int, payload_crc: int, whole: int = 0, total: int = 0
) -> bytes:
    rest = _HEAD_REST.pack(length, payload_crc, kind, whole, 0, call_id, total)
    return _HEAD_CRC.pack(crc32c(rest)) + rest


def encode_frame(kind: Kind, call_id: int, payload: bytes) -> bytes:
    """One whole frame. ``payload`` is at most `SINGLE_BYTES_MAX`."""
    rest = _HEAD_REST.pack(len(payload), crc32c(payload), kind, 0, 0, call_id, 0)
    return _HEAD_CRC.pack(crc32c(rest)) + rest + payload


def decode_head(buffer: memoryview, offset: int) -> tuple[int, int, Kind, int, int, int]:
    """Check and read the head at ``offset``: the fields of `Head`. Raises FrameError."""
    head_crc, length, payload_crc, kind, whole, zero, call_id, total = _HEAD.unpack_from(
        buffer, offset
    )
    if crc32c(buffer[offset + 4 : offset + HEAD_BYTES]) != head_crc:
        raise FrameError("a frame's head does not match its checksum")
    known = _KINDS.get(kind)
    if known is None or zero != 0:
        raise FrameError(f"a frame of unknown kind {kind}")
    if length > (PART_BYTES if known is Kind.PART else SINGLE_BYTES_MAX):
        raise FrameError(f"a {known.name} frame of {length} bytes is too long")
    return length, payload_crc, known, whole, call_id, total


# ---- messages -------------------------------------------------------------------------------


def _lengths(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def _padding(size: int) -> int:
    return -size % BLOB_ALIGNMENT


def _append_blobs(buffers: list[Blob], size: int, blobs: Sequence[memoryview]) -> int:
    """Add each blob, aligned within the message; return the message's size in bytes."""
    for blob in blobs:
        padding = _padding(size)
        if padding:
            buffers.append(bytes(padding))
        buffers.append(blob)
        size += padding + blob.nbytes
    return size


def encode_request(
    timeout_ms: int, destination: bytes, name: bytes, body: bytes, blobs: Sequence[Blob] = ()
) -> tuple[list[Blob], int]:
    """Return a request message's buffers and its size in bytes. The blobs are not copied."""
    head = _REQUEST.pack(timeout_ms, len(name), len(blobs), len(body), destination)
    if not blobs:
        message = head + name + body
        return [message], len(message)
    views = [byte_view(blob) for blob in blobs]
    start = head + _lengths(len(views)).pack(*[view.nbytes for view in views]) + name + body
    buffers: list[Blob] = [start]
    return buffers, _append_blobs(buffers, len(start), views)


def asked_by(name: bytes, request_id: str, trace: str) -> bytes:
    """A method's name, with what the call is for."""
    return ASKED_BY.join((name, request_id.encode(), trace.encode()))


def asked_of(name: bytes) -> tuple[bytes, str, str]:
    """The other way: name, request's id, ``traceparent``; what is not sane is left out."""
    parts = name.split(ASKED_BY)
    request_id, trace = (part.decode("ascii", "replace") for part in (*parts[1:3], b"", b"")[:2])
    return parts[0], request_id if is_sane_id(request_id) else "", sane_parent(trace)


def encode_reply(body: bytes, blobs: Sequence[Blob] = ()) -> tuple[list[Blob], int]:
    """Return a reply message's buffers and its size in bytes. The blobs are not copied."""
    head = _REPLY.pack(len(blobs), 0, len(body))
    if not blobs:
        message = head + body
        return [message], len(message)
    views = [byte_view(blob) for blob in blobs]
    start = head + _lengths(len(views)).pack(*[view.nbytes for view in views]) + body
    buffers: list[Blob] = [start]
    return buffers, _append_blobs(buffers, len(start), views)


def _decode_blobs(payload: memoryview, start: int, lengths: Sequence[int]) -> list[memoryview]:
    size = payload.nbytes
    blobs = []
    for length in lengths:
        start += _padding(start)
        if start + length > size:
            raise FrameError("a message ends inside a blob")
        blobs.append(payload[start : start + length])
        start += length
    if start != size:
        raise FrameError(f"a message of {size} bytes ends at {start}")
    return blobs


def _decode_lengths(payload: memoryview, start: int, count: int) -> tuple[tuple[int, ...], int]:
    if count > BLOBS_MAX or start + 4 * count > payload.nbytes:
        raise FrameError(f"a message cannot hold {count} blobs")
    return _lengths(count).unpack_from(payload, start), start + 4 * count


def decode_request(payload: memoryview) -> Request:
    """Take a request message apart. Raises FrameError if its sizes do not add up."""
    if payload.nbytes < _REQUEST.size:
        raise FrameError("a request ends inside its head")
    timeout_ms, name_bytes, count, body_bytes, destination = _REQUEST.unpack_from(payload)
    start = _REQUEST.size
    lengths: tuple[int, ...] = ()
    if count:
        lengths, start = _decode_lengths(payload, start, count)
    body_start = start + name_bytes
    end = body_start + body_bytes
    if end > payload.nbytes:
        raise FrameError("a request ends inside its body")
    blobs = _decode_blobs(payload, end, lengths) if count or end != payload.nbytes else []
    name = bytes(payload[start:body_start])
    return Request(timeout_ms, destination, name, payload[body_start:end], blobs)


def decode_reply(payload: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the body and the blobs of a reply message. Raises FrameError."""
    if payload.nbytes < _REPLY.size:
        raise FrameError("a reply ends inside its head")
    count, _, body_bytes = _REPLY.unpack_from(payload)
    start = _REPLY.size
    lengths: tuple[int, ...] = ()
    if count:
        lengths, start = _decode_lengths(payload, start, count)
    end = start + body_bytes
    if end > payload.nbytes:
        raise FrameError("a reply ends inside its body")
    blobs = _decode_blobs(payload, end, lengths) if count or end != payload.nbytes else []
    return payload[start:end], blobs


# ---- parts ----------------------------------------------------------------------------------


def split_parts(buffers: Sequence[Blob]) -> Iterator[list[memoryview]]:
    """Cut a message into parts of `PART_BYTES` (the last may be shorter), each a row of views."""
    part: list[memoryview] = []
    room = PART_BYTES
    for buffer in buffers:
        view = byte_view(buffer)
        while view.nbytes:
            piece = view[:room]
            part.append(piece)
            room -= piece.nbytes
            view = view[piece.nbytes :]
            if room == 0:
                yield part
                part, room = [], PART_BYTES
    if part:
        yield part


def encode_part_head(whole: Kind, call_id: int, total: int, part: Sequence[memoryview]) -> bytes:
    """The head of a `PART` frame with these pieces as its payload."""
    crc = 0
    length = 0
    for piece in part:
        crc = crc32c(piece, crc)
        length += piece.nbytes
    return encode_head(Kind.PART, call_id, length, crc, whole, total)


class Assembly:
    """A large message while its parts come in. Views of its buffer stay valid: it is not reused.

    ``place``: memory of ``total`` bytes to put it in, instead of new one.
    """

    def __init__(
        self,
        whole: Kind,
        total: int,
        started_s: float,
        wanted: bool,
        place: memoryview | None = None,
    ) -> None:
        self.whole = whole
        self.total = total
        self.started_s = started_s
        self.received = 0
        self.wanted = wanted
        """False: the parts are checked, but dropped."""
        self.buffer = place
        if wanted and place is None:
            self.buffer = byte_view(pa.allocate_buffer(total))
        self._populated = 0 if place is None else total

    def target(self, length: int, scratch: memoryview | None) -> memoryview:
        """Where the next part of ``length`` bytes is to be put. Raises FrameError."""
        if self.received + length > self.total or length == 0:
            raise FrameError("the parts of a message do not add up to its size")
        if self.buffer is None:
            assert scratch is not None, "a message not wanted needs another place for its parts"
            return scratch[:length]
        end = self.received + length
        if end > self._populated:
            start, self._populated = self._populated, max(end, self._populated + POPULATED_BYTES)
            populate(self.buffer[start : self._populated])
        return self.buffer[self.received : end]

    @property
    def complete(self) -> bool:
        return self.received == self.total

    def message(self) -> memoryview:
        assert self.buffer is not None
        assert self.complete
        return self.buffer.toreadonly()
