"""A request's body while it arrives: counted, unpacked, and held to a least rate.

Rules:

1. Every byte that the application gets is counted before it gets it: against the bound of one body,
   of the token's bodies, and of all bodies. A gzip body counts as it is unpacked, in pieces of
   `PIECE_BYTES`, so a small body that unpacks to a large one ends at the bound. What arrived of it
   is held to the bound of one body too, since gzip may go on without unpacking to anything. Of a
   stream that counts from the last rows dealt with.
2. The time in which the server waits for a body is bounded: `STALL_S` for the next bytes, and
   ``GRACE_S`` plus a second for each `LEAST_BYTES_PER_S` that came, for all of them. Time in which
   the server works, and reads nothing, does not count. The rule is that of Kestrel
   (MinRequestBodyDataRate).
3. A body that is refused here was not handed to a write as a whole, so nothing of it was done. (Of
   a stream, what was written before is told by the problem's notes.)
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from stelae.core.tasks import within
from stelae.serve.bodies.problems import BodyTooSlow, MalformedBody, UnsupportedEncoding
from stelae.serve.gateway.audit import BODY_BYTES

STALL_S = 10.0
"""Longest wait for the next bytes of a body."""
GRACE_S = 10.0
"""Seconds of waiting that every body has, however small it is."""
LEAST_BYTES_PER_S = 1024
"""Bytes that each further second of waiting takes."""
PIECE_BYTES = 256 << 10
"""Maximum bytes that are unpacked at once."""
MAX_EMPTY_MEMBERS = 16
"""Maximum members of a gzip body that unpack to nothing."""
FEED_BYTES = 16 << 10
"""Maximum bytes given to zlib at once: it copies those that it leaves."""
GZIP = "gzip"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class BodyAccount(Protocol):
    """Counts the bytes in hand."""

    def take(self, more_bytes: int, so_far_bytes: int) -> None:
        """Count bytes as they arrive. Raises TooLarge or Overloaded."""

    def give_back(self, size_bytes: int) -> None:
        """Bytes are not in hand any more."""


class ArrivingBody:
    """The body of one request; `receive` takes the place of the server's own."""

    def __init__(
        self, account: BodyAccount, headers: Headers, receive: Receive, clock: Callable[[], float]
    ) -> None:
        """``clock``: monotonic seconds.

        Raises:
            UnsupportedEncoding: its Content-Encoding is not one that is taken.
        """
        self._account = account
        self._receive = receive
        self._clock = clock
        self._arrived_bytes = 0
        self._waited_s = 0.0
        self._is_over = False
        self._inflater = _Inflater() if _is_packed(headers) else None
        self._packed_bytes = 0
        """Bytes of gzip that arrived since anything was released."""
        self.size_bytes = 0
        """Bytes in hand."""
        self.head = b""
        """The first bytes, for the audit log."""

    def release(self, size_bytes: int) -> None:
        """So much of it was dealt with, and is not in hand any more."""
        self.size_bytes -= size_bytes
        self._packed_bytes = 0
        self._account.give_back(size_bytes)

    async def receive(self) -> Message:
        """The next part. Raises TooLarge, Overloaded, BodyTooSlow, MalformedBody."""
        inflater = self._inflater
        if inflater is None:
            return self._counted(await self._arrived())
        while not (piece := inflater.piece()):
            if self._is_over:
                inflater.check_end()
                self._inflater = None
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._arrived()
            if message["type"] != "http.request":
                return message
            packed = message.get("body", b"")
            self._packed_bytes += len(packed)
            self._account.take(0, self._packed_bytes)  # holds nothing more; raises past the bound
            inflater.feed(packed)
        await asyncio.sleep(0)  # other requests have their turn between pieces
        return self._counted({"type": "http.request", "body": piece, "more_body": True})

    async def _arrived(self) -> Message:
        """The next part as the client sent it."""
        if self._is_over:
            return await self._receive()  # what comes is that the client goes
        began = self._clock()
        try:
            message = await within(self._left_s(), self._next())
        except TimeoutError:
            raise self._too_slow() from None
        self._waited_s += self._clock() - began
        self._arrived_bytes += len(message.get("body", b""))
        self._is_over = not message.get("more_body", False)
        if not self._is_over and self._left_s() <= 0:
            raise self._too_slow()
        return message

    async def _next(self) -> Message:
        return await self._receive()

    def _left_s(self) -> float:
        """How long the next part may take."""
        earned_s = GRACE_S + self._arrived_bytes / LEAST_BYTES_PER_S
        return min(STALL_S, earned_s - self._waited_s)

    def _too_slow(self) -> BodyTooSlow:
        return BodyTooSlow(
            f"the body came too slowly: {self._arrived_bytes} bytes arrived. A body sends its next "
            f"bytes within {STALL_S:g} s, and {LEAST_BYTES_PER_S} bytes for each second after the "
            f"first {GRACE_S:g}; send it again, faster or in smaller requests"
        )

    def _counted(self, message: Message) -> Message:
        if message["type"] == "http.request":
            body = message.get("body", b"")
            if len(self.head) < BODY_BYTES:
                self.head += body[:BODY_BYTES]
            self._account.take(len(body), self.size_bytes)
            self.size_bytes += len(body)
        return message


class _Inflater:
    """Unpacks gzip in bounded pieces; it may have several members (RFC 1952, 2.2)."""

    def __init__(self) -> None:
        self._packed = memoryview(b"")
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._member_bytes = 0
        """Bytes that the present member has unpacked to."""
        self._empty_members = 0
        self._is_begun = False

    def feed(self, packed: bytes) -> None:
        """Take in what arrived, once `piece` was empty."""
        assert not self._packed, "what arrived before is not unpacked yet"
        self._packed = memoryview(packed)

    def piece(self) -> bytes:
        """At most `PIECE_BYTES`; empty: more has to arrive first. Raises MalformedBody."""
        piece = b""
        while self._packed and not piece:
            if self._member.eof:
                self._member, self._member_bytes = zlib.decompressobj(_GZIP_WINDOW), 0
            self._is_begun = True
            given = self._packed[:FEED_BYTES]
            try:
                piece = self._member.decompress(given, PIECE_BYTES)
            except zlib.error as error:
                raise MalformedBody(f"the body is not gzip, as its header says: {error}") from None
            self._member_bytes += len(piece)
            rest = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            self._packed = self._packed[len(given) - len(rest) :]
            self._check_member()
        return piece

    def _check_member(self) -> None:
        """Count the member if it has ended and is empty. Raises MalformedBody."""
        if not self._member.eof or self._member_bytes:
            return
        self._empty_members += 1
        if self._empty_members > MAX_EMPTY_MEMBERS:
            raise MalformedBody(
                f"the gzip body has more than {MAX_EMPTY_MEMBERS} members without any bytes; "
                "send it as one member"
            )

    def check_end(self) -> None:
        """Raise MalformedBody unless all of it came."""
        if self._is_begun and not self._member.eof:
            raise MalformedBody("the gzip body has no end: it was cut off")


def _is_packed(headers: Headers) -> bool:
    """Whether the body is gzip. Raises UnsupportedEncoding."""
    asked = ",".join(headers.getlist("content-encoding")).strip().lower()
    if asked in ("", "identity"):
        return False
    if asked in (GZIP, f"x-{GZIP}"):
        return True
    raise UnsupportedEncoding(
        f"Content-Encoding {asked[:40]!r}: send the body as it is, or as {GZIP}"
    )
