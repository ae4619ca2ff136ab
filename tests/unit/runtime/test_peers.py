"""Calls over real loopback sockets: answers, errors, bounds, lost connections, handshakes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ProtocolMismatch,
    StelaeError,
    TooLarge,
    Unauthorized,
    Unavailable,
    WrongServer,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Call, Empty, Handler, Method, Reply, prompt
from stelae.runtime.frames import Kind, encode_frame
from stelae.runtime.handshake import MESSAGE_BYTES, Credentials, ServerHandshake
from stelae.runtime.limits import Limits
from stelae.runtime.peers import TcpPeers, split_address

UUID = ServerUuid("0123456789abcdef0123456789abcdef")
OTHER_UUID = ServerUuid("f" * 32)
SECRET = bytes(range(32))
MIB = 1024 * 1024


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


class Keeps(msgspec.Struct, frozen=True, array_like=True):
    raw: msgspec.Raw


ECHO = Method("test.echo", Text, Text)
RAW = Method("test.echo", Keeps, Keeps)
SLOW = Method("test.slow", Text, Text)
FAIL = Method("test.fail", Text, Empty)


class Servers:
    """Makes `TcpPeers` and closes them at the end; keeps what handlers failed with."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.made: list[TcpPeers] = []
        self.release = asyncio.Event()
        self.begun: asyncio.Queue[str] = asyncio.Queue()

    def peers(self, secret: bytes = SECRET, cluster: str = "demo", **options: Any) -> TcpPeers:
        version = options.pop("version", 1)
        credentials = Credentials(cluster, secret, version)
        peers = TcpPeers(credentials, on_failure=self.failures.append, **options)
        self.made.append(peers)
        return peers

    async def listening(self, **options: Any) -> TcpPeers:
        peers = self.peers(**options)
        handlers: dict[Method[Any, Any], Handler] = {
            ECHO: self.echo,
            SLOW: self.slow,
            FAIL: self.fail,
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


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    servers = Servers()
    yield servers
    for peers in servers.made:
        await peers.close()


async def echo(client: TcpPeers, address: Address, text: str, **options: Any) -> Reply[Text]:
    return await client.call(address, ECHO, Text(text), **{"timeout_s": 10.0, **options})


# ---- answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_600, 262_144, 3 * MIB + 7])
async def test_body_and_blobs_come_back_as_they_were_sent(servers: Servers, size: int) -> None:
    """Small and large messages alike; blobs are read-only views, whatever kind was sent."""
    server, client = await servers.listening(), servers.peers()
    data = (b"0123456789abcdefg" * (size // 17 + 1))[:size]
    blobs = [data, bytearray(b"short"), memoryview(data)[: size // 2], pa.py_buffer(data)]
    reply = await echo(client, server.address, "hé", blobs=blobs, destination=UUID)
    assert reply.body == Text("hé")
    assert [bytes(blob) for blob in reply.blobs] == [data, b"short", data[: size // 2], data]
    assert all(memoryview(blob).readonly for blob in reply.blobs)


async def test_a_large_body_without_blobs_comes_back(servers: Servers) -> None:
    """Parts are for any message, not only for blobs."""
    server, client = await servers.listening(), servers.peers()
    reply = await echo(client, server.address, "x" * MIB)
    assert reply.body.text == "x" * MIB


async def test_each_of_many_concurrent_calls_gets_its_own_answer(servers: Servers) -> None:
    """Calls share one connection and are matched by id."""
    server, client = await servers.listening(), servers.peers()
    sizes = [0, 10, 70_000, 300_000]
    calls = [
        echo(client, server.address, str(number), blobs=[b"%d" % number * sizes[number % 4]])
        for number in range(400)
    ]
    for number, reply in enumerate(await asyncio.gather(*calls)):
        assert reply.body.text == str(number)
        assert bytes(reply.blobs[0]) == b"%d" % number * sizes[number % 4]


async def test_what_a_reply_keeps_of_the_message_stays_valid(servers: Servers) -> None:
    """`Raw` fields are views; later messages in the receive buffer must not change them."""
    server, client = await servers.listening(), servers.peers()
    raw = msgspec.Raw(msgspec.msgpack.encode("kept"))
    reply = await client.call(server.address, RAW, Keeps(raw), timeout_s=10.0)
    for _ in range(3):
        await echo(client, server.address, "overwrites what lies there")
    assert msgspec.msgpack.decode(reply.body.raw) == "kept"


async def test_a_small_call_overtakes_a_large_one(servers: Servers) -> None:
    """Heartbeats and votes do not wait behind a segment."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connected")
    order: list[str] = []

    async def noted(name: str, size: int) -> None:
        await echo(client, server.address, name, blobs=[bytes(size)])
        order.append(name)

    await asyncio.gather(noted("large", 48 * MIB), noted("small", 100))
    assert order == ["small", "large"]


async def test_servers_call_one_another_both_ways(servers: Servers) -> None:
    """Each end has its own connection for its own calls."""
    one, two = await servers.listening(), await servers.listening()
    replies = await asyncio.gather(echo(one, two.address, "1"), echo(two, one.address, "2"))
    assert [reply.body.text for reply in replies] == ["1", "2"]


# ---- errors ---------------------------------------------------------------------------------


async def test_a_handlers_error_reaches_the_caller_as_it_is(servers: Servers) -> None:
    """Class and parameters travel; the connection goes on."""
    server, client = await servers.listening(), servers.peers()
    with pytest.raises(NotLeader) as caught:
        await client.call(server.address, FAIL, Text("leader"), timeout_s=10.0)
    assert caught.value.args == ("a", 7, "b:1")
    with pytest.raises(StelaeError, match=r"^InvalidArgument: xxx"):
        await client.call(server.address, FAIL, Text("long"), timeout_s=10.0)
    assert servers.failures == []
    assert (await echo(client, server.address, "on")).body.text == "on"


async def test_a_broken_handler_is_reported_and_its_caller_told_the_outcome_is_unknown(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is not a `StelaeError` is our failure: logged with its traceback, handed on."""
    server, client = await servers.listening(), servers.peers()
    with pytest.raises(OutcomeUnknown, match=r"did not answer test\.fail"):
        await client.call(server.address, FAIL, Text("invariant"), timeout_s=10.0)
    assert [type(error) for error in servers.failures] == [AssertionError]
    assert "Traceback" in caplog.text
    assert "invariant" in caplog.text


async def test_a_call_for_another_server_is_refused(servers: Servers) -> None:
    """An address that changed hands never answers for the server that had it."""
    server, client = await servers.listening(), servers.peers()
    with pytest.raises(WrongServer) as caught:
        await echo(client, server.address, "x", destination=OTHER_UUID)
    assert caught.value.args == (OTHER_UUID, UUID)


async def test_unknown_methods_and_bodies_are_refused(servers: Servers) -> None:
    """What this version does not know is refused in plain words."""
    server, client = await servers.listening(), servers.peers()
    absent = Method("test.absent", Text, Text)
    with pytest.raises(InvalidArgument, match=r"no method 'test\.absent'"):
        await client.call(server.address, absent, Text("x"), timeout_s=10.0)
    wrong = Method("test.echo", Empty, Text)
    with pytest.raises(InvalidArgument, match=r"test\.echo: the request cannot be read"):
        await client.call(server.address, wrong, Empty(), timeout_s=10.0)


async def test_a_reply_that_cannot_be_read_is_an_unknown_outcome(servers: Servers) -> None:
    """The handler has run, so nothing better can be said."""
    server, client = await servers.listening(), servers.peers()
    wrong = Method("test.echo", Text, Numbered)
    with pytest.raises(OutcomeUnknown):
        await client.call(server.address, wrong, Text("x"), timeout_s=10.0)


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    number: int


async def test_messages_above_the_bound_are_too_large(servers: Servers) -> None:
    """The caller's is refused before it is sent, the handler's before it is answered."""
    limits = Limits(message_bytes=2 * MIB)
    server, client = await servers.listening(limits=limits), servers.peers(limits=limits)
    with pytest.raises(TooLarge, match=r"a call of test\.echo"):
        await echo(client, server.address, "x", blobs=[bytes(2 * MIB)])
    many = [b""] * 5000
    with pytest.raises(InvalidArgument, match="5000 blobs"):
        await echo(client, server.address, "x", blobs=many)


# ---- deadlines ------------------------------------------------------------------------------


async def test_an_answer_that_comes_too_late_is_an_unknown_outcome(servers: Servers) -> None:
    """The call ends by its deadline; the handler does not, and its late answer hurts nobody."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connected")
    with pytest.raises(OutcomeUnknown) as caught:
        await client.call(server.address, SLOW, Text("late"), timeout_s=0.05)
    assert caught.value.args[:2] == (server.address, "test.slow")
    assert await servers.begun.get() == "late"
    servers.release.set()
    assert (await echo(client, server.address, "on")).body.text == "on"


async def test_a_deadline_already_passed_sends_nothing(servers: Servers) -> None:
    """`DeadlineExpired` promises that nothing was done."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connected")
    with pytest.raises(DeadlineExpired):
        await client.call(server.address, SLOW, Text("x"), timeout_s=0.0)
    await echo(client, server.address, "after it")
    assert servers.begun.empty()


async def test_the_handler_is_told_what_is_left_of_the_deadline(servers: Servers) -> None:
    """`timeout_s` of the call is at most the caller's, rounded to milliseconds."""
    seen: list[float] = []

    async def note(call: Call[Text]) -> Reply[Text]:
        seen.append(call.timeout_s)
        return Reply(call.body)

    server, client = servers.peers(), servers.peers()
    await server.listen(UUID, {ECHO: note})
    await echo(client, server.address, "x", timeout_s=30.0)
    assert 25.0 < seen[0] <= 30.002


# ---- bounds ---------------------------------------------------------------------------------


async def test_requests_beyond_the_bound_are_overloaded(servers: Servers) -> None:
    """A server works on so many requests of a connection, and refuses the next at once."""
    server = await servers.listening(limits=Limits(requests=2))
    client = servers.peers()
    running = [
        asyncio.ensure_future(client.call(server.address, SLOW, Text(name), timeout_s=10.0))
        for name in "ab"
    ]
    assert [await servers.begun.get() for _ in running] == ["a", "b"]
    with pytest.raises(Overloaded, match="requests in progress"):
        await echo(client, server.address, "c")
    servers.release.set()
    assert [reply.body.text for reply in await asyncio.gather(*running)] == ["a", "b"]
    assert (await echo(client, server.address, "d")).body.text == "d"


async def test_unanswered_calls_beyond_the_bound_are_overloaded(servers: Servers) -> None:
    """A caller does not pile up calls without end either."""
    server = await servers.listening()
    client = servers.peers(limits=Limits(requests=1))
    running = asyncio.ensure_future(client.call(server.address, SLOW, Text("a"), timeout_s=10.0))
    await servers.begun.get()
    with pytest.raises(Overloaded, match="unanswered calls"):
        await echo(client, server.address, "b")
    servers.release.set()
    await running


async def test_large_requests_beyond_the_bound_are_overloaded(servers: Servers) -> None:
    """Bytes of requests in progress are bounded; what is refused is not kept, and ends nothing."""
    server = await servers.listening(limits=Limits(request_bytes=3 * MIB))
    client = servers.peers()
    blob = bytes(2 * MIB)
    held = asyncio.ensure_future(
        client.call(server.address, SLOW, Text("held"), timeout_s=10.0, blobs=[blob])
    )
    await servers.begun.get()
    with pytest.raises(Overloaded, match="bytes of requests"):
        await echo(client, server.address, "x", blobs=[blob])
    servers.release.set()
    await held
    assert (await echo(client, server.address, "x", blobs=[blob])).blobs[0] == blob


async def test_a_cancelled_large_call_frees_what_it_held(servers: Servers) -> None:
    """The rest of its parts is not sent, and the server forgets those that were."""
    server = await servers.listening(limits=Limits(request_bytes=65 * MIB))
    client = servers.peers()
    await echo(client, server.address, "connected")
    blob = bytes(64 * MIB)
    for _ in range(3):
        call = asyncio.ensure_future(echo(client, server.address, "x", blobs=[blob]))
        await echo(client, server.address, "a round trip, in which some parts have left")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    reply = await echo(client, server.address, "x", blobs=[blob], timeout_s=30.0)
    assert memoryview(reply.blobs[0]).nbytes == len(blob)


Stub = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's part of the handshake, over plain streams."""
    handshake = ServerHandshake(Credentials("demo", SECRET), "the client")
    while not handshake.done:
        writer.write(handshake.feed(await reader.readexactly(handshake.needed)))


async def read_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the other end closes; a reset, which unread bytes cause, is an end too."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def stub_server(stub: Stub) -> tuple[asyncio.Server, Address]:
    server = await asyncio.start_server(stub, "127.0.0.1", 0, limit=1024)
    return server, Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_peer_that_does_not_read_holds_up_its_callers_only_to_their_deadline(
    servers: Servers,
) -> None:
    """What was partly sent is unknown, what still waited was surely not sent; nothing grows."""
    done = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer)
        await done.wait()
        writer.close()

    server, address = await stub_server(deaf)
    client = servers.peers(limits=Limits(large_bytes=8 * MIB))
    calls = [echo(client, address, "x", blobs=[bytes(8 * MIB)], timeout_s=0.3) for _ in range(4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    kinds = sorted(type(result).__name__ for result in results)
    assert set(kinds) <= {"OutcomeUnknown", "Overloaded"}
    assert kinds.count("Overloaded") >= 2
    assert "OutcomeUnknown" in kinds
    done.set()
    server.close()


async def test_a_damaged_answer_closes_the_connection(servers: Servers) -> None:
    """A frame that does not match its checksum is no answer; the next call connects anew."""
    connections = 0

    async def garbled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await shake_hands(reader, writer)
        await reader.read(1)
        frame = bytearray(encode_frame(Kind.REPLY, 1, bytes(8) + b"\x91\xa1x"))
        frame[-1] ^= 1
        writer.write(frame)
        await reader.read()
        writer.close()

    server, address = await stub_server(garbled)
    client = servers.peers()
    for attempt in (1, 2):
        with pytest.raises(OutcomeUnknown):
            await echo(client, address, "x")
        assert connections == attempt
    server.close()


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
from stelae.runtime.handshake import Credentials
from stelae.runtime.peers import TcpPeers

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
    calls = [echo(client, address, "x", timeout_s=0.1) for _ in range(20)]
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
    server, client = await servers.listening(), servers.peers(version=2)
    caplog.set_level(logging.WARNING)
    with pytest.raises(ProtocolMismatch) as caught:
        await echo(client, server.address, "x")
    assert caught.value.args == (server.address, 1, 2)
    assert "speaks protocol version 2; this server speaks 1" in caplog.text


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


async def test_connections_that_prove_nothing_are_bounded(servers: Servers) -> None:
    """Silent strangers cannot take all places; one that leaves frees its own."""
    server = await servers.listening(limits=Limits(handshakes=2))
    host, port = split_address(server.address)
    strangers = [await asyncio.open_connection(host, port) for _ in range(2)]
    client = servers.peers()
    with pytest.raises(Unavailable, match="too many connections"):
        await echo(client, server.address, "x")
    for reader, writer in strangers:
        writer.write_eof()
        assert await read_end(reader) == b""
        writer.close()
    assert (await echo(client, server.address, "x")).body.text == "x"


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
    monkeypatch.setattr("stelae.runtime.peers.HANDSHAKE_TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="no handshake within"):
        await echo(servers.peers(), address, "x", timeout_s=10.0)
    server.close()


async def test_a_silent_client_is_given_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unproved connection is closed by the handshake's deadline."""
    monkeypatch.setattr("stelae.runtime.connection.HANDSHAKE_TIMEOUT_S", 0.05)
    server = await servers.listening()
    reader, writer = await asyncio.open_connection(*split_address(server.address))
    assert await read_end(reader) == b""
    writer.close()


# ---- handlers that begin at once, calls that are posted ---------------------------------------


async def test_a_prompt_handler_that_need_not_wait_never_becomes_a_task(servers: Servers) -> None:
    """It is answered in the turn that received it."""
    tasks: list[asyncio.Task[Any] | None] = []

    @prompt
    async def now(call: Call[Text]) -> Reply[Text]:
        tasks.append(asyncio.current_task())
        return Reply(call.body)

    server, client = servers.peers(), servers.peers()
    await server.listen(UUID, {ECHO: now})
    assert (await echo(client, server.address, "a")).body.text == "a"
    assert tasks == [None]


async def test_a_prompt_handler_that_waits_goes_on_as_a_task(servers: Servers) -> None:
    """With what it waits for, its failures, and its cancellation when the server stops."""
    ended: list[str] = []
    begun = asyncio.Semaphore(0)

    @prompt
    async def later(call: Call[Text]) -> Reply[Text]:
        lock = asyncio.Lock()
        async with lock:
            await asyncio.sleep(0)
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, call.body.text)
        found = await future
        if found == "fail":
            raise NotLeader("a", 7, "b:1")
        if found == "hang":
            begun.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(found)
                raise
        return Reply(Text(found * 2))

    server, client = servers.peers(), servers.peers()
    await server.listen(UUID, {ECHO: later})
    texts = [str(n) for n in range(20)]
    replies = await asyncio.gather(*(echo(client, server.address, text) for text in texts))
    assert [reply.body.text for reply in replies] == [text * 2 for text in texts]
    with pytest.raises(NotLeader):
        await echo(client, server.address, "fail")
    hanging = asyncio.create_task(echo(client, server.address, "hang"))
    await begun.acquire()
    await server.close()
    with pytest.raises(OutcomeUnknown):
        await hanging
    assert ended == ["hang"]


class Posted:
    """Outcomes of posted calls, in the order of their coming."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self._came = asyncio.Semaphore(0)

    def __call__(self, outcome: Any) -> None:
        self.outcomes.append(outcome)
        self._came.release()

    async def one(self) -> Any:
        await self._came.acquire()
        return self.outcomes[-1]


async def test_a_posted_call_is_told_its_answer_or_its_error(servers: Servers) -> None:
    """Once, with blobs and all; nothing is told before `post` returns."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connect")
    posted = Posted()
    options: dict[str, Any] = {"timeout_s": 10.0, "destination": UUID}
    assert client.post(server.address, ECHO, Text("a"), posted, blobs=[b"xyz"], **options)
    assert posted.outcomes == []
    reply = await posted.one()
    assert (reply.body, [bytes(blob) for blob in reply.blobs]) == (Text("a"), [b"xyz"])
    assert client.post(server.address, FAIL, Text("leader"), posted, **options)
    assert isinstance(await posted.one(), NotLeader)
    assert client.post(server.address, ECHO, Text("a"), posted, timeout_s=5, destination=OTHER_UUID)
    assert isinstance(await posted.one(), WrongServer)
    assert len(posted.outcomes) == 3


async def test_a_posted_call_without_an_answer_ends_at_its_deadline(servers: Servers) -> None:
    """And the answer that comes later is nobody's."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connect")
    posted = Posted()
    assert client.post(server.address, SLOW, Text("a"), posted, timeout_s=0.05)
    assert isinstance(await posted.one(), OutcomeUnknown)
    servers.release.set()
    await echo(client, server.address, "after")
    assert len(posted.outcomes) == 1


async def test_a_posted_call_ends_with_its_connection(servers: Servers) -> None:
    """Its outcome is unknown then."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connect")
    posted = Posted()
    assert client.post(server.address, SLOW, Text("a"), posted, timeout_s=10.0)
    await servers.begun.get()
    await server.close()
    assert isinstance(await posted.one(), OutcomeUnknown)
    assert len(posted.outcomes) == 1


async def test_what_cannot_be_sent_at_once_is_not_posted(servers: Servers) -> None:
    """No connection, too large for one frame, too many unanswered: that is for `call`."""
    server, client = await servers.listening(), servers.peers(limits=Limits(requests=1))
    posted = Posted()
    address = server.address
    assert not client.post(address, ECHO, Text("a"), posted, timeout_s=10.0)
    await echo(client, address, "connect")
    big = b"x" * 70_000
    assert not client.post(address, ECHO, Text("a"), posted, timeout_s=10.0, blobs=[big])
    assert not client.post(address, ECHO, Text("a"), posted, timeout_s=0.0)
    assert client.post(address, SLOW, Text("a"), posted, timeout_s=10.0)
    assert not client.post(address, ECHO, Text("a"), posted, timeout_s=10.0)
    servers.release.set()
    await posted.one()
    assert len(posted.outcomes) == 1
