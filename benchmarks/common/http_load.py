"""Clients of HTTP that cost the machine little: raw sockets, requests made beforehand.

Each waits for one answer before it sends the next request, over a connection that stays open.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

_TIMEOUT_S = 20.0
_RESENDS_MAX = 3
"""Times that one request is sent again because its connection was closed before any answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What was answered within the time."""

    duration_s: float
    times_s: Sequence[float]

    @property
    def rate(self) -> float:
        return len(self.times_s) / self.duration_s


def request_bytes(
    url: str, method: str, path: str, token: str, body: bytes = b"", kind: str = "application/json"
) -> bytes:
    """A whole request."""
    host = urlsplit(url).netloc
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    if body or method in ("PUT", "POST"):
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def load(url: str, make: Callable[[int], bytes], connections: int, duration_s: float) -> Answered:
    """``make(n)`` is the n-th request. Raises RuntimeError for an answer that is none of 2xx."""
    parts = urlsplit(url)
    where = (parts.hostname or "", parts.port or 80)
    times: list[float] = []
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        clients = [stack.enter_context(_Client(where, selector)) for _ in range(connections)]
        began = time.perf_counter()
        for count, client in enumerate(clients):
            client.send(make(count))
        while (now := time.perf_counter()) < began + duration_s:
            for key, _ in selector.select(_TIMEOUT_S):
                client = key.data
                if client.receive():
                    times.append(time.perf_counter() - client.sent_at_s)
                    count += 1
                    client.send(make(count))
    return Answered(now - began, times)


class _Client:
    """One connection, and the request that waits for its answer on it.

    A server may close a connection that is kept alive at any time between two answers (RFC 9112,
    9.5). The client then opens another one and sends the request again.
    """

    def __init__(self, where: tuple[str, int], selector: selectors.BaseSelector) -> None:
        self.sent_at_s = 0.0
        self._where = where
        self._selector = selector
        self._request = b""
        self._answer = b""
        self._resends = 0
        self._open()

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def _open(self) -> None:
        self._socket = socket.create_connection(self._where, _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(self._socket, selectors.EVENT_READ, self)

    def send(self, request: bytes) -> None:
        """Send the next request; the answer to the one before is complete."""
        self._request, self._answer, self._resends = request, b"", 0
        self.sent_at_s = time.perf_counter()
        self._write()

    def _write(self) -> None:
        with suppress(ConnectionError):  # `receive` finds the connection closed
            self._socket.sendall(self._request)

    def receive(self) -> bool:
        """Read what has come; return whether the answer is complete."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._resend()
            return False
        self._answer += data
        return _is_whole(self._answer)

    def _resend(self) -> None:
        """Send the request on another connection. Raises RuntimeError if that does not help."""
        if self._answer or self._resends == _RESENDS_MAX:
            raise RuntimeError(f"the connection was closed after {self._answer[:500]!r}")
        self._resends += 1
        self._selector.unregister(self._socket)
        self._socket.close()
        self._open()
        self._write()


def _is_whole(answer: bytes) -> bool:
    """Whether the answer has all its bytes; raises for one that is no success."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = answer[:end].lower()
    if not head.startswith(b"http/1.1 2"):
        raise RuntimeError(f"answered with {answer[:500]!r}")
    mark = head.find(b"content-length:")
    if mark < 0:
        return answer.endswith(b"0\r\n\r\n")
    length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
    return len(answer) >= end + 4 + length
