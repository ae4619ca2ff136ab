"""Blocking calls from a thread: answers, errors, bounds, lost and forked connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stelae.core.errors import (
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Unauthorized,
    Unavailable,
    WrongServer,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Call, Method, NotSingle, Reply
from stelae.runtime.tcp import direct as module
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from tests.unit.runtime.tcp.peers_world import ECHO, FAIL, SECRET, SLOW, UUID, Text


class World:
    """One server, and direct calls to it from threads."""

    def __init__(self) -> None:
        self.calls = DirectCalls(Credentials("demo", SECRET))
        self.release = asyncio.Event()
        self.began = asyncio.Semaphore(0)
        self.server = self.peers()

    def peers(self) -> TcpPeers:
        return TcpPeers(Credentials("demo", SECRET), on_failure=lambda error: None)

    async def listen(self, port: int = 0) -> None:
        self.server = TcpPeers(
            Credentials("demo", SECRET), on_failure=lambda error: None, port=port
        )
        handlers: Any = {ECHO: self.echo, FAIL: self.fail, SLOW: self.slow}
        await self.server.listen(UUID, handlers)

    async def echo(self, call: Call[Text]) -> Reply[Text]:
        return Reply(call.body)

    async def fail(self, call: Call[Text]) -> Reply[Text]:
        if call.body.text == "leader":
            raise NotLeader("a", 7, "b:1")
        raise ValueError("a bug")

    async def slow(self, call: Call[Text]) -> Reply[Text]:
        self.began.release()
        await self.release.wait()
        return Reply(call.body)

    @property
    def accepted(self) -> int:
        service = self.server._service
        assert service is not None
        return len(service.connections)

    async def call(self, text: str, method: Method[Text, Any] = ECHO, **options: Any) -> Any:
        address = options.pop("address", self.server.address)
        options = {"timeout_s": 10.0, "destination": UUID, **options}
        reply = await asyncio.to_thread(
            lambda: self.calls.call(address, method, Text(text), **options)
        )
        return reply.text


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.listen()
    yield world
    world.calls.close()
    world.release.set()
    await world.server.close()


@pytest.mark.parametrize("size", [0, 1, 60_000])
async def test_an_answer_comes_back(world: World, size: int) -> None:
    """Up to the largest request that goes in one frame."""
    assert await world.call("x" * size) == "x" * size


async def test_a_large_answer_comes_back_whole(world: World) -> None:
    """Answers may come in parts even where requests may not."""

    async def long(call: Call[Text]) -> Reply[Text]:
        return Reply(Text("y" * 500_000))

    route = world.server._service.routes[b"test.echo"]  # type: ignore[union-attr]
    world.server._service.routes[b"test.echo"] = type(route)(  # type: ignore[union-attr]
        route.name, long, route.decoder, route.is_prompt, route.takes_untagged
    )
    assert await world.call("a") == "y" * 500_000
    assert await world.call("a") == "y" * 500_000


async def test_calls_one_after_another_use_one_connection(world: World) -> None:
    """A connection is made once, and kept."""
    for n in range(5):
        assert await world.call(str(n)) == str(n)
    assert world.accepted == 1


async def test_errors_of_the_handler_reach_the_caller(world: World) -> None:
    """With their parameters, and without an end of the connection."""
    with pytest.raises(NotLeader) as caught:
        await world.call("leader", FAIL)
    assert caught.value.args == ("a", 7, "b:1")
    with pytest.raises(OutcomeUnknown):
        await world.call("bug", FAIL)
    with pytest.raises(WrongServer):
        await world.call("a", destination=ServerUuid("f" * 32))
    assert await world.call("a") == "a"
    assert world.accepted == 1


async def test_a_request_too_large_for_one_frame_is_not_sent(world: World) -> None:
    """It is for the ordinary way, which cuts it into parts."""
    with pytest.raises(NotSingle):
        await world.call("x" * 66_000)


async def test_no_answer_in_time_is_an_unknown_outcome(world: World) -> None:
    """And the connection is given up: its answer, should it come, is to nobody."""
    with pytest.raises(OutcomeUnknown):
        await world.call("a", SLOW, timeout_s=0.05)
    world.release.set()
    assert await world.call("b") == "b"


async def test_a_server_that_is_gone_is_unavailable(world: World) -> None:
    """Nothing was sent, and that is known: also on a connection that had stood idle."""
    assert await world.call("a") == "a"
    address = world.server.address
    await world.server.close()
    for _ in range(100):
        try:
            await world.call("a", address=address)
        except OutcomeUnknown:
            continue  # the end of the idle connection had not come through yet
        except Unavailable:
            break
    else:
        pytest.fail("the server is gone, and calls still leave for it")
    await world.listen(int(address.rpartition(":")[2]))
    assert await world.call("b", address=address) == "b"


async def test_a_server_that_goes_during_a_call_leaves_its_outcome_unknown(world: World) -> None:
    """The request may have been carried out."""
    call = asyncio.create_task(world.call("a", SLOW))
    await world.began.acquire()
    await world.server.close()
    with pytest.raises(OutcomeUnknown):
        await call


async def test_a_wrong_secret_is_refused_and_tells_so(world: World) -> None:
    """Nothing is sent to whoever does not prove who he is."""
    world.calls = DirectCalls(Credentials("demo", bytes(32)))
    with pytest.raises(Unauthorized):
        await world.call("a")


async def test_a_silent_listener_is_unavailable_by_the_deadline(world: World) -> None:
    """The handshake has the call's deadline too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(Unavailable):
            await world.call("a", address=address, timeout_s=0.05)


async def test_threads_share_connections_up_to_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call at a time on each; more calls than connections are refused, and not sent."""
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 3)
    calls = [asyncio.create_task(world.call(str(n), SLOW)) for n in range(3)]
    for _ in calls:
        await world.began.acquire()
    assert world.accepted == 3
    with pytest.raises(Overloaded):
        await world.call("a")
    world.release.set()
    assert await asyncio.gather(*calls) == ["0", "1", "2"]
    assert await world.call("a") == "a"
    assert world.accepted == 3


async def test_a_closed_end_sends_nothing_and_keeps_nothing(world: World) -> None:
    """What was in use at the close ends with its call."""
    call = asyncio.create_task(world.call("a", SLOW))
    await world.began.acquire()
    world.calls.close()
    world.release.set()
    assert await call == "a"
    with pytest.raises(Unavailable):
        await world.call("b")
    assert world.calls._idle == {}


async def test_an_interrupted_call_gives_its_connection_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next call would get the answer to the last one."""
    assert await world.call("a") == "a"
    real = module._Line._receive

    def interrupted(self: Any, deadline: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Line, "_receive", interrupted)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            world.calls.call(world.server.address, ECHO, Text("b"), timeout_s=5, destination=UUID)
        except KeyboardInterrupt as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert caught
    monkeypatch.setattr(module._Line, "_receive", real)
    assert await world.call("c") == "c"


async def test_a_forked_child_closes_its_copies_and_calls_nobody(world: World) -> None:
    """Two processes on one connection would read each other's answers. A lock that a thread of the
    parent held, and the connection that it was in a call on, stop nothing."""
    assert await world.call("a") == "a"
    address = world.server.address
    idle = world.calls._idle[address][0]
    in_use = await asyncio.to_thread(world.calls._take, address, 10.0)
    another = await asyncio.to_thread(world.calls._take, address, 10.0)
    assert in_use is idle
    world.calls._lock.acquire()
    world.calls.forget()
    assert [line._socket.fileno() for line in (in_use, another)] == [-1, -1]
    with pytest.raises(Unavailable, match="closed"):
        await world.call("b")
