"""Clients of HTTP that cost the machine little: raw sockets, requests made beforehand.

Each waits for one answer before it sends the next request, over a connection that stays open.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_TIMEOUT_S = 20.0


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
    count = 0
    selector = selectors.DefaultSelector()
    sent_at: dict[socket.socket, float] = {}
    got: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        sock = socket.create_connection(where, _TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ)
        got[sock] = b""
    began = time.perf_counter()

    def send(sock: socket.socket) -> None:
        nonlocal count
        data = make(count)
        count += 1
        sent_at[sock] = time.perf_counter()
        sock.sendall(data)

    for sock in got:
        send(sock)
    while (now := time.perf_counter()) < began + duration_s:
        for key, _ in selector.select(_TIMEOUT_S):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            got[sock] += sock.recv(1 << 16)
            if _is_whole(got[sock]):
                times.append(time.perf_counter() - sent_at[sock])
                got[sock] = b""
                send(sock)
    selector.close()
    for sock in got:
        sock.close()
    return Answered(now - began, times)


def _is_whole(answer: bytes) -> bool:
    """Whether the answer has all its bytes; raises for one that is no success."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        if not answer:
            raise RuntimeError("the connection was closed")
        return False
    head = answer[:end].lower()
    if not head.startswith(b"http/1.1 2"):
        raise RuntimeError(f"answered with {answer[:500]!r}")
    mark = head.find(b"content-length:")
    if mark < 0:
        return answer.endswith(b"0\r\n\r\n")
    length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
    return len(answer) >= end + 4 + length
