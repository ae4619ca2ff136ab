"""`TcpPeers`: calls between servers over TCP, many at a time on one connection per address.

Invariants (those of `stelae.core.runtime.Peers`): every call ends in an answer or in an error by
its deadline; `Unavailable`, `Overloaded` and `TooLarge` are raised here only for calls that were
surely not sent. Calls are not ordered: a small one overtakes a large one. (design.md §4, "Two ways
between actors")
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from stelae.core.addresses import address_of, host_of, split_address
from stelae.core.current import CURRENT
from stelae.core.errors import (
    StelaeError,
    Unavailable,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Blob, Handlers, Method, Reply
from stelae.core.runtime import ReplyMemory
from stelae.runtime.tcp.connection import Connection
from stelae.runtime.tcp.door import Arrival, Door
from stelae.runtime.tcp.handshake import (
    HANDSHAKE_TIMEOUT_S,
    LOCAL_TIMEOUT_S,
    ClientHandshake,
    Credentials,
    ServerHandshake,
)
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.local import connect_locally, give_away, is_own_host, listen_locally
from stelae.runtime.tcp.outbound import Outbound
from stelae.runtime.tcp.server import Inbound, OnFailure, Service
from stelae.runtime.tcp.tls import SHUTDOWN_S, TlsContexts, contexts_of, tls_failure

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

_LISTEN_BACKLOG = 256


class TcpPeers:
    """See `stelae.core.runtime.Peers`.

    ``host`` and ``port`` are where `listen` binds (port 0: any free one), ``advertised_host`` what
    others are told. ``on_failure`` is told of handlers' exceptions that are not `StelaeError`; it
    must end the process on an AssertionError. ``contexts``: those of TLS; by default what the
    credentials ask for.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        on_failure: OnFailure,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised_host: str | None = None,
        limits: Limits | None = None,
        contexts: TlsContexts | None = None,
    ) -> None:
        self._credentials = credentials
        self._on_failure = on_failure
        self._host = host
        self._port = port
        self._advertised_host = advertised_host or host
        self._contexts = contexts or contexts_of(credentials)
        self._limits = limits or Limits()
        self._address: Address | None = None
        self._listeners: list[asyncio.Server] = []
        self._doors: list[Door] = []
        self._service: Service | None = None
        self._links: dict[Address, Outbound] = {}
        self._connecting: dict[Address, asyncio.Task[Outbound]] = {}
        self._closed = False

    @property
    def address(self) -> Address:
        assert self._address is not None, "listen() first"
        return self._address

    def is_near(self, address: Address) -> bool:
        return is_own_host(host_of(address))

    # ---- listening --------------------------------------------------------------------------

    async def listen(self, server_uuid: ServerUuid, handlers: Handlers) -> None:
        assert self._service is None, "listen() once"
        assert not self._closed, "listen() before close()"
        self._service = Service(server_uuid, handlers, self._limits, self._on_failure)
        loop = asyncio.get_running_loop()
        if self._contexts is not None:
            await self._listen_with_tls(self._contexts, self._service)
            return
        listener = await loop.create_server(
            self._accept,
            self._host,
            self._port,
            backlog=_LISTEN_BACKLOG,
            reuse_address=True,
        )
        self._listeners.append(listener)
        self._address = self._told_to_others(listener.sockets[0].getsockname()[1])
        local = listen_locally(self._address, _LISTEN_BACKLOG)
        if local is not None:
            self._listeners.append(await loop.create_unix_server(self._accept, sock=local))

    async def _listen_with_tls(self, contexts: TlsContexts, service: Service) -> None:
        """The same with doors of our own. Raises InvalidArgument: files of TLS are missing."""
        await contexts.current()
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _type, _protocol, _name, place in dict.fromkeys(found):
            assert family in (socket.AF_INET, socket.AF_INET6), "TCP is over IP"
            listener = socket.create_server(place, family=family, backlog=_LISTEN_BACKLOG)
            self._doors.append(Door(listener, contexts, service, self._accept))
            if self._address is None:
                self._address = self._told_to_others(listener.getsockname()[1])
        assert self._address is not None, "a host that resolves has an address"
        local = listen_locally(self._address, _LISTEN_BACKLOG)
        if local is not None:
            self._doors.append(Door(local, contexts, service, self._accept))

    def _told_to_others(self, port: int) -> Address:
        return address_of(self._advertised_host, port)

    def _accept(self, arrival: Arrival | None = None, certificate: bytes = b"") -> Connection:
        service = self._service
        assert service is not None
        handshake = ServerHandshake(self._credentials, "a peer")
        inbound = Inbound(service, handshake, arrival)
        connection = Connection(
            inbound,
            handshake,
            self._limits,
            answers=True,
            peer="a peer",
            certificate=certificate,
        )
        inbound.connection = connection
        return connection

    # ---- calling ----------------------------------------------------------------------------

    async def call(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        blobs: Sequence[Blob] = (),
        destination: ServerUuid | None = None,
        memory: ReplyMemory | None = None,
    ) -> Reply[R]:
        link = self._links.get(address)
        if link is None:
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + timeout_s
            link = await self._connect(address, timeout_s)
            timeout_s = deadline_s - loop.time()
        return await link.call(method, request, timeout_s, blobs, destination, memory)

    def post(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        done: Callable[[Reply[R] | StelaeError], None],
        *,
        timeout_s: float,
        blobs: Sequence[Blob] = (),
        destination: ServerUuid | None = None,
    ) -> bool:
        link = self._links.get(address)
        if link is None:
            return False
        return link.post(method, request, done, timeout_s, blobs, destination)

    async def watch(self, address: Address) -> None:
        try:
            link = self._links.get(address)
            if link is None:
                link = await self._connect(address, HANDSHAKE_TIMEOUT_S)
        except StelaeError:
            return  # "at once if none can be made"
        await link.wait_ended()

    async def close(self) -> None:
        self._closed = True
        for listener in self._listeners:
            listener.close()
        await asyncio.gather(*(door.close() for door in self._doors))
        for task in list(self._connecting.values()):
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for link in list(self._links.values()):
            link.close()
        if self._service is not None:
            await self._service.close()
        for listener in self._listeners:
            await listener.wait_closed()

    # ---- connections ------------------------------------------------------------------------

    async def _connect(self, address: Address, timeout_s: float) -> Outbound:
        """The connection to ``address``; all who ask while it is being made share one attempt."""
        if self._closed:
            raise Unavailable(address, "this end is closed")
        task = self._connecting.get(address)
        if task is None:
            context = contextvars.copy_context()
            context.run(CURRENT.set, None)  # the connection outlives whoever was the first
            dial, name = self._dial(address), f"connect to {address}"
            task = asyncio.create_task(dial, name=name, context=context)
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._dialled(address, done))
        await asyncio.wait((task,), timeout=max(0.0, timeout_s))
        if not task.done():
            raise Unavailable(address, f"no connection within {timeout_s:.3g} s")
        if task.cancelled():
            raise Unavailable(address, "this end is closed")
        error = task.exception()
        if isinstance(error, StelaeError):
            raise type(error)(*error.args) from error  # one object cannot be raised by many
        return task.result()

    def _dialled(self, address: Address, task: asyncio.Task[Outbound]) -> None:
        del self._connecting[address]
        if not task.cancelled() and task.exception() is None and task.result().ready:
            self._links[address] = task.result()

    async def _dial(self, address: Address) -> Outbound:
        local = connect_locally(address, own_user=self._contexts is not None)
        if local is not None:
            try:
                return await self._dialled_by(address, local, LOCAL_TIMEOUT_S)
            except StelaeError as error:
                # Any process of this machine can take the name. Over TCP it is said who is there.
                logger.warning("%s is tried over TCP: %s", address, error)
        return await self._dialled_by(address, None, HANDSHAKE_TIMEOUT_S)

    async def _dialled_by(
        self, address: Address, local: socket.socket | None, timeout_s: float
    ) -> Outbound:
        """A connection over this machine's own socket, or over TCP."""
        host, port = split_address(address)
        link = Outbound(address, self._limits, self._forget)

        def factory(certificate: bytes = b"") -> Connection:
            handshake = ClientHandshake(self._credentials, address)
            return Connection(
                link,
                handshake,
                self._limits,
                answers=False,
                peer=address,
                certificate=certificate,
            )

        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                if local is not None:
                    _, connection = await loop.create_unix_connection(factory, sock=local)
                    give_away(local, loop)
                elif self._contexts is None:
                    _, connection = await loop.create_connection(factory, host, port)
                else:
                    contexts = await self._contexts.current()
                    _, connection = await loop.create_connection(
                        functools.partial(factory, contexts.certificate),
                        host,
                        port,
                        ssl=contexts.client,
                        server_hostname="",  # none goes out in clear, as none is compared
                        ssl_shutdown_timeout=SHUTDOWN_S,
                    )
                try:
                    await link.wait_ready()
                except asyncio.CancelledError:
                    connection.close()
                    raise
        except TimeoutError:
            raise Unavailable(address, f"no handshake within {timeout_s} s") from None
        except ssl.SSLError as error:
            raise tls_failure(address, error) from error
        except OSError as error:
            raise Unavailable(address, error.strerror or str(error)) from error
        return link

    def _forget(self, link: Outbound) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
