"""The tablet server's end of a timeline, pure: messages and requests in, one `ProposerReady` out.

It collects greetings until it knows the highest configuration, campaigns with a term above all that
it heard of, takes over the longest log among its voters, and leads (`WalLeader`) until it hears of
a higher term (it is deposed) or a higher configuration (it campaigns anew in that). It keeps its
log meanwhile: if that still is the longest, nothing that was proposed is lost by a switch.

Invariants: the generation rises only, and the term with each campaign; elected and committing need
a majority of each member set; what is committed never changes here. The masters say whose proposer
may campaign; safety does not depend on it. Neon RFC 035, "Compute (walproposer) changes"; Raft §5.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from stelae.consensus.wal.campaign import TakeOverKind, take_over
from stelae.consensus.wal.leader import Sender, WalLeader
from stelae.consensus.wal.link import Link, LinkState
from stelae.consensus.wal.log import ProposerLog
from stelae.consensus.wal.messages import (
    AcceptorGreeting,
    FetchedEntries,
    ProposerGreeting,
    Refusal,
    RefusalReason,
    ToAcceptor,
    ToProposer,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.consensus.wal.ready import (
    EndReason,
    Fetch,
    LinkStatus,
    Phase,
    ProposerReady,
    ProposerSettings,
    ProposerStatus,
    WalReadReady,
)
from stelae.core.errors import NotLeader, Overloaded, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    NO_GENERATION,
    ProposerId,
    SafekeeperId,
    TimelineConfiguration,
    term_at,
)


class WalProposer:
    """One life of one proposer. ``base`` is the last entry whose effect its owner has already.

    ``dial`` are the safekeepers to greet; members of configurations that it hears of are greeted
    too. ``configuration`` is one that its owner knows of, if any.
    """

    def __init__(
        self,
        *,
        timeline_id: TabletId,
        proposer: ProposerId,
        dial: Collection[SafekeeperId],
        base: OpId,
        settings: ProposerSettings,
        configuration: TimelineConfiguration | None = None,
    ) -> None:
        self.timeline_id = timeline_id
        self.proposer = proposer
        self.log = ProposerLog(base)
        self.phase = Phase.GREETING
        self.end: EndReason | None = None
        self.term = 0
        self.configuration: TimelineConfiguration | None = None
        """The one established."""
        self.leader: WalLeader | None = None
        self.links: dict[SafekeeperId, Link] = {}
        self.horizon_lsn = 0
        self._settings = settings
        self._dial = list(dial)
        self._highest = configuration
        self._term_floor = 0
        self._votes: dict[SafekeeperId, WalVoteResponse] = {}
        self._greeted: set[SafekeeperId] = set()
        self._donor: SafekeeperId | None = None
        self._recovery_fetch: int | None = None
        self._sessions = 0
        self._fetches = 0
        self._rewound_to: int | None = None
        self._messages: list[ToAcceptor] = []
        self._wanted: list[Fetch] = []
        self._failed_reads: list[int] = []
        self._alarms: list[str] = []
        self._link_up()

    # ---- requests of the owner -------------------------------------------------------------

    def campaign(self, min_term: int = 0) -> None:
        """Begin anew, with a term of at least that; only if the masters still name the owner."""
        self._term_floor = max(self._term_floor, min_term - 1)
        self._restart()

    def learn(self, configuration: TimelineConfiguration) -> None:
        """The masters told of it: all members of an older one may be gone, and silent."""
        self._dial = list(configuration.members)
        if self.phase is not Phase.ENDED:
            self._heard_higher(configuration, 0)
        if self.phase is Phase.GREETING:
            self._link_up()

    def close(self) -> None:
        """The owner wants no more of it."""
        self._finish(EndReason.CLOSED)

    def propose(self, kind: EntryKind, body: bytes) -> OpId:
        """Append an entry; it counts once it is handed out as committed.

        Raises NotLeader, TabletNotReady, Overloaded: not appended.
        """
        leader = self._require_leader()
        limit = self._settings.uncommitted_bytes_max
        if self.log.uncommitted_bytes + len(body) > limit and self.log.uncommitted_bytes:
            raise Overloaded("bytes that safekeepers have not acknowledged", limit)
        entry = Entry(leader.sender.term, self.log.last.index + 1, kind, body)
        self.log.extend((entry,))
        return entry.op_id

    def read(self, request: int) -> None:
        """Ask for a read LSN; `ProposerReady` answers. Raises NotLeader, TabletNotReady,
        Overloaded."""
        self._require_leader().read(request)

    def trim(self, horizon_lsn: int) -> None:
        """Entries up to there are needed no more: backups hold them. A member that lacks some of
        them goes on after them; so they may be kept for a while for those (`needed_from`)."""
        self.horizon_lsn = max(self.horizon_lsn, min(horizon_lsn, self.log.commit_lsn))

    @property
    def needed_from(self) -> int:
        """The first entry that some member may lack; 1 while it does not lead."""
        return self.leader.needed_from if self.leader is not None else 1

    def tick(self) -> None:
        """One tick has passed."""
        for link in self.links.values():
            link.tick(self._settings.silence_ticks)

    def fetched(self, number: int, reply: FetchedEntries) -> None:
        """What came of that fetch; replies to those that nobody waits for any more are dropped."""
        link = self._fetching_link(number)
        if number == self._recovery_fetch:
            self._on_recovered(reply)
        elif link is not None:
            self._on_caught_up(link, reply)

    def fetch_failed(self, number: int) -> None:
        """The call had no answer: another safekeeper may have what was asked for."""
        link = self._fetching_link(number)
        if number == self._recovery_fetch:
            self._restart()
        elif link is not None:
            link.fetching = None

    def _fetching_link(self, number: int) -> Link | None:
        found = (link for link in self.links.values() if link.fetching == number)
        return next(found, None)

    def take_ready(self) -> ProposerReady:
        """Everything to be done now; a false value if there is nothing."""
        if self.phase is not Phase.ENDED:
            self._send()
        committed = self.log.unapplied(
            self._settings.apply_entries_max, self._settings.apply_bytes_max
        )
        self.log.applied_lsn += len(committed)
        reads: list[WalReadReady] = []
        lagging: list[SafekeeperId] = []
        if self.leader is not None:
            reads, self.leader.ready_reads = self.leader.ready_reads, []
            lagging, self.leader.lagging = self.leader.lagging, []
            self.log.drop(self.leader.needed_from - 1, self._settings.retained_bytes_max)
        ready = ProposerReady(
            rewound_to=self._rewound_to,
            messages=tuple(self._messages),
            fetches=tuple(self._wanted),
            committed=committed,
            reads=tuple(reads),
            failed_reads=tuple(self._failed_reads),
            lagging=tuple(lagging),
            alarms=tuple(self._alarms),
        )
        self._rewound_to = None
        for effects in (self._messages, self._wanted, self._failed_reads, self._alarms):
            effects.clear()
        return ready

    def status(self) -> ProposerStatus:
        """A copy of what can be seen from outside."""
        acked = self.leader.acked if self.leader is not None else {}
        return ProposerStatus(
            phase=self.phase,
            end=self.end,
            term=self.term,
            configuration=self.configuration,
            start_lsn=self.leader.start_lsn if self.leader is not None else 0,
            commit_lsn=self.log.commit_lsn,
            last_lsn=self.log.last.index,
            horizon_lsn=self.horizon_lsn,
            links={
                link.safekeeper: LinkStatus(
                    link.state, link.is_heard, acked.get(link.safekeeper, 0), link.generation
                )
                for link in self.links.values()
            },
        )

    def _require_leader(self) -> WalLeader:
        if self.phase is Phase.ENDED:
            raise NotLeader(f"proposer {self.proposer}", self.term, "")
        if self.leader is None:
            raise TabletNotReady(self.timeline_id, f"{self.phase.value} its safekeepers")
        return self.leader

    # ---- campaigns -------------------------------------------------------------------------

    def _restart(self) -> None:
        """Look for the highest configuration, and campaign in it."""
        self._stop_leading()
        self._term_floor = max(self._term_floor, self.term)
        self.phase, self.end = Phase.GREETING, None
        self.configuration = None
        self._link_up()

    def _finish(self, reason: EndReason) -> None:
        self._stop_leading()
        self.phase, self.end = Phase.ENDED, reason

    def _stop_leading(self) -> None:
        """Leave all sessions, and with them all that was promised in this term."""
        if self.leader is not None:
            self._failed_reads.extend(self.leader.unanswered_reads())
            self._failed_reads.extend(read.request for read in self.leader.ready_reads)
        self.leader = None
        self._votes.clear()
        self._greeted.clear()
        self._donor = self._recovery_fetch = None
        self._messages.clear()
        self._wanted.clear()
        for link in self.links.values():
            link.reset()

    def _depose(self, term: int) -> None:
        self._term_floor = max(self._term_floor, term)
        self._finish(EndReason.DEPOSED)

    def _link_up(self) -> None:
        """Have a link with whom to greet: as told, and as the highest configuration names."""
        members = self._highest.members if self._highest is not None else ()
        for safekeeper in sorted({*self._dial, *members}):
            self.links.setdefault(safekeeper, Link(safekeeper))

    def _establish(self, configuration: TimelineConfiguration) -> None:
        """Majorities have greeted: this is the configuration, and the campaign begins.

        Who does not know it yet is greeted again, with it; who is in none of its sets no more.
        """
        self.configuration = configuration
        self.term = self._term_floor + 1
        self.phase = Phase.VOTING
        members = configuration.members
        self.links = {member: self.links[member] for member in members}
        for link in self.links.values():
            if link.state is LinkState.GREETED and link.generation < configuration.generation:
                link.reset()

    def _count_votes(self) -> None:
        assert self.configuration is not None
        if not self.configuration.agreed(self._votes):
            return
        donor = max(self._votes, key=lambda member: (self._votes[member].position, -member))
        self._take_over(donor, self._votes[donor])

    def _take_over(self, donor: SafekeeperId, vote: WalVoteResponse) -> None:
        """Elected: go on with the longest log."""
        plan = take_over(self.log, vote)
        match plan.kind:
            case TakeOverKind.KEEP:
                self._lead()
            case TakeOverKind.FETCH:
                if plan.common_lsn < self.log.last.index:
                    self.log.cut(plan.common_lsn)
                    before = self._rewound_to
                    cut = plan.common_lsn if before is None else min(before, plan.common_lsn)
                    self._rewound_to = cut
                self._donor = donor
                self.phase = Phase.RECOVERING
                self._fetch_tail()
            case TakeOverKind.TRIMMED:
                self._finish(EndReason.TRIMMED)
            case TakeOverKind.DIVERGED:
                why = f"safekeeper {donor} voted with {plan.why}"
                self._alarms.append(f"timeline {self.timeline_id}, term {self.term}: {why}")
                self._finish(EndReason.DIVERGED)
            case _:
                assert_never(plan.kind)

    def _fetch_tail(self) -> None:
        assert self._donor is not None
        assert self.configuration is not None
        self._fetches += 1
        self._recovery_fetch = self._fetches
        extent = (self.log.last.index + 1, self._votes[self._donor].flush_lsn)
        who = (self._donor, self.term, self.configuration.generation)
        limit = self._settings.fetch_bytes_max
        self._wanted.append(Fetch(self._fetches, *who, *extent, limit, recovers=True))

    def _on_recovered(self, reply: FetchedEntries) -> None:
        """The next part of the donor's log, or why it is not to be had any more."""
        self._recovery_fetch = None
        assert self._donor is not None
        if self._heard_higher(reply.configuration, reply.term):
            return
        if reply.horizon_lsn > self.log.last.index:
            self._finish(EndReason.TRIMMED)
            return
        vote = self._votes[self._donor]
        next_lsn = self.log.last.index + 1
        is_expected = all(
            entry.index == next_lsn + position and entry.term == term_at(vote.history, entry.index)
            for position, entry in enumerate(reply.entries)
        )
        last_lsn = self.log.last.index + len(reply.entries)
        if not reply.entries or not is_expected or last_lsn > vote.flush_lsn:
            self._alarms.append(f"safekeeper {self._donor} does not send what it voted with")
            self._restart()
            return
        self.log.extend(reply.entries)
        if self.log.last.index < vote.flush_lsn:
            self._fetch_tail()
        else:
            self._lead()

    def _lead(self) -> None:
        assert self.configuration is not None
        self.phase = Phase.LEADING
        sender = self._sender
        self.leader = WalLeader(sender, self.configuration, self.log, self._settings)

    # ---- sending ---------------------------------------------------------------------------

    @property
    def _sender(self) -> Sender:
        established = self.configuration
        generation = established.generation if established is not None else NO_GENERATION
        return Sender(self.timeline_id, self.proposer, self.term, generation)

    def _send(self) -> None:
        leader = self.leader
        if leader is not None:
            leader.horizon_lsn = self.horizon_lsn
            leader.begin_round()
        for link in self.links.values():
            if link.may_greet:
                self._greet(link)
            elif self.phase is Phase.VOTING and link.state is LinkState.GREETED:
                link.state = LinkState.VOTING
                header = self._sender.header(link, link.number())
                self._messages.append(WalVoteRequest(*header))
            elif leader is not None:
                self._messages.extend(leader.outgoing(link))
                fetch = leader.catch_up(link, self.links, self._fetches + 1)
                if fetch is not None:
                    self._fetches += 1
                    self._wanted.append(fetch)

    def _greet(self, link: Link) -> None:
        sender = self._sender
        self._sessions += 1
        link.open(self._sessions, sender.generation)
        header = sender.header(link, link.sequence)
        self._messages.append(ProposerGreeting(*header, self.configuration))

    def _on_caught_up(self, link: Link, reply: FetchedEntries) -> None:
        """Pass on what another member had of the entries that this one needs."""
        leader, link.fetching = self.leader, None
        if leader is None or self._heard_higher(reply.configuration, reply.term):
            return
        entries = reply.entries
        is_expected = all(
            entry.index == link.next_lsn + position and entry.term == self.log.term_at(entry.index)
            for position, entry in enumerate(entries)
        )
        if entries and is_expected and entries[-1].index <= self.log.last.index:
            link.retry_ticks = 0
            self._messages.append(leader.append(link, entries))

    # ---- messages --------------------------------------------------------------------------

    def receive(self, message: ToProposer) -> None:
        """Take one message; those of sessions that were left are void."""
        assert message.timeline_id == self.timeline_id
        assert message.proposer == self.proposer
        link = self.links.get(message.safekeeper)
        if link is None or link.session != message.session or self.phase is Phase.ENDED:
            return
        link.heard(message)
        link.term, link.generation = message.term, message.generation
        if isinstance(message, WalVoteResponse | WalAppendResponse):
            link.horizon_lsn = max(link.horizon_lsn, message.horizon_lsn)
            self.horizon_lsn = max(self.horizon_lsn, message.horizon_lsn)
        match message:
            case AcceptorGreeting():
                self._on_greeting(link, message)
            case WalVoteResponse():
                self._on_vote(link, message)
            case WalAppendResponse():
                self._on_append_response(link, message)
            case Refusal():
                self._on_refusal(link, message)
            case _:
                assert_never(message)

    def _heard_higher(self, configuration: TimelineConfiguration, term: int) -> bool:
        """Whether somebody is ahead of us, so that this campaign or term is over."""
        known = self._highest.generation if self._highest is not None else NO_GENERATION
        if configuration.generation > known:
            self._highest = configuration
            if self.phase is not Phase.GREETING:
                self._term_floor = max(self._term_floor, term)
                self._restart()
                return True
            self._link_up()
        if self.phase is Phase.GREETING:
            self._term_floor = max(self._term_floor, term)
        elif term > self.term:
            self._depose(term)
            return True
        return False

    def _on_greeting(self, link: Link, greeting: AcceptorGreeting) -> None:
        if link.state is not LinkState.GREETING:
            return
        if self._heard_higher(greeting.configuration, greeting.term):
            return
        link.state = LinkState.GREETED
        if self.phase is Phase.GREETING:
            self._greeted.add(link.safekeeper)
            assert self._highest is not None
            if self._highest.agreed(self._greeted):
                self._establish(self._highest)
        elif self.configuration is not None and link.generation < self.configuration.generation:
            link.reset()

    def _on_vote(self, link: Link, vote: WalVoteResponse) -> None:
        if link.state is LinkState.VOTING:
            link.state = LinkState.VOTED
        if self.phase is Phase.VOTING and vote.term == self.term:
            self._votes[link.safekeeper] = vote
            self._count_votes()

    def _on_append_response(self, link: Link, response: WalAppendResponse) -> None:
        if self.leader is None or response.term != self.term:
            return
        problem = self.leader.on_append_response(link, response)
        if problem is not None:
            self._alarms.append(f"timeline {self.timeline_id}, term {self.term}: {problem}")

    def _on_refusal(self, link: Link, refusal: Refusal) -> None:
        if self._heard_higher(refusal.configuration, refusal.term):
            return
        match refusal.reason:
            case RefusalReason.TERM:  # our own one, in which that vote went to another
                if self.phase is Phase.VOTING:
                    self._depose(refusal.term)
            case RefusalReason.GENERATION | RefusalReason.SESSION:
                link.reset()
            case RefusalReason.NOT_MEMBER:
                link.reset(self._settings.silence_ticks)
            case RefusalReason.DIVERGED:
                self._alarms.append(f"safekeeper {link.safekeeper} refuses to be cut below commit")
                link.reset(self._settings.silence_ticks)
            case _:
                assert_never(refusal.reason)

    def check_invariants(self) -> None:
        """Assert what the module docstring promises; tests call it after each step."""
        self.log.check_invariants()
        assert (self.leader is not None) == (self.phase is Phase.LEADING)
        if self.leader is not None:
            assert self.configuration is not None
            assert self.leader.configuration == self.configuration
            assert self.log.last.term == self.term, "a leader's log ends in its own term"
            assert tuple(self.links) == self.configuration.members
        assert (self.end is not None) == (self.phase is Phase.ENDED)
