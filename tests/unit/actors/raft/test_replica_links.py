"""Links of one replica to a peer that does not answer: bounded, and alive again once it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stelae.actors.raft.links import (
    BATCH_BYTES,
    CALL_TIMEOUT_S,
    CALLS_MAX,
    OUTBOX_MAX,
    POST_BYTES,
    POSTS_MAX,
    ReplicaLinks,
)
from stelae.consensus.raft.messages import RAFT_MESSAGE, AppendRequest, RaftAnswers, RaftMessages
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.rpc import SINGLE_BYTES_MAX, Call, Reply
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World

GROUP = TabletId("a" * 32)
SOURCE, TARGET = ServerUuid("1" * 32), ServerUuid("2" * 32)
OFTEN = 3000


def append(index: int, size_bytes: int = 100) -> AppendRequest:
    """One entry."""
    entries = (Entry(1, index, EntryKind.COMMAND, bytes(size_bytes)),)
    return AppendRequest(GROUP, SOURCE, TARGET, 1, OpId(1, index - 1), entries, 0, 1)


class Sender:
    """A server with the links of one replica, and what they told it."""

    def __init__(self, runtime: Any, world: World) -> None:
        self.tasks = Tasks()
        self.lost = 0
        self.links = ReplicaLinks(
            runtime, self.tasks, GROUP, SOURCE, {TARGET: world.address("s2")}, self._lost, absent
        )
        self.runtime = runtime

    def _lost(self, uuid: ServerUuid) -> None:
        assert uuid == TARGET
        self.lost += 1

    async def start(self) -> None:
        await self.runtime.peers.listen(SOURCE, {})

    async def stop(self) -> None:
        await self.links.stop()
        await self.tasks.close()

    @property
    def link(self) -> Any:
        return self.links._links[TARGET]


def absent(uuid: ServerUuid, state: DataState) -> None:
    raise AssertionError("the tablet is there")


class Receiver:
    """A server that takes messages, and answers them only while `answers` is set."""

    def __init__(self, runtime: Any) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self.answers = asyncio.Event()
        self.indexes: list[int] = []
        """Of the entries that came."""
        self.unanswered = self.most = self.most_bytes = 0
        self._bytes = 0

    async def start(self) -> None:
        await self.runtime.peers.listen(TARGET, {RAFT_MESSAGE: self._take})

    async def stop(self) -> None:
        await self.tasks.close()

    async def _take(self, call: Call[RaftMessages]) -> Reply[RaftAnswers]:
        entries: list[Entry] = []
        for message in call.body.messages:
            assert isinstance(message, AppendRequest)
            entries.extend(message.entries)
        size_bytes = sum(len(entry.body) for entry in entries)
        self.indexes.extend(entry.index for entry in entries)
        self.unanswered, self._bytes = self.unanswered + 1, self._bytes + size_bytes
        self.most = max(self.most, self.unanswered)
        self.most_bytes = max(self.most_bytes, self._bytes)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self.answers.wait()
        except TimeoutError:
            pass  # the caller has given it up by now
        finally:
            self.unanswered, self._bytes = self.unanswered - 1, self._bytes - size_bytes
        return Reply(RaftAnswers(()))


def play(
    story: Callable[[Sender, Receiver], Coroutine[Any, Any, None]], *, room: bool = True
) -> None:
    """Two servers; ``room``: what is posted can always be sent at once."""
    world = World(1, Options())
    if room:
        world.network.has_no_room = lambda: False  # type: ignore[method-assign]
    world.start("s1", lambda runtime: Sender(runtime, world))
    world.start("s2", Receiver)

    async def run() -> None:
        await world.wait_ready()
        sender, receiver = world.server("s1"), world.server("s2")
        assert isinstance(sender, Sender)
        assert isinstance(receiver, Receiver)
        task = world.spawn("s1", story(sender, receiver))
        await world.wait_until(task.done, 120.0, "the story")
        task.result()

    world.run(run(), limit_s=200.0)


@pytest.mark.parametrize("room", [True, False], ids=["posted", "now and then queued"])
def test_a_peer_that_does_not_answer_costs_a_bounded_amount_however_much_there_is_to_say(
    room: bool,
) -> None:
    """So many messages wait for an answer and so many to be sent; the oldest of those are lost. In
    the end nothing is left, the core has been told, and what is sent later arrives at once."""

    async def story(sender: Sender, receiver: Receiver) -> None:
        link = sender.link
        for index in range(1, OFTEN):
            sender.links.send([append(index)])
            assert link.posts <= POSTS_MAX
            assert len(link.calls) <= CALLS_MAX
            assert len(link.outbox) <= OUTBOX_MAX
            assert link.unanswered_bytes <= 100 * (OUTBOX_MAX * (1 + len(link.calls)))
            if index % 100 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert POSTS_MAX * room < receiver.most <= POSTS_MAX + CALLS_MAX
        assert len(receiver.indexes) < OFTEN / 2, "nothing was lost: the test is idle"
        await asyncio.sleep(30.0)
        assert (link.posts, len(link.calls), len(link.outbox), link.unanswered_bytes) == (0,) * 4
        assert sender.lost > 0
        receiver.answers.set()
        receiver.indexes.clear()
        for index in range(OFTEN, OFTEN + 10):
            sender.links.send([append(index)])
            await asyncio.sleep(0.1)
        assert receiver.indexes == list(range(OFTEN, OFTEN + 10))

    play(story, room=room)


def test_only_what_fits_into_one_frame_is_posted() -> None:
    """More goes by a call: one at a time has its place in the bytes that wait, and is counted."""
    assert POST_BYTES + 4096 <= SINGLE_BYTES_MAX

    async def story(sender: Sender, receiver: Receiver) -> None:
        link = sender.link
        sender.links.send([append(1, POST_BYTES)])
        assert (link.posts, len(link.calls), link.unanswered_bytes) == (1, 0, 0)
        sender.links.send([append(2, POST_BYTES + 1)])
        assert (link.posts, len(link.calls), link.unanswered_bytes) == (1, 1, POST_BYTES + 1)
        sender.links.send([append(3)])
        assert (link.posts, len(link.calls)) == (1, 2), "it does not overtake what waits"
        receiver.answers.set()
        await asyncio.sleep(1.0)
        assert sorted(receiver.indexes) == [1, 2, 3]
        assert (link.posts, len(link.calls), link.unanswered_bytes) == (0, 0, 0)

    play(story)


def test_calls_that_are_not_answered_hold_a_bounded_number_of_bytes() -> None:
    """At most `BATCH_BYTES` each, and no more of them than `CALLS_MAX`."""

    async def story(sender: Sender, receiver: Receiver) -> None:
        size_bytes = BATCH_BYTES // 8
        for index in range(1, 200):
            sender.links.send([append(index, size_bytes)])
            await asyncio.sleep(0.001)
        await asyncio.sleep(2 * CALL_TIMEOUT_S)  # the first ones have ended: now there is a queue
        assert len(receiver.indexes) > CALLS_MAX
        assert 0 < receiver.most <= CALLS_MAX
        assert receiver.most_bytes <= CALLS_MAX * BATCH_BYTES
        assert sender.links.sending() == (TARGET,), "the core sends it no more of that meanwhile"
        receiver.answers.set()
        await asyncio.sleep(60.0)
        assert sender.links.sending() == ()

    play(story)
