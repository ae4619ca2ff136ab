"""Frames and messages: what was sent is what is received, or an error; however the bytes come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.rpc import SINGLE_BYTES_MAX, Blob
from stelae.runtime.tcp.frames import (
    BLOB_ALIGNMENT,
    NO_DESTINATION,
    PART_BYTES,
    FrameError,
    Kind,
    decode_reply,
    decode_request,
    encode_frame,
    encode_head,
    encode_part_head,
    encode_reply,
    encode_request,
    split_parts,
)
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.reader import FrameReader

Message = tuple[Kind, int, bytes]


class Collector:
    """A sink that keeps what it gets."""

    def __init__(self, wanted: bool = True) -> None:
        self.messages: list[Message] = []
        self.given_up: list[int] = []
        self.wanted = wanted

    def wants(self, whole: Kind, call_id: int, total: int) -> bool:
        return self.wanted

    def place(self, call_id: int, total: int) -> memoryview | None:
        return None

    def abandoned(self, call_id: int) -> None:
        self.given_up.append(call_id)

    def message_received(self, kind: Kind, call_id: int, payload: memoryview, age_s: float) -> None:
        self.messages.append((kind, call_id, bytes(payload)))


def reader(sink: Collector, limits: Limits | None = None) -> FrameReader:
    return FrameReader(sink, limits or Limits(), lambda: 0.0)


def feed(target: FrameReader, data: bytes, step: int = 1 << 30) -> None:
    """Give ``data`` as a socket would: at most ``step`` bytes at a time, and what is asked for."""
    view = memoryview(data)
    while view:
        buffer = target.get_buffer()
        assert buffer.nbytes > 0
        count = min(step, buffer.nbytes, view.nbytes)
        buffer[:count] = view[:count]
        target.buffer_updated(count)
        view = view[count:]


def in_parts(kind: Kind, call_id: int, message: bytes) -> list[bytes]:
    return [
        encode_part_head(kind, call_id, len(message), part) + b"".join(part)
        for part in split_parts([message])
    ]


def large(size: int, salt: int = 0) -> bytes:
    return bytes((index * 31 + salt) & 0xFF for index in range(997)) * (size // 997 + 1)


LARGE = large(600_000)[:600_000]


@given(
    timeout_ms=st.integers(0, 2**32 - 1),
    destination=st.binary(min_size=16, max_size=16),
    name=st.binary(max_size=40),
    body=st.binary(max_size=200),
    blobs=st.lists(st.binary(max_size=200), max_size=5),
)
def test_a_request_comes_apart_as_it_was_put_together(
    timeout_ms: int, destination: bytes, name: bytes, body: bytes, blobs: list[Blob]
) -> None:
    """Encoding and decoding are inverse, and each blob lies aligned within the message."""
    buffers, size = encode_request(timeout_ms, destination, name, body, blobs)
    message = b"".join(buffers)
    assert len(message) == size
    found = decode_request(memoryview(message))
    assert (found.timeout_ms, found.destination, found.name) == (timeout_ms, destination, name)
    assert bytes(found.body) == body
    assert [bytes(blob) for blob in found.blobs] == blobs
    if blobs:
        assert (size - found.blobs[-1].nbytes) % BLOB_ALIGNMENT == 0


@given(body=st.binary(max_size=200), blobs=st.lists(st.binary(max_size=200), max_size=5))
def test_a_reply_comes_apart_as_it_was_put_together(body: bytes, blobs: list[Blob]) -> None:
    """Encoding and decoding are inverse."""
    buffers, size = encode_reply(body, blobs)
    message = b"".join(buffers)
    assert len(message) == size
    found_body, found_blobs = decode_reply(memoryview(message))
    assert bytes(found_body) == body
    assert [bytes(blob) for blob in found_blobs] == blobs


def parts_of_request(data: bytes) -> list[Blob]:
    request = decode_request(memoryview(data))
    return [request.name, request.body, *request.blobs]


def parts_of_reply(data: bytes) -> list[Blob]:
    body, blobs = decode_reply(memoryview(data))
    return [body, *blobs]


@pytest.mark.parametrize("parts_of", [parts_of_request, parts_of_reply])
@given(data=st.binary(max_size=120))
def test_bytes_that_are_no_message_are_refused(
    parts_of: Callable[[bytes], list[Blob]], data: bytes
) -> None:
    """Sizes that do not add up raise FrameError, and nothing else: all that is read lies there."""
    try:
        parts = parts_of(data)
    except FrameError:
        return
    assert sum(map(len, parts)) < len(data)


@given(cut=st.integers(0, 200))
def test_a_message_cut_short_or_grown_is_refused(cut: int) -> None:
    """A message that is not exactly as long as its head says is an error."""
    buffers, _ = encode_request(1, NO_DESTINATION, b"name", b"body", [b"x" * 70, b"y" * 9])
    message = b"".join(buffers)
    with pytest.raises(FrameError):
        decode_request(memoryview(message[: cut % len(message)]))
    with pytest.raises(FrameError):
        decode_request(memoryview(message + b"\0"))


STREAM_MESSAGES: list[Message] = [
    (Kind.REQUEST, 1, b"first"),
    (Kind.FAILED, 2, b""),
    (Kind.REPLY, 3, LARGE),
    (Kind.ERROR, 4, bytes(SINGLE_BYTES_MAX)),
    (Kind.REQUEST, 5, b"last"),
]


def stream() -> bytes:
    """The messages of `STREAM_MESSAGES`, the small ones between the large one's parts."""
    parts = in_parts(Kind.REPLY, 3, LARGE)
    frames = [
        encode_frame(kind, number, data) for kind, number, data in STREAM_MESSAGES if data != LARGE
    ]
    return frames[0] + parts[0] + frames[1] + parts[1] + parts[2] + frames[2] + frames[3]


@given(step=st.one_of(st.integers(1_000, 5_000), st.integers(60_000, 300_000)))
def test_however_the_stream_is_torn_the_messages_are_the_same(step: int) -> None:
    """The reader depends on the bytes alone, not on how many come at a time."""
    sink = Collector()
    feed(reader(sink), stream(), step)
    assert sorted(sink.messages, key=lambda message: message[1]) == STREAM_MESSAGES


def test_single_bytes_at_a_time_are_enough() -> None:
    """Heads and small payloads may come in the smallest pieces."""
    sink = Collector()
    data = b"".join(encode_frame(Kind.REQUEST, number, b"x" * number) for number in range(60))
    feed(reader(sink), data, 1)
    assert sink.messages == [(Kind.REQUEST, number, b"x" * number) for number in range(60)]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_an_error_and_never_a_message(place: float, bit: int) -> None:
    """Messages before the damage arrive as sent; the damaged one, and all after it, do not."""
    data = bytearray(stream())
    data[int(place * len(data))] ^= 1 << bit
    sink = Collector()
    with pytest.raises(FrameError):
        feed(reader(sink), bytes(data))
    assert len(sink.messages) < len(STREAM_MESSAGES)
    assert all(message in STREAM_MESSAGES for message in sink.messages)


def test_every_flipped_bit_of_a_small_frame_is_noticed_at_once() -> None:
    """A damaged length is seen without waiting for the bytes that it promises."""
    good = encode_frame(Kind.REQUEST, 9, b"some payload")
    for index in range(len(good) * 8):
        bad = bytearray(good)
        bad[index // 8] ^= 1 << (index % 8)
        sink = Collector()
        with pytest.raises(FrameError):
            feed(reader(sink), bytes(bad))
        assert sink.messages == []


@pytest.mark.parametrize(
    ("kind", "length"),
    [(Kind.REQUEST, SINGLE_BYTES_MAX + 1), (Kind.PART, PART_BYTES + 1), (Kind.REPLY, 2**31)],
)
def test_a_frame_above_its_bound_is_refused_by_its_head(kind: Kind, length: int) -> None:
    """Nothing is allocated for, nor awaited of, a frame that is too long."""
    with pytest.raises(FrameError, match="too long"):
        feed(reader(Collector()), encode_head(kind, 1, length, 0))


@pytest.mark.parametrize(
    "total", [2**63, 128 * 1024 * 1024 + 1, SINGLE_BYTES_MAX], ids=["huge", "large", "small"]
)
def test_a_large_message_out_of_bounds_is_refused_by_its_first_head(total: int) -> None:
    """The size that parts announce is bounded before memory is taken."""
    with pytest.raises(FrameError, match="cannot come in parts"):
        feed(reader(Collector()), encode_head(Kind.PART, 1, 10, 0, Kind.REQUEST, total))


def test_parts_that_exceed_their_message_are_refused() -> None:
    """A part never writes past its message's buffer."""
    parts = in_parts(Kind.REQUEST, 1, LARGE)
    target = reader(Collector())
    feed(target, parts[0] + parts[1])
    with pytest.raises(FrameError, match="do not add up"):
        feed(target, parts[0])


def test_too_many_large_messages_at_once_are_refused() -> None:
    """Memory for unfinished messages is bounded by their number."""
    target = reader(Collector(), Limits(assemblies=2))
    feed(target, in_parts(Kind.REQUEST, 1, LARGE)[0])
    feed(target, in_parts(Kind.REQUEST, 2, LARGE)[0])
    with pytest.raises(FrameError, match="too many"):
        feed(target, in_parts(Kind.REQUEST, 3, LARGE)[0])


def test_a_message_not_wanted_is_passed_over() -> None:
    """Its parts are read to the end, and what follows is received as ever."""
    sink = Collector(wanted=False)
    feed(reader(sink), stream(), 50_000)
    assert [message[1] for message in sink.messages] == [1, 2, 4, 5]


def test_an_abandoned_message_is_forgotten() -> None:
    """After ABANDON the same call id may begin anew."""
    sink = Collector()
    parts = in_parts(Kind.REQUEST, 1, LARGE)
    abandon = encode_head(Kind.ABANDON, 1, 0, 0, Kind.REQUEST)
    feed(reader(sink), parts[0] + abandon + b"".join(parts))
    assert sink.given_up == [1]
    assert sink.messages == [(Kind.REQUEST, 1, LARGE)]


@given(sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=6))
def test_parts_hold_the_message_in_order_and_are_full(sizes: list[int]) -> None:
    """Cutting keeps every byte, and only the last part may be short."""
    buffers: list[Blob] = [large(size, index)[:size] for index, size in enumerate(sizes)]
    parts = [b"".join(part) for part in split_parts(buffers)]
    assert b"".join(parts) == b"".join(buffers)
    assert all(len(part) == PART_BYTES for part in parts[:-1])
    assert all(part for part in parts)
