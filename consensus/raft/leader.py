"""What only a leader has: progress of the others, heartbeat rounds, reads, lease, transfer.

A `Leader` exists exactly while its replica leads one term. It decides what may be sent and what is
committed; `stelae.consensus.raft.raft` owns term, vote and log. Raft §5.3, §5.4.2, §8; thesis §6.4.

Heartbeat rounds: each has a number and the time it began at. A majority that answered round ``r``
followed this leader after ``r`` began: that confirms reads asked for before it (read index), and
nobody else can be elected until a follower's promise not to vote ends (lease).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass

from stelae.consensus.raft.log_view import LogView
from stelae.consensus.raft.membership import ChangeKind, MemberChange, changed_peers
from stelae.consensus.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    SnapshotResponse,
)
from stelae.consensus.raft.progress import PeerStatus, Progress, ProgressState
from stelae.consensus.raft.quorum import majority, reached_by_majority
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    Overloaded,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.records.replication import Configuration, Entry, Peer


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A linearizable read may run once ``index`` is applied."""

    request: int
    index: int


class Leader:
    """State of the leader of ``term``."""

    def __init__(
        self,
        group_id: TabletId,
        uuid: ServerUuid,
        term: int,
        log: LogView,
        settings: RaftSettings,
    ) -> None:
        self.group_id = group_id
        self.uuid = uuid
        self.term = term
        self.transfer_target: ServerUuid | None = None
        self.ready_reads: list[ReadReady] = []
        self._copies: list[ServerUuid] = []
        self.progress: dict[ServerUuid, Progress] = {}
        self._log = log
        self._settings = settings
        self.follow_configuration(log.last.index + 1)
        self._heartbeat_wanted = True
        self._heartbeat_elapsed = 0
        self._told_commit = 0  # to all, in the last heartbeat round
        self._quorum_elapsed = 0
        self._stuck_ticks, self._first_index = 0, log.last.index + 1
        self._transfer_elapsed = 0
        self._round = 0
        self._round_began_us: deque[tuple[int, int]] = deque()  # rounds not yet confirmed
        self._confirmed_began_us: int | None = None  # when the newest confirmed round began
        self._early_reads: list[int] = []  # until an entry of this term is committed
        self._pending_reads: deque[tuple[int, int, int]] = deque()  # round, request, index
        self._pending_leaves: list[tuple[int, int, ServerUuid]] = []  # round, request, who leaves

    @property
    def configuration(self) -> Configuration:
        """The one in force, which counts from its entry's append on."""
        return self._log.configuration

    def follow_configuration(self, next_index: int) -> None:
        """Lead the members of the configuration in force, and nobody else; new ones from there."""
        known = self.progress
        self.progress = {
            peer.uuid: known.get(peer.uuid)
            or Progress(
                next_index=next_index,
                inflight_max=self._settings.inflight_max,
                inflight_bytes_max=self._settings.inflight_bytes_max,
                large_bytes=self._settings.large_bytes,
            )
            for peer in self.configuration.peers
            if peer.uuid != self.uuid
        }

    # ---- time ------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Count one tick; False once a majority has not been heard for an election timeout, or a
        change of members keeps everything from being committed for too long."""
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._settings.heartbeat_ticks:
            self._heartbeat_wanted = True
        if self.transfer_target is not None:
            self._transfer_elapsed += 1
            if self._transfer_elapsed >= self._settings.election_ticks:
                self.transfer_target = None
        change = self._log.unfinished_change
        self._stuck_ticks = self._stuck_ticks + 1 if change and change.term == self.term else 0
        if self._stuck_ticks >= self._settings.change_ticks:
            return False
        self._quorum_elapsed += 1
        if self._quorum_elapsed < self._settings.election_ticks:
            return True
        self._quorum_elapsed = 0
        heard = {uuid for uuid, progress in self.progress.items() if progress.heard_recently}
        for progress in self.progress.values():
            progress.heard_before = progress.heard_recently
            progress.heard_recently = False
        voters = self.configuration.voters
        count = sum(1 for voter in voters if voter == self.uuid or voter in heard)
        return count >= majority(len(voters))

    def has_lease(self, now_us: int) -> bool:
        """Whether the commit index is up to date, and surely nobody else leads."""
        return self.settled and now_us < self.lease_until_us()

    def lease_until_us(self) -> int:
        """Until when nobody else can have been elected; 0 if there is no lease."""
        if self._settings.lease_duration_us == 0:
            return 0
        if self._confirmed_began_us is None:
            return 0
        return self._confirmed_began_us + self._settings.lease_duration_us

    # ---- sending ---------------------------------------------------------------------------

    def sending(self, uuids: Container[ServerUuid]) -> None:
        """To those of the others something large is on its way just now."""
        for uuid, progress in self.progress.items():
            progress.in_transit = uuid in uuids

    @property
    def is_stirred(self) -> bool:
        """Whether there is something to send now, or to be told."""
        if self._heartbeat_wanted or self.ready_reads or self._copies:
            return True
        last = self._log.last_index
        return any([p.next_index <= last and not p.paused for p in self.progress.values()])

    def spread_commit(self) -> None:
        """Somebody waits to hear how far all is committed: tell it before the next round is due."""
        if self._log.commit_index > self._told_commit:
            self._heartbeat_wanted = True

    def outgoing(self, now_us: int) -> Iterator[Message]:
        """Everything that may be sent now: a heartbeat round if one is due, and entries."""
        heartbeat = self._heartbeat_wanted
        if heartbeat:
            self._heartbeat_wanted = False
            self._heartbeat_elapsed = 0
            self._told_commit = self._log.commit_index
            self._round += 1
            self._round_began_us.append((self._round, now_us))
            self.confirm_rounds()
        for uuid, progress in self.progress.items():
            message = self._next_message(uuid, progress, heartbeat)
            while message is not None:
                yield message
                message = self._next_message(uuid, progress, heartbeat=False)

    def _next_message(
        self, uuid: ServerUuid, progress: Progress, heartbeat: bool
    ) -> Message | None:
        if progress.paused and not heartbeat:
            return None
        compacted = progress.next_index <= self._log.base.index
        if compacted and self._settings.copies_by_host:
            return self._copy_heartbeat(uuid, progress, heartbeat)
        if compacted and progress.state is not ProgressState.SNAPSHOT:
            assert self._log.snapshot is not None, "compacted without a snapshot"
            progress.start_snapshot(self._log.snapshot)
        if progress.state is ProgressState.SNAPSHOT:
            return self._snapshot_chunk(uuid, progress)
        return self._append_request(uuid, progress, heartbeat)

    def _append_request(
        self, uuid: ServerUuid, progress: Progress, heartbeat: bool
    ) -> AppendRequest | None:
        """While it is paused, a heartbeat carries nothing: what is unanswered is sent only once."""
        previous = progress.next_index - 1
        settings = self._settings
        entries: tuple[Entry, ...] = ()
        if not progress.paused:
            first = previous + 1
            entries = self._log.slice(first, settings.batch_entries_max, settings.batch_bytes_max)
        if not entries and not heartbeat:
            return None
        if not entries and progress.is_ahead and progress.match_index >= self._log.base.index:
            previous = progress.match_index
        previous_term = self._log.term_at(previous)
        assert previous_term is not None
        if entries:
            progress.sent(entries[-1].index, sum([len(entry.body) for entry in entries]))
        return AppendRequest(
            self.group_id,
            self.uuid,
            uuid,
            self.term,
            OpId(previous_term, previous),
            entries,
            self._log.commit_index,
            self._round,
            self.needed_from() if self._settings.copies_by_host else 0,
        )

    def _copy_heartbeat(
        self, uuid: ServerUuid, progress: Progress, heartbeat: bool
    ) -> AppendRequest | None:
        """Ask whether it has the base by now; until it does, its host is to copy the state.

        One that does not answer is not named: it may be gone, or be receiving a copy already.
        """
        if progress.state is not ProgressState.COPY:
            progress.start_copy()
        if not heartbeat:
            return None
        if progress.is_heard:
            self._copies.append(uuid)
        return AppendRequest(
            self.group_id,
            self.uuid,
            uuid,
            self.term,
            self._log.base,
            (),
            self._log.commit_index,
            self._round,
            self.needed_from(),
        )

    def needed_from(self) -> int:
        """The first entry that some member may lack."""
        reached = [progress.match_index for progress in self.progress.values()]
        return min(reached, default=self._log.last.index) + 1

    def memory_over(self) -> tuple[ServerUuid, int, int] | None:
        """A voter that lives and has no memory left for more rows: (who, used, limit) in bytes."""
        for uuid, progress in self.progress.items():
            if progress.memory_over and progress.is_heard and uuid in self.configuration.voters:
                return uuid, *progress.memory_over
        return None

    def take_copies(self) -> list[ServerUuid]:
        """Members that were found to need a copy since this was last asked."""
        copies, self._copies = self._copies, []
        return copies

    def _snapshot_chunk(self, uuid: ServerUuid, progress: Progress) -> SnapshotRequest:
        """As a heartbeat, while a chunk is unanswered, without one."""
        snapshot = progress.snapshot
        assert snapshot is not None
        offset = progress.snapshot_offset
        chunk = b""
        if not progress.paused:
            chunk = snapshot.data[offset : offset + self._settings.snapshot_chunk_bytes]
            progress.sent(snapshot.last.index, len(chunk))
        return SnapshotRequest(
            self.group_id,
            self.uuid,
            uuid,
            self.term,
            snapshot.last,
            snapshot.configuration,
            len(snapshot.data),
            offset,
            chunk,
            self._round,
        )

    # ---- counting --------------------------------------------------------------------------

    def on_response(self, response: AppendResponse | SnapshotResponse) -> None:
        """A follower took entries, or its log does not match yet, or it wants the next chunk."""
        progress = self.progress.get(response.source)
        if progress is None:
            return
        self.heard(progress, response.round)
        if isinstance(response, SnapshotResponse):
            snapshot = progress.snapshot
            if snapshot is not None and snapshot.last == response.last:
                progress.snapshot_at(min(response.next_offset, len(snapshot.data)))
            return
        progress.memory_over = response.memory_over
        if response.accepted:
            progress.accepted(response.index, self._log.base.index, self._round)
            self.advance_commit()
            return
        match = response.hint.index
        if match >= self._log.base.index:
            match = self._log.last_possible_match(response.hint).index
        progress.refused(response.index, match + 1, response.round)

    def heard(self, progress: Progress, round_number: int) -> None:
        """Any answer of this term: its sender lives, and followed after that round began."""
        progress.heard_recently = True
        assert round_number <= self._round, "answer to a round that never was"
        if round_number > progress.acked_round:
            progress.acked_round = round_number
            if self._round_began_us or self._pending_reads or self._pending_leaves:
                self.confirm_rounds()

    def advance_commit(self) -> bool:
        """Commit what a majority holds durably, if it is of this term (Raft §5.4.2)."""
        if self._log.commit_index == self._log.last_index:
            return False
        reached = {uuid: progress.match_index for uuid, progress in self.progress.items()}
        reached[self.uuid] = self._log.stable_index
        index = reached_by_majority(reached, self.configuration.voters)
        if not self.may_commit(index):
            return False
        if not self._log.commit_to(index):
            return False
        self._stuck_ticks = 0
        for request in self._early_reads:
            self._pend_read(request)
        self._early_reads.clear()
        return True

    def may_commit(self, index: int) -> bool:
        """True if the entry is of this term; earlier ones are committed along with it."""
        return self._log.term_at(index) == self.term

    @property
    def settled(self) -> bool:
        """True once an entry of this term is committed, so that the commit index is up to date."""
        return self._log.term_at(self._log.commit_index) == self.term

    def confirm_rounds(self) -> None:
        """Release the reads and extend the lease by what a majority has answered."""
        acked = {uuid: progress.acked_round for uuid, progress in self.progress.items()}
        acked[self.uuid] = self._round
        confirmed = reached_by_majority(acked, self.configuration.voters)
        while self._round_began_us and self._round_began_us[0][0] <= confirmed:
            self._confirmed_began_us = self._round_began_us.popleft()[1]
        while self._pending_reads and self._pending_reads[0][0] <= confirmed:
            _, request, index = self._pending_reads.popleft()
            self.ready_reads.append(ReadReady(request, index))
        if self._pending_leaves:
            self._confirm_leaves(acked)

    def _confirm_leaves(self, acked: dict[ServerUuid, int]) -> None:
        pending, self._pending_leaves = self._pending_leaves, []
        for number, request, leaving in pending:
            staying = [uuid for uuid in self.configuration.voters if uuid != leaving]
            if staying and reached_by_majority(acked, staying) >= number:
                self.ready_reads.append(ReadReady(request, self._log.commit_index))
            else:
                self._pending_leaves.append((number, request, leaving))

    # ---- reads and transfer ----------------------------------------------------------------

    def read(self, request: int, leaving: ServerUuid | None = None) -> None:
        """Ask for a read index. Raises Overloaded.

        Before ``leaving`` goes, a majority of the other voters must answer once more: three voters
        survive one, and two none. Were the other of those two dead already, unnoticed, the removal
        could be neither committed nor undone.
        """
        limit = self._settings.pending_reads_max
        pending = len(self._pending_reads) + len(self._pending_leaves)
        if len(self._early_reads) + pending >= limit:
            raise Overloaded("pending reads", limit)
        if leaving is not None:
            self._pending_leaves.append((self._round + 1, request, leaving))
            self._heartbeat_wanted = True
        elif self.settled:
            self._pend_read(request)
        else:
            self._early_reads.append(request)

    def _pend_read(self, request: int) -> None:
        self._pending_reads.append((self._round + 1, request, self._log.commit_index))
        self._heartbeat_wanted = True

    def unanswered_reads(self) -> list[int]:
        """Requests that this leader, which steps down, will not answer."""
        pending = [*self._pending_reads, *self._pending_leaves]
        return self._early_reads + [request for _, request, _ in pending]

    def start_transfer(self, target: ServerUuid | None) -> None:
        """Refuse proposals for an election timeout, and hand over once the target has everything.

        Without a target the voter that has most is taken. Raises InvalidArgument, TabletNotReady.
        """
        if self.transfer_target is not None:
            raise TabletNotReady(self.group_id, "handing its leadership over already")
        others = [uuid for uuid in self.configuration.voters if uuid != self.uuid]
        if target is None:
            target = self.successor()
        if target is None or target not in others:
            raise InvalidArgument(f"{target} is not another voter of tablet {self.group_id}")
        self.transfer_target = target
        self._transfer_elapsed = 0
        self._heartbeat_wanted = True

    def transfer_due(self) -> ServerUuid | None:
        """The target of the transfer, once it has all entries and all are committed and applied."""
        target = self.transfer_target
        if target is None or self._log.applied_index != self._log.last.index:
            return None
        return target if self.progress[target].match_index == self._log.last.index else None

    # ---- change of members -----------------------------------------------------------------

    def may_change(self, change: MemberChange, expected: OpId | None) -> tuple[Peer, ...]:
        """The members after ``change``, if it may begin now.

        Raises TabletNotReady, ConfigurationMismatch, InvalidArgument.
        """
        committed = self._log.committed_configuration
        if not self.settled:
            raise TabletNotReady(self.group_id, "not sure yet who its members are: repeat it")
        if committed.op_id != self.configuration.op_id:
            raise TabletNotReady(self.group_id, "changing its members already, one at a time")
        if self.transfer_target is not None:
            raise TabletNotReady(self.group_id, "handing its leadership over")
        if expected is not None and expected != committed.op_id:
            group = f"tablet {self.group_id}"
            raise ConfigurationMismatch(group, _name(expected), _name(committed.op_id))
        peers = changed_peers(committed, change)
        if change.kind is ChangeKind.PROMOTE and not self.has_caught_up(change.uuid):
            raise TabletNotReady(self.group_id, f"still copied to {change.uuid}")
        self._require_reachable(peers)
        return peers

    def has_caught_up(self, uuid: ServerUuid) -> bool:
        """Whether that member lives, could write something of this term, and lacks no more than one
        batch of what is committed."""
        progress, settings = self.progress[uuid], self._settings
        if progress.match_index < self._first_index:
            return False
        if progress.state is not ProgressState.REPLICATE or not progress.is_heard:
            return False
        match, commit = progress.match_index, self._log.commit_index
        if match >= commit:
            return True
        if match < self._log.base.index or commit - match > settings.batch_entries_max:
            return False
        batch = self._log.slice(match + 1, settings.batch_entries_max, settings.batch_bytes_max)
        return batch[-1].index >= commit

    def peers(self) -> dict[ServerUuid, PeerStatus]:
        """What is known of each other member."""
        return {
            uuid: PeerStatus(
                progress.match_index,
                progress.state,
                progress.is_heard,
                self.has_caught_up(uuid),
            )
            for uuid, progress in self.progress.items()
        }

    def _require_reachable(self, peers: tuple[Peer, ...]) -> None:
        """Refuse members of which too few answer: they could not even undo the change."""
        voters = [peer.uuid for peer in peers if peer.voter]
        heard = [u for u in voters if u == self.uuid or self.progress[u].is_heard]
        if len(heard) < majority(len(voters)):
            state = f"held by {len(voters)} voters then, of which only {len(heard)} answer"
            raise TabletNotReady(self.group_id, state)

    @property
    def is_removed(self) -> bool:
        """True once a configuration without this leader is committed: its work is done."""
        gone = self.configuration.peer(self.uuid) is None
        return gone and self._log.commit_index >= self.configuration.op_id.index

    def successor(self) -> ServerUuid | None:
        """The voter that has most, to be told to follow a removed leader."""
        others = [uuid for uuid in self.configuration.voters if uuid != self.uuid]
        return max(others, key=lambda uuid: self.progress[uuid].match_index, default=None)

    def check_invariants(self) -> None:
        """Assert that progress covers exactly the other members, within its own invariants."""
        others = [peer.uuid for peer in self.configuration.peers if peer.uuid != self.uuid]
        assert list(self.progress) == others
        for progress in self.progress.values():
            progress.check_invariants(self._log.last.index)
        assert self._log.last.term == self.term, "a leader's log ends in its own term"


def _name(op_id: OpId) -> str:
    return f"{op_id.term}.{op_id.index}"
