"""Where a server with TLS accepts connections: each holds a slot from its first moment on.

A connection that is still in its TLS handshake is an *unproved* one, as one that has yet to answer
the challenge on the secret is: it has the same bounds, in number and in time
(`stelae.runtime.tcp.server.Service`). So connections that never begin to speak, or that fail,
keep nobody out. asyncio's own listeners tell nobody of a connection before its TLS handshake is
done, hence the sockets are accepted here.

A connection that begins without TLS is told so in a message that the other end understands, and is
closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from stelae.core.errors import StelaeError, Unauthorized, Unavailable
from stelae.core.rpc import PROTOCOL_VERSION
from stelae.runtime.tcp.connection import Connection
from stelae.runtime.tcp.handshake import MAGIC, MESSAGE_BYTES, PROOF_TIMEOUT_S, TLS_RECORD, tls_only
from stelae.runtime.tcp.local import is_of_own_user
from stelae.runtime.tcp.server import Service
from stelae.runtime.tcp.tls import SHUTDOWN_S, TlsContexts

logger = logging.getLogger(__name__)

NO_ROOM_PAUSE_S = 1.0
"""Pause after the process, or the machine, had no room for one more connection."""


class Arrival:
    """A connection in its TLS handshake. See `stelae.runtime.tcp.server.Unproved`."""

    peer = "a peer"

    def __init__(self) -> None:
        self.reason: StelaeError | None = None
        self.task: asyncio.Task[None] | None = None

    def fail(self, reason: StelaeError) -> None:
        self.reason = reason
        self.close()

    def close(self) -> None:
        assert self.task is not None, "its task is made with it"
        self.task.cancel()


MakeConnection = Callable[[Arrival, bytes], Connection]
"""Takes the certificate that the server shows; empty: without TLS."""


class Door:
    """The connections that come to one listening socket, a TCP or a Unix one."""

    def __init__(
        self,
        listener: socket.socket,
        contexts: TlsContexts,
        service: Service,
        make: MakeConnection,
    ) -> None:
        self._listener = listener
        self._contexts = contexts
        self._service = service
        self._make = make
        self._admitting: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(), name="accept connections")
        self._accepting.add_done_callback(self._stopped)

    async def close(self) -> None:
        """Accept nothing more, and end what is in its TLS handshake."""
        ending = [self._accepting, *self._admitting]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # the other end has gone already
            except OSError as error:  # no room in this process, or in the kernel
                logger.warning("no connection is accepted for a moment: %s", error)
                await asyncio.sleep(NO_ROOM_PAUSE_S)
                continue
            host = address[0] if isinstance(address, tuple) else ""
            self._admit(accepted, host)
            await asyncio.sleep(0)  # a flood of connections leaves the loop to others in between

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._service.on_failure(error)  # nobody else notices that this server is deaf

    def _admit(self, accepted: socket.socket, host: str) -> None:
        arrival = Arrival()
        task = self._loop.create_task(self._shake_hands(arrival, accepted), name="TLS handshake")
        arrival.task = task
        self._admitting[task] = None
        task.add_done_callback(lambda done: self._done(arrival, accepted, done))
        self._service.opened(arrival, host)

    def _done(self, arrival: Arrival, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        del self._admitting[task]
        self._service.leave(arrival)
        error = arrival.reason if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return  # its connection has its slot, and its socket
        accepted.close()
        if isinstance(error, StelaeError | OSError):
            self._service.refused(str(error))
        elif error is not None:
            self._service.on_failure(error)

    async def _shake_hands(self, arrival: Arrival, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family == socket.AF_UNIX:
            if not is_of_own_user(accepted):
                raise Unauthorized("a process of another user of this machine came without TLS")
            await self._loop.connect_accepted_socket(lambda: self._make(arrival, b""), accepted)
            return
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                await self._require_tls(accepted)
                contexts = await self._contexts.current()
                await self._loop.connect_accepted_socket(
                    lambda: self._make(arrival, contexts.certificate),
                    accepted,
                    ssl=contexts.server,
                    ssl_handshake_timeout=PROOF_TIMEOUT_S,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
        except TimeoutError:
            raise Unavailable(arrival.peer, f"no TLS within {PROOF_TIMEOUT_S} s") from None
        except ssl.SSLError as error:
            raise Unavailable(arrival.peer, f"tls: {error.reason or error}") from error

    async def _require_tls(self, accepted: socket.socket) -> None:
        """Look at the first byte, and leave it there. Raises Unauthorized: it is not TLS."""
        first = await self._first_byte(accepted)
        if first == TLS_RECORD:
            return
        if not first:
            raise Unavailable("a peer", "it closed the connection before it began with TLS")
        # Read it before the end: a socket that is closed with unread bytes may lose the answer.
        if accepted.recv(MESSAGE_BYTES).startswith(MAGIC):
            accepted.send(tls_only(PROTOCOL_VERSION))
            accepted.shutdown(socket.SHUT_WR)
        raise Unauthorized("tls: a peer came without TLS; its tls section differs from this one's")

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Empty: the other end has closed the connection."""
        try:
            return accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            readable = self._loop.create_future()
            self._loop.add_reader(accepted, _wake, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
