"""A proposer's messages on their way to its safekeepers: one-way, bounded, never waited for.

A safekeeper's answers come with the replies to them, where they do not take long; others are mail
of their own.

What can be sent at once is posted without a task; the rest goes by a few calls at a time for each
safekeeper. What does not fit or fails is lost, and its session with it: the proposer greets again,
after a pause, so that no failure makes a tight loop. Where a safekeeper is, the newest list of live
servers says; what came with the order to open the tablet is the second choice. Design §4, §10.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stelae.actors.server.membership import Membership
from stelae.consensus.wal.messages import (
    WAL_TO_ACCEPTOR,
    AcceptorReply,
    ProposerMail,
    ToAcceptor,
    ToProposer,
    WalAppendRequest,
    packed,
)
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.records.timelines import SafekeeperId, SafekeeperPlace, TimelineSource
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 2.0
SLOWEST_BYTES_PER_S = 4 << 20
"""A large entry has so much more time, or it would never arrive."""
CALLS_MAX = 4
OUTBOX_MAX = 256
SMALL_BYTES = 32 << 10


@dataclass(slots=True)
class _Outbox:
    """Of one safekeeper."""

    waiting: deque[ToAcceptor] = field(default_factory=lambda: deque(maxlen=OUTBOX_MAX))
    calls: int = 0


class TimelineLinks:
    """The ways from one proposer to all safekeepers of its timeline."""

    def __init__(
        self,
        runtime: Runtime,
        members: Membership,
        tasks: Tasks,
        source: TimelineSource,
        lost: Callable[[SafekeeperId, int], None],
        answered: Callable[[Sequence[ToProposer]], None],
    ) -> None:
        """``lost`` is told of safekeepers that messages of a session did not reach; ``answered``
        of answers, and raises StelaeError for what no safekeeper of ours says."""
        self._runtime = runtime
        self._members = members
        self._tasks = tasks
        self._timeline_id = source.tablet_id
        self._places = {place.safekeeper_id: place for place in source.safekeepers}
        self._lost = lost
        self._answered = answered
        self._outboxes: dict[SafekeeperId, _Outbox] = {}

    def learn(self, places: Iterable[SafekeeperPlace]) -> None:
        """The masters have told where these are."""
        self._places.update((place.safekeeper_id, place) for place in places)

    def find(self, safekeeper: SafekeeperId) -> tuple[Address, ServerUuid] | None:
        """Where it is; None: nobody has told."""
        live = self._members.safekeeper(safekeeper)
        if live is not None:
            return live.address, live.uuid
        place = self._places.get(safekeeper)
        return None if place is None else (place.address, place.uuid)

    def send(self, messages: Sequence[ToAcceptor]) -> None:
        """Give messages to their safekeepers, all for the same one in one piece if they are small;
        the oldest of a full outbox are lost."""
        by_safekeeper: dict[SafekeeperId, list[ToAcceptor]] = {}
        for message in messages:
            by_safekeeper.setdefault(message.safekeeper, []).append(message)
        for safekeeper, some in by_safekeeper.items():
            box = self._outboxes.setdefault(safekeeper, _Outbox())
            if not box.waiting and self._post(safekeeper, tuple(some)):
                continue
            box.waiting.extend(some)
            if box.calls < CALLS_MAX:
                box.calls += 1
                name = f"{self._timeline_id[:8]}/safekeeper {safekeeper}"
                self._tasks.spawn(self._drain(safekeeper, box), name)

    def _post(self, safekeeper: SafekeeperId, messages: tuple[ToAcceptor, ...]) -> bool:
        found = self.find(safekeeper)
        if found is None or sum(map(_size_bytes, messages)) > SMALL_BYTES:
            return False

        def ended(outcome: Reply[AcceptorReply] | StelaeError) -> None:
            if isinstance(outcome, StelaeError):
                self._failed(messages[0])
            else:
                self._take_replies(messages[0], outcome.body)

        return self._runtime.peers.post(
            found[0],
            WAL_TO_ACCEPTOR,
            self._mail(messages),
            ended,
            timeout_s=CALL_TIMEOUT_S,
            destination=found[1],
        )

    def _mail(self, messages: tuple[ToAcceptor, ...]) -> ProposerMail:
        address = self._runtime.peers.address
        return ProposerMail(self._timeline_id, address, messages, takes_replies=True)

    def _take_replies(self, to: ToAcceptor, reply: AcceptorReply) -> None:
        if not reply.messages:
            return
        try:
            self._answered(reply.messages)
        except StelaeError as error:
            logger.error("safekeeper %s: %s", to.safekeeper, error)
            self._failed(to)

    async def _drain(self, safekeeper: SafekeeperId, box: _Outbox) -> None:
        """Deliver what waits, message after message; other calls may do so beside this one."""
        try:
            while box.waiting:
                message = box.waiting.popleft()
                found = self.find(safekeeper)
                if found is None:
                    self._failed(message)
                    continue
                mail, bodies = packed(self._mail((message,)))
                try:
                    reply = await self._runtime.peers.call(
                        found[0],
                        WAL_TO_ACCEPTOR,
                        mail,
                        blobs=bodies,
                        timeout_s=CALL_TIMEOUT_S + _size_bytes(message) / SLOWEST_BYTES_PER_S,
                        destination=found[1],
                    )
                except StelaeError:
                    self._failed(message)
                else:
                    self._take_replies(message, reply.body)
        finally:
            box.calls -= 1

    def _failed(self, message: ToAcceptor) -> None:
        """With it, what comes after it in its session is lost: nothing else is."""
        self._runtime.metrics.count("wal_messages_lost", safekeeper=str(message.safekeeper))
        waiting = self._outboxes[message.safekeeper].waiting
        kept = [other for other in waiting if other.session != message.session]
        waiting.clear()
        waiting.extend(kept)
        self._lost(message.safekeeper, message.session)


def _size_bytes(message: ToAcceptor) -> int:
    if isinstance(message, WalAppendRequest):
        return sum(len(entry.body) for entry in message.entries)
    return 0
