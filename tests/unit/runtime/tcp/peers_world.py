"""Servers and clients over real TCP on the loopback address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from stelae.core.config.peer_tls import OFF
from stelae.core.errors import (
    InvalidArgument,
    NotLeader,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import PROTOCOL_VERSION, Call, Empty, Handler, Method, Reply
from stelae.runtime.tcp.handshake import Credentials, ServerHandshake
from stelae.runtime.tcp.peers import TcpPeers

UUID = ServerUuid("0123456789abcdef0123456789abcdef")
OTHER_UUID = ServerUuid("f" * 32)
SECRET = bytes(range(32))


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Method("test.echo", Text, Text, "of tests, with one server")
SLOW = Method("test.slow", Text, Text, "of tests, with one server")
FAIL = Method("test.fail", Text, Empty, "of tests, with one server")
KEEP = Method("test.keep", Text, Text)
"""Names its server in every call."""


class Servers:
    """Makes `TcpPeers` and closes them at the end; keeps what handlers failed with."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.made: list[TcpPeers] = []
        self.release = asyncio.Event()
        self.begun: asyncio.Queue[str] = asyncio.Queue()

    def peers(self, secret: bytes = SECRET, cluster: str = "demo", **options: Any) -> TcpPeers:
        version = options.pop("version", PROTOCOL_VERSION)
        credentials = Credentials(cluster, secret, version, tls=options.pop("tls", OFF))
        peers = TcpPeers(credentials, on_failure=self.failures.append, **options)
        self.made.append(peers)
        return peers

    async def listening(self, **options: Any) -> TcpPeers:
        peers = self.peers(**options)
        handlers: dict[Method[Any, Any], Handler] = {
            ECHO: self.echo,
            SLOW: self.slow,
            FAIL: self.fail,
            KEEP: self.echo,
        }
        await peers.listen(UUID, handlers)
        return peers

    async def echo(self, call: Call[Text]) -> Reply[Text]:
        assert all(blob.readonly for blob in call.blobs)
        return Reply(call.body, call.blobs)

    async def slow(self, call: Call[Text]) -> Reply[Text]:
        """Answers once `release` is set."""
        self.begun.put_nowait(call.body.text)
        await self.release.wait()
        return Reply(call.body)

    async def fail(self, call: Call[Text]) -> Reply[Empty]:
        if call.body.text == "leader":
            raise NotLeader("a", 7, "b:1")
        if call.body.text == "long":
            raise InvalidArgument("x" * 200_000)
        raise AssertionError(call.body.text)


async def echo(client: TcpPeers, address: Address, text: str, **options: Any) -> Reply[Text]:
    return await client.call(address, ECHO, Text(text), **{"timeout_s": 10.0, **options})


Stub = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's part of the handshake, over plain streams."""
    handshake = ServerHandshake(Credentials("demo", SECRET), "the client")
    while not handshake.done:
        writer.write(handshake.feed(await reader.readexactly(handshake.needed)))


async def stub_server(stub: Stub) -> tuple[asyncio.Server, Address]:
    server = await asyncio.start_server(stub, "127.0.0.1", 0, limit=1024)
    return server, Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
