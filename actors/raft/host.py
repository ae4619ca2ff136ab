"""What all replicas of one server share: one task that ticks them, and the mail to other servers.

Each group keeps its own timers, terms and answers. Merged is only what carries them: a tick of the
clock is one for every group here, and small messages (heartbeats, their answers, votes) that arise
together for one server go to it in one call. A call that is lost is to each of its groups a lost
message. So a server with hundreds of groups at rest sends a few calls in a heartbeat's time, not
thousands. Design §7, §8; CockroachDB coalesces heartbeats for the same reason.

Bounds: `BOX_MAX` messages wait for one server, then the oldest are lost; `CALLS_MAX` calls to it
are under way at a time; a turn of the event loop ticks `TICKED_TOGETHER` groups at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from stelae.consensus.raft.messages import RAFT_MAIL, MailTaken, Message, RaftMail
from stelae.consensus.raft.ready import Tick
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

CALL_TIMEOUT_S = 1.0
CALLS_MAX = 8  # at a time, per server: one lost answer must not silence all groups
BOX_MAX = 16_384
MAIL_MAX = 1024
"""Messages in one call."""
TICKED_TOGETHER = 64
"""Then whatever else waits for the event loop has its turn."""


Ended: TypeAlias = Callable[[Reply[MailTaken] | StelaeError], None]


class Ticked(Protocol):
    """Of a replica, what is needed here."""

    def tick(self, tick: Tick) -> None: ...


class Sender(Protocol):
    """Whoever gave a message, to be told if it did not arrive; perhaps of several at once."""

    def undelivered(self, uuid: ServerUuid, state: DataState | None) -> None:
        """``state``: what the other server surely has of the tablet, if that is why."""
        ...


class _Box:
    """What waits for one server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.waiting: deque[tuple[Message, Sender]] = deque(maxlen=BOX_MAX)
        self.calls = 0
        self.is_due = False
        """Whether a call is about to take what waits."""


class RaftHost:
    """The shared part of one server's replicas."""

    def __init__(self, runtime: Runtime, tasks: Tasks, tick_s: float) -> None:
        """``tasks`` get to know of failures; the host must be stopped by `stop`."""
        self._runtime = runtime
        self._tasks = Tasks(tasks)
        self._tick_s = tick_s
        self._members: dict[TabletId, Ticked] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._boxes: dict[ServerUuid, _Box] = {}
        self._carrying: dict[asyncio.Task[None], None] = {}
        """Calls that have to wait for a connection."""
        self._is_open = True

    async def stop(self) -> None:
        """Tick nobody, send nothing, and wait until that is so. Failures were told before."""
        self._is_open = False
        ending = list(self._carrying)
        if self._ticking is not None:
            ending.append(self._ticking)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # ---- ticks ------------------------------------------------------------------------------

    def join(self, group_id: TabletId, member: Ticked) -> None:
        """Tick a replica from now on."""
        assert group_id not in self._members, f"two replicas of {group_id} on one server"
        self._members[group_id] = member
        if self._ticking is None:
            self._ticking = self._tasks.spawn(self._tick(), "ticks of replicas")

    def leave(self, group_id: TabletId, member: Ticked) -> None:
        """Tick it no more."""
        if self._members.get(group_id) is member:
            del self._members[group_id]

    async def _tick(self) -> None:
        """Tick everybody, for ever; those that share a server soon beat in the same turn."""
        clock = self._runtime.clock
        while True:
            await clock.sleep(self._tick_s)
            members = list(self._members.items())
            for start in range(0, len(members), TICKED_TOGETHER):
                if start:
                    await asyncio.sleep(0)
                tick = Tick(int(clock.monotonic() * 1_000_000))
                for group_id, member in members[start : start + TICKED_TOGETHER]:
                    if self._members.get(group_id) is member:
                        member.tick(tick)

    # ---- mail -------------------------------------------------------------------------------

    def post(self, uuid: ServerUuid, address: Address, message: Message, sender: Sender) -> None:
        """Send a small message with whatever else goes there; nobody waits for it."""
        if not self._is_open:
            return
        box = self._boxes.get(uuid)
        if box is None:
            box = self._boxes[uuid] = _Box(address)
        box.address = address
        box.waiting.append((message, sender))
        self._send_soon(uuid, box)

    def _send_soon(self, uuid: ServerUuid, box: _Box) -> None:
        """In the next turn of the event loop, with all that comes until then."""
        if not box.is_due and box.calls < CALLS_MAX:
            box.is_due = True
            asyncio.get_running_loop().call_soon(self._send, uuid, box)

    def _send(self, uuid: ServerUuid, box: _Box) -> None:
        box.is_due = False
        if not self._is_open or not box.waiting:
            return
        count = min(len(box.waiting), MAIL_MAX)
        mail = [box.waiting.popleft() for _ in range(count)]
        senders = {message.group_id: sender for message, sender in mail}
        peers = self._runtime.peers
        body = RaftMail(peers.address, tuple([message for message, _ in mail]))
        box.calls += 1

        def ended(outcome: Reply[MailTaken] | StelaeError) -> None:
            box.calls -= 1
            if self._is_open:
                self._ended(uuid, senders, outcome)
                if box.waiting:
                    self._send_soon(uuid, box)
                elif not box.calls:
                    self._boxes.pop(uuid, None)

        sent = peers.post(
            box.address, RAFT_MAIL, body, ended, timeout_s=CALL_TIMEOUT_S, destination=uuid
        )
        if not sent:
            call = self._tasks.spawn(self._call(uuid, box.address, body, ended), f"mail to {uuid}")
            self._carrying[call] = None
            call.add_done_callback(lambda done: self._carrying.pop(done, None))

    async def _call(self, uuid: ServerUuid, address: Address, body: RaftMail, ended: Ended) -> None:
        """The same where there is no connection yet, or no room."""
        try:
            reply = await self._runtime.peers.call(
                address, RAFT_MAIL, body, timeout_s=CALL_TIMEOUT_S, destination=uuid
            )
        except StelaeError as error:
            ended(error)
        else:
            ended(reply)

    def _ended(
        self,
        uuid: ServerUuid,
        senders: dict[TabletId, Sender],
        outcome: Reply[MailTaken] | StelaeError,
    ) -> None:
        metrics = self._runtime.metrics
        if isinstance(outcome, StelaeError):
            metrics.count("raft_mail_lost", peer=uuid)
            for sender in senders.values():
                sender.undelivered(uuid, None)
            return
        for refused in outcome.body.undelivered:
            metrics.count("raft_messages_lost", peer=uuid)
            if refused.group_id in senders:
                senders[refused.group_id].undelivered(uuid, refused.state)
