"""Handlers that begin at once, and calls that are posted: over real TCP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.core.errors import NotLeader, OutcomeUnknown, WrongServer
from stelae.core.rpc import Call, Reply, prompt
from stelae.runtime.tcp.limits import Limits
from tests.unit.runtime.tcp.peers_world import (
    ECHO,
    FAIL,
    OTHER_UUID,
    SLOW,
    UUID,
    Servers,
    Text,
    echo,
)


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
