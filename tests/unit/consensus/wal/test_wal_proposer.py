"""The rules of a proposer, one by one, against safekeepers that answer as told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from stelae.consensus.wal.messages import (
    AcceptorGreeting,
    FetchedEntries,
    ProposerElected,
    ProposerGreeting,
    Refusal,
    RefusalReason,
    ToAcceptor,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import (
    EndReason,
    Phase,
    ProposerReady,
    ProposerSettings,
    WalReadReady,
)
from stelae.core.errors import InvalidArgument, NotLeader, Overloaded, TabletNotReady
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    ProposerId,
    SafekeeperId,
    TermStart,
    TimelineConfiguration,
)

TIMELINE = TabletId("timeline")
S1, S2, S3, S4, S5 = (SafekeeperId(n) for n in range(1, 6))
FIRST = TimelineConfiguration(1, (S1, S2, S3))
JOINT = TimelineConfiguration(2, (S1, S2, S3), (S3, S4, S5))


class Bench:
    """A proposer, and the last message that each safekeeper got."""

    def __init__(
        self,
        configuration: TimelineConfiguration = FIRST,
        base: OpId | None = None,
        **settings: int,
    ) -> None:
        self.conf = configuration
        self.core = WalProposer(
            timeline_id=TIMELINE,
            proposer=ProposerId("p"),
            dial=configuration.members,
            base=base or OpId(0, 0),
            settings=ProposerSettings(**settings),
        )
        self.last: dict[SafekeeperId, ToAcceptor] = {}
        self.committed: list[Entry] = []

    def phase(self) -> Phase:
        return self.core.phase

    def ready(self) -> ProposerReady:
        ready = self.core.take_ready()
        self.core.check_invariants()
        for message in ready.messages:
            self.last[message.safekeeper] = message
        self.committed += ready.committed
        return ready

    def answer(self, kind: Any, who: SafekeeperId, *fields: Any, term: int | None = None) -> None:
        """That safekeeper answers the last message it got."""
        last = self.last[who]
        term = last.term if term is None else term
        head = (TIMELINE, ProposerId("p"), who, term, self.conf.generation)
        self.core.receive(kind(*head, last.session, last.sequence, *fields))

    def greet(self, members: Collection[SafekeeperId], term: int = 0) -> None:
        self.ready()
        for who in members:
            self.answer(AcceptorGreeting, who, self.conf, term=term)
        self.ready()

    def vote(self, members: Collection[SafekeeperId], *terms: int, commit: int = 0) -> None:
        history = tuple(TermStart(t, terms.index(t) + 1) for t in sorted(set(terms)))
        for who in members:
            self.answer(WalVoteResponse, who, history, len(terms), commit, 0)
        self.ready()

    def ack(self, members: Collection[SafekeeperId], flush_lsn: int, round: int = 0) -> None:
        for who in members:
            self.answer(WalAppendResponse, who, flush_lsn, 0, 0, round)
        self.ready()

    def lead(self, members: Collection[SafekeeperId], term: int = 0) -> None:
        """Elected with empty logs, its first entry under way to these."""
        self.greet(members, term)
        self.vote(members)
        self.ack(members, 0)


def test_it_campaigns_in_the_highest_configuration_once_majorities_greeted() -> None:
    """Majorities of each of its sets; the term is above all it heard of."""
    bench = Bench()
    bench.ready()
    bench.answer(AcceptorGreeting, S1, FIRST, term=4)
    bench.conf = JOINT
    bench.answer(AcceptorGreeting, S2, JOINT, term=7)
    bench.ready()
    assert bench.phase() is Phase.GREETING
    assert set(bench.core.links) == set(JOINT.members)
    bench.answer(AcceptorGreeting, S4, JOINT, term=0)
    assert bench.phase() is Phase.GREETING
    bench.answer(AcceptorGreeting, S5, JOINT, term=0)
    assert bench.phase() is Phase.VOTING
    assert (bench.core.term, bench.core.configuration) == (8, JOINT)
    bench.ready()
    renewed = bench.last[S1]
    assert isinstance(renewed, ProposerGreeting)  # it knew of generation 1 only
    assert renewed.configuration == JOINT
    assert isinstance(bench.last[S2], WalVoteRequest)


@pytest.mark.parametrize(
    ("voters", "is_elected"),
    [([S1, S2], False), ([S4, S5, S1], False), ([S1, S2, S4, S5], True), ([S1, S3, S4], True)],
)
def test_a_joint_configuration_needs_both_majorities(
    voters: list[SafekeeperId], is_elected: bool
) -> None:
    """To be elected, and to commit."""
    bench = Bench(JOINT)
    bench.greet(JOINT.members)
    bench.vote(voters)
    assert (bench.phase() is Phase.LEADING) == is_elected
    bench = Bench(JOINT)
    bench.lead(JOINT.members)
    bench.ack(voters, 1)
    assert bool(bench.committed) == is_elected


def test_entries_of_earlier_terms_are_committed_with_its_own_only() -> None:
    """A majority may hold them, and they may still be lost, until its first entry is held too."""
    bench = Bench()
    bench.greet(FIRST.members, term=1)
    bench.vote([S1, S2], 1, 1)
    fetch_number = bench.core._recovery_fetch
    assert fetch_number is not None
    entries = tuple(Entry(1, lsn, EntryKind.COMMAND, b"x") for lsn in (1, 2))
    bench.core.fetched(fetch_number, FetchedEntries(entries, 2, FIRST, 0))
    bench.ready()
    assert bench.phase() is Phase.LEADING
    bench.ack([S1, S2, S3], 2)
    assert bench.committed == []
    bench.ack([S1, S2], 3)
    assert [entry.op_id for entry in bench.committed] == [OpId(1, 1), OpId(1, 2), OpId(2, 3)]


def test_the_tail_is_fetched_from_the_longest_log_by_last_term_first() -> None:
    """And what comes is checked against what was voted with."""
    bench = Bench()
    bench.greet(FIRST.members)
    bench.vote([S1], 1, 1, 1, 1)
    bench.answer(WalVoteResponse, S2, (TermStart(1, 1), TermStart(3, 2)), 2, 0, 0, term=1)
    ready = bench.ready()
    (fetch,) = ready.fetches
    assert fetch.recovers
    assert (fetch.source, fetch.first_lsn, fetch.last_lsn) == (S2, 1, 2)
    wrong = (Entry(1, 1, EntryKind.COMMAND, b"x"), Entry(1, 2, EntryKind.COMMAND, b"x"))
    bench.core.fetched(fetch.number, FetchedEntries(wrong, 1, FIRST, 0))
    ready = bench.ready()
    assert ready.alarms
    assert bench.phase() is Phase.GREETING


def test_it_ends_where_safekeepers_trimmed_more_than_its_owner_has() -> None:
    """The owner has to come with a newer base."""
    bench = Bench()
    bench.greet(FIRST.members)
    for who in (S1, S2):
        bench.answer(WalVoteResponse, who, (TermStart(1, 1),), 9, 6, 5)
    bench.ready()
    assert (bench.phase(), bench.core.end) == (Phase.ENDED, EndReason.TRIMMED)
    newer = Bench(base=OpId(1, 5))
    newer.greet(FIRST.members)
    for who in (S1, S2):
        newer.answer(WalVoteResponse, who, (TermStart(1, 1),), 9, 6, 5)
    (fetch,) = newer.ready().fetches
    assert (fetch.first_lsn, fetch.last_lsn) == (6, 9)


def test_a_log_without_the_base_is_a_broken_promise() -> None:
    """What backups hold was committed: a majority that lacks it is told loudly."""
    bench = Bench(base=OpId(2, 5))
    bench.greet(FIRST.members)
    for who in (S1, S2):
        bench.answer(WalVoteResponse, who, (TermStart(1, 1),), 9, 0, 0)
    assert bench.ready().alarms
    assert bench.core.end is EndReason.DIVERGED


def test_a_higher_term_deposes_it_and_its_reads_fail() -> None:
    """It may be told to campaign again, above that term; what it proposed is kept."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.ack([S1, S2], 1)
    bench.core.propose(EntryKind.COMMAND, b"mine")
    bench.core.read(7)
    bench.ready()
    bench.answer(Refusal, S3, RefusalReason.TERM, FIRST, term=6)
    ready = bench.ready()
    assert ready.failed_reads == (7,)
    assert bench.core.end is EndReason.DEPOSED
    with pytest.raises(NotLeader):
        bench.core.propose(EntryKind.COMMAND, b"x")
    bench.core.campaign()
    bench.greet(FIRST.members, term=6)
    assert bench.core.term == 7
    bench.vote([S2, S3], 1)
    assert bench.phase() is Phase.LEADING
    assert [bench.core.log.term_at(lsn) for lsn in (1, 2, 3)] == [1, 1, 7]


def test_a_higher_configuration_makes_it_campaign_anew() -> None:
    """Of its own accord, with what it proposed, and in that configuration only."""
    bench = Bench()
    bench.lead(FIRST.members)
    op_id = bench.core.propose(EntryKind.COMMAND, b"kept")
    bench.ready()
    bench.conf = JOINT
    bench.answer(Refusal, S2, RefusalReason.GENERATION, JOINT)
    assert bench.phase() is Phase.GREETING
    with pytest.raises(TabletNotReady):
        bench.core.propose(EntryKind.COMMAND, b"x")
    bench.greet(JOINT.members, term=1)
    assert (bench.core.term, bench.core.configuration) == (2, JOINT)
    bench.vote(JOINT.members)
    assert bench.phase() is Phase.LEADING
    assert bench.core.log.op_id_at(2) == op_id
    assert bench.ready().rewound_to is None


def test_another_proposers_longer_log_takes_the_place_of_what_it_proposed() -> None:
    """The owner is told how far to go back."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.ack([S1, S2], 1)
    bench.core.propose(EntryKind.COMMAND, b"lost")
    bench.ready()
    bench.core.campaign()
    bench.greet(FIRST.members, term=4)
    for who in (S2, S3):
        bench.answer(WalVoteResponse, who, (TermStart(1, 1), TermStart(4, 2)), 2, 0, 0)
    ready = bench.ready()
    assert ready.rewound_to == 1
    extents = [(fetch.first_lsn, fetch.last_lsn, fetch.recovers) for fetch in ready.fetches]
    assert extents == [(2, 2, True)]


def test_a_read_waits_for_a_round_that_majorities_answered_after_it() -> None:
    """Answers to earlier rounds prove nothing; before its first commit there is no read at all."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.core.read(1)
    bench.ready()
    bench.ack([S1, S2], 1)
    assert isinstance(bench.last[S1], WalAppendRequest)
    bench.answer(WalAppendResponse, S1, 1, 0, 0, 0)
    bench.answer(WalAppendResponse, S2, 1, 0, 0, 0)
    assert bench.ready().reads == ()
    bench.answer(WalAppendResponse, S1, 1, 0, 0, 1)
    assert bench.ready().reads == ()
    bench.answer(WalAppendResponse, S3, 1, 0, 0, 1)
    assert bench.ready().reads == (WalReadReady(1, 1),)


def test_a_slow_safekeeper_stalls_nobody_and_holds_no_memory() -> None:
    """Its window is bounded in bytes; what it lacks is fetched from another one later."""
    bench = Bench(inflight_bytes_max=10, retained_bytes_max=0, batch_bytes_max=10)
    bench.lead(FIRST.members)
    for lsn in range(2, 30):
        bench.core.propose(EntryKind.COMMAND, b"x" * 10)
        bench.ready()
        bench.ack([S1, S2], lsn)
        bench.ready()
    assert len(bench.committed) == 29
    assert bench.core.log.size_bytes <= 10
    slow = bench.last[S3]
    assert isinstance(slow, WalAppendRequest)
    assert slow.entries[-1].index == 2
    bench.answer(WalAppendResponse, S3, 2, 0, 0, 0)
    (fetch,) = bench.ready().fetches
    assert (fetch.source, fetch.first_lsn, fetch.recovers) == (S1, 3, False)
    found = (Entry(1, 3, EntryKind.COMMAND, b"x" * 10),)
    bench.core.fetched(fetch.number, FetchedEntries(found, 1, FIRST, 0))
    bench.ready()
    sent = bench.last[S3]
    assert isinstance(sent, WalAppendRequest)
    assert sent.entries == found


def test_writes_beyond_what_may_wait_are_refused() -> None:
    """Surely not appended, to be tried again later."""
    bench = Bench(uncommitted_bytes_max=10)
    bench.lead(FIRST.members)
    bench.core.propose(EntryKind.COMMAND, b"x" * 100)
    with pytest.raises(Overloaded):
        bench.core.propose(EntryKind.COMMAND, b"x")


def test_an_unanswered_session_is_given_up_and_begun_again() -> None:
    """What comes from the old one is void."""
    bench = Bench(silence_ticks=4)
    bench.lead([S1, S2])
    bench.ready()
    before = bench.last[S1]
    for _ in range(4):
        bench.core.tick()
    bench.ready()
    greeting = bench.last[S1]
    assert isinstance(greeting, ProposerGreeting)
    assert greeting.session > before.session
    head = (TIMELINE, ProposerId("p"), S1, 1, 1, before.session, before.sequence)
    bench.core.receive(WalAppendResponse(*head, 1, 0, 0, 0))
    assert bench.core.status().links[S1].flush_lsn == 0
    bench.answer(AcceptorGreeting, S1, FIRST, term=1)
    bench.ready()
    assert isinstance(bench.last[S1], ProposerElected)


def test_who_only_waits_for_others_is_greeted_again() -> None:
    """Their configuration may be out of date by now: a safekeeper of the next one tells."""
    bench = Bench(TimelineConfiguration(2, (S1, S2), (S2,)), silence_ticks=4)
    bench.greet([S2])
    assert bench.phase() is Phase.GREETING  # S1 has deleted the timeline
    for _ in range(4):
        bench.core.tick()
    bench.conf = TimelineConfiguration(3, (S2,))
    bench.greet([S2])
    assert bench.phase() is Phase.VOTING
    bench.vote([S2])
    assert bench.phase() is Phase.LEADING


def test_a_leader_is_told_by_the_masters_that_its_members_are_gone() -> None:
    """Nobody of the old configuration is left to say so; an older one changes nothing."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.core.learn(FIRST)
    assert bench.phase() is Phase.LEADING
    bench.core.learn(TimelineConfiguration(5, (S4,)))
    assert bench.phase() is Phase.GREETING
    assert S4 in bench.core.links


def test_the_horizon_never_passes_the_commit_and_is_learned_from_safekeepers() -> None:
    """So a new proposer does not ask for what an older one had trimmed."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.core.trim(9)
    assert bench.core.horizon_lsn == 0
    bench.ack([S1, S2], 1)
    bench.core.trim(9)
    assert bench.core.horizon_lsn == 1
    assert bench.core.needed_from == 1
    bench.ack([S3], 1)
    assert bench.core.needed_from == 2


def test_answers_of_another_term_count_for_nothing() -> None:
    """Votes that were given to an earlier campaign, and what a log had become by then."""
    bench = Bench()
    bench.greet(FIRST.members, term=3)
    for who in FIRST.members:
        bench.answer(WalVoteResponse, who, (), 0, 0, 0, term=3)
    bench.ready()
    assert bench.phase() is Phase.VOTING
    bench.vote(FIRST.members)
    bench.ack(FIRST.members, 0)
    for who in FIRST.members:
        bench.answer(WalAppendResponse, who, 1, 0, 0, 0, term=3)
    bench.ready()
    assert bench.committed == []
    bench.ack([S1, S2], 1)
    assert [entry.op_id for entry in bench.committed] == [OpId(4, 1)]


def test_what_was_never_sent_cannot_be_acknowledged() -> None:
    """It is told loudly, and the safekeeper counts as little as before."""
    bench = Bench()
    bench.lead(FIRST.members)
    for who in (S1, S2):
        bench.answer(WalAppendResponse, who, 9, 0, 0, 0)
    assert len(bench.ready().alarms) == 2
    assert bench.committed == []
    bench.ack([S1, S2], 1)
    assert len(bench.committed) == 1


def test_it_ends_where_its_donor_trimmed_meanwhile() -> None:
    """Between the vote and the answer to the fetch."""
    bench = Bench()
    bench.greet(FIRST.members)
    bench.vote([S1, S2], 1, 1, 1)
    (fetch,) = [number for number in [bench.core._recovery_fetch] if number is not None]
    bench.core.fetched(fetch, FetchedEntries((), 1, FIRST, 2))
    bench.ready()
    assert (bench.phase(), bench.core.end) == (Phase.ENDED, EndReason.TRIMMED)


@pytest.mark.parametrize(
    ("voters_start", "flush_lsn"),
    [pytest.param(1, 3, id="it ends before the base"), pytest.param(6, 9, id="another term")],
)
def test_a_majority_without_the_base_is_told_loudly(voters_start: int, flush_lsn: int) -> None:
    """What backups hold was committed, so every majority has it, or a promise was broken."""
    bench = Bench(base=OpId(1, 5))
    bench.greet(FIRST.members)
    for who in (S1, S2):
        bench.answer(WalVoteResponse, who, (TermStart(1, voters_start),), flush_lsn, 0, 0)
    assert bench.ready().alarms
    assert bench.core.end is EndReason.DIVERGED


def test_a_majority_without_what_was_committed_is_told_loudly() -> None:
    """A longer log does not take the place of what this proposer has acknowledged."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.ack([S1, S2], 1)
    assert len(bench.committed) == 1
    bench.core.campaign()
    bench.greet(FIRST.members, term=4)
    for who in (S2, S3):
        bench.answer(WalVoteResponse, who, (TermStart(4, 1),), 2, 0, 0)
    assert bench.ready().alarms
    assert bench.core.end is EndReason.DIVERGED


def test_entries_for_one_that_lags_are_checked_before_they_are_passed_on() -> None:
    """Those of another term, or at other places, are not of this log."""
    bench = Bench(inflight_bytes_max=10, retained_bytes_max=0, batch_bytes_max=10)
    fetch = lag_behind(bench, [S1, S2], S3).fetches[0]
    sent = bench.last[S3]
    wrong = (Entry(2, 3, EntryKind.COMMAND, b"y" * 10),)
    bench.core.fetched(fetch.number, FetchedEntries(wrong, 1, FIRST, 0))
    bench.ready()
    assert bench.last[S3] == sent


def test_entries_for_one_that_lags_are_asked_only_of_who_has_them() -> None:
    """Others that lag do not; the masters are told, as nobody may have them any more."""
    five = TimelineConfiguration(1, (S1, S2, S3, S4, S5))
    bench = Bench(five, inflight_bytes_max=10, retained_bytes_max=0, batch_bytes_max=10)
    ready = lag_behind(bench, [S1, S2, S3], S4, silent=[S1, S2, S3])
    assert ready.fetches == ()
    assert ready.lagging == (S4,)


def lag_behind(
    bench: Bench,
    quick: Collection[SafekeeperId],
    slow: SafekeeperId,
    silent: Collection[SafekeeperId] = (),
) -> ProposerReady:
    """That one needs entries which are not held here any more; ``silent`` begin anew by then."""
    bench.lead(bench.conf.members)
    for lsn in range(2, 30):
        bench.core.propose(EntryKind.COMMAND, b"x" * 10)
        bench.ready()
        bench.ack(quick, lsn)
        bench.ready()
    for who in silent:
        bench.core.links[who].reset()
    bench.answer(WalAppendResponse, slow, 2, 0, 0, 0)
    return bench.ready()


def test_reads_beyond_what_may_wait_are_refused() -> None:
    """Before the first commit, and while a round is awaited."""
    bench = Bench(pending_reads_max=2)
    bench.lead(FIRST.members)
    bench.core.read(1)
    bench.ack([S1, S2], 1)
    bench.core.read(2)
    with pytest.raises(Overloaded, match="pending reads"):
        bench.core.read(3)


def test_settings_that_cannot_work_are_refused() -> None:
    """Before anything begins."""
    with pytest.raises(InvalidArgument):
        ProposerSettings(silence_ticks=1)
    with pytest.raises(InvalidArgument):
        ProposerSettings(batch_bytes_max=0)


def test_a_closed_proposer_does_nothing_more() -> None:
    """Its owner has ended it."""
    bench = Bench()
    bench.lead(FIRST.members)
    bench.core.close()
    bench.answer(WalAppendResponse, S1, 1, 0, 0, 0)
    bench.core.tick()
    assert not bench.core.take_ready()
    assert bench.core.end is EndReason.CLOSED
