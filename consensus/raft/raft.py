"""One replica of a Raft group as a pure state machine: events in, one `Ready` out.

`Raft.step` takes a message, a tick or a notice; `propose`, `read` and `transfer` are a leader's
requests. Then `take_ready` says what to do, in this order: make durable, send, apply; and
`Raft.advance` tells that it was done. Between the two no event is taken. The core does no I/O, has
no clock and draws chance from the ``rng`` it was given. Design §7, §8; Raft §5–§8; pre-vote, leader
stickiness, check of the quorum, lease and transfer after the Raft thesis §3.10, §6.4, §9.6.

Invariants: term and vote never go back, one vote per term; a leader never cuts its own log while it
leads; what is committed never changes (`check_invariants`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from stelae.consensus.raft.election import Election, holds_enough
from stelae.consensus.raft.follower import (
    SnapshotAssembly,
    answer_append,
    answer_while_busy,
    take_snapshot,
)
from stelae.consensus.raft.leader import Leader, ReadReady
from stelae.consensus.raft.log_view import ORIGIN, LogView
from stelae.consensus.raft.membership import MemberChange
from stelae.consensus.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from stelae.consensus.raft.quorum import VoteResult, count_votes
from stelae.consensus.raft.ready import Event, Ready, Role, Status, Tick, Unreachable
from stelae.consensus.raft.settings import RaftSettings
from stelae.consensus.raft.status import check_invariants, status_of
from stelae.consensus.raft.tombstone import may_vote
from stelae.core.errors import NotLeader, TabletNotReady
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Snapshot,
    TermAndVote,
    encode_peers,
)


class Raft:
    """One replica. ``entries`` and ``term_and_vote`` are what its disk held at the start.

    ``configuration`` is the one that this replica began with, before any snapshot or entry.
    ``vote_floor`` is the end of a log that was here before the state was copied from another
    member: what this server acknowledged in it must be in the log of whomever it helps to elect,
    itself included. It may be kept for ever; it counts until the log has come so far again.
    """

    def __init__(
        self,
        *,
        group_id: TabletId,
        uuid: ServerUuid,
        configuration: Configuration,
        term_and_vote: TermAndVote,
        snapshot: Snapshot | None,
        entries: Sequence[Entry],
        settings: RaftSettings,
        rng: random.Random,
        vote_floor: OpId | None = None,
    ) -> None:
        self.group_id = group_id
        self.uuid = uuid
        self.term = term_and_vote.term
        self.voted_for = term_and_vote.voted_for
        self.role = Role.FOLLOWER
        self.leader_uuid: ServerUuid | None = None
        self.leader: Leader | None = None
        self.log = LogView(configuration, snapshot, entries)
        assert self.log.last.term <= self.term, "log newer than the term"
        self.memory_over: tuple[int, int] | None = None
        """(used, limit) in bytes while the host has no memory for more rows; leaders are told."""
        self._settings = settings
        self._vote_floor = vote_floor or ORIGIN
        self._durable_term_and_vote = term_and_vote
        self._election = Election(settings, rng, is_new=self.term == 0)
        self.changes_taken_back = 0
        """Changes of members that this replica began as the leader, and could not finish."""
        self._assembly = SnapshotAssembly(settings.snapshot_bytes_max)
        self._installed: Snapshot | None = None
        self._messages: list[Message] = []
        self._reads: list[ReadReady] = []
        self._failed_reads: list[int] = []
        self._copies: list[ServerUuid] = []
        self._needed_from = 0  # by the last leader that was heard
        self._taken: Ready | None = None
        self._now_us = 0
        if self.configuration.voters == (self.uuid,):
            self._election.hurry()

    @property
    def configuration(self) -> Configuration:
        """The members, by the log: those of a change count before it is committed."""
        return self.log.configuration

    @property
    def end_of_log(self) -> OpId:
        """The end of the log that votes are measured by, and that a tombstone has to keep."""
        return max(self.log.last, self._vote_floor)

    # ---- the interface of the shell --------------------------------------------------------

    def step(self, event: Event) -> None:
        """Take one event."""
        assert self._taken is None, "step between take_ready and advance"
        if isinstance(event, Tick):
            self._tick(event)
        elif not isinstance(event, Unreachable):
            self._receive(event)
        elif self.leader is not None and event.uuid in self.leader.progress:
            self.leader.progress[event.uuid].unreachable()

    def answer_while_busy(self, message: Message) -> AppendResponse | None:
        """The answer to a heartbeat of the leader, even between `take_ready` and `advance`.

        A slow disk must not make a leader believe that nobody follows it. The promise not to vote
        is given again at once; the message itself is for `step`, later.
        """
        taken, durable = self._taken, self._durable_term_and_vote
        if not isinstance(message, AppendRequest) or message.entries or self.leader is not None:
            return None
        if not message.term == self.term == durable.term or self.leader_uuid != message.source:
            return None
        if self._installed is not None or (taken is not None and taken.snapshot is not None):
            return None
        self._election.quiet_ticks = 0
        return answer_while_busy(self.log, message, self.memory_over)

    def propose(self, command: bytes) -> OpId:
        """Append a command to the leader's log. Raises NotLeader, TabletNotReady: not appended."""
        leader = self._require_leader()
        if leader.transfer_target is not None:
            raise TabletNotReady(self.group_id, "handing its leadership over")
        return self._append(EntryKind.COMMAND, command)

    def change_members(self, change: MemberChange, expected: OpId | None = None) -> OpId:
        """Append a change of the members, which counts at once; the entry's name.

        ``expected`` is the OpId of the committed configuration that the caller saw.

        Raises:
            NotLeader, TabletNotReady: not appended; a change is pending, or too early.
            ConfigurationMismatch: the members are others by now.
            InvalidArgument: see `stelae.consensus.raft.membership.changed_peers`.
        """
        leader = self._require_leader()
        peers = leader.may_change(change, expected)
        op_id = self._append(EntryKind.CONFIGURATION, encode_peers(peers))
        leader.follow_configuration(op_id.index)
        return op_id

    def read(self, request: int, leaving: ServerUuid | None = None) -> None:
        """Ask for a read index, or whether the voters but ``leaving`` live (`Leader.read`); `Ready`
        answers it. Raises NotLeader, Overloaded."""
        self._require_leader().read(request, leaving)

    def transfer(self, target: ServerUuid | None) -> None:
        """Begin to hand leadership over. Raises NotLeader, InvalidArgument, TabletNotReady."""
        self._require_leader().start_transfer(target)
        self._finish_leading()

    def lease_read_index(self, now_us: int) -> int | None:
        """The index a read must wait for if the lease proves leadership now, else None."""
        is_sure = self.leader is not None and self.leader.has_lease(now_us)
        return self.log.commit_index if is_sure else None

    def compact(self, snapshot: Snapshot, keep_entries: int) -> None:
        """An own snapshot is durable; entries it covers, but the last few, may be dropped."""
        assert self._taken is None, "compact between take_ready and advance"
        self.log.compact(snapshot, keep_entries)

    def keep_from(self, snapshot_index: int, keep_bytes: int) -> int:
        """The first entry to keep once ``snapshot_index`` is durable: what other members need.

        That is no more than the newest ``keep_bytes``; a member that lacks more gets a copy.
        """
        leader = self.leader
        needed = leader.needed_from() if leader is not None else self._needed_from
        return min(snapshot_index + 1, max(needed, self.log.first_within(keep_bytes)))

    @property
    def is_plain(self) -> bool:
        """Whether a `Ready` taken now would have nothing but entries to be made durable."""
        durable = self._durable_term_and_vote
        is_kept = self.term == durable.term and self.voted_for == durable.voted_for
        return is_kept and self._installed is None

    @property
    def is_light(self) -> bool:
        """Whether a `Ready` taken now would have nothing to be made durable, nor to be applied."""
        return self.log.is_settled and self.is_plain

    @property
    def is_stirred(self) -> bool:
        """Whether there may be something to do since the last `advance`; false: there is not."""
        if self._messages or self._failed_reads or not self.is_light:
            return True
        return self.leader is not None and self.leader.is_stirred

    def _gather(self) -> None:
        assert self._taken is None, "take_ready twice"
        if self.leader is not None:
            self._messages.extend(self.leader.outgoing(self._now_us))
            self._copies.extend(self.leader.take_copies())
            self._collect_reads()

    def take_light(self) -> list[Message] | None:
        """What is to be sent now, if nothing else is to be done; then no `advance` follows."""
        self._gather()
        if self._reads or self._failed_reads or self._copies or not self.is_light:
            return None
        messages, self._messages = self._messages, []
        return messages

    def take_ready(self) -> Ready:
        """Everything to be done now; a false value if there is nothing. `advance` must follow."""
        self._gather()
        current = TermAndVote(self.term, self.voted_for)
        changed = current if current != self._durable_term_and_vote else None
        ready = Ready(
            term_and_vote=changed,
            snapshot=self._installed,
            entries=self.log.unstable(),
            messages=tuple(self._messages),
            committed=self.log.unapplied(*self._settings.apply_limits),
            reads=tuple(self._reads),
            failed_reads=tuple(self._failed_reads),
            copies=tuple(self._copies),
        )
        self._installed = None
        for taken in (self._messages, self._reads, self._failed_reads, self._copies):
            taken.clear()
        if ready:
            self._taken = ready
        return ready

    def applied(self, index: int) -> None:
        """Committed entries up to there were applied; it may be told before the rest is done."""
        assert self.log.applied_index <= index <= self.log.commit_index, "applied out of order"
        self.log.applied_index = index

    def written(self, op_id: OpId) -> None:
        """The log is durable up to that entry, which was handed out; it may be cut off by now."""
        assert self._taken is None, "written between take_ready and advance"
        leader = self.leader
        if leader is None or not self.log.matches(op_id):
            return
        self.log.stable_index = max(self.log.stable_index, op_id.index)
        leader.advance_commit()
        self._finish_leading()

    def advance(self, ready: Ready, *, is_written: bool = True) -> None:
        """All of ``ready`` was done: it is durable, sent and applied.

        Unless ``is_written``, its entries, a leader's own, are only being written: `written` tells.
        """
        assert ready is self._taken, "advance of another Ready"
        self._taken = None
        if ready.term_and_vote is not None:
            self._durable_term_and_vote = ready.term_and_vote
        if ready.entries:
            self.log.handed_index = ready.entries[-1].index
            if is_written:
                self.log.stable_index = self.log.handed_index
            else:
                assert self.leader is not None, "only a leader goes on before it has written"
        if ready.committed:
            self.log.applied_index = ready.committed[-1].index
        if self.leader is not None:
            self.leader.advance_commit()
            self._finish_leading()

    def status(self) -> Status:
        """A copy of what can be seen from outside."""
        return status_of(self)

    def check_invariants(self) -> None:
        """Assert the invariants of this replica; tests call it after each step."""
        check_invariants(self, self._durable_term_and_vote)

    # ---- ticks and elections ---------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        assert tick.now_us >= self._now_us, "the monotonic clock went back"
        self._now_us = tick.now_us
        self._election.quiet_ticks += 1
        if self.leader is not None:
            self.leader.sending(tick.sending)
            if not self.leader.tick():
                self._give_up()
        elif self._election.is_due() and self._may_campaign:
            self._campaign(pre=True, transfer=False)

    def _give_up(self) -> None:
        """Lead no more. A change of members that this leader began and did not commit is taken
        back, so that the members before it can elect a leader, if those after it cannot.

        Nobody else can know that it was not committed; and nobody else counted what was held here.
        """
        change = self.log.unfinished_change
        self._become_follower(self.term, None)
        if change is not None and change.term == self.term:
            self.log.cut(change.index)
            self._election.taken_back = change
            self.changes_taken_back += 1
            if self._may_campaign:
                self._campaign(pre=True, transfer=True)

    @property
    def _may_campaign(self) -> bool:
        """Voters do; and one whose removal is not committed, as that may need it (§4.2.2)."""
        if self.log.last < self.end_of_log:
            return False
        before = self.log.configuration_before
        return self.uuid in self.configuration.voters or self.uuid in before.voters

    def _campaign(self, *, pre: bool, transfer: bool) -> None:
        """Ask for votes; a pre-vote changes neither term nor vote, here or elsewhere."""
        self.leader_uuid = None
        if pre:
            self.role = Role.PRE_CANDIDATE
        else:
            self.role = Role.CANDIDATE
            self.term += 1
            self.voted_for = self.uuid
            self._election.restart_timer()
        term = self.term + 1 if pre else self.term
        self._election.begin(self.uuid, transfer=transfer)
        asked = self.log.last, pre, transfer, self._election.taken_back
        for voter in self.configuration.voters:
            if voter != self.uuid:
                self._send(VoteRequest, voter, *asked, term=term)
        self._count_votes()

    def _count_votes(self) -> None:
        result = count_votes(self._election.votes, self.configuration.voters)
        if result is VoteResult.WON and self.role is Role.PRE_CANDIDATE:
            self._campaign(pre=False, transfer=self._election.is_transfer)
        elif result is VoteResult.WON:
            self._become_leader()
        elif result is VoteResult.LOST:
            self._become_follower(self.term, None)

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE
        self.role = Role.LEADER
        self.leader_uuid = self.uuid
        self._election.taken_back = None
        self.leader = Leader(self.group_id, self.uuid, self.term, self.log, self._settings)
        self._append(EntryKind.NO_OP, b"")

    def _become_follower(self, term: int, leader_uuid: ServerUuid | None) -> None:
        assert term >= self.term
        if term > self.term:
            self.term, self.voted_for = term, None
        if self.leader is not None:
            self._collect_reads()
            self._failed_reads.extend(self.leader.unanswered_reads())
            self.leader = None
            # A follower answers for what is durable: what is being written is written once more.
            self.log.handed_index = self.log.stable_index
        self.role = Role.FOLLOWER
        self.leader_uuid = leader_uuid
        self._election.restart_timer()

    # ---- messages --------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        assert message.group_id == self.group_id
        assert message.destination == self.uuid
        if isinstance(message, VoteRequest):
            self._on_vote_request(message)
            return
        if message.term > self.term and not (isinstance(message, VoteResponse) and message.granted):
            self._become_follower(message.term, None)
        if message.term < self.term:
            if isinstance(message, AppendRequest | SnapshotRequest):  # its leader is deposed
                self._send(AppendResponse, message.source, False, 0, self.log.last, 0)
            return  # the rest is void
        match message:
            case VoteResponse():
                self._on_vote_response(message)
            case AppendRequest():
                self._follow(message.source)
                self._needed_from = message.needed_from
                self._messages.append(answer_append(self.log, message, self.memory_over))
            case SnapshotRequest():
                self._follow(message.source)
                self._on_snapshot(message)
            case AppendResponse() | SnapshotResponse():
                self._on_response(message)
            case TimeoutNow():
                if self.role is Role.FOLLOWER and self._may_campaign:
                    self._campaign(pre=False, transfer=True)
            case _:
                assert_never(message)

    def _on_vote_request(self, request: VoteRequest) -> None:
        """Answer by the rules in this order: leader alive, term, vote given, log up to date."""
        granted = False
        leader_alive = self.leader is not None or not self._election.is_quiet
        if request.transfer or not leader_alive:
            if request.term > self.term and not request.pre:
                self._become_follower(request.term, None)
            kept = TermAndVote(self.term, self.voted_for)
            granted = may_vote(request, kept, self.leader_uuid)
            granted = granted and holds_enough(request, self.end_of_log)
        if granted and not request.pre:
            self.voted_for = request.source
            self._election.restart_timer()
        term = request.term if granted else self.term
        self._send(VoteResponse, request.source, request.pre, granted, term=term)

    def _on_vote_response(self, response: VoteResponse) -> None:
        role = Role.PRE_CANDIDATE if response.pre else Role.CANDIDATE
        if self.role is not role:
            return
        if response.granted and response.term != self.term + int(response.pre):
            return
        self._election.votes.setdefault(response.source, response.granted)
        self._count_votes()

    def _follow(self, leader_uuid: ServerUuid) -> None:
        """A message of the leader of our term: follow it, and promise not to vote for a while."""
        assert self.leader is None, "two leaders in one term"
        assert self.leader_uuid in (None, leader_uuid), "two leaders in one term"
        self.role, self.leader_uuid = Role.FOLLOWER, leader_uuid
        self._election.heard()

    def _on_response(self, response: AppendResponse | SnapshotResponse) -> None:
        if self.leader is not None:
            self.leader.on_response(response)
            self._collect_reads()
            self._finish_leading()

    def _on_snapshot(self, request: SnapshotRequest) -> None:
        installed, offset = take_snapshot(self.log, self._assembly, request)
        if offset is not None:
            self._send(SnapshotResponse, request.source, request.last, offset, request.round)
            return
        self._installed = installed or self._installed
        index = self.log.commit_index
        hint = self.log.last
        self._send(AppendResponse, request.source, True, index, hint, request.round)

    # ---- leading ---------------------------------------------------------------------------

    def _require_leader(self) -> Leader:
        assert self._taken is None, "request between take_ready and advance"
        if self.leader is None:
            peer = self.configuration.peer(self.leader_uuid) if self.leader_uuid else None
            raise NotLeader(self.uuid, self.term, peer.address if peer is not None else "")
        return self.leader

    def _append(self, kind: EntryKind, body: bytes) -> OpId:
        entry = Entry(self.term, self.log.last.index + 1, kind, body)
        self.log.append(entry)
        return entry.op_id

    def _collect_reads(self) -> None:
        assert self.leader is not None
        self._reads.extend(self.leader.ready_reads)
        self.leader.ready_reads.clear()

    def _finish_leading(self) -> None:
        """Hand over, if a transfer is due or the group has done without this leader.

        It steps down before the successor is told: from then on there is neither lease nor read.
        """
        leader = self.leader
        if leader is None:
            return
        target = leader.successor() if leader.is_removed else leader.transfer_due()
        if target is not None:
            self._become_follower(self.term, None)
            self._send(TimeoutNow, target)

    def _send(
        self, kind: Callable[..., Message], to: ServerUuid, *fields: Any, term: int | None = None
    ) -> None:
        sent_term = self.term if term is None else term
        self._messages.append(kind(self.group_id, self.uuid, to, sent_term, *fields))
