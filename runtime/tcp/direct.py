"""Calls from the caller's own thread: one blocking socket, one call at a time on it, no event loop.

For a small call that somebody blocks for, two hops between threads and the turns of a loop cost as
much as all the rest. A `DirectCalls` keeps a few connections per address for such calls, with the
frames and the handshake of every other connection. It does the ordinary case only: whatever is out
of the ordinary ends in an error, and the caller takes the ordinary way
(`stelae.runtime.tcp.peers`), with the same request id.

Invariants: `Unavailable`, `Overloaded` mean that the request was surely not sent. A
connection is used again only after the whole answer to its last call came; else it is closed. A
forked child closes its copies of the connections, and counts as closed. (design.md §4)
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
import time
import weakref
from typing import Any, TypeVar

import msgspec

from stelae.core.addresses import split_address
from stelae.core.errors import (
    DeadlineExpired,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    Unavailable,
    decode_error,
)
from stelae.core.forks import forget_in_children
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import SINGLE_BYTES_MAX, Method, NotSingle
from stelae.runtime.tcp.connection import set_socket_options
from stelae.runtime.tcp.frames import (
    FrameError,
    Kind,
    decode_reply,
    encode_frame,
    encode_request,
)
from stelae.runtime.tcp.handshake import (
    HANDSHAKE_TIMEOUT_S,
    LOCAL_TIMEOUT_S,
    ClientHandshake,
    Credentials,
)
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.local import connect_locally
from stelae.runtime.tcp.outbound import decoder_of
from stelae.runtime.tcp.reader import FrameReader
from stelae.runtime.tcp.tls import Contexts, closed_after_tls, contexts_of, tls_failure

logger = logging.getLogger(__name__)

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

CONNECTIONS_MAX = 16
"""Calls at the same time to one address; those beyond it go the ordinary way."""

_encode = msgspec.msgpack.Encoder().encode
_TIMEOUT_MS_MAX = 2**32 - 1
_SHORTEST_WAIT_S = 1e-3
PASSED_BY_S = 60.0
"""Time for which a local name is not tried again, after a stranger was found there."""
_WAIT_STEP_S = 0.25


class DirectCalls:
    """The connections of one process, by address. Safe to use from any number of threads."""

    def __init__(self, credentials: Credentials, limits: Limits | None = None) -> None:
        self._credentials = credentials
        self._contexts = contexts_of(credentials)
        self._limits = limits or Limits()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: dict[Address, list[_Line]] = {}
        self._in_use: dict[Address, int] = {}
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._passed_by: dict[Address, float] = {}
        """Until when an address is reached over TCP only: its local name is a stranger's."""
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`: answers on these connections are the parent's."""
        self._lock, self._closed, self._idle = threading.Lock(), True, {}
        for line in list(self._lines):
            line.close()

    def call(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        destination: ServerUuid,
    ) -> R:
        """Call a method without blobs, and block until it is answered.

        Raises:
            NotSingle: the request does not fit one frame; it was not sent.
            Unavailable, Overloaded, DeadlineExpired: it was definitely not sent.
            OutcomeUnknown: no answer in time, or none that can be read.
            StelaeError: whatever of it the handler raised.
        """
        body = _encode(request)
        if len(body) > SINGLE_BYTES_MAX - 1024:
            raise NotSingle(method.name, len(body))
        deadline = time.monotonic() + timeout_s
        line = self._take(address, timeout_s)
        whole = False
        try:
            timeout_s = deadline - time.monotonic()
            if timeout_s <= 0:
                raise DeadlineExpired(method.name, "a connection")
            kind, payload = line.call(method.name, body, timeout_s, destination)
            whole = True
        finally:
            self._give_back(address, line, usable=whole)
        if kind is Kind.ERROR:
            raise _error(address, method, payload, timeout_s)
        try:
            if kind is not Kind.REPLY:
                raise FrameError(f"a {kind.name} message")
            reply: R = decoder_of(method.reply).decode(decode_reply(memoryview(payload))[0])
        except (msgspec.MsgspecError, FrameError) as error:
            raise OutcomeUnknown(address, method.name, round(timeout_s, 3)) from error
        return reply

    def close(self) -> None:
        """Close what is idle; what is in use is closed after its call."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for lines in idle.values():
            for line in lines:
                line.close()

    def _take(self, address: Address, timeout_s: float) -> _Line:
        while True:
            with self._lock:
                if self._closed:
                    raise Unavailable(address, "this end is closed")
                idle = self._idle.get(address)
                line = idle.pop() if idle else None
                used = self._in_use.get(address, 0)
                if line is None and used >= CONNECTIONS_MAX:
                    raise Overloaded(f"direct calls to {address}", CONNECTIONS_MAX)
                self._in_use[address] = used + 1
            if line is not None:
                if line.stands():
                    return line
                self._give_back(address, line, usable=False)
                continue
            try:
                limit_s = min(timeout_s, HANDSHAKE_TIMEOUT_S)
                return self._line(address, limit_s)
            except BaseException:
                self._give_back(address, None, usable=False)
                raise

    def _line(self, address: Address, timeout_s: float) -> _Line:
        """A new connection: over this machine's own socket, or else over TCP."""
        now = time.monotonic()
        deadline = now + timeout_s
        is_passed_by = now < self._passed_by.get(address, now)
        own_user = self._contexts is not None
        local = None if is_passed_by else connect_locally(address, own_user=own_user)
        if local is not None:
            limit_s = min(timeout_s / 2, LOCAL_TIMEOUT_S)  # and time is left for TCP
            try:
                return self._proved(local, address, limit_s, None)
            except StelaeError as error:
                # Any process of this machine can take the name. Over TCP it is said who is there.
                logger.warning("%s is tried over TCP: %s", address, error)
                self._passed_by[address] = now + PASSED_BY_S
        try:
            left_s = max(deadline - time.monotonic(), _SHORTEST_WAIT_S)
            made = socket.create_connection(split_address(address), left_s)
        except OSError as error:
            raise Unavailable(address, error.strerror or str(error)) from error
        try:
            contexts = None if self._contexts is None else self._contexts.load()
        except BaseException:
            made.close()
            raise
        return self._proved(made, address, deadline - time.monotonic(), contexts)

    def _proved(
        self,
        connected: socket.socket,
        address: Address,
        timeout_s: float,
        contexts: Contexts | None,
    ) -> _Line:
        line = _Line(connected, address, self._limits)
        self._lines.add(line)  # before it waits: a process that is forked now closes its copy
        line.begin(self._credentials, timeout_s, contexts)
        return line

    def _give_back(self, address: Address, line: _Line | None, *, usable: bool) -> None:
        with self._lock:
            self._in_use[address] -= 1
            if usable and line is not None and not self._closed:
                self._idle.setdefault(address, []).append(line)
                return
        if line is not None:
            line.close()


class _Line:
    """One connection. Sink of its `FrameReader`."""

    def __init__(self, connected: socket.socket, address: Address, limits: Limits) -> None:
        self._socket = connected
        self._address = address
        self._wait_s = -1.0
        self._call_id = 0
        self._answers: list[tuple[Kind, bytes]] = []
        self._reader = FrameReader(self, limits, time.monotonic)

    def begin(self, credentials: Credentials, timeout_s: float, contexts: Contexts | None) -> None:
        """Shake hands, with ``contexts`` inside TLS. Raises Unavailable, Unauthorized,
        ProtocolMismatch; the socket is closed."""
        address, deadline = self._address, time.monotonic() + timeout_s
        is_secure = False
        try:
            set_socket_options(self._socket)
            self._socket.settimeout(None)  # the kernel keeps the time: see `_limit`
            handshake = ClientHandshake(credentials, address)
            if contexts is not None:
                secure = contexts.client.wrap_socket(self._socket, do_handshake_on_connect=False)
                self._socket = secure
                self._limit(timeout_s)
                secure.do_handshake()
                is_secure = True
                handshake.bind(secure.getpeercert(binary_form=True) or b"", contexts.certificate)
            self._shake_hands(handshake, deadline)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, BlockingIOError | TimeoutError):  # the limit of `_limit`
                raise Unavailable(address, f"no handshake within {timeout_s:.3g} s") from error
            if isinstance(error, ConnectionResetError) and is_secure:
                raise closed_after_tls(address) from error
            if isinstance(error, ssl.SSLError):
                raise tls_failure(address, error) from error
            if isinstance(error, OSError):
                raise Unavailable(address, f"no handshake: {error}") from error
            raise

    def _limit(self, wait_s: float) -> None:
        """Let no send or receive take longer. A timeout of Python's own costs a poll for each."""
        wait_s = max(wait_s, _SHORTEST_WAIT_S)
        if wait_s == self._wait_s:
            return
        self._wait_s = wait_s
        if isinstance(self._socket, ssl.SSLSocket):
            # Python's TLS goes on waiting whatever the kernel's limit says.
            self._socket.settimeout(wait_s)
            return
        value = struct.pack("@ll", int(wait_s), int(wait_s % 1.0 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _shake_hands(self, handshake: ClientHandshake, deadline: float) -> None:
        self._limit(deadline - time.monotonic())
        self._socket.sendall(handshake.start())
        while not handshake.done:
            received = b""
            while len(received) < handshake.needed:
                self._limit(deadline - time.monotonic())
                more = self._socket.recv(handshake.needed - len(received))
                if not more and not handshake.has_heard and isinstance(self._socket, ssl.SSLSocket):
                    raise closed_after_tls(self._address)
                if not more or time.monotonic() >= deadline:
                    raise Unavailable(self._address, "it broke off the handshake")
                received += more
            answer = handshake.feed(received)
            if handshake.error is not None:
                raise handshake.error
            if answer:
                self._socket.sendall(answer)

    def stands(self) -> bool:
        """Whether the other end has neither closed it nor sent what nobody asked for."""
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                # Below TLS: between calls nothing comes but the end (servers send no tickets).
                self._wait_s = -1.0
                self._socket.settimeout(0.0)
                socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
            else:
                self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def call(
        self, name: str, body: bytes, timeout_s: float, destination: ServerUuid
    ) -> tuple[Kind, bytes]:
        """Send a request and wait for its whole answer. Raises OutcomeUnknown."""
        deadline = time.monotonic() + timeout_s
        timeout_ms = min(int(timeout_s * 1000) + 1, _TIMEOUT_MS_MAX)
        to = bytes.fromhex(destination)
        buffers, _ = encode_request(timeout_ms, to, name.encode(), body)
        self._call_id += 1
        try:
            # In steps, so that most calls find the limit set as they need it.
            self._limit(timeout_s // _WAIT_STEP_S * _WAIT_STEP_S or timeout_s)
            self._socket.sendall(encode_frame(Kind.REQUEST, self._call_id, bytes(buffers[0])))
            while not self._answers:
                self._receive(deadline)
            return self._answers.pop()
        except (OSError, FrameError) as error:
            raise OutcomeUnknown(self._address, name, round(timeout_s, 3)) from error

    def _receive(self, deadline: float) -> None:
        try:
            count = self._socket.recv_into(self._reader.get_buffer())
        except (BlockingIOError, TimeoutError):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            self._limit(left_s)
            return
        if count == 0:
            raise ConnectionError("it closed the connection")
        self._reader.buffer_updated(count)
        if not self._answers and time.monotonic() >= deadline:
            raise TimeoutError

    def close(self) -> None:
        self._socket.close()

    # ---- Sink -------------------------------------------------------------------------------

    def wants(self, whole: Kind, call_id: int, total: int) -> bool:
        return whole is Kind.REPLY and call_id == self._call_id

    def place(self, call_id: int, total: int) -> memoryview | None:
        return None

    def abandoned(self, call_id: int) -> None:
        raise FrameError("the other end gave its answer up")

    def message_received(self, kind: Kind, call_id: int, payload: memoryview, age_s: float) -> None:
        if call_id != self._call_id or self._answers:
            raise FrameError("an answer to another call")
        self._answers.append((kind, bytes(payload)))


def _error(
    address: Address, method: Method[Any, Any], payload: bytes, timeout_s: float
) -> StelaeError:
    try:
        return decode_error(payload)
    except (msgspec.MsgspecError, TypeError):
        return OutcomeUnknown(address, method.name, round(timeout_s, 3))
