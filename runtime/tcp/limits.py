"""The bounds of connections, and the receiver of their messages. No code that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stelae.runtime.tcp.frames import MESSAGE_BYTES_MAX, Kind


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection, and of one listener. Every peer of a cluster has the same."""

    message_bytes: int = MESSAGE_BYTES_MAX
    small_bytes: int = 8 * 1024 * 1024
    """Small messages accepted for sending and not yet given to the transport."""
    large_bytes: int = 64 * 1024 * 1024
    """The same of large messages; one alone may be larger."""
    waiting: int = 4096
    """Senders waiting for room."""
    requests: int = 4096
    """Requests begun and not yet answered."""
    request_bytes: int = 256 * 1024 * 1024
    """Sum of large requests being received or worked on; one alone may be larger."""
    assemblies: int = 16
    """Large messages being received at the same time."""
    handshakes: int = 256
    """Connections of a listener that have not yet proved who they are; one more ends the oldest."""
    handshakes_of_host: int = 128
    """The same from one host, so that one cannot take the turn of all others."""
    connections: int = 4096
    """Connections of a listener."""


class Sink(Protocol):
    """Who gets the messages that a `FrameReader` finds. Each method may raise FrameError."""

    def wants(self, whole: Kind, call_id: int, total: int) -> bool:
        """Whether a large message that begins now is to be kept (else: checked and dropped)."""
        ...

    def place(self, call_id: int, total: int) -> memoryview | None:
        """Where a large message that is wanted is to be put; None: in new memory."""
        ...

    def abandoned(self, call_id: int) -> None:
        """The sender gave up a large message which was wanted."""

    def message_received(self, kind: Kind, call_id: int, payload: memoryview, age_s: float) -> None:
        """A whole message. ``age_s`` is how long it took to arrive.

        The view is valid during the call only, unless it is read-only.
        """
