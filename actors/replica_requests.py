"""Requests that wait inside a replica: proposals until applied, reads until their index is.

Invariant: a proposal is answered with a result or `NotLeader` only when the entry at its index was
applied, which decides it; everything else that ends the wait is `OutcomeUnknown`. Unanswered
commands are bounded by bytes. Design §13 (nothing acknowledged is lost, no call hangs).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass

from stelae.consensus.membership import MemberChange
from stelae.consensus.raft import Raft
from stelae.core.errors import (
    DeadlineExpired,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TooLarge,
)
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.runtime.deadlines import Deadlines

FORGOTTEN_READS_MAX = 64
"""That wait in the heap beside others, for an index that may never come."""


@dataclass(slots=True, eq=False)
class Proposal:
    """A command on its way; ``op_id`` is set once it is in the leader's log.

    With ``change`` it is a change of the members, if they are those of ``expected`` (if given).
    """

    command: bytes
    future: asyncio.Future[object]
    number: int
    timeout_s: float
    bucket: int = 0
    op_id: OpId | None = None
    change: MemberChange | None = None
    expected: OpId | None = None


@dataclass(slots=True, eq=False)
class ReadRequest:
    """A read on its way; ``index`` is what it must wait for, once that is known."""

    number: int
    future: asyncio.Future[int]
    index: int | None


class ReplicaRequests:
    """All requests of one replica."""

    def __init__(self, group_id: TabletId, self_uuid: ServerUuid, queue_bytes: int) -> None:
        self._group_id = group_id
        self._uuid = self_uuid
        self._queue_bytes = queue_bytes
        self._bytes = 0
        self.queued_bytes = 0
        """Of commands that are not in the log yet."""
        self.has_change = False
        """Whether one of the members is queued: the core says by itself whether it may begin."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines: Deadlines | None = None
        self._undecided: dict[int, Proposal] = {}
        self._last_proposal = 0
        self._queue: dict[int, Proposal] = {}
        self._appended: dict[int, Proposal] = {}
        self._reads: dict[int, ReadRequest] = {}
        self._reads_queue: list[int] = []
        self._reads_waiting: list[tuple[int, int]] = []  # heap of (index, number)
        self._next_read = 1

    # ---- proposals -------------------------------------------------------------------------

    def queue_proposal(self, command: bytes, timeout_s: float) -> Proposal:
        """Queue a command, to be awaited by `decided`. Raises Overloaded, TooLarge."""
        if len(command) > self._queue_bytes:
            what = f"a command of tablet {self._group_id}"
            raise TooLarge(what, len(command), self._queue_bytes)
        if self._bytes + len(command) > self._queue_bytes:
            raise Overloaded(f"commands of tablet {self._group_id}", self._queue_bytes)
        return self._queued(command, timeout_s)

    def queue_change(
        self, change: MemberChange, expected: OpId | None, timeout_s: float
    ) -> Proposal:
        """Queue a change of the members."""
        proposal = self._queued(b"", timeout_s)
        proposal.change, proposal.expected = change, expected
        self.has_change = True
        return proposal

    def _queued(self, command: bytes, timeout_s: float) -> Proposal:
        if self._loop is None or self._deadlines is None:  # asked for once: it is a system call
            self._loop = asyncio.get_running_loop()
            self._deadlines = Deadlines(self._loop, self._expire)
        loop = self._loop
        self._last_proposal = number = self._last_proposal + 1
        proposal = Proposal(command, loop.create_future(), number, timeout_s)
        proposal.bucket = self._deadlines.add(number, loop.time() + timeout_s)
        self._undecided[number] = proposal
        self._bytes += len(command)
        self.queued_bytes += len(command)
        self._queue[number] = proposal
        return proposal

    async def decided(self, proposal: Proposal) -> object:
        """The result of a proposal. Raises what it came to, or what to raise at its deadline."""
        try:
            return await proposal.future
        finally:
            self._forget(proposal)

    def _forget(self, proposal: Proposal) -> None:
        """Nobody waits for it any more: if it is queued yet, it never was."""
        if self._queue.pop(proposal.number, None) is not None:
            self.queued_bytes -= len(proposal.command)
        if self._undecided.pop(proposal.number, None) is not None:
            assert self._deadlines is not None
            self._deadlines.remove(proposal.number, proposal.bucket)
            self._bytes -= len(proposal.command)

    def _expire(self, number: int) -> None:
        proposal = self._undecided.get(number)
        if proposal is not None and not proposal.future.done():
            proposal.future.set_exception(self._expired(proposal))

    def _expired(self, proposal: Proposal) -> StelaeError:
        """The caller's time is over; tells what to raise."""
        if proposal.op_id is None:
            return DeadlineExpired("propose", "a turn of the replica")
        if self._appended.get(proposal.op_id.index) is proposal:
            del self._appended[proposal.op_id.index]
        return OutcomeUnknown(f"tablet {self._group_id}", "propose", proposal.timeout_s)

    def take_proposals(self) -> list[Proposal]:
        """All that are queued and still wanted."""
        queue, self._queue = self._queue, {}
        self.queued_bytes, self.has_change = 0, False
        return [proposal for proposal in queue.values() if not proposal.future.done()]

    @property
    def has_queued(self) -> bool:
        """Whether proposals were held back."""
        return bool(self._queue)

    def appended(self, proposal: Proposal, op_id: OpId) -> None:
        """The proposal is entry ``op_id`` of the leader's log."""
        proposal.op_id = op_id
        replaced = self._appended.get(op_id.index)
        if replaced is not None:  # of an earlier term, and cut off; it may live on elsewhere
            self._unknown(replaced)
        self._appended[op_id.index] = proposal

    def refuse(self, proposal: Proposal, error: StelaeError) -> None:
        """The proposal is surely not in the log."""
        if not proposal.future.done():
            proposal.future.set_exception(error)

    def awaits(self, index: int) -> bool:
        """Whether a proposal was put at that index of the log."""
        return index in self._appended

    def applied(self, op_id: OpId, result: object, lost: Callable[[], NotLeader]) -> None:
        """Entry ``op_id`` was applied: that decides the proposal that was put at its index."""
        proposal = self._appended.pop(op_id.index, None)
        if proposal is None or proposal.future.done():
            return
        if proposal.op_id == op_id:
            proposal.future.set_result(result)
        else:
            proposal.future.set_exception(lost())

    def installed(self, index: int) -> None:
        """A snapshot up to ``index`` came instead of entries: it does not tell what was in them."""
        for covered in [i for i in self._appended if i <= index]:
            self._unknown(self._appended.pop(covered))

    def _unknown(self, proposal: Proposal) -> None:
        if not proposal.future.done():
            error = OutcomeUnknown(f"tablet {self._group_id}", "propose", 0.0)
            proposal.future.set_exception(error)

    # ---- reads -----------------------------------------------------------------------------

    def queue_read(self, index: int | None) -> ReadRequest:
        """Queue a read; with ``index`` (by the lease) it only waits for that to be applied."""
        number = self._next_read
        self._next_read += 1
        request = ReadRequest(number, asyncio.get_running_loop().create_future(), index)
        self._reads[number] = request
        if index is None:
            self._reads_queue.append(number)
        else:
            heapq.heappush(self._reads_waiting, (index, number))
        return request

    def take_reads(self) -> list[int]:
        """Numbers of the reads that need an index."""
        queue, self._reads_queue = self._reads_queue, []
        return [number for number in queue if number in self._reads]

    def read_index(self, number: int, index: int) -> None:
        """The read may run once ``index`` is applied."""
        if number in self._reads:
            heapq.heappush(self._reads_waiting, (index, number))

    def release_reads(self, applied_index: int) -> None:
        """Answer all reads whose index is applied."""
        while self._reads_waiting and self._reads_waiting[0][0] <= applied_index:
            index, number = heapq.heappop(self._reads_waiting)
            request = self._reads.pop(number, None)
            if request is not None and not request.future.done():
                request.future.set_result(index)

    def fail_read(self, number: int, error: StelaeError) -> None:
        """The read gets no index here."""
        request = self._reads.pop(number, None)
        if request is not None and not request.future.done():
            request.future.set_exception(error)

    def forget_read(self, request: ReadRequest) -> None:
        """The caller has gone."""
        self._reads.pop(request.number, None)
        if len(self._reads_waiting) > 2 * len(self._reads) + FORGOTTEN_READS_MAX:
            self._reads_waiting = [pair for pair in self._reads_waiting if pair[1] in self._reads]
            heapq.heapify(self._reads_waiting)

    # ---- end -------------------------------------------------------------------------------

    def close(self) -> None:
        """The replica stops: nobody will decide these here."""
        if self._deadlines is not None:
            self._deadlines.close()
        for proposal in self._queue.values():
            self.refuse(proposal, NotLeader(self._uuid, 0, ""))
        for proposal in self._appended.values():
            self._unknown(proposal)
        for number in list(self._reads):
            self.fail_read(number, NotLeader(self._uuid, 0, ""))
        self._queue.clear()
        self.queued_bytes = 0
        self._appended.clear()


def transfer(
    core: Raft,
    target: ServerUuid | None,
    begun: asyncio.Future[None],
    not_leader: Callable[[], NotLeader],
) -> None:
    """Have the core hand its leadership on, and say whether that has begun."""
    if begun.done():
        return
    try:
        core.transfer(target)
    except NotLeader:
        begun.set_exception(not_leader())
    except StelaeError as error:
        begun.set_exception(error)
    else:
        begun.set_result(None)
