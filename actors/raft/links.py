"""How one replica's messages reach the others: bounded, one-way, and never waited for.

What carries no entries goes with the mail of all replicas of this server
(`stelae.actors.raft.host`). A few entries are posted to their peer in the turn in which they
arose, and what it has to say by then comes back with the reply: no task, timer or message more than
that. For more entries and for snapshots there is, per peer, a bounded outbox and a few calls at a
time. What does not fit, and what fails, is lost, which Raft allows for. The core is told of peers
that cannot be reached, and paces itself by heartbeats (KUDU-821), so that no failure makes a tight
loop; and to whom something large is on its way (`ReplicaLinks.sending`), which it does not send
again meanwhile. A large call that times out gives later ones to that peer more time, so that in the
end one arrives. Design §4 (two ways between actors).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from stelae.actors.raft.host import RaftHost
from stelae.consensus.raft.messages import (
    RAFT_MESSAGE,
    AppendRequest,
    Message,
    RaftAnswers,
    RaftMessages,
    SnapshotRequest,
    is_small,
)
from stelae.consensus.raft.settings import LARGE_BYTES
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    StelaeError,
    TabletNotHere,
    TabletTombstoned,
)
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import Configuration
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

CALL_TIMEOUT_S = 1.0
SLOWEST_BYTES_PER_S = 1 << 20  # a large entry has so much more time, or it would never arrive,
PATIENCE_MAX = 16.0  # and up to so much more again, where it did not arrive in time
CALLS_MAX = 8  # at a time, per peer: one lost answer must not silence the link
OUTBOX_MAX = 256  # messages per peer
BATCH_BYTES = 4 << 20  # of entries and snapshot chunks in one call, unless one is larger
POST_BYTES = 32 << 10  # of entries that are posted at once: they go in one frame
POSTS_MAX = 32  # unanswered ones, per peer


class _Link:
    """One peer."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.outbox: deque[Message] = deque()
        self.calls: dict[asyncio.Task[None], None] = {}
        self.posts = 0
        self.unanswered_bytes = 0
        """Of entries and chunks, waiting or on their way."""
        self.patience = 1.0
        """How much longer than expected large calls may take."""

    def put(self, message: Message) -> None:
        """The oldest message of a full outbox is lost."""
        if len(self.outbox) >= OUTBOX_MAX:
            self.unanswered_bytes -= _content_bytes(self.outbox.popleft())
        self.outbox.append(message)
        self.unanswered_bytes += _content_bytes(message)

    def timeout_s(self, size_bytes: int) -> float:
        """Of a call with so much content."""
        return CALL_TIMEOUT_S + self.patience * size_bytes / SLOWEST_BYTES_PER_S

    def timed_out(self) -> None:
        """A large call did not end in time."""
        self.patience = min(2 * self.patience, PATIENCE_MAX)

    def took(self, size_bytes: int, duration_s: float) -> None:
        """A large call ended well: the next one may take twice as long."""
        seen = 2 * (duration_s - CALL_TIMEOUT_S) * SLOWEST_BYTES_PER_S / size_bytes
        self.patience = min(max(1.0, seen), PATIENCE_MAX)


def _take_batch(outbox: deque[Message]) -> tuple[Message, ...]:
    """The oldest messages, at most `BATCH_BYTES` of content or a single message."""
    batch: list[Message] = []
    size_bytes = 0
    while outbox and (not batch or size_bytes + _content_bytes(outbox[0]) <= BATCH_BYTES):
        message = outbox.popleft()
        size_bytes += _content_bytes(message)
        batch.append(message)
    return tuple(batch)


def _content_bytes(message: Message) -> int:
    if isinstance(message, AppendRequest):
        return sum(len(entry.body) for entry in message.entries)
    return len(message.chunk) if isinstance(message, SnapshotRequest) else 0


class ReplicaLinks:
    """The links of one replica to the other members of its group."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        group_id: TabletId,
        self_uuid: ServerUuid,
        addresses: Mapping[ServerUuid, Address],
        lost: Callable[[ServerUuid], None],
        absent: Callable[[ServerUuid, DataState], None],
        host: RaftHost | None = None,
    ) -> None:
        """``absent`` is told of servers that answer, and have no such tablet, or its tombstone.

        Without a ``host`` every message goes by itself.
        """
        self._runtime = runtime
        self._tasks = tasks
        self._group_id = group_id
        self._uuid = self_uuid
        self._lost = lost
        self._absent = absent
        self._host = host
        self.take: Callable[[Message, Address], None] | None = None
        """Is given what comes with replies; it may raise InvalidArgument."""
        self._stopped = False
        self._links = {uuid: _Link(address) for uuid, address in sorted(addresses.items())}
        self._learned: Configuration | None = None

    def address(self, uuid: ServerUuid) -> Address | None:
        """The last known address of one member."""
        if uuid == self._uuid:
            return self._runtime.peers.address
        link = self._links.get(uuid)
        return link.address if link is not None else None

    def learn(self, configuration: Configuration) -> None:
        """Know all members of a configuration; where one was heard from goes before its entry."""
        before, self._learned = self._learned, configuration
        if configuration is before:
            return
        for peer in configuration.peers:
            is_new = before is not None and before.peer(peer.uuid) is None
            if is_new or peer.uuid not in self._links:
                self.update_address(peer.uuid, peer.address)

    def update_address(self, uuid: ServerUuid, address: Address) -> None:
        """Use ``address`` from now on."""
        link = self._links.get(uuid)
        if link is None:
            self._links[uuid] = _Link(address)
        else:
            link.address = address

    def send(self, messages: Sequence[Message]) -> None:
        """Give messages to their destinations; the oldest of a full outbox are lost."""
        touched: dict[ServerUuid, None] = {}
        for message in messages:
            link = self._links.get(message.destination)
            if link is None or self._stopped:
                continue
            if self._host is not None and is_small(message):
                self._host.post(message.destination, link.address, message, self)
            elif not self._post(message.destination, link, message):
                link.put(message)
                touched[message.destination] = None
        for uuid in touched:
            self._flush(uuid)

    def _post(self, uuid: ServerUuid, link: _Link, message: Message) -> bool:
        """Send it now, if it is small, and nothing of this link has to go before it."""
        if link.outbox or link.calls or link.posts >= POSTS_MAX:
            return False
        if _content_bytes(message) > POST_BYTES:
            return False

        def ended(outcome: Reply[RaftAnswers] | StelaeError) -> None:
            link.posts -= 1
            if isinstance(outcome, StelaeError):
                self._failed(uuid, 1, outcome)
            else:
                self._answered(link, outcome.body)

        peers = self._runtime.peers
        body = RaftMessages(self._group_id, peers.address, (message,))
        sent = peers.post(
            link.address, RAFT_MESSAGE, body, ended, timeout_s=CALL_TIMEOUT_S, destination=uuid
        )
        link.posts += sent
        return sent

    def sending(self) -> tuple[ServerUuid, ...]:
        """To whom something large was sent which has neither arrived nor failed."""
        links = self._links.items()
        return tuple([uuid for uuid, link in links if link.unanswered_bytes >= LARGE_BYTES])

    async def stop(self) -> None:
        """Cancel the calls under way."""
        self._stopped = True
        calls = [call for link in self._links.values() for call in link.calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _flush(self, uuid: ServerUuid) -> None:
        link = self._links[uuid]
        if self._stopped or not link.outbox or len(link.calls) >= CALLS_MAX:
            return
        call = self._tasks.spawn(self._drain(link, uuid), f"raft messages to {uuid}")
        link.calls[call] = None
        call.add_done_callback(lambda done: link.calls.pop(done, None))

    async def _drain(self, link: _Link, uuid: ServerUuid) -> None:
        """Deliver what is queued, batch after batch; other calls may do so beside this one."""
        while link.outbox:
            batch = _take_batch(link.outbox)
            size_bytes = sum(map(_content_bytes, batch))
            try:
                await self._deliver(link, uuid, batch, size_bytes)
            finally:
                link.unanswered_bytes -= size_bytes

    async def _deliver(
        self, link: _Link, uuid: ServerUuid, batch: tuple[Message, ...], size_bytes: int
    ) -> None:
        peers, clock = self._runtime.peers, self._runtime.clock
        envelope = RaftMessages(self._group_id, peers.address, batch)
        began_s = clock.monotonic()
        try:
            reply = await peers.call(
                link.address,
                RAFT_MESSAGE,
                envelope,
                timeout_s=link.timeout_s(size_bytes),
                destination=uuid,
            )
            if size_bytes >= LARGE_BYTES:
                link.took(size_bytes, clock.monotonic() - began_s)
        except StelaeError as error:
            if isinstance(error, OutcomeUnknown) and size_bytes >= LARGE_BYTES:
                link.timed_out()
            self._failed(uuid, len(batch), error)
        else:
            self._answered(link, reply.body)

    def _answered(self, link: _Link, answers: RaftAnswers) -> None:
        if self.take is None or self._stopped:
            return
        for message in answers.messages:
            try:
                self.take(message, link.address)
            except InvalidArgument:
                self._runtime.metrics.count("raft_answers_refused", peer=message.source)

    def _failed(self, uuid: ServerUuid, count: int, error: StelaeError) -> None:
        self._runtime.metrics.count("raft_messages_lost", count, peer=uuid)
        state: DataState | None = None
        if isinstance(error, TabletNotHere):
            state = DataState.ABSENT
        elif isinstance(error, TabletTombstoned):
            state = DataState.DELETED
        self._undelivered(uuid, state)

    def undelivered(self, uuid: ServerUuid, state: DataState | None) -> None:
        """Mail to ``uuid`` did not arrive; ``state``: what it has of the tablet, if that is known.

        Of large entries that are on their way it says nothing: their own call will.
        """
        link = self._links.get(uuid)
        if state is None and link is not None and link.unanswered_bytes >= LARGE_BYTES:
            return
        self._undelivered(uuid, state)

    def _undelivered(self, uuid: ServerUuid, state: DataState | None) -> None:
        if self._stopped:
            return
        self._lost(uuid)
        if state is not None:
            self._absent(uuid, state)
