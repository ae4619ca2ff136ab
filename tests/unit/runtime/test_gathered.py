"""Calls that arrive in the same turn and are handed over together: over real TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from stelae.core.errors import NotLeader, OutcomeUnknown
from stelae.core.rpc import Call, Gathered, Outcome, Reply, prompt
from stelae.runtime.tcp.peers import TcpPeers
from tests.unit.runtime.tcp.peers_world import ECHO, UUID, Servers, Text, echo

MOST = 8


class Listener:
    """Echoes; texts that begin with the same letter are alike, "alone" is like no other."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.alone: list[str] = []
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    def handler(self) -> Gathered[Text]:
        return Gathered(self.one, alike=self.alike, together=self.several, most=MOST)

    @prompt
    async def one(self, call: Call[Text]) -> Reply[Text]:
        self.alone.append(call.body.text)
        if call.body.text == "hold":
            self.begun.set()
            await self.release.wait()
        return Reply(call.body)

    def alike(self, call: Call[Text]) -> Hashable | None:
        return None if call.body.text == "alone" else call.body.text[0]

    async def several(self, calls: Sequence[Call[Text]]) -> Sequence[Outcome]:
        texts = [call.body.text for call in calls]
        self.groups.append(texts)
        if "bug" in texts:
            raise RuntimeError("a bug")
        if "gone" in texts:
            raise NotLeader("all", 1, "")
        if "short" in texts:
            return [Reply(Text(texts[0]))]
        await asyncio.sleep(0)
        return [NotLeader(t, 7, "b:1") if "refused" in t else Reply(Text(t * 2)) for t in texts]


class World:
    """A listener with one call under way, and clients that each have a connection."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.listener = Listener()
        self.clients: list[TcpPeers] = []

    async def start(self, clients: int) -> None:
        self.server = self.servers.peers()
        await self.server.listen(UUID, {ECHO: self.listener.handler()})
        self.clients = [self.servers.peers() for _ in range(clients)]
        for client in self.clients:
            await echo(client, self.server.address, "lone")
        self.held = asyncio.create_task(echo(self.clients[0], self.server.address, "hold"))
        await self.listener.begun.wait()
        self.listener.alone.clear()

    async def ask(self, texts: Sequence[str]) -> list[Any]:
        """Each text by a client of its own, all at once; what each came to."""
        calls = [
            echo(client, self.server.address, text)
            for client, text in zip(self.clients, texts, strict=True)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture
def world(servers: Servers) -> World:
    return World(servers)


async def test_a_call_that_is_alone_is_not_kept(world: World) -> None:
    """Nobody waits for others to come: without others under way each is carried out at once."""
    world.server = world.servers.peers()
    await world.server.listen(UUID, {ECHO: world.listener.handler()})
    client = world.servers.peers()
    for n in range(5):
        assert (await echo(client, world.server.address, f"a{n}")).body.text == f"a{n}"
    assert world.listener.groups == []
    assert len(world.listener.alone) == 5


async def test_calls_of_many_connections_go_together_and_each_has_its_answer(world: World) -> None:
    """Refusals too. No group is larger than it may be; nothing is lost or doubled."""
    texts = [f"a{n} refused" if n % 3 == 0 else f"a{n}" for n in range(40)]
    await world.start(len(texts))
    for text, outcome in zip(texts, await world.ask(texts), strict=True):
        if isinstance(outcome, NotLeader):
            assert "refused" in text
            assert outcome.args == (text, 7, "b:1")
        else:
            assert outcome.body.text in (text * 2, text), "together, or by itself"
    seen = [text for group in world.listener.groups for text in group] + world.listener.alone
    assert sorted(seen) == sorted(texts)
    assert max(map(len, world.listener.groups)) in range(2, MOST + 1)


async def test_only_those_that_are_alike_go_together(world: World) -> None:
    """What is like no other is carried out by itself, also among others."""
    texts = ["a", "b", "alone"] * 6
    await world.start(len(texts))
    for text, outcome in zip(texts, await world.ask(texts), strict=True):
        assert outcome.body.text in (text * 2, text)
    assert all(len(set(group)) == 1 for group in world.listener.groups)
    assert not any("alone" in group for group in world.listener.groups)
    assert world.listener.alone.count("alone") == 6


@pytest.mark.parametrize(
    ("text", "error"), [("gone", NotLeader), ("bug", OutcomeUnknown), ("short", OutcomeUnknown)]
)
async def test_what_ends_a_group_ends_each_of_its_calls(
    world: World, text: str, error: type[Exception]
) -> None:
    """A bug, or an outcome too few, is told of; nobody is left waiting, and others go on."""
    texts = [text, text[0], text[0]] * 4
    await world.start(len(texts))
    outcomes = await world.ask(texts)
    ended = {each for group in world.listener.groups if text in group for each in group}
    assert ended == {text, text[0]}
    assert any(isinstance(outcome, error) for outcome in outcomes)
    for outcome in outcomes:
        assert isinstance(outcome, Reply | error)
    assert bool(world.servers.failures) == (error is OutcomeUnknown)
    world.listener.release.set()
    assert (await world.held).body.text == "hold"


async def test_a_server_that_stops_begins_nothing_any_more(world: World) -> None:
    """Not even what it keeps to the end of the turn; what is under way is cancelled."""
    await world.start(6)
    service = world.server._service
    assert service is not None
    asked = asyncio.create_task(world.ask(["a"] * 6))
    for _ in range(10_000):
        if service._arrived:
            break
        await asyncio.sleep(0)
    assert service._arrived
    await world.server.close()
    for outcome in await asked:
        assert isinstance(outcome, OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        await world.held
    assert world.listener.groups == []
