"""Bodies while they arrive: their least rate, and gzip within bounds."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.types import Message

from stelae.core.errors import TooLarge
from stelae.serve.bodies.problems import BodyTooSlow, MalformedBody, UnsupportedEncoding
from stelae.serve.gateway import arriving
from stelae.serve.gateway.arriving import (
    FEED_BYTES,
    GRACE_S,
    LEAST_BYTES_PER_S,
    MAX_EMPTY_MEMBERS,
    PIECE_BYTES,
    ArrivingBody,
)

LIMIT = 1 << 20


class Account:
    """Bounds one body."""

    def __init__(self) -> None:
        self.held = 0

    def take(self, more_bytes: int, so_far_bytes: int) -> None:
        if so_far_bytes + more_bytes > LIMIT:
            raise TooLarge("the body", so_far_bytes + more_bytes, LIMIT)
        self.held += more_bytes

    def give_back(self, size_bytes: int) -> None:
        self.held -= size_bytes


class Client:
    """Sends parts; each takes some seconds of a clock that nothing else moves."""

    def __init__(self, parts: Sequence[bytes], seconds: float = 0.0, *, ends: bool = True) -> None:
        self.now = 0.0
        self._left = list(parts)
        self._seconds = seconds
        self._ends = ends

    def clock(self) -> float:
        return self.now

    async def receive(self) -> Message:
        self.now += self._seconds
        if not self._left:
            if not self._ends:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        part = self._left.pop(0)
        more = bool(self._left) or not self._ends
        return {"type": "http.request", "body": part, "more_body": more}


def body_of(client: Client, encoding: str = "", account: Account | None = None) -> ArrivingBody:
    headers = Headers({"content-encoding": encoding} if encoding else {})
    return ArrivingBody(account or Account(), headers, client.receive, client.clock)


async def read(body: ArrivingBody) -> list[bytes]:
    parts = []
    while True:
        message = await body.receive()
        assert message["type"] == "http.request"
        parts.append(message["body"])
        if not message["more_body"]:
            return parts


async def test_a_body_that_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was begun, and of which nothing comes any more."""
    monkeypatch.setattr(arriving, "STALL_S", 0.01)
    with pytest.raises(BodyTooSlow, match="3 bytes arrived"):
        await read(body_of(Client([b"abc"], ends=False)))


async def test_a_body_that_drips_ends() -> None:
    """A byte now and then earns next to no time: it is over soon after the first `GRACE_S`."""
    client = Client([b"x"] * 1000, seconds=1.0)
    with pytest.raises(BodyTooSlow):
        await read(body_of(client))
    assert GRACE_S <= client.now <= GRACE_S + 2


async def test_a_body_at_the_least_rate_arrives() -> None:
    """However long it takes; and when it is there, the client may be silent for as long as it
    likes."""
    client = Client([b"x" * LEAST_BYTES_PER_S] * 100, seconds=1.0)
    body = body_of(client)
    assert sum(map(len, await read(body))) == 100 * LEAST_BYTES_PER_S
    client.now += 1000
    assert (await body.receive())["type"] == "http.disconnect"


async def test_time_in_which_nothing_is_read_does_not_count() -> None:
    """The server works on what came, and holds the client back."""
    client = Client([b"x"] * 50, seconds=0.1)
    body = body_of(client)
    for _ in range(50):
        await body.receive()
        client.now += 100


@given(st.binary(max_size=2000), st.integers(1, 50), st.integers(0, 2000))
def test_gzip_is_unpacked_however_it_is_cut(data: bytes, size: int, split: int) -> None:
    """In parts of any size, and of two members one behind the other."""
    packed = gzip.compress(data[:split]) + gzip.compress(data[split:])
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    account = Account()
    body = body_of(Client(parts), "gzip", account)
    assert b"".join(asyncio.run(read(body))) == data
    assert account.held == body.size_bytes == len(data)
    assert body.head == data[:1000]


async def test_a_body_that_unpacks_to_too_much_ends_at_the_bound() -> None:
    """A gigabyte in one megabyte: what is unpacked at once is bounded, and so is all of it."""
    packed = gzip.compress(bytes(64 * LIMIT))
    account = Account()
    body = body_of(Client([packed]), "gzip", account)
    with pytest.raises(TooLarge):
        await read(body)
    assert account.held == body.size_bytes <= LIMIT
    one = await body_of(Client([packed]), "gzip").receive()
    assert len(one["body"]) <= PIECE_BYTES


@pytest.mark.parametrize(
    "packed",
    [b"not gzip", gzip.compress(b"x" * 100)[:-1], gzip.compress(b"x") + b"y", zlib.compress(b"x")],
)
async def test_what_is_no_gzip_is_refused(packed: bytes) -> None:
    """Also what is cut off, or has something behind its end."""
    with pytest.raises(MalformedBody, match="gzip"):
        await read(body_of(Client([packed]), "gzip"))


async def test_other_encodings_are_refused_and_none_is_taken() -> None:
    """415 says which there are; no body at all needs no encoding."""
    for wrong in ("br", "deflate", "gzip, gzip", "zstd"):
        with pytest.raises(UnsupportedEncoding, match="gzip"):
            body_of(Client([b"x"]), wrong)
    assert await read(body_of(Client([b"x"]), "identity")) == [b"x"]
    assert await read(body_of(Client([b""]), "GZip")) == [b""]


async def test_few_members_of_a_gzip_body_may_be_empty() -> None:
    """Each takes work and unpacks to nothing. Some writers end a body with one."""
    empty, full = gzip.compress(b""), gzip.compress(b"x")
    some = empty * (MAX_EMPTY_MEMBERS // 2)
    for parts in ([some + full + some], [some, full, some]):
        assert b"".join(await read(body_of(Client(parts), "gzip"))) == b"x"
    for parts in ([some + full + some + empty], [some, full, some, empty]):
        with pytest.raises(MalformedBody, match=f"more than {MAX_EMPTY_MEMBERS} members"):
            await read(body_of(Client(parts), "gzip"))


async def test_gzip_that_unpacks_to_nothing_ends_at_the_bound() -> None:
    """One member may have empty blocks without end. A stream counts from what it released."""
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b"x" * 100) + packer.flush(zlib.Z_SYNC_FLUSH)
    nothing = b"\x00\x00\x00\xff\xff" * (LIMIT // 20)
    with pytest.raises(TooLarge, match=str(LIMIT)):
        await read(body_of(Client([head, *[nothing] * 5]), "gzip"))
    end = packer.compress(b"y") + packer.flush()
    account = Account()
    body = body_of(Client([head, *[nothing] * 3, end]), "gzip", account)
    assert (await body.receive())["body"] == b"x" * 100
    body.release(100)
    assert b"".join(await read(body)) == b"y"
    assert account.held == 1


async def test_many_members_in_one_part_are_copied_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what it is given beyond a member's end, for each member."""
    given: list[int] = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inner = make(wbits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def decompress(self, data: memoryview, most: int) -> bytes:
            given.append(len(data))
            return self._inner.decompress(data, most)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    packed = gzip.compress(b"x") * 2000
    assert b"".join(await read(body_of(Client([packed]), "gzip"))) == b"x" * 2000
    assert len(given) >= 2000
    assert max(given) <= FEED_BYTES < len(packed)
