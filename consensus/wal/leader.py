"""What an elected proposer does in its term: stream, count acknowledgements, commit, confirm reads.

Invariants: it never cuts its log; it commits at or past its own first entry only, and only what a
majority of each member set has durably in this term (Raft §5.4.2; Neon RFC 035, joint quorums); a
read waits for a round that majorities answered after it began. Slow or dead safekeepers stall
nobody: each has its own window, and what was dropped from memory is fetched from another member.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stelae.consensus.wal.link import Link, LinkState
from stelae.consensus.wal.log import ProposerLog
from stelae.consensus.wal.messages import (
    ProposerElected,
    ToAcceptor,
    WalAppendRequest,
    WalAppendResponse,
)
from stelae.consensus.wal.ready import Fetch, ProposerSettings, WalReadReady
from stelae.core.errors import Overloaded
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import ProposerId, SafekeeperId, TimelineConfiguration


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends, and in which term and generation."""

    timeline_id: TabletId
    proposer: ProposerId
    term: int
    generation: int

    def header(
        self, link: Link, sequence: int
    ) -> tuple[TabletId, ProposerId, SafekeeperId, int, int, int, int]:
        """The fields that every message to that safekeeper begins with."""
        ends = (self.timeline_id, self.proposer, link.safekeeper)
        return (*ends, self.term, self.generation, link.session, sequence)


class WalLeader:
    """One term of one proposer."""

    def __init__(
        self,
        sender: Sender,
        configuration: TimelineConfiguration,
        log: ProposerLog,
        settings: ProposerSettings,
    ) -> None:
        """Begins the term with an entry of its own."""
        self.sender = sender
        self.configuration = configuration
        self.start_lsn = log.last.index + 1
        self.horizon_lsn = 0
        self.acked: dict[SafekeeperId, int] = {}
        """Up to where each member's log is durably equal to ours. A new session of the same term
        takes nothing back."""
        self.lagging: list[SafekeeperId] = []
        self.ready_reads: list[WalReadReady] = []
        self._members = configuration.members
        self._log = log
        self._settings = settings
        self._rounds: dict[SafekeeperId, int] = {}
        self._round = 0
        self._round_wanted = False
        self._early_reads: list[int] = []
        self._pending_reads: deque[tuple[int, int, int]] = deque()  # round, request, LSN
        log.extend((Entry(sender.term, self.start_lsn, EntryKind.NO_OP, b""),))

    @property
    def is_settled(self) -> bool:
        """Whether something of this term is committed, so that the commit is up to date."""
        return self._log.commit_lsn >= self.start_lsn

    @property
    def needed_from(self) -> int:
        """The first entry that some member may lack."""
        return min(self.acked.get(member, 0) for member in self._members) + 1

    # ---- sending ---------------------------------------------------------------------------

    def begin_round(self) -> None:
        """What is sent from now on confirms the reads that wait."""
        if self._round_wanted:
            self._round += 1
            self._round_wanted = False

    def outgoing(self, link: Link) -> list[ToAcceptor]:
        """What is to be sent to that member now."""
        if link.state in (LinkState.GREETED, LinkState.VOTING, LinkState.VOTED):
            return [self.elected(link)]
        if link.state is not LinkState.STREAMING:
            return []
        messages: list[ToAcceptor] = []
        room_bytes = self._settings.inflight_bytes_max
        while self._log.holds(link.next_lsn) and link.has_room(room_bytes):
            entries = self._log.slice(
                link.next_lsn, self._settings.batch_entries_max, self._settings.batch_bytes_max
            )
            messages.append(self.append(link, entries))
        is_due = link.idle_ticks >= self._settings.heartbeat_ticks
        if not messages and link.next_lsn <= min(self.horizon_lsn, self._log.base.index):
            return [self.elected(link)]  # what it needs may be gone everywhere, and is not needed
        if not messages and (is_due or link.sent_round < self._round):
            messages.append(self.append(link, ()))
        return messages

    def elected(self, link: Link) -> ProposerElected:
        """Have that member find out where its log parts from ours."""
        assert self._log.history is not None
        link.state = LinkState.ELECTED
        link.elected_sequence = link.number()
        header = self.sender.header(link, link.elected_sequence)
        return ProposerElected(*header, self._log.history, self.horizon_lsn)

    def append(self, link: Link, entries: tuple[Entry, ...]) -> WalAppendRequest:
        """The request with these entries, which come next for that member."""
        previous = self._log.op_id_at(link.next_lsn - 1)
        if entries:
            assert entries[0].index == link.next_lsn
            link.sent(entries[-1].index, sum(len(entry.body) for entry in entries))
        link.sent_round = self._round
        header = self.sender.header(link, link.number())
        horizon_lsn = min(self.horizon_lsn, self._log.commit_lsn)
        tail = (previous, entries, self._log.commit_lsn, horizon_lsn, self._round)
        return WalAppendRequest(*header, *tail)

    def catch_up(self, link: Link, links: dict[SafekeeperId, Link], number: int) -> Fetch | None:
        """What to fetch for a member that needs entries which are not held here any more."""
        first_lsn = link.next_lsn
        is_waiting = link.fetching is not None or link.retry_ticks > 0
        is_waiting = is_waiting or not link.has_room(self._settings.inflight_bytes_max)
        if link.state is not LinkState.STREAMING or first_lsn > self._log.base.index or is_waiting:
            return None
        sources = [
            other
            for other in links.values()
            if other is not link
            and other.state is LinkState.STREAMING
            and other.horizon_lsn < first_lsn <= self.acked.get(other.safekeeper, 0)
        ]
        link.retry_ticks = self._settings.silence_ticks
        if not sources:
            self.lagging.append(link.safekeeper)
            return None
        source = max(sources, key=lambda s: (self.acked[s.safekeeper], -s.safekeeper)).safekeeper
        link.fetching = number
        last_lsn = min(self._log.base.index, self.acked[source])
        size_bytes = self._settings.fetch_bytes_max
        who = (self.sender.term, self.sender.generation)
        return Fetch(number, source, *who, first_lsn, last_lsn, size_bytes)

    # ---- counting --------------------------------------------------------------------------

    def on_append_response(self, link: Link, response: WalAppendResponse) -> str | None:
        """A member's log has come so far; what is wrong with that, if anything."""
        member, flush_lsn = link.safekeeper, response.flush_lsn
        if flush_lsn > self._log.last.index:
            return f"safekeeper {member} acknowledges {flush_lsn} of {self._log.last}"
        acked_lsn, problem = self.acked.get(member, 0), None
        if link.state is LinkState.ELECTED and response.sequence >= link.elected_sequence:
            link.state = LinkState.STREAMING
            link.next_lsn = flush_lsn + 1
            if flush_lsn < acked_lsn:
                problem = f"safekeeper {member} has {flush_lsn} of {acked_lsn} acknowledged"
                acked_lsn = flush_lsn
        link.acked(flush_lsn)
        self.acked[member] = max(acked_lsn, flush_lsn)
        self._rounds[member] = max(self._rounds.get(member, 0), response.round)
        self._advance_commit()
        self._confirm_reads()
        return problem

    def _advance_commit(self) -> None:
        lsn = self.configuration.agreed_lsn(self.acked)
        if not self.may_commit(lsn):
            return
        self._log.commit_lsn = lsn
        for request in self._early_reads:
            self._pend(request)
        self._early_reads.clear()

    def may_commit(self, lsn: int) -> bool:
        """Whether that is of this term; what is of an earlier one is committed along with it."""
        return lsn >= self.start_lsn and lsn > self._log.commit_lsn

    # ---- reads -----------------------------------------------------------------------------

    def read(self, request: int) -> None:
        """Ask for the LSN that a read has to wait for. Raises Overloaded."""
        limit = self._settings.pending_reads_max
        if len(self._early_reads) + len(self._pending_reads) >= limit:
            raise Overloaded("pending reads", limit)
        if self.is_settled:
            self._pend(request)
        else:
            self._early_reads.append(request)

    def unanswered_reads(self) -> list[int]:
        """Reads that this term will not answer any more."""
        return self._early_reads + [request for _, request, _ in self._pending_reads]

    def _pend(self, request: int) -> None:
        self._pending_reads.append((self._round + 1, request, self._log.commit_lsn))
        self._round_wanted = True

    def _confirm_reads(self) -> None:
        confirmed = self.configuration.agreed_lsn(self._rounds)
        while self._pending_reads and self._pending_reads[0][0] <= confirmed:
            _, request, lsn = self._pending_reads.popleft()
            self.ready_reads.append(WalReadReady(request, lsn))
