"""A safekeeper's answers on their way to proposers: one-way, bounded, never waited for.

What can be sent at once is posted without a task; the rest goes by a few calls at a time for each
address. What does not fit or fails is lost: the proposer finds out by silence, and greets again.
Design §4, §10.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stelae.consensus.wal.messages import WAL_TO_PROPOSER, AcceptorMail
from stelae.core.errors import StelaeError
from stelae.core.ids import Address
from stelae.core.rpc import Empty, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

CALL_TIMEOUT_S = 2.0
CALLS_MAX = 4
OUTBOX_MAX = 256
ADDRESSES_MAX = 1024
"""So many servers may be slow to take answers at a time."""


@dataclass(slots=True)
class _Outbox:
    """Of one address, while something waits there."""

    waiting: deque[AcceptorMail] = field(default_factory=lambda: deque(maxlen=OUTBOX_MAX))
    calls: int = 0


class ProposerLinks:
    """The ways from one safekeeper to all proposers of its timelines."""

    def __init__(self, runtime: Runtime, tasks: Tasks) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._outboxes: dict[Address, _Outbox] = {}

    def send(self, address: Address, mail: AcceptorMail) -> None:
        """Give it to the proposer; the oldest of a full outbox is lost."""
        box = self._outboxes.get(address)
        if box is None:
            if self._post(address, mail):
                return
            if len(self._outboxes) >= ADDRESSES_MAX:
                self._lost()
                return
            box = self._outboxes[address] = _Outbox()
        if len(box.waiting) == OUTBOX_MAX:
            self._lost()
        box.waiting.append(mail)
        if box.calls < CALLS_MAX:
            box.calls += 1
            self._tasks.spawn(self._drain(address, box), f"answers to {address}")

    def _post(self, address: Address, mail: AcceptorMail) -> bool:
        def ended(outcome: Reply[Empty] | StelaeError) -> None:
            if isinstance(outcome, StelaeError):
                self._lost()

        peers = self._runtime.peers
        return peers.post(address, WAL_TO_PROPOSER, mail, ended, timeout_s=CALL_TIMEOUT_S)

    async def _drain(self, address: Address, box: _Outbox) -> None:
        """Deliver what waits, one after the other; other calls may do so beside this one."""
        try:
            while box.waiting:
                mail = box.waiting.popleft()
                try:
                    await self._runtime.peers.call(
                        address, WAL_TO_PROPOSER, mail, timeout_s=CALL_TIMEOUT_S
                    )
                except StelaeError:
                    self._lost()
        finally:
            box.calls -= 1
            if not box.calls:
                self._outboxes.pop(address, None)

    def _lost(self) -> None:
        self._runtime.metrics.count("wal_answers_lost")
