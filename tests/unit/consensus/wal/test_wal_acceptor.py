"""The rules of a safekeeper, one by one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stelae.consensus.wal.acceptor import copied_state
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
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.consensus.wal.sessions import PROPOSERS_MAX, WAITING_BYTES_MAX, WAITING_MAX
from stelae.core.errors import (
    ConfigurationMismatch,
    CorruptData,
    StaleTerm,
    TabletTombstoned,
)
from stelae.core.ids import OpId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    NOBODY,
    ProposerId,
    SwitchReply,
    TermStart,
    TimelineConfiguration,
)
from tests.unit.consensus.wal.acceptor_host import (
    FIRST,
    FOURTH,
    ME,
    OTHER,
    THIRD,
    TIMELINE,
    Host,
    P,
    Q,
    entries_of,
)


def test_a_higher_configuration_is_adopted_and_durable_before_the_answer() -> None:
    """By greeting and by call; a lower one is ignored, and the answer carries ours."""
    host = Host()
    second = TimelineConfiguration(2, FIRST.sk_set, (ME, FOURTH))
    answer = host.greet(second)
    assert isinstance(answer, AcceptorGreeting)
    assert answer.configuration == second
    assert host.state.configuration == second
    host.core.switch(5, SwitchConfiguration(TIMELINE, FIRST))
    (reply,) = host.flush().answers
    assert reply.request == 5
    assert reply.reply == SwitchReply(second, 0, 0, 0)
    third = TimelineConfiguration(3, (OTHER,))
    host.core.switch(6, SwitchConfiguration(TIMELINE, third))
    ready = host.core.take_ready()
    assert ready.state is not None
    assert ready.state.configuration == third
    assert [answer.reply for answer in ready.answers] == [SwitchReply(third, 0, 0, 0)]


def test_the_reply_to_a_switch_tells_the_last_log_term_and_not_the_term() -> None:
    """And counts entries that become durable in the same batch."""
    host = Host(1, 1, term=7)
    host.elect(7, (1, 1), (7, 3))
    host.core.receive(
        host.make(WalAppendRequest, OpId(1, 2), entries_of(7, first=3), 0, 0, 0, term=7)
    )
    joint = TimelineConfiguration(2, FIRST.sk_set, (FOURTH,))
    host.core.switch(1, SwitchConfiguration(TIMELINE, joint, min_term=9))
    ready = host.flush()
    assert len(ready.entries) == 1
    assert ready.answers[0].reply == SwitchReply(joint, 9, 7, 3)
    assert host.state.term == 9
    assert host.state.voted_for == NOBODY


def test_the_term_of_a_switch_counts_only_with_its_configuration() -> None:
    """A call that comes late, for a lower generation, raises nothing."""
    host = Host()
    host.greet(TimelineConfiguration(3, (ME,)))
    host.core.switch(1, SwitchConfiguration(TIMELINE, FIRST, min_term=9))
    assert host.flush().answers[0].reply.term == 0  # type: ignore[union-attr]


def test_of_one_generation_there_is_one_configuration() -> None:
    """Another one under the same number is refused, loudly, and changes nothing."""
    host = Host()
    other = TimelineConfiguration(1, (ME,))
    with pytest.raises(ConfigurationMismatch):
        host.core.switch(1, SwitchConfiguration(TIMELINE, other))
    assert host.flush().alarms
    host.core.receive(host.make(ProposerGreeting, other, generation=1))
    ready = host.flush()
    assert ready.alarms
    assert isinstance(ready.messages[0], Refusal)
    assert host.core.configuration == FIRST


@pytest.mark.parametrize("generation", [1, 3])
def test_another_generation_is_refused_and_changes_nothing(generation: int) -> None:
    """Votes, cuts and entries; the refusal carries the current configuration."""
    second = TimelineConfiguration(2, (ME, OTHER))
    for kind, fields in [
        (WalVoteRequest, ()),
        (ProposerElected, ((TermStart(8, 1),), 0)),
        (WalAppendRequest, (OpId(1, 2), entries_of(1, first=3), 0, 0, 0)),
    ]:
        host = Host(1, 1)
        host.greet(second)
        before = host.state
        answer = host.say(kind, *fields, term=8, generation=generation)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.GENERATION
        assert answer.configuration == second
        assert (host.state, len(host.log)) == (before, 2)


def test_who_is_no_member_refuses() -> None:
    """A safekeeper outside both sets neither votes nor takes entries."""
    host = Host()
    host.greet(TimelineConfiguration(2, (OTHER,), (THIRD,)))
    answer = host.say(WalVoteRequest, term=1)
    assert answer.reason is RefusalReason.NOT_MEMBER
    assert host.state.term == 0


def test_a_vote_is_given_once_in_a_term_and_survives_a_restart() -> None:
    """Again only to the same proposer; a term that was only heard of is never voted in."""
    host = Host(1, 1)
    host.greet()
    vote = host.say(WalVoteRequest, term=2)
    assert isinstance(vote, WalVoteResponse)
    assert (vote.history, vote.flush_lsn) == ((TermStart(1, 1),), 2)
    host.start()
    host.greet(proposer=Q)
    refusal = host.say(WalVoteRequest, term=2, proposer=Q)
    assert refusal.reason is RefusalReason.TERM
    host.greet(session=2)
    assert isinstance(host.say(WalVoteRequest, term=2, session=2), WalVoteResponse)
    host.core.bump_term(1, BumpTerm(TIMELINE, 1, 5))
    host.flush()
    assert host.say(WalVoteRequest, term=5, session=2).reason is RefusalReason.TERM
    assert isinstance(host.say(WalVoteRequest, term=6, session=2), WalVoteResponse)


def test_what_a_vote_tells_is_durable_before_it() -> None:
    """Entries that came right before the request are written in the same batch."""
    host = Host(1)
    host.elect(1, (1, 1))
    host.core.receive(host.make(WalAppendRequest, OpId(1, 1), entries_of(1, first=2), 0, 0, 0))
    host.core.receive(host.make(WalVoteRequest, term=2))
    ready = host.core.take_ready()
    vote = ready.messages[-1]
    assert isinstance(vote, WalVoteResponse)
    assert vote.flush_lsn == 2
    assert [entry.index for entry in ready.entries] == [2]
    assert ready.state is not None
    assert ready.state.voted_for == P


def test_the_log_is_cut_where_it_parts_from_the_proposers() -> None:
    """The safekeeper finds out itself; its answer says where to go on."""
    host = Host(1, 1, 2, 2, 2)
    answer = host.elect(4, (1, 1), (3, 3), (4, 5))
    assert isinstance(answer, WalAppendResponse)
    assert answer.flush_lsn == 2
    assert [entry.op_id for entry in host.log] == [OpId(1, 1), OpId(1, 2)]
    assert host.state.term == 4


def test_a_cut_below_the_commit_is_refused_loudly() -> None:
    """Nothing is changed, whoever asks."""
    host = Host(1, 1, 1, commit_lsn=2)
    host.greet()
    host.core.receive(host.make(ProposerElected, (TermStart(1, 1), TermStart(5, 2)), 0, term=5))
    ready = host.flush()
    assert ready.alarms
    assert isinstance(ready.messages[0], Refusal)
    assert ready.messages[0].reason is RefusalReason.DIVERGED
    assert (len(host.log), host.state.term) == (3, 1)


def test_two_winners_of_one_term_are_noticed() -> None:
    """The second one is refused, loudly."""
    host = Host()
    host.elect(2, (2, 1))
    host.greet(proposer=Q)
    host.core.receive(host.make(ProposerElected, (TermStart(2, 1),), 0, term=2, proposer=Q))
    assert host.flush().alarms


def test_entries_are_taken_only_from_who_said_it_was_elected() -> None:
    """Without `ProposerElected` in that session, or after another entry, nothing is appended."""
    host = Host(1)
    host.greet()
    assert host.append(OpId(1, 1), *entries_of(1, first=2), term=1).reason is RefusalReason.SESSION
    host.elect(1, (1, 1), session=2)
    gap = host.append(OpId(1, 2), *entries_of(1, first=3), term=1, session=2)
    assert gap.reason is RefusalReason.SESSION
    assert len(host.log) == 1
    after = host.append(OpId(1, 1), *entries_of(1, first=2), term=1, session=2)
    assert after.reason is RefusalReason.SESSION  # that session is over


def test_a_lower_term_is_refused_once_a_higher_one_is_known() -> None:
    """The deposed proposer learns it from the refusal."""
    host = Host(1)
    host.elect(1, (1, 1))
    host.core.bump_term(1, BumpTerm(TIMELINE, 1, 3))
    host.flush()
    refusal = host.append(OpId(1, 1), *entries_of(1, first=2), term=1)
    assert (refusal.reason, refusal.term) == (RefusalReason.TERM, 3)
    assert len(host.log) == 1


def test_the_commit_follows_what_is_here_and_never_goes_back() -> None:
    """And it is kept only up to what was durable when it was written down."""
    host = Host()
    host.elect(1, (1, 1))
    answer = host.append(OpId(0, 0), *entries_of(1, 1), term=1, commit=9)
    assert answer.commit_lsn == 2
    assert host.append(OpId(1, 2), term=1, commit=1).commit_lsn == 2
    assert host.state.commit_lsn == 0
    host.core.checkpoint()
    host.flush()
    assert host.state.commit_lsn == 2


def test_a_commit_is_not_kept_before_its_entries() -> None:
    """A state record goes first, and must not promise what a crash may take away."""
    host = Host()
    host.elect(1, (1, 1))
    host.core.receive(host.make(WalAppendRequest, OpId(0, 0), entries_of(1, 1), 2, 0, 0))
    host.core.checkpoint()
    ready = host.core.take_ready()
    assert ready.state is not None
    assert ready.state.commit_lsn == 0


def test_the_horizon_is_durable_before_anything_is_trimmed() -> None:
    """It never passes the commit; who wrote what was trimmed stays known."""
    host = Host(1, 2, 2)
    host.elect(2, (1, 1), (2, 2))
    host.core.receive(host.make(WalAppendRequest, OpId(2, 3), (), 2, 3, 0, term=2))
    ready = host.flush()
    assert ready.trim_to is None
    assert host.state.horizon_lsn == 2
    assert host.flush().trim_to == 2
    host.base_lsn, host.log = 2, host.log[2:]
    host.start()
    assert host.core.history == (TermStart(1, 1), TermStart(2, 2))


def test_a_log_that_parts_below_the_horizon_goes_on_after_it() -> None:
    """Nobody needs what comes before; also if the safekeeper crashes half-way."""
    host = Host(1, 2, 2)
    host.greet()
    history = (TermStart(1, 1), TermStart(3, 2), TermStart(4, 9))
    host.core.receive(host.make(ProposerElected, history, 6, term=4))
    ready = host.core.take_ready()
    assert ready.restart_after == 6
    assert ready.state is not None
    answer = ready.messages[0]
    assert isinstance(answer, WalAppendResponse)
    assert answer.flush_lsn == 6
    host.state = ready.state  # and nothing else of it
    host.start()
    assert host.core.last == OpId(3, 6)
    assert host.flush().restart_after == 6
    host.start()
    assert host.core.take_ready().restart_after is None
    assert host.core.last == OpId(3, 6)


def test_a_log_without_what_is_committed_does_not_start() -> None:
    """It is corrupt, and must not vote."""
    with pytest.raises(CorruptData):
        Host(1, commit_lsn=2)


def test_messages_of_a_session_are_taken_once_and_in_order() -> None:
    """Doubled and reordered ones change nothing; those of an older session are dead."""
    host = Host()
    host.elect(1, (1, 1))
    first = host.make(WalAppendRequest, OpId(0, 0), entries_of(1), 0, 0, 1)
    second = host.make(WalAppendRequest, OpId(1, 1), entries_of(1, first=2), 0, 0, 2)
    host.core.receive(second)
    assert not host.core.take_ready()
    for message in (first, second, first):
        host.core.receive(message)
    assert [message.sequence for message in host.flush().messages] == [2, 3]
    assert len(host.log) == 2
    host.greet(session=2)
    host.core.receive(host.make(WalAppendRequest, OpId(1, 2), entries_of(1, first=3), 0, 0, 3))
    host.core.receive(host.make(ProposerGreeting, None))
    assert not host.core.take_ready()


def test_what_waits_is_bounded() -> None:
    """Neither a session that never fills its gap nor many proposers use memory without end."""
    host = Host()
    host.elect(1, (1, 1))
    append = host.make(WalAppendRequest, OpId(0, 0), (), 0, 0, 0)
    for sequence in range(3, 3 * WAITING_MAX):
        host.core.receive(replace(append, sequence=sequence))
    session = host.core._sessions.find(append)
    assert session is not None
    assert len(session.waiting) == WAITING_MAX
    for number in range(PROPOSERS_MAX):
        host.greet(proposer=ProposerId(f"other {number}"))
    refusal = host.say(WalVoteRequest, term=2)
    assert refusal.reason is RefusalReason.SESSION


def test_what_waits_is_bounded_in_bytes_and_counted_once() -> None:
    """Large messages that are early are dropped, to be sent again; what is over takes no room."""
    host = Host()
    host.elect(1, (1, 1))
    large = (Entry(1, 2, EntryKind.COMMAND, bytes(WAITING_BYTES_MAX // 4)),)
    append = host.make(WalAppendRequest, OpId(1, 1), large, 0, 0, 0)
    for sequence in (1, *range(4, 14), 4, 1):
        host.core.receive(replace(append, sequence=sequence))
    session = host.core._sessions.find(append)
    assert session is not None
    assert list(session.waiting) == [4, 5, 6, 7]
    assert session.waiting_bytes == WAITING_BYTES_MAX


def test_bump_term_is_refused_for_a_lower_generation() -> None:
    """A late call cannot disturb the leader of a newer configuration."""
    host = Host()
    host.greet(TimelineConfiguration(2, (ME,)))
    with pytest.raises(StaleTerm):
        host.core.bump_term(1, BumpTerm(TIMELINE, 1, 5))
    host.core.bump_term(1, BumpTerm(TIMELINE, 2, 5))
    assert host.flush().answers[0].reply == SwitchReply(host.core.configuration, 5, 0, 0)


def test_exclusion_needs_a_configuration_without_us_that_is_not_older() -> None:
    """Then nothing is taken any more; else all stays."""
    host = Host(1)
    for configuration in (FIRST, TimelineConfiguration(2, (OTHER,), (ME,))):
        host.core.exclude(1, Exclude(TIMELINE, configuration))
        assert host.flush().answers[0].reply == ExcludeReply(False, FIRST)
    third = TimelineConfiguration(3, (ME,))
    host.greet(third)
    host.core.exclude(2, Exclude(TIMELINE, TimelineConfiguration(2, (OTHER,))))
    assert host.flush().answers[0].reply == ExcludeReply(False, third)
    host.core.exclude(3, Exclude(TIMELINE, TimelineConfiguration(4, (OTHER,))))
    assert host.flush().excluded == 4
    host.core.receive(host.make(ProposerGreeting, None, session=9))
    assert not host.core.take_ready()
    with pytest.raises(TabletTombstoned):
        host.core.switch(1, SwitchConfiguration(TIMELINE, third))


def test_entries_above_the_commit_are_served_for_the_current_term_only() -> None:
    """What is committed is for everybody; what is trimmed for nobody."""
    host = Host(1, 1, 1, 1, commit_lsn=3, horizon_lsn=1, term_history=(TermStart(1, 1),))

    def fetchable(term: int, first: int, generation: int = 1) -> tuple[int, int] | None:
        return host.core.fetchable(FetchEntries(TIMELINE, term, generation, first, 9, 100))

    assert fetchable(1, 2) == (2, 4)
    assert fetchable(0, 2) == (2, 3)
    assert fetchable(1, 2, generation=2) == (2, 3)
    assert fetchable(0, 4) is None
    assert fetchable(1, 1) is None
    host.elect(1, (1, 1))
    host.core.receive(host.make(WalAppendRequest, OpId(1, 4), entries_of(1, first=5), 0, 0, 0))
    assert fetchable(1, 2) == (2, 4)  # the fifth is not durable yet


def test_status_and_copies() -> None:
    """A status is taken at one point; a copy has the term of its source, and no vote."""
    host = Host(1, 1)
    host.greet()
    host.say(WalVoteRequest, term=3)
    host.core.status(4)
    status = host.flush().answers[0].reply
    assert isinstance(status, TimelineStatus)
    assert (status.term, status.voted_for, status.flush_lsn) == (3, P, 2)
    assert status.position.last_log_term == 1
    second = TimelineConfiguration(2, (FOURTH,))
    copy = copied_state(host.state, second)
    assert (copy.configuration, copy.term, copy.voted_for) == (second, 3, NOBODY)
    assert copied_state(copy, FIRST).configuration == second
