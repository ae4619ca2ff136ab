"""Connections of `TcpPeers`: how they are made, proven and ended."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial

import pytest

from stelae.core.addresses import split_address
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from stelae.core.ids import Address
from stelae.core.rpc import PROTOCOL_VERSION
from stelae.runtime.free_ports import free_port
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import MESSAGE_BYTES, Credentials
from stelae.runtime.tcp.limits import Limits
from stelae.runtime.tcp.local import connect_locally, listen_locally
from tests.unit.runtime.tcp.peers_world import (
    ECHO,
    SECRET,
    SLOW,
    UUID,
    Servers,
    Text,
    echo,
    shake_hands,
    stub_server,
)


async def read_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the other end closes; a reset, which unread bytes cause, is an end too."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


# ---- connections ----------------------------------------------------------------------------


async def test_an_address_where_nobody_listens_is_unavailable(servers: Servers) -> None:
    """Surely not sent: the connection was refused."""
    server, client = await servers.listening(), servers.peers()
    address = server.address
    await server.close()
    with pytest.raises(Unavailable, match="Connect"):
        await echo(client, address, "x")
    await client.watch(address)  # returns at once


async def test_pending_calls_end_when_the_server_does_and_its_successor_is_found(
    servers: Servers,
) -> None:
    """A restart costs the calls in flight their answer, and the next call nothing."""
    server, client = await servers.listening(), servers.peers()
    address = server.address
    watching = asyncio.ensure_future(client.watch(address))
    pending = asyncio.ensure_future(client.call(address, SLOW, Text("x"), timeout_s=30.0))
    await servers.begun.get()
    assert not watching.done()
    await server.close()
    with pytest.raises(OutcomeUnknown):
        await pending
    await watching
    await servers.listening(port=split_address(address)[1])
    assert (await echo(client, address, "again")).body.text == "again"


SERVER_PROGRAM = """
import asyncio
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

async def main():
    peers = TcpPeers(Credentials("demo", bytes(range(32))), on_failure=print)
    await peers.listen("0123456789abcdef0123456789abcdef", {})
    print(peers.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_server_ends_the_watch_of_it(servers: Servers) -> None:
    """The kernel closes the connections of a process that dies, whatever it was doing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER_PROGRAM, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = Address((await process.stdout.readline()).decode().strip())
    client = servers.peers()
    watching = asyncio.ensure_future(client.watch(address))
    with pytest.raises(InvalidArgument, match="no method"):
        await echo(client, address, "it lives")
    assert not watching.done()
    process.kill()
    async with asyncio.timeout(10.0):
        await watching
    await process.wait()


async def test_closing_the_caller_ends_its_calls(servers: Servers) -> None:
    """Pending calls get `OutcomeUnknown`, later ones `Unavailable`."""
    server, client = await servers.listening(), servers.peers()
    pending = asyncio.ensure_future(client.call(server.address, SLOW, Text("x"), timeout_s=30.0))
    await servers.begun.get()
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await pending
    with pytest.raises(Unavailable):
        await echo(client, server.address, "x")


async def test_many_first_calls_share_one_connection(servers: Servers) -> None:
    """One connection per address, also while it is being made."""
    accepted = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await shake_hands(reader, writer)
        await reader.read()
        writer.close()

    server, address = await stub_server(counted)
    client = servers.peers()
    calls = [echo(client, address, "x", timeout_s=1.0) for _ in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert accepted == 1
    server.close()


@pytest.mark.parametrize("address", ["nohost", "host:", ":1", "host:99999", "host:x"])
async def test_an_address_that_is_none_is_refused(servers: Servers, address: str) -> None:
    """A wrong setting is named, not taken for a dead server."""
    with pytest.raises(InvalidArgument, match="is not host:port"):
        await echo(servers.peers(), Address(address), "x")


# ---- handshake ------------------------------------------------------------------------------


async def test_a_wrong_secret_is_unauthorized(servers: Servers) -> None:
    """Neither end believes the other; the handler never runs."""
    server, client = await servers.listening(), servers.peers(secret=bytes(32))
    with pytest.raises(Unauthorized, match="does not have the secret of cluster 'demo'"):
        await client.call(server.address, SLOW, Text("x"), timeout_s=10.0)
    assert servers.begun.empty()


async def test_another_cluster_with_the_same_secret_is_unauthorized(servers: Servers) -> None:
    """A client of one cluster is not served by another."""
    server, client = await servers.listening(), servers.peers(cluster="prod")
    with pytest.raises(Unauthorized, match="belongs to another cluster than 'prod'"):
        await echo(client, server.address, "x")


async def test_both_ends_name_a_protocol_mismatch(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Who must upgrade can be read at either end."""
    server, client = await servers.listening(), servers.peers(version=PROTOCOL_VERSION + 1)
    caplog.set_level(logging.WARNING)
    with pytest.raises(ProtocolMismatch) as caught:
        await echo(client, server.address, "x")
    assert caught.value.args == (server.address, PROTOCOL_VERSION, PROTOCOL_VERSION + 1)
    said = f"speaks protocol version {PROTOCOL_VERSION + 1}; this server speaks {PROTOCOL_VERSION}"
    assert said in caplog.text


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(500), b"", b"ST"])
async def test_strangers_are_dropped_and_others_served(servers: Servers, greeting: bytes) -> None:
    """Bytes that are no handshake end that connection, and touch nothing else."""
    server, client = await servers.listening(), servers.peers()
    host, port = split_address(server.address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(greeting)
    writer.write_eof()
    assert await read_end(reader) == b""
    writer.close()
    assert (await echo(client, server.address, "x")).body.text == "x"


async def test_a_server_that_is_not_ours_is_unauthorized(servers: Servers) -> None:
    """A call to some other service's port says so."""

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(MESSAGE_BYTES))
        await reader.read()
        writer.close()

    server, address = await stub_server(web)
    with pytest.raises(Unauthorized, match="is not a Stelae server"):
        await echo(servers.peers(), address, "x")
    server.close()


async def test_connections_that_prove_nothing_keep_nobody_out(servers: Servers) -> None:
    """However many are silent, a peer takes the place of the oldest of them."""
    server = await servers.listening(limits=Limits(handshakes=2))
    host, port = split_address(server.address)
    strangers = [await asyncio.open_connection(host, port) for _ in range(5)]
    assert (await echo(servers.peers(), server.address, "x")).body.text == "x"
    for reader, _ in strangers[:3]:
        assert await read_end(reader) == b""
    for _, writer in strangers:
        writer.close()


async def test_strangers_of_one_host_take_the_place_of_each_other_first(servers: Servers) -> None:
    """Those of this machine's own socket are another host's: they have proved nothing either."""
    limits = Limits(handshakes=10, handshakes_of_host=2)
    server = await servers.listening(limits=limits)
    local = connect_locally(server.address)
    if local is None:
        pytest.skip("these servers listen on TCP alone")
    first = await asyncio.open_unix_connection(sock=local)
    host, port = split_address(server.address)
    strangers = [await asyncio.open_connection(host, port) for _ in range(3)]
    assert await read_end(strangers[0][0]) == b""
    for reader, _ in (first, *strangers[1:]):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.01)
    for _, writer in (first, *strangers):
        writer.close()


async def test_peers_beyond_the_limit_are_refused(servers: Servers) -> None:
    """They learn that it is for their number; whoever is there goes on."""
    server = await servers.listening(limits=Limits(connections=1))
    client = servers.peers()
    assert (await echo(client, server.address, "x")).body.text == "x"
    with pytest.raises(Unavailable, match="too many connections"):
        await echo(servers.peers(), server.address, "x")
    assert (await echo(client, server.address, "again")).body.text == "again"


@pytest.mark.parametrize("answer", ["closes", "is silent", "says something else"])
async def test_a_stranger_under_a_servers_local_name_is_passed_by(
    answer: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process can take the name of an address; the call goes over TCP then."""
    monkeypatch.setattr("stelae.runtime.tcp.peers.LOCAL_TIMEOUT_S", 0.05)
    monkeypatch.setattr("stelae.runtime.tcp.direct.LOCAL_TIMEOUT_S", 0.05)
    port = free_port("127.0.0.1")
    taken = listen_locally(Address(f"127.0.0.1:{port}"), 5)
    if taken is None:
        pytest.skip("these servers listen on TCP alone")

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer == "says something else":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        if answer == "is silent":
            await reader.read()
        writer.close()

    squatter = await asyncio.start_unix_server(stranger, sock=taken)
    server = await servers.listening(port=port)
    assert (await echo(servers.peers(), server.address, "x")).body.text == "x"
    calls = DirectCalls(Credentials("demo", SECRET))
    call = partial(calls.call, server.address, ECHO, Text("y"), timeout_s=5.0, destination=UUID)
    assert (await asyncio.to_thread(call)).text == "y"
    calls.close()
    squatter.close()


async def test_a_silent_server_is_given_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake that does not come ends by the caller's deadline: surely not sent."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server, address = await stub_server(silent)
    with pytest.raises(Unavailable, match="no connection within"):
        await echo(servers.peers(), address, "x", timeout_s=0.05)
    monkeypatch.setattr("stelae.runtime.tcp.peers.HANDSHAKE_TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="no handshake within"):
        await echo(servers.peers(), address, "x", timeout_s=10.0)
    server.close()


async def test_a_silent_client_is_given_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unproved connection is closed by the handshake's deadline."""
    monkeypatch.setattr("stelae.runtime.tcp.connection.PROOF_TIMEOUT_S", 0.05)
    server = await servers.listening()
    reader, writer = await asyncio.open_connection(*split_address(server.address))
    assert await read_end(reader) == b""
    writer.close()
