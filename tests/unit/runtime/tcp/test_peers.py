"""Calls between `TcpPeers`: answers, errors, deadlines, bounds."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest

from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TooLarge,
    WrongServer,
)
from stelae.core.rpc import SINGLE_BYTES_MAX, Call, Empty, Method, Reply
from stelae.runtime.tcp.frames import Kind, encode_frame
from stelae.runtime.tcp.limits import Limits
from tests.unit.runtime.tcp.peers_world import (
    ECHO,
    FAIL,
    KEEP,
    OTHER_UUID,
    SLOW,
    UUID,
    Servers,
    Text,
    echo,
    shake_hands,
    stub_server,
)

MIB = 1024 * 1024


class Keeps(msgspec.Struct, frozen=True, array_like=True):
    raw: msgspec.Raw


RAW = Method("test.echo", Keeps, Keeps, "of tests, with one server")


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


async def test_a_large_reply_lies_in_the_memory_that_the_caller_gave(servers: Servers) -> None:
    """A caller that fetches much uses the same memory again; small replies do not ask for it."""
    server, client = await servers.listening(), servers.peers()
    given: list[bytearray] = []

    def memory(size: int) -> memoryview:
        given.append(bytearray(size))
        return memoryview(given[-1])

    async def fetch(size: int) -> memoryview:
        blob = bytes(range(256)) * (size // 256)
        request, to = Text("x"), server.address
        reply = await client.call(to, ECHO, request, timeout_s=10.0, blobs=[blob], memory=memory)
        (found,) = reply.blobs
        assert found == blob
        assert isinstance(found, memoryview)
        assert found.readonly
        return found

    await fetch(256)
    assert not given
    large = await fetch(MIB)
    given[0][-1] = 7
    assert large[-1] == 7


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


@pytest.mark.parametrize("count", [4, 5, 6, 9])
async def test_large_messages_of_one_part_all_go_out(servers: Servers, count: int) -> None:
    """However many wait: those that one turn of the loop leaves have the next."""
    server, client = await servers.listening(), servers.peers()
    await echo(client, server.address, "connected")
    blob = bytes(SINGLE_BYTES_MAX + 1)
    calls = [echo(client, server.address, str(n), blobs=[blob]) for n in range(count)]
    async with asyncio.timeout(5.0):
        replies = await asyncio.gather(*calls)
    assert [reply.body.text for reply in replies] == [str(n) for n in range(count)]


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


async def test_a_call_that_names_no_server_is_refused(servers: Servers) -> None:
    """Unless its method says why it may: somebody else may listen at that address by now."""
    server, client = await servers.listening(), servers.peers()
    with pytest.raises(InvalidArgument, match=r"test\.keep must name the server"):
        await client.call(server.address, KEEP, Text("x"), timeout_s=10.0)
    reply = await client.call(server.address, KEEP, Text("x"), timeout_s=10.0, destination=UUID)
    assert reply.body == Text("x")


async def test_unknown_methods_and_bodies_are_refused(servers: Servers) -> None:
    """What this version does not know is refused in plain words."""
    server, client = await servers.listening(), servers.peers()
    absent = Method("test.absent", Text, Text, "of tests, with one server")
    with pytest.raises(InvalidArgument, match=r"no method 'test\.absent'"):
        await client.call(server.address, absent, Text("x"), timeout_s=10.0)
    wrong = Method("test.echo", Empty, Text, "of tests, with one server")
    with pytest.raises(InvalidArgument, match=r"test\.echo: the request cannot be read"):
        await client.call(server.address, wrong, Empty(), timeout_s=10.0)


async def test_a_reply_that_cannot_be_read_is_an_unknown_outcome(servers: Servers) -> None:
    """The handler has run, so nothing better can be said."""
    server, client = await servers.listening(), servers.peers()
    wrong = Method("test.echo", Text, Numbered, "of tests, with one server")
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
