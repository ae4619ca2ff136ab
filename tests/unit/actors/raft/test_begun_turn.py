"""A follower whose disk fails while entries are made durable: real files, real connections.

Where its syncs are done follows from how long they take (`stelae.runtime.sync_pace`): the first few
in a thread, later ones where the message arrived (`stelae.actors.raft.log_writer`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from stelae.actors.raft.replica import Replica, ReplicaSettings
from stelae.consensus.raft.messages import (
    RAFT_MAIL,
    RAFT_MESSAGE,
    AppendRequest,
    AppendResponse,
    MailTaken,
    Message,
    RaftAnswers,
    RaftMail,
    RaftMessages,
)
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.rpc import Call, Reply
from stelae.core.tasks import Tasks
from stelae.runtime import files
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from tests.own_files import of_files_in
from tests.until import until_async

GROUP = TabletId("a" * 32)
LEADER, FOLLOWER, THIRD = ServerUuid("1" * 32), ServerUuid("2" * 32), ServerUuid("3" * 32)
QUICK = 12
"""So many quick syncs before, and the next one is done where the message arrived."""
SLEEPY = ReplicaSettings(tick_s=60.0)
"""Nobody is elected meanwhile."""


class NoState:
    """A state machine that has nothing to do."""

    def apply(self, index: int, term: int, command: bytes) -> object:
        return index

    def snapshot(self) -> bytes:
        return b"nothing"

    def restore(self, data: bytes) -> None: ...


class Syncs:
    """`os.fdatasync` without a disk under it: it says in which thread, and fails when it is to."""

    def __init__(self) -> None:
        self.on_loop: list[bool] = []
        self.fails = False
        self.recovers = False
        """After one failure it seems to work again, as that of Linux does."""

    def __call__(self, descriptor: int) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        if self.fails:
            self.fails = not self.recovers
            raise OSError(errno.EIO, "the platter is scratched")


class Pair:
    """A follower, and in the place of its leader something that says what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[BaseException] = []
        self.heard: list[Message] = []
        """By the leader, in replies and otherwise."""
        self.tasks = Tasks()
        self.leader = self._peers()
        self.runtime = RealRuntime(self._peers(), LocalDisk(folder, sync_in_thread=True))
        self._last = 0

    def _peers(self) -> TcpPeers:
        return TcpPeers(Credentials("test", bytes(32)), on_failure=self.failures.append)

    async def start(self) -> None:
        await self.leader.listen(LEADER, {RAFT_MAIL: self._mail, RAFT_MESSAGE: self._messages})
        members = {LEADER: self.leader.address, FOLLOWER: Address(""), THIRD: Address("")}
        self.replica = Replica(
            self.runtime, self.tasks, GROUP, FOLLOWER, members, NoState(), SLEEPY
        )
        await self.runtime.peers.listen(FOLLOWER, self.replica.handlers())
        await self.replica.start()

    async def stop(self) -> None:
        await self.replica.stop()
        await self.runtime.close()
        await self.leader.close()
        assert not self.failures, self.failures

    async def _mail(self, call: Call[RaftMail]) -> Reply[MailTaken]:
        self.heard.extend(call.body.messages)
        return Reply(MailTaken())

    async def _messages(self, call: Call[RaftMessages]) -> Reply[RaftAnswers]:
        self.heard.extend(call.body.messages)
        return Reply(RaftAnswers(()))

    def next_append(self) -> AppendRequest:
        before, self._last = self._last, self._last + 1
        previous = OpId(1 if before else 0, before)
        entries = (Entry(1, self._last, EntryKind.COMMAND, b"x" * 100),)
        return AppendRequest(GROUP, LEADER, FOLLOWER, 1, previous, entries, before, self._last)

    async def tell(self, message: Message) -> tuple[Message, ...]:
        """What the follower has to say at once."""
        body = RaftMessages(GROUP, self.leader.address, (message,))
        address = self.runtime.peers.address
        reply = await self.leader.call(
            address, RAFT_MESSAGE, body, timeout_s=10.0, destination=FOLLOWER
        )
        self.heard.extend(reply.body.messages)
        return reply.body.messages

    async def append(self, count: int) -> None:
        """So many entries, one after the other, each acknowledged."""
        for _ in range(count):
            await self.tell(self.next_append())
            await until_async(
                lambda: self.acknowledged >= self._last,
                10.0,
                lambda: f"entry {self._last} is acknowledged",
                poll_s=0.001,
            )

    @property
    def acknowledged(self) -> int:
        """Up to where the leader takes the follower's log to be durable."""
        answers = [m for m in self.heard if isinstance(m, AppendResponse) and m.accepted]
        return max([answer.index for answer in answers], default=0)


async def until_sent(pair: Pair) -> None:
    """Everything that the follower had to send before has come: this goes the same way."""
    peers = pair.runtime.peers
    mail, messages = RaftMail(peers.address, ()), RaftMessages(GROUP, peers.address, ())
    await peers.call(pair.leader.address, RAFT_MAIL, mail, timeout_s=10.0, destination=LEADER)
    await peers.call(
        pair.leader.address, RAFT_MESSAGE, messages, timeout_s=10.0, destination=LEADER
    )


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """All syncs of files are as quick as can be."""
    syncs = Syncs()
    monkeypatch.setattr(os, "fdatasync", of_files_in(tmp_path, os.fdatasync, syncs))
    monkeypatch.setattr(files, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    return syncs


@pytest.mark.parametrize("recovers", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize("on_loop", [False, True], ids=["in a thread", "on the loop"])
async def test_what_a_failing_sync_covered_is_never_vouched_for(
    tmp_path: Path, syncs: Syncs, on_loop: bool, recovers: bool
) -> None:
    """Neither at once nor later, by no message; the replica ends with the disk's error, and answers
    nothing any more, not even a heartbeat."""
    pair = Pair(tmp_path / "data")
    await pair.start()
    await pair.append(QUICK if on_loop else 1)
    before, heard = pair.acknowledged, len(pair.heard)
    assert before == (QUICK if on_loop else 1)
    syncs.fails, syncs.recovers, syncs.on_loop = True, recovers, []
    assert await pair.tell(pair.next_append()) == ()
    async with asyncio.timeout(10.0):
        error = await pair.tasks.wait_failed()
    assert isinstance(error, OSError)
    assert "scratched" in str(error)
    assert syncs.on_loop[0] is on_loop
    assert await pair.tell(pair.next_append()) == ()
    heartbeat = AppendRequest(GROUP, LEADER, FOLLOWER, 1, OpId(1, before), (), before, 99)
    assert await pair.tell(heartbeat) == ()
    await until_sent(pair)
    assert pair.acknowledged == before
    assert len(pair.heard) == heard, pair.heard[heard:]
    await pair.stop()


async def leads(replica: Replica) -> int:
    """Return the term in which it leads."""
    await until_async(lambda: replica.leader_ready, 10.0, lambda: "it leads", poll_s=0.001)
    return replica.core.term


async def alone(folder: Path, tasks: Tasks) -> tuple[RealRuntime, Replica]:
    """The only member of its group, started."""
    failures: list[BaseException] = []
    peers = TcpPeers(Credentials("test", bytes(32)), on_failure=failures.append)
    runtime = RealRuntime(peers, LocalDisk(folder, sync_in_thread=True))
    await peers.listen(FOLLOWER, {})
    members = {FOLLOWER: peers.address}
    replica = Replica(runtime, tasks, GROUP, FOLLOWER, members, NoState(), ReplicaSettings())
    await replica.start()
    return runtime, replica


async def test_the_term_of_a_leader_without_others_is_durable(tmp_path: Path) -> None:
    """It stands, votes and leads in one turn. Without its term on disk it would lead in the same
    term again after a restart, and two logs could have different entries of one index and term."""
    runtime, replica = await alone(tmp_path / "data", Tasks())
    term = await leads(replica)
    await replica.stop()
    await runtime.close()
    disk = runtime.disk
    assert isinstance(disk, LocalDisk)
    disk.close()
    runtime, replica = await alone(tmp_path / "data", Tasks())
    assert replica.core.term >= term > 0
    await replica.stop()
    await runtime.close()


async def test_a_leaders_own_copy_counts_once_it_is_durable(tmp_path: Path, syncs: Syncs) -> None:
    """Where it is the only one, nothing is acknowledged that its disk has not taken."""
    tasks = Tasks()
    runtime, replica = await alone(tmp_path / "data", tasks)
    await leads(replica)
    await replica.propose(b"x", 10.0)
    syncs.fails = True
    with pytest.raises(StelaeError):
        await replica.propose(b"y", 1.0)
    assert isinstance(await tasks.wait_failed(), OSError)
    await replica.stop()
    await runtime.close()


@pytest.mark.parametrize("quick", [1, QUICK], ids=["in a thread", "on the loop"])
async def test_an_answer_comes_with_the_reply_only_where_the_sync_is_quick(
    tmp_path: Path, syncs: Syncs, quick: int
) -> None:
    """The control of the test above: what it shows is not that nothing is ever answered."""
    pair = Pair(tmp_path / "data")
    await pair.start()
    await pair.append(quick)
    syncs.on_loop = []
    answers = await pair.tell(pair.next_append())
    assert [type(answer) for answer in answers] == [AppendResponse] * (quick == QUICK)
    await pair.append(1)
    assert syncs.on_loop == [quick == QUICK] * 2
    assert pair.acknowledged == quick + 2
    await pair.stop()
