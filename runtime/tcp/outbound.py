"""The end of a connection that calls: matches answers with calls, and ends calls at their deadline.

Invariant: each call is settled once: by its answer, its deadline, or the connection's end. An
answer to a call that is no longer waited for is ordinary, and dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from stelae.core import tracing
from stelae.core.current import CURRENT
from stelae.core.deadlines import Deadlines
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TooLarge,
    Unavailable,
    decode_error,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import SINGLE_BYTES_MAX, Blob, Method, Outcome, Reply
from stelae.core.runtime import ReplyMemory
from stelae.runtime.tcp.connection import Connection
from stelae.runtime.tcp.frames import (
    BLOB_ALIGNMENT,
    BLOBS_MAX,
    NO_DESTINATION,
    FrameError,
    Kind,
    asked_by,
    byte_view,
    decode_reply,
    encode_request,
)
from stelae.runtime.tcp.limits import Limits

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_TIMEOUT_MS_MAX = 2**32 - 1
_OVERHEAD_BYTES = BLOBS_MAX * (BLOB_ALIGNMENT + 4) + 4096  # lengths, padding, name
_SMALL_OVERHEAD_BYTES = 256  # the same without blobs


def decoder_of(reply: type) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of a reply's type, made once."""
    decoder = _decoders.get(reply)
    if decoder is None:
        decoder = _decoders[reply] = msgspec.msgpack.Decoder(reply)
    return decoder


@dataclass(slots=True)
class _Pending:
    """A call that was sent. ``settle`` is told its outcome, once."""

    settle: Callable[[Outcome], None]
    method: Method[Any, Any]
    timeout_s: float
    bucket: int = 0
    memory: ReplyMemory | None = None


def _settle(future: asyncio.Future[Reply[Any]], outcome: Outcome) -> None:
    if future.done():
        return  # its call was cancelled
    if isinstance(outcome, StelaeError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Outbound:
    """Calls to one address over one connection. Owner of a `Connection`."""

    def __init__(
        self, address: Address, limits: Limits, on_ended: Callable[[Outbound], None]
    ) -> None:
        self.address = address
        self.ready = False
        self._limits = limits
        self._body_bytes_max = limits.message_bytes - _OVERHEAD_BYTES
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._reason: StelaeError | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._pending: dict[int, _Pending] = {}
        self._last_call_id = 0
        self._deadlines = Deadlines(self._loop, self._expire)

    async def wait_ready(self) -> None:
        """Wait for the end of the handshake. Raises Unavailable, Unauthorized, ProtocolMismatch."""
        await self._started.wait()
        if not self.ready:
            raise self._reason or Unavailable(self.address, "it closed the connection")

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def call(
        self,
        method: Method[Q, R],
        request: Q,
        timeout_s: float,
        blobs: Sequence[Blob],
        destination: ServerUuid | None,
        memory: ReplyMemory | None = None,
    ) -> Reply[R]:
        """See `stelae.core.runtime.Peers.call`. Blobs must not change until the call has ended."""
        to = NO_DESTINATION if destination is None else bytes.fromhex(destination)
        body = _encode(request)
        deadline_s = self._loop.time() + timeout_s
        size = len(body)
        if blobs:
            size += sum(byte_view(blob).nbytes for blob in blobs)
        connection = self._connection
        assert connection is not None
        if size > self._body_bytes_max or len(blobs) > BLOBS_MAX:
            self._refuse(method, size, len(blobs))
        if len(self._pending) >= self._limits.requests:
            raise Overloaded(f"unanswered calls to {self.address}", self._limits.requests)
        room = connection.room(size)
        if not room.has(size):
            await room.wait(size, timeout_s)
            timeout_s = deadline_s - self._loop.time()
        if timeout_s <= 0:
            raise DeadlineExpired(method.name, f"the connection to {self.address}")
        if not self.ready:
            raise self._reason or Unavailable(self.address, "the connection ended")
        future: asyncio.Future[Reply[Any]] = self._loop.create_future()
        settle = functools.partial(_settle, future)
        call_id, size = self._send(method, body, settle, timeout_s, blobs, to, memory)
        try:
            return await future
        finally:
            self._forget(call_id)
            if size > SINGLE_BYTES_MAX:
                connection.abandon(call_id)  # nothing, unless it ended before all was sent

    def post(
        self,
        method: Method[Q, R],
        request: Q,
        done: Callable[[Reply[R] | StelaeError], None],
        timeout_s: float,
        blobs: Sequence[Blob],
        destination: ServerUuid | None,
    ) -> bool:
        """See `stelae.core.runtime.Peers.post`; only for what goes in one frame."""
        connection = self._connection
        if connection is None or not self.ready or timeout_s <= 0:
            return False
        body = _encode(request)
        size = len(body) + _SMALL_OVERHEAD_BYTES
        if blobs:
            size += sum([byte_view(blob).nbytes + BLOB_ALIGNMENT + 4 for blob in blobs])
        if size > SINGLE_BYTES_MAX or len(self._pending) >= self._limits.requests:
            return False
        if not connection.room(size).has(size):
            return False
        to = NO_DESTINATION if destination is None else bytes.fromhex(destination)
        self._send(method, body, done, timeout_s, blobs, to)
        return True

    def _send(
        self,
        method: Method[Any, Any],
        body: bytes,
        settle: Callable[[Outcome], None],
        timeout_s: float,
        blobs: Sequence[Blob],
        to: bytes,
        memory: ReplyMemory | None = None,
    ) -> tuple[int, int]:
        """Send a request for which there is room; return its id and its size in bytes."""
        assert self._connection is not None
        timeout_ms = min(int(timeout_s * 1000) + 1, _TIMEOUT_MS_MAX)
        name, entry = method.name.encode(), CURRENT.get()
        knows = self._connection.knows_requests
        if knows and entry is not None and (entry[0] or entry[3]):
            trace, settle = self._traced(method, settle, entry[3])
            name = asked_by(name, entry[0], trace)
        buffers, size = encode_request(timeout_ms, to, name, body, blobs)
        self._last_call_id = call_id = self._last_call_id + 1
        bucket = self._deadlines.add(call_id, self._loop.time() + timeout_s)
        self._pending[call_id] = _Pending(settle, method, timeout_s, bucket, memory)
        alone = len(self._pending) == 1
        self._connection.send(Kind.REQUEST, call_id, buffers, size, alone=alone)
        return call_id, size

    def _traced(
        self, method: Method[Any, Any], settle: Callable[[Outcome], None], parent: str
    ) -> tuple[str, Callable[[Outcome], None]]:
        """The trace to send with a call, and who is told of its end: a span of its own, if any."""
        spans = tracing.active
        if spans is None or not parent:
            return parent, settle
        span = spans.begin(method.name, "client", parent, {"server.address": str(self.address)})
        if span is None:
            return parent, settle

        def ended(outcome: Outcome) -> None:
            failed = isinstance(outcome, Exception)
            span.end(f"{type(outcome).__name__}: {outcome}" if failed else "")
            settle(outcome)

        return span.context, ended

    def _forget(self, call_id: int) -> _Pending | None:
        pending = self._pending.pop(call_id, None)
        if pending is not None:
            self._deadlines.remove(call_id, pending.bucket)
        return pending

    def _refuse(self, method: Method[Any, Any], size: int, blobs: int) -> NoReturn:
        if blobs > BLOBS_MAX:
            raise InvalidArgument(f"a call of {method.name} has {blobs} blobs, not {BLOBS_MAX}")
        raise TooLarge(f"a call of {method.name}", size, self._body_bytes_max)

    def _expire(self, call_id: int) -> None:
        pending = self._forget(call_id)
        if pending is not None:
            pending.settle(self._unknown(pending))

    def _unknown(self, pending: _Pending) -> OutcomeUnknown:
        return OutcomeUnknown(self.address, pending.method.name, round(pending.timeout_s, 3))

    # ---- Owner ------------------------------------------------------------------------------

    def connection_opened(self, connection: Connection, host: str) -> bytes:
        return b""

    def connection_ready(self, connection: Connection) -> None:
        self._connection = connection
        self.ready = True
        self._started.set()

    def connection_ended(self, connection: Connection, reason: StelaeError | None) -> None:
        self.ready = False
        self._reason = reason
        self._started.set()
        self._ended.set()
        self._deadlines.close()
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.settle(self._unknown(call))
        self._on_ended(self)

    def wants(self, whole: Kind, call_id: int, total: int) -> bool:
        if whole is not Kind.REPLY:
            raise FrameError(f"a caller got a large {whole.name} message")
        return call_id in self._pending

    def place(self, call_id: int, total: int) -> memoryview | None:
        memory = self._pending[call_id].memory
        return None if memory is None else memory(total)

    def abandoned(self, call_id: int) -> None:
        pass  # the call ends at its deadline

    def message_received(self, kind: Kind, call_id: int, payload: memoryview, age_s: float) -> None:
        pending = self._pending.get(call_id)
        if pending is None:
            return
        if kind is Kind.REPLY:
            outcome = self._reply(pending, payload)
        elif kind is Kind.ERROR:
            outcome = self._error(pending, bytes(payload))
        elif kind is Kind.FAILED:
            outcome = self._unknown(pending)
        else:
            raise FrameError(f"a caller got a {kind.name} message")
        self._forget(call_id)
        pending.settle(outcome)

    def _reply(self, pending: _Pending, payload: memoryview) -> Outcome:
        if not payload.readonly and payload.nbytes:
            payload = memoryview(bytes(payload))  # views of the receive buffer would not stay valid
        body, blobs = decode_reply(payload)
        try:
            decoded = decoder_of(pending.method.reply).decode(body)
        except msgspec.MsgspecError as error:
            logger.error("%s: the reply cannot be read: %s", pending.method.name, error)
            return self._unknown(pending)
        return Reply(decoded, blobs)

    def _error(self, pending: _Pending, payload: bytes) -> StelaeError:
        try:
            return decode_error(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            logger.error("%s: its error cannot be read: %s", pending.method.name, error)
            return self._unknown(pending)
