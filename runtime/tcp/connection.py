"""One TCP connection: handshake, frames in, frames out, back-pressure. Knows nothing of calls.

Invariants:

* Nothing is parsed before the handshake is done but its own fixed-size messages.
* A frame reaches the owner only whole, and only after its checksums held; the first that does not
  hold ends the connection.
* Parts of large messages are received straight into the message's own buffer, and are sent between
  small frames, which never wait for more than the transport's buffer.
* What waits to be sent is bounded: senders wait in turn for room (`room`), and an end that
  answers stops to read while its answers pile up.

Small frames of one loop turn leave in one write. (design.md §4)
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Protocol, cast

from stelae.core.errors import StelaeError, Unavailable
from stelae.core.rpc import SINGLE_BYTES_MAX, Blob
from stelae.runtime.tcp.backpressure import Room
from stelae.runtime.tcp.frames import (
    PART_BYTES,
    FrameError,
    Kind,
    encode_frame,
    encode_head,
    encode_part_head,
    split_parts,
)
from stelae.runtime.tcp.handshake import (
    HANDSHAKE_TIMEOUT_S,
    MESSAGE_BYTES,
    PROOF_TIMEOUT_S,
    Handshake,
)
from stelae.runtime.tcp.limits import Limits, Sink
from stelae.runtime.tcp.reader import FrameReader
from stelae.runtime.tcp.tls import closed_after_tls, tls_failure

logger = logging.getLogger(__name__)

_PARTS_PER_TURN = 4  # then the loop's other work has its turn
_INTERLEAVED_MAX = 4
_JOIN_BYTES = 16 * 1024
_SMALL_FRAMES_MAX = 8  # in one write: the receiver begins while the rest is still being made
_HIGH_WATER_BYTES = PART_BYTES
_SOCKET_RECEIVE_BYTES = 1024 * 1024
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 5, 2, 3
_UNACKNOWLEDGED_MS_MAX = 15_000


def set_socket_options(sock: socket.socket) -> None:
    """Set what every connection has: it sends at once, and soon notices that its end is gone."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_RECEIVE_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX)


class _Outgoing:
    """A large message while its parts go out."""

    def __init__(self, kind: Kind, call_id: int, buffers: list[Blob], size: int) -> None:
        self.kind = kind
        self.call_id = call_id
        self.size = size
        self.sent = 0
        self.parts: Iterator[list[memoryview]] = split_parts(buffers)


class Owner(Sink, Protocol):
    """Who owns a `Connection`."""

    def connection_opened(self, connection: Connection, host: str) -> bytes:
        """The transport stands, with TLS where there is TLS; ``host`` is the peer's, empty on this
        machine. Returns what to refuse it with, or nothing."""

    def connection_ready(self, connection: Connection) -> None:
        """The handshake is done."""

    def connection_ended(self, connection: Connection, reason: StelaeError | None) -> None:
        """Called once, also if the handshake failed (then with its error)."""


class Connection(asyncio.BufferedProtocol):
    """See the module. ``answers`` is true of the end that listens."""

    def __init__(
        self,
        owner: Owner,
        handshake: Handshake,
        limits: Limits,
        *,
        answers: bool,
        peer: str,
        certificate: bytes = b"",
    ) -> None:
        """``certificate``: what this end shows in TLS, in DER."""
        self.peer = peer
        self._certificate = certificate
        self.reason: StelaeError | None = None
        self._owner = owner
        self._handshake: Handshake | None = handshake
        self.knows_requests = False
        """Whether the peer is a server that understands for which request a call is."""
        self._limits = limits
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._handshake_s = PROOF_TIMEOUT_S if answers else HANDSHAKE_TIMEOUT_S
        self._ended = False
        self._reader = FrameReader(owner, limits, self._loop.time)
        self._hand = memoryview(bytearray(MESSAGE_BYTES))  # where the handshake is received
        self._hand_filled = 0
        # sending
        self._small: list[bytes] = []
        self._large: deque[_Outgoing] = deque()  # not begun
        self._begun: deque[_Outgoing] = deque()  # their parts go out in turn
        self._small_room = Room(f"small messages to {peer}", limits.small_bytes, limits.waiting)
        self._large_room = Room(f"large messages to {peer}", limits.large_bytes, limits.waiting)
        self._flush_scheduled = False
        self._write_paused = False
        self._read_paused = False

    # ---- life -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = self._stream.get_extra_info("socket")
        if sock is not None:
            set_socket_options(sock)
        self._stream.set_write_buffer_limits(high=_HIGH_WATER_BYTES, low=_HIGH_WATER_BYTES // 4)
        assert self._handshake is not None
        peer = self._stream.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else ""
        if refusal := self._owner.connection_opened(self, host):
            self._stream.write(refusal)
            self.close()
            return
        self._bind(self._handshake)
        self._handshake_timer = self._loop.call_later(self._handshake_s, self._handshake_late)
        hello = self._handshake.start()
        if hello:
            self._stream.write(hello)

    def _bind(self, handshake: Handshake) -> None:
        """Let the handshake hold for this connection's certificates, if there is TLS."""
        secure = self._stream.get_extra_info("ssl_object")
        if secure is None:
            return
        own, other = self._certificate, secure.getpeercert(binary_form=True)
        handshake.bind(*((own, other) if self._answers else (other, own)))

    @property
    def _stream(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _handshake_late(self) -> None:
        self.fail(Unavailable(self.peer, f"no handshake within {self._handshake_s} s"))

    @property
    def ready(self) -> bool:
        return self._handshake is None and not self._ended

    def fail(self, reason: StelaeError) -> None:
        """End the connection at once, because of ``reason``."""
        if self.reason is None:
            self.reason = reason
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what the transport already holds, then end the connection."""
        self._end()
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.reason is None and isinstance(exc, ssl.SSLError):
            self.reason = tls_failure(self.peer, exc)
        elif self.reason is None and self._is_unanswered_tls():
            self.reason = closed_after_tls(self.peer)
        elif self.reason is None and exc is not None:
            self.reason = Unavailable(self.peer, str(exc))
        self._end()

    def _is_unanswered_tls(self) -> bool:
        """Whether TLS stood, for the end that connected, and then nothing came."""
        if self._answers or self._handshake is None or self._hand_filled or self._ended:
            return False
        is_first = not self._handshake.has_heard
        return is_first and self._stream.get_extra_info("ssl_object") is not None

    def eof_received(self) -> bool:
        return False

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._small.clear()
        self._large.clear()
        self._begun.clear()
        self._reader.closed = True
        self._read_paused = False
        self._small_room.close()
        self._large_room.close()
        self._owner.connection_ended(self, self.reason)

    # ---- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._handshake is None:
            return self._reader.get_buffer()
        return self._hand[self._hand_filled : self._handshake.needed]

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        if self._handshake is not None:
            self._hand_filled += nbytes
            self._shake_hands(self._handshake)
            return
        try:
            self._reader.buffer_updated(nbytes)
        except FrameError as error:
            logger.warning("closing the connection with %s: %s", self.peer, error)
            self.fail(Unavailable(self.peer, str(error)))

    def _shake_hands(self, handshake: Handshake) -> None:
        if self._hand_filled < handshake.needed:
            return
        answer = handshake.feed(bytes(self._hand[: self._hand_filled]))
        self._hand_filled = 0
        if answer:
            self._stream.write(answer)
        if handshake.error is not None:
            self.reason = handshake.error
            self.close()
        elif handshake.done:
            self._handshake, self.knows_requests = None, handshake.knows_requests
            assert self._handshake_timer is not None
            self._handshake_timer.cancel()
            self._owner.connection_ready(self)

    # ---- sending ----------------------------------------------------------------------------

    def room(self, size: int) -> Room:
        """Where ``size`` bytes wait for their turn; small messages do not wait for large."""
        return self._small_room if size <= SINGLE_BYTES_MAX else self._large_room

    def send(
        self, kind: Kind, call_id: int, buffers: list[Blob], size: int, *, alone: bool = False
    ) -> None:
        """Queue a message of ``size`` bytes. Senders that can wait ask `room` first.

        ``alone``: no other call is under way here, so no other would share the write.
        """
        if self._ended:
            return
        if size <= SINGLE_BYTES_MAX:
            payload = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            assert isinstance(payload, bytes)
            self._small.append(encode_frame(kind, call_id, payload))
            self._small_room.queued_bytes += size
        else:
            self._large.append(_Outgoing(kind, call_id, buffers, size))
            self._large_room.queued_bytes += size
        if self._answers and (self._small_room.full or self._large_room.full):
            self._pause_reading()
        if alone or len(self._small) >= _SMALL_FRAMES_MAX:
            self._flush_small()
            if self._large or self._small:
                self._schedule_flush()
        else:
            self._schedule_flush()

    def abandon(self, call_id: int) -> None:
        """Give up a large message that may not have gone out whole; the receiver forgets it."""
        for queue in (self._large, self._begun):
            for message in queue:
                if message.call_id == call_id:
                    queue.remove(message)
                    self._large_room.queued_bytes -= message.size - message.sent
                    if message.sent:
                        self._small.append(encode_head(Kind.ABANDON, call_id, 0, 0, message.kind))
                    self._schedule_flush()
                    return

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and not self._write_paused:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush_small(self) -> None:
        small = self._small
        if small and not self._write_paused:
            data = small[0] if len(small) == 1 else b"".join(small)
            self._small_room.queued_bytes = 0
            small.clear()
            self._stream.write(data)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._ended or self._write_paused:
            return
        self._flush_small()
        for _ in range(_PARTS_PER_TURN):
            if self._large and len(self._begun) < _INTERLEAVED_MAX:
                self._begun.append(self._large.popleft())
            if self._write_paused or not self._begun:
                break
            self._send_part()
        if self._begun or self._large:  # the last turn may have ended all that it had begun
            self._schedule_flush()
        self._small_room.let_in()
        self._large_room.let_in()
        if self._read_paused and self._small_room.half_empty and self._large_room.half_empty:
            self._read_paused = False
            self._stream.resume_reading()

    def _send_part(self) -> None:
        """Send one part of the first message begun, and put that behind the others."""
        message = self._begun.popleft()
        part = next(message.parts)
        data = [encode_part_head(message.kind, message.call_id, message.size, part)]
        for piece in part:
            if piece.nbytes <= _JOIN_BYTES:
                data.append(bytes(piece))
                continue
            self._stream.write(b"".join(data))
            self._stream.write(piece)
            data = []
        if data:
            self._stream.write(b"".join(data))
        sent = sum(piece.nbytes for piece in part)
        message.sent += sent
        self._large_room.queued_bytes -= sent
        if message.sent < message.size:
            self._begun.append(message)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._schedule_flush()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._ended:
            self._read_paused = True
            self._stream.pause_reading()
