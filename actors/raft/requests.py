"""Requests that wait inside a replica: proposals until applied, reads until their index is.

Invariant: a proposal is answered with a result or `NotLeader` only when the entry at its index was
applied, which decides it; everything else that ends the wait is `OutcomeUnknown`. Unanswered
commands are bounded by bytes. Design §13 (nothing acknowledged is lost, no call hangs).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.actors.raft.types import Part
from stelae.consensus.raft.membership import MemberChange
from stelae.consensus.raft.raft import Raft
from stelae.core.deadlines import Deadlines
from stelae.core.errors import (
    DeadlineExpired,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TooLarge,
)
from stelae.core.ids import OpId, ServerUuid, TabletId

JOINED_BYTES_MAX = 64 << 10
"""No proposal is added to an entry that has so much."""
FORGOTTEN_READS_MAX = 64
"""That wait in the heap beside others, for an index that may never come."""


@dataclass(slots=True, eq=False)
class Proposal:
    """A command on its way; ``op_id`` is set once it is in the leader's log.

    With ``change`` it is a change of the members, if they are those of ``expected`` (if given).
    """

    command: bytes | Part
    future: asyncio.Future[object]
    number: int
    timeout_s: float
    size_bytes: int
    bucket: int = 0
    op_id: OpId | None = None
    change: MemberChange | None = None
    expected: OpId | None = None


Group: TypeAlias = tuple[Proposal, ...]
"""Proposals that share an entry of the log, in order."""


@dataclass(slots=True, eq=False)
class ReadRequest:
    """A read on its way; ``index`` is what it must wait for, once that is known.

    With ``leaving`` it reads nothing, but waits until the other voters have answered.
    """

    number: int
    future: asyncio.Future[int]
    index: int | None
    leaving: ServerUuid | None = None


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
        self._appended: dict[int, Group] = {}
        self._reads: dict[int, ReadRequest] = {}
        self._reads_queue: list[int] = []
        self._reads_waiting: list[tuple[int, int]] = []  # heap of (index, number)
        self._next_read = 1

    # ---- proposals -------------------------------------------------------------------------

    def queue_proposal(self, command: bytes | Part, timeout_s: float) -> Proposal:
        """Queue a command, to be awaited by `decided`. Raises Overloaded, TooLarge."""
        size_bytes = len(command) if isinstance(command, bytes) else command.size_bytes
        if size_bytes > self._queue_bytes:
            what = f"a command of tablet {self._group_id}"
            raise TooLarge(what, size_bytes, self._queue_bytes)
        if self._bytes + size_bytes > self._queue_bytes:
            raise Overloaded(f"commands of tablet {self._group_id}", self._queue_bytes)
        return self._queued(command, size_bytes, timeout_s)

    def queue_change(
        self, change: MemberChange, expected: OpId | None, timeout_s: float
    ) -> Proposal:
        """Queue a change of the members."""
        proposal = self._queued(b"", 0, timeout_s)
        proposal.change, proposal.expected = change, expected
        self.has_change = True
        return proposal

    def _queued(self, command: bytes | Part, size_bytes: int, timeout_s: float) -> Proposal:
        if self._loop is None or self._deadlines is None:  # asked for once: it is a system call
            self._loop = asyncio.get_running_loop()
            self._deadlines = Deadlines(self._loop, self._expire)
        loop = self._loop
        self._last_proposal = number = self._last_proposal + 1
        proposal = Proposal(command, loop.create_future(), number, timeout_s, size_bytes)
        proposal.bucket = self._deadlines.add(number, loop.time() + timeout_s)
        self._undecided[number] = proposal
        self._bytes += size_bytes
        self.queued_bytes += size_bytes
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
            self.queued_bytes -= proposal.size_bytes
        if self._undecided.pop(proposal.number, None) is not None:
            assert self._deadlines is not None
            self._deadlines.remove(proposal.number, proposal.bucket)
            self._bytes -= proposal.size_bytes

    def _expire(self, number: int) -> None:
        proposal = self._undecided.get(number)
        if proposal is not None and not proposal.future.done():
            proposal.future.set_exception(self._expired(proposal))

    def _expired(self, proposal: Proposal) -> StelaeError:
        """The caller's time is over; tells what to raise."""
        if proposal.op_id is None:
            return DeadlineExpired("propose", "a turn of the replica")
        group = self._appended.get(proposal.op_id.index, ())
        if proposal in group and all([other.future.done() or other is proposal for other in group]):
            del self._appended[proposal.op_id.index]
        return OutcomeUnknown(f"tablet {self._group_id}", "propose", proposal.timeout_s)

    def take_proposals(self) -> list[Group]:
        """All that are queued and still wanted, in order; each group is to be one entry."""
        queue, self._queue = self._queue, {}
        self.queued_bytes, self.has_change = 0, False
        return _grouped([p for p in queue.values() if not p.future.done()])

    def propose_all(self, core: Raft, not_leader: Callable[[], NotLeader]) -> None:
        """Append to the leader's log all that are queued; what it does not take is refused."""
        for group in self.take_proposals():
            first = group[0]
            try:
                if first.change is not None:
                    op_id = core.change_members(first.change, first.expected)
                else:
                    op_id = core.propose(command_of(group))
            except NotLeader:
                self.refuse(group, not_leader())
            except StelaeError as error:
                self.refuse(group, error)
            else:
                self.appended(group, op_id)

    @property
    def has_queued(self) -> bool:
        """Whether proposals were held back."""
        return bool(self._queue)

    def appended(self, group: Group, op_id: OpId) -> None:
        """The proposals are entry ``op_id`` of the leader's log."""
        for proposal in group:
            proposal.op_id = op_id
        # What was there before is of an earlier term, and cut off; it may live on elsewhere.
        self._unknown(self._appended.get(op_id.index, ()))
        self._appended[op_id.index] = group

    def refuse(self, group: Group, error: StelaeError) -> None:
        """The proposals are surely not in the log."""
        for proposal in group:
            if not proposal.future.done():
                proposal.future.set_exception(error)

    def awaits(self, index: int) -> bool:
        """Whether a proposal was put at that index of the log."""
        return index in self._appended

    def applied(self, op_id: OpId, result: object, lost: Callable[[], NotLeader]) -> None:
        """Entry ``op_id`` was applied: that decides the proposals that were put at its index."""
        group = self._appended.pop(op_id.index, ())
        if not group:
            return
        if group[0].op_id != op_id:
            self.refuse(group, lost())
            return
        for proposal, own in _shares(group, result):
            if not proposal.future.done():
                proposal.future.set_result(own)

    def installed(self, index: int) -> None:
        """A snapshot up to ``index`` came instead of entries: it does not tell what was in them."""
        for covered in [i for i in self._appended if i <= index]:
            self._unknown(self._appended.pop(covered))

    def _unknown(self, group: Group) -> None:
        for proposal in group:
            if not proposal.future.done():
                error = OutcomeUnknown(f"tablet {self._group_id}", "propose", 0.0)
                proposal.future.set_exception(error)

    # ---- reads -----------------------------------------------------------------------------

    def queue_read(self, index: int | None, leaving: ServerUuid | None = None) -> ReadRequest:
        """Queue a read; with ``index`` (by the lease) it only waits for that to be applied."""
        number = self._next_read
        self._next_read += 1
        request = ReadRequest(number, asyncio.get_running_loop().create_future(), index, leaving)
        self._reads[number] = request
        if index is None:
            self._reads_queue.append(number)
        else:
            heapq.heappush(self._reads_waiting, (index, number))
        return request

    def take_reads(self) -> list[ReadRequest]:
        """The reads that need an index."""
        queue, self._reads_queue = self._reads_queue, []
        return [self._reads[number] for number in queue if number in self._reads]

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
        self.refuse(tuple(self._queue.values()), NotLeader(self._uuid, 0, ""))
        for group in self._appended.values():
            self._unknown(group)
        for number in list(self._reads):
            self.fail_read(number, NotLeader(self._uuid, 0, ""))
        self._queue.clear()
        self.queued_bytes = 0
        self._appended.clear()


def _shares(group: Group, result: object) -> Iterator[tuple[Proposal, object]]:
    """Of each proposal what it came to: if it is of several commands, of each of them."""
    if len(group) == 1:
        yield group[0], result
        return
    assert isinstance(result, tuple), "an entry of several has several results"
    start = 0
    for proposal in group:
        assert not isinstance(proposal.command, bytes), "only parts share an entry"
        end = start + proposal.command.count
        yield proposal, result[start] if end == start + 1 else result[start:end]
        start = end
    assert start == len(result), "each command has its result"


def command_of(group: Group) -> bytes:
    """What stands in the log for proposals that share an entry."""
    first = group[0].command
    if isinstance(first, bytes):
        return first
    return first.joined([p.command for p in group[1:] if not isinstance(p.command, bytes)])


def _grouped(proposals: Sequence[Proposal]) -> list[Group]:
    """Those beside each other that can share an entry, together."""
    groups: list[list[Proposal]] = []
    size_bytes = 0
    for proposal in proposals:
        if size_bytes < JOINED_BYTES_MAX and groups and _fit(groups[-1][0], proposal):
            groups[-1].append(proposal)
            size_bytes += proposal.size_bytes
        else:
            groups.append([proposal])
            size_bytes = proposal.size_bytes
    return [tuple(group) for group in groups]


def _fit(first: Proposal, other: Proposal) -> bool:
    one, two = first.command, other.command
    return not isinstance(one, bytes) and not isinstance(two, bytes) and one.fits(two)


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
