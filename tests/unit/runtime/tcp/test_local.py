"""On one machine calls take the Unix socket beside the port; where there is none, they take TCP."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
import uvloop

from stelae.core.errors import Unavailable
from stelae.core.ids import Address
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.local import connect_locally, is_own_host, listen_locally
from stelae.runtime.tcp.peers import TcpPeers
from tests.unit.runtime.tcp.peers_world import ECHO, SECRET, UUID, Servers, Text, echo

by_unix = pytest.mark.parametrize("servers", ["unix"], indirect=True)
NOWHERE = Address("127.0.0.1:1")


class Connections:
    """Counts TCP connections from here on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tcp = 0
        plain = socket.socket.connect

        def connect(self_: socket.socket, address: object) -> None:
            self.tcp += self_.family == socket.AF_INET
            plain(self_, address)  # type: ignore[arg-type]

        monkeypatch.setattr(socket.socket, "connect", connect)


@by_unix
async def test_a_direct_call_to_this_machine_goes_by_the_unix_socket(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No TCP connection is made for it."""
    server = await servers.listening()
    connections = Connections(monkeypatch)
    calls = DirectCalls(Credentials("demo", SECRET))
    reply = await asyncio.to_thread(
        calls.call, server.address, ECHO, Text("x"), timeout_s=5.0, destination=UUID
    )
    calls.close()
    assert reply == Text("x")
    assert connections.tcp == 0


@by_unix
async def test_a_call_to_this_machine_goes_by_the_unix_socket(servers: Servers) -> None:
    """It arrives although the TCP listener no longer takes connections."""
    server, client = await servers.listening(), servers.peers()
    server._listeners[0].close()
    assert (await echo(client, server.address, "x")).body == Text("x")


@by_unix
async def test_both_ways_end_with_their_server(servers: Servers) -> None:
    """A name is free again after `close`, and nobody listens there."""
    server = await servers.listening()
    assert connect_locally(server.address) is not None
    await server.close()
    assert connect_locally(server.address) is None
    again = listen_locally(server.address, 1)
    assert again is not None
    again.close()


def test_a_name_in_use_leaves_tcp() -> None:
    """A server whose name is taken listens on its port alone."""
    taken = listen_locally(NOWHERE, 1)
    assert taken is not None
    assert listen_locally(NOWHERE, 1) is None
    taken.close()


def test_nobody_listens_under_another_address() -> None:
    """On another machine the name does not exist, and the caller goes over TCP."""
    assert connect_locally(Address("192.0.2.1:7000")) is None


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_breaks_while_it_is_made_is_closed_once(
    make: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another thread's the second time: libuv then ends the whole process."""
    made: list[socket.socket] = []
    numbers: list[int] = []

    def connect(address: Address, *, own_user: bool) -> socket.socket | None:
        ours, theirs = socket.socketpair()
        theirs.close()  # as of a process that was killed with the connection in its queue
        ours.setblocking(False)
        made.append(ours)
        numbers.append(ours.fileno())
        return ours

    async def call() -> None:
        monkeypatch.setattr("stelae.runtime.tcp.peers.connect_locally", connect)
        peers = TcpPeers(
            Credentials("c", SECRET), on_failure=lambda error: pytest.fail(repr(error))
        )
        with pytest.raises(Unavailable):
            await peers.call(NOWHERE, ECHO, Text(""), timeout_s=5.0)
        await peers.close()
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(call())
    assert len(made) == 1
    assert made[0].fileno() == -1, "closing it once more closes what has its number by then"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[0])


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("192.0.2.1", False), ("localhost", False), ("", False)],
)
def test_the_addresses_of_this_machine_are_told_from_others(host: str, expected: bool) -> None:
    """Without a look-up of names, which could block. 192.0.2.0/24 is nobody's (RFC 5737)."""
    assert is_own_host(host) is expected
