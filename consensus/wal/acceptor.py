"""A safekeeper's side of one timeline, pure: messages and calls in, one `AcceptorReady` out.

`receive` takes what a proposer sent; `switch`, `bump_term`, `exclude` and `status` are calls of the
controller. Then `take_ready` says what to do, in this order: replace the state record, cut the log,
append to it, sync, and only then send; `advance` tells that it was done. Between the two nothing is
taken. So whatever is answered is durable, and all of an answer holds at one point. The entries stay
outside: a log's end and its term history are all that the rules need.

Invariants (`check_invariants`): term, generation, commit and horizon never go back; one vote per
term; the log is never cut below the commit, which never passes its end; nothing of a lower
generation or term is done. Neon RFC 035, "Safekeeper changes"; Raft §5 for the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace

from stelae.consensus.wal.history import last_common_lsn
from stelae.consensus.wal.messages import (
    AcceptorGreeting,
    BumpTerm,
    Exclude,
    ExcludeReply,
    FetchEntries,
    ProposerElected,
    ProposerGreeting,
    Refusal,
    RefusalReason,
    SwitchConfiguration,
    TimelineStatus,
    ToAcceptor,
    ToProposer,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.consensus.wal.sessions import Session, Sessions
from stelae.core.errors import (
    ConfigurationMismatch,
    CorruptData,
    StaleTerm,
    TabletTombstoned,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import (
    NOBODY,
    AcceptorState,
    LogExtent,
    ProposerId,
    SafekeeperId,
    SwitchReply,
    TermHistory,
    TimelineConfiguration,
    cut_history,
    extended_history,
    joined_history,
    term_at,
)

ControlReply: TypeAlias = SwitchReply | ExcludeReply | TimelineStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to the control call that was made under this number."""

    request: int
    reply: ControlReply


@dataclass(frozen=True, slots=True)
class AcceptorReady:
    """One batch of effects, to be carried out in the order of the fields.

    ``restart_after``: the log is to be emptied, and begins after that LSN. ``cut_after``: what
    comes after that LSN is to be removed. ``entries`` follow, synced before anything is sent.
    Entries up to ``trim_to`` may be removed at leisure. ``alarms`` say what no correct peer does;
    nothing was done about it here. ``excluded``: the timeline is to be deleted here, leaving a
    tombstone of that generation, before the answers go out; the acceptor takes nothing any more.
    """

    state: AcceptorState | None
    restart_after: int | None
    cut_after: int | None
    entries: tuple[Entry, ...]
    excluded: int | None
    messages: tuple[ToProposer, ...]
    answers: tuple[Answer, ...]
    trim_to: int | None
    alarms: tuple[str, ...]

    @property
    def is_durable_already(self) -> bool:
        """Whether there is nothing to write before the answers."""
        removed = (self.restart_after, self.cut_after, self.excluded)
        return self.state is None and not self.entries and removed == (None, None, None)

    @property
    def is_append(self) -> bool:
        """Whether entries are to be written, and nothing else."""
        others = (self.state, self.restart_after, self.cut_after, self.excluded)
        return bool(self.entries) and others == (None, None, None, None)

    def __bool__(self) -> bool:
        said = self.messages or self.answers or self.alarms
        return bool(said) or self.trim_to is not None or not self.is_durable_already


class WalAcceptor:
    """One timeline on one safekeeper; ``state`` and ``log`` are what its disk held at the start."""

    def __init__(
        self,
        *,
        timeline_id: TabletId,
        safekeeper: SafekeeperId,
        state: AcceptorState,
        log: LogExtent,
    ) -> None:
        """Raises CorruptData: the log lacks what the state says is there.

        A log that does not have the entry at the horizon was given up for what follows it, and the
        safekeeper crashed before it was removed: it is removed now.
        """
        self.timeline_id = timeline_id
        self.safekeeper = safekeeper
        self.configuration = state.configuration
        self.term = state.term
        self.voted_for = state.voted_for
        self.commit_lsn = state.commit_lsn
        self.horizon_lsn = state.horizon_lsn
        self.last_lsn = log.last_lsn
        self.history: TermHistory = joined_history(state.term_history, log.base_lsn, log.history)
        self.proposer: ProposerId = NOBODY
        """Who said that it won `term`, as far as was heard since the start."""
        self.is_excluded = False
        self._durable = state
        self._durable_lsn = log.last_lsn
        self._sessions = Sessions()
        self._restart_after: int | None = None
        self._cut_after: int | None = None
        self._entries: list[Entry] = []
        self._messages: list[ToProposer] = []
        self._answers: list[Answer] = []
        self._alarms: list[str] = []
        self._checkpoint = False
        self._trimmed_to = log.base_lsn
        self._excluded: int | None = None
        self._taken: AcceptorReady | None = None
        horizon_lsn = state.horizon_lsn
        horizon_term = term_at(state.term_history, horizon_lsn)
        has_horizon = log.base_lsn <= horizon_lsn <= log.last_lsn
        if not has_horizon or term_at(self.history, horizon_lsn) != horizon_term:
            self._restart_log(horizon_lsn, state.term_history)
        if self.last_lsn < state.commit_lsn or log.base_lsn > horizon_lsn:
            found = f"entries {log.base_lsn + 1} to {log.last_lsn}, of which"
            found += f" {horizon_lsn + 1} to {state.commit_lsn} are committed"
            raise CorruptData(f"timeline {timeline_id}", log.last_lsn, found)

    @property
    def generation(self) -> int:
        return self.configuration.generation

    @property
    def is_member(self) -> bool:
        return any(self.safekeeper in members for members in self.configuration.member_sets)

    @property
    def last(self) -> OpId:
        """The last entry of the log, which may be one that is being made durable."""
        return OpId(self.history[-1].term if self.history else 0, self.last_lsn)

    @property
    def state(self) -> AcceptorState:
        """What is to be kept now. The commit never passes what is durable at this moment."""
        commit_lsn = min(self.commit_lsn, self._durable_lsn)
        return AcceptorState(
            configuration=self.configuration,
            term=self.term,
            voted_for=self.voted_for,
            term_history=self.history,
            commit_lsn=commit_lsn,
            horizon_lsn=min(self.horizon_lsn, commit_lsn),
        )

    # ---- effects ---------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Have the commit kept with the next batch; it is no harm if a crash forgets some of it."""
        self._checkpoint = self.commit_lsn > self._durable.commit_lsn

    def take_ready(self) -> AcceptorReady:
        """Everything to be done now; a false value if there is nothing. `advance` must follow."""
        assert self._taken is None, "take_ready twice"
        trim_to = self._durable.horizon_lsn
        ready = AcceptorReady(
            state=self.state if self._has_changed else None,
            restart_after=self._restart_after,
            cut_after=self._cut_after,
            entries=tuple(self._entries),
            excluded=self._excluded,
            messages=tuple(self._messages),
            answers=tuple(self._answers),
            trim_to=trim_to if trim_to > self._trimmed_to else None,
            alarms=tuple(self._alarms),
        )
        taken: Sequence[list[Any]] = (self._entries, self._messages, self._answers, self._alarms)
        for effects in taken:
            effects.clear()
        self._restart_after = self._cut_after = self._excluded = None
        self._checkpoint = False
        self._trimmed_to = max(self._trimmed_to, trim_to)
        if ready:
            self._taken = ready
        return ready

    def advance(self, ready: AcceptorReady) -> None:
        """All of ``ready`` was done."""
        assert ready is self._taken, "advance of another AcceptorReady"
        self._taken = None
        if ready.state is not None:
            self._durable = ready.state
        self._durable_lsn = self.last_lsn

    @property
    def _has_changed(self) -> bool:
        durable = self._durable
        return (
            self._checkpoint
            or self.term != durable.term
            or self.voted_for != durable.voted_for
            or self.configuration != durable.configuration
            or min(self.horizon_lsn, self.commit_lsn, self._durable_lsn) > durable.horizon_lsn
        )

    # ---- calls of the controller -----------------------------------------------------------

    def switch(self, request: int, call: SwitchConfiguration) -> None:
        """Adopt a higher configuration, and the term with it; tell where the log stands then.

        Raises TabletTombstoned; ConfigurationMismatch: that generation has other members here.
        """
        self._require_live()
        self._require_same(call.configuration)
        self._adopt(call.configuration)
        if call.configuration.generation == self.generation:
            self._raise_term(call.min_term)
        self._answers.append(Answer(request, self._position()))

    def bump_term(self, request: int, call: BumpTerm) -> None:
        """Raise the term. Raises TabletTombstoned; StaleTerm: of a lower generation."""
        self._require_live()
        if call.generation < self.generation:
            raise StaleTerm(f"timeline {self.timeline_id}", call.generation, self.generation)
        self._raise_term(call.term)
        self._answers.append(Answer(request, self._position()))

    def exclude(self, request: int, call: Exclude) -> None:
        """Give the timeline up, if this is no member and knows of nothing newer.

        Raises TabletTombstoned; ConfigurationMismatch.
        """
        self._require_live()
        self._require_same(call.configuration)
        newer = call.configuration.generation >= self.generation
        excluded = newer and self.safekeeper not in call.configuration.members
        if excluded:
            self.is_excluded = True
            self._excluded = call.configuration.generation
        self._answers.append(Answer(request, ExcludeReply(excluded, self.configuration)))

    def status(self, request: int) -> None:
        """Tell what is here. Raises TabletTombstoned."""
        self._require_live()
        reply = TimelineStatus(
            configuration=self.configuration,
            term=self.term,
            voted_for=self.voted_for,
            history=self.history,
            flush_lsn=self.last_lsn,
            commit_lsn=self.commit_lsn,
            horizon_lsn=self.horizon_lsn,
            proposer=self.proposer,
        )
        self._answers.append(Answer(request, reply))

    def fetchable(self, call: FetchEntries) -> tuple[int, int] | None:
        """The first and last entry that may be served now; None: nothing of what was asked for.

        Only what is durable; above the commit only for the current term, in which it cannot be
        cut but by its own proposer, who is asking.
        """
        last_lsn = min(call.last_lsn, self.commit_lsn, self._durable_lsn)
        if call.term == self.term and call.generation == self.generation:
            last_lsn = min(call.last_lsn, self._durable_lsn, self.last_lsn)
        if self.is_excluded or not self.horizon_lsn < call.first_lsn <= last_lsn:
            return None
        return call.first_lsn, last_lsn

    def _require_live(self) -> None:
        assert self._taken is None, "a call between take_ready and advance"
        if self.is_excluded:
            raise TabletTombstoned(self.timeline_id, str(self.safekeeper))

    def _require_same(self, configuration: TimelineConfiguration) -> None:
        """Of one generation there is one configuration."""
        ours = self.configuration
        if configuration.generation == ours.generation and configuration != ours:
            self._alarms.append(f"two configurations of one generation: {configuration}, {ours}")
            raise ConfigurationMismatch(
                f"timeline {self.timeline_id}", str(configuration), str(ours)
            )

    def _position(self) -> SwitchReply:
        return SwitchReply(self.configuration, self.term, self.last.term, self.last_lsn)

    # ---- messages --------------------------------------------------------------------------

    def receive(self, message: ToAcceptor) -> None:
        """Take one message of a proposer, and those of its session that waited for it."""
        assert self._taken is None, "receive between take_ready and advance"
        assert message.timeline_id == self.timeline_id
        assert message.safekeeper == self.safekeeper
        if self.is_excluded:
            return
        if isinstance(message, ProposerGreeting):
            if self._sessions.open(message):
                self._on_greeting(message)
            return
        session = self._sessions.find(message)
        if session is None:
            self._refuse(message, RefusalReason.SESSION)
        elif session.number == message.session:
            for following in session.arrivals(message):
                self._take(session, following)

    def _on_greeting(self, greeting: ProposerGreeting) -> None:
        if greeting.configuration is not None:
            try:
                self._require_same(greeting.configuration)
            except ConfigurationMismatch:
                self._refuse(greeting, RefusalReason.DIVERGED)
                return
            self._adopt(greeting.configuration)
        self._messages.append(AcceptorGreeting(*self._header(greeting), self.configuration))

    def _take(self, session: Session, message: ToAcceptor) -> None:
        """Apply the rules in this order: generation, membership, then those of the kind."""
        if message.generation != self.generation:
            self._refuse(message, RefusalReason.GENERATION)
        elif not self.is_member:
            self._refuse(message, RefusalReason.NOT_MEMBER)
        elif isinstance(message, WalVoteRequest):
            self._on_vote_request(message)
        elif message.term < self.term:
            self._refuse(message, RefusalReason.TERM)
        elif isinstance(message, ProposerElected):
            self._on_elected(session, message)
        elif isinstance(message, WalAppendRequest):
            self._on_append(session, message)

    def _on_vote_request(self, request: WalVoteRequest) -> None:
        """A term is only voted in by who heard of it through that request: it may have been won."""
        again = request.term == self.term and request.proposer == self.voted_for
        if not again and request.term <= self.term:
            self._refuse(request, RefusalReason.TERM)
            return
        self._raise_term(request.term)
        self.voted_for = request.proposer
        self._messages.append(
            WalVoteResponse(
                *self._header(request),
                self.history,
                self.last_lsn,
                self.commit_lsn,
                self.horizon_lsn,
            )
        )

    def _on_elected(self, session: Session, elected: ProposerElected) -> None:
        """Cut the log where it leaves that of the proposer; it is for us to find out where."""
        if elected.term == self.term and self.proposer not in (NOBODY, elected.proposer):
            self._divergence(elected, f"{self.proposer} won that term too")
            return
        common_lsn = last_common_lsn(elected.history, None, self.history, self.last_lsn)
        if common_lsn is None or common_lsn < self.commit_lsn:
            self._divergence(elected, f"{self.history} is committed up to {self.commit_lsn}")
            return
        self._raise_term(elected.term)
        self.proposer = elected.proposer
        session.elected_term = elected.term
        if common_lsn < elected.horizon_lsn:
            self._restart_log(elected.horizon_lsn, elected.history)
        elif common_lsn < self.last_lsn:
            self._cut(common_lsn)
        self._acknowledge(elected, 0)

    def _on_append(self, session: Session, request: WalAppendRequest) -> None:
        if session.elected_term != request.term or request.previous != self.last:
            self._sessions.end(request.proposer)
            self._refuse(request, RefusalReason.SESSION)
            return
        self.history = extended_history(self.history, request.entries)
        self._entries.extend(request.entries)
        self.last_lsn += len(request.entries)
        self.commit_lsn = max(self.commit_lsn, min(request.commit_lsn, self.last_lsn))
        self.horizon_lsn = max(self.horizon_lsn, min(request.horizon_lsn, self.commit_lsn))
        self._acknowledge(request, request.round)

    def _acknowledge(self, message: ToAcceptor, round_number: int) -> None:
        extent = (self.last_lsn, self.commit_lsn, self.horizon_lsn)
        self._messages.append(WalAppendResponse(*self._header(message), *extent, round_number))

    def _divergence(self, elected: ProposerElected, why: str) -> None:
        who = f"{elected.proposer}, elected in term {elected.term} with {elected.history}"
        self._alarms.append(f"timeline {self.timeline_id} on {self.safekeeper}: {who}, but {why}")
        self._sessions.end(elected.proposer)
        self._refuse(elected, RefusalReason.DIVERGED)

    def _refuse(self, message: ToAcceptor, reason: RefusalReason) -> None:
        self._messages.append(Refusal(*self._header(message), reason, self.configuration))

    def _header(
        self, message: ToAcceptor
    ) -> tuple[TabletId, ProposerId, SafekeeperId, int, int, int, int]:
        link = (message.timeline_id, message.proposer, message.safekeeper)
        return (*link, self.term, self.generation, message.session, message.sequence)

    # ---- what changes ----------------------------------------------------------------------

    def _adopt(self, configuration: TimelineConfiguration) -> None:
        if configuration.generation > self.generation:
            self.configuration = configuration

    def _raise_term(self, term: int) -> None:
        if term > self.term:
            self.term, self.voted_for, self.proposer = term, NOBODY, NOBODY

    def _cut(self, last_lsn: int) -> None:
        assert last_lsn >= self.commit_lsn, "cut below the commit"
        self.history = cut_history(self.history, last_lsn)
        self.last_lsn = last_lsn
        self._entries = [entry for entry in self._entries if entry.index <= last_lsn]
        if last_lsn < self._durable_lsn:
            self._durable_lsn = last_lsn
            self._cut_after = last_lsn

    def _restart_log(self, horizon_lsn: int, history: TermHistory) -> None:
        """Go on after the horizon: all before it is committed, and needed no more."""
        self.history = cut_history(history, horizon_lsn)
        self.last_lsn = self._durable_lsn = horizon_lsn
        self.horizon_lsn = self._trimmed_to = horizon_lsn
        self.commit_lsn = max(self.commit_lsn, horizon_lsn)
        self._entries.clear()
        self._cut_after = None
        self._restart_after = horizon_lsn

    def check_invariants(self) -> None:
        """Assert what the module docstring promises; tests call it after each step."""
        durable = self._durable
        assert self.term >= max(durable.term, self.last.term)
        assert self.generation >= durable.configuration.generation
        if self.generation == durable.configuration.generation:
            assert self.configuration == durable.configuration
        if self.term == durable.term and durable.voted_for != NOBODY:
            assert self.voted_for == durable.voted_for, "second vote in one term"
        assert 0 <= self.horizon_lsn <= self.commit_lsn <= self.last_lsn
        assert durable.commit_lsn <= self.commit_lsn
        assert self.history == cut_history(self.history, self.last_lsn)


def copied_state(source: AcceptorState, configuration: TimelineConfiguration) -> AcceptorState:
    """What a safekeeper keeps that copied the timeline from another: that one's term, but no vote.

    The copy is as good as one that only heard of the term: it has voted for nobody.
    """
    higher = max(source.configuration, configuration, key=lambda each: each.generation)
    return replace(source, configuration=higher, voted_for=NOBODY)
