"""A tombstone votes exactly as the replica would have that it was, and forgets nothing."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.consensus.raft.messages import (
    AppendRequest,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Role, Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.consensus.raft.tombstone import answer
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Entry,
    EntryKind,
    Snapshot,
    TermAndVote,
    first_configuration,
)

GROUP = TabletId("group")
NAMES = [ServerUuid(f"n{number}") for number in range(1, 6)]
ME = NAMES[0]
SETTINGS = RaftSettings()

terms = st.integers(1, 5)
op_ids = st.builds(OpId, terms, st.integers(1, 5))


@st.composite
def requests(draw: st.DrawFn) -> VoteRequest:
    return VoteRequest(
        GROUP,
        draw(st.sampled_from(NAMES[1:])),
        ME,
        draw(st.integers(1, 7)),
        draw(op_ids),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def live_voter(kept: TermAndVote, last: OpId, *, quiet: bool) -> Raft:
    """A replica that restarts with such a log; ``quiet`` for an election timeout already."""
    entries = [Entry(last.term, index, EntryKind.COMMAND, b"") for index in range(1, last.index)]
    core = Raft(
        group_id=GROUP,
        uuid=ME,
        configuration=first_configuration({name: Address(f"{name}:1") for name in NAMES}),
        term_and_vote=kept,
        snapshot=None,
        entries=[*entries, Entry(last.term, last.index, EntryKind.COMMAND, b"")],
        settings=SETTINGS,
        rng=random.Random(0),
    )
    if quiet:
        core._election.quiet_ticks = SETTINGS.election_ticks
    return core


@settings(max_examples=300, deadline=None)
@given(
    last=op_ids,
    above=st.integers(0, 2),
    voted_for=st.sampled_from([None, *NAMES]),
    quiet=st.booleans(),
    asked=st.lists(requests(), min_size=1, max_size=6),
)
def test_its_answers_are_those_of_a_live_replica_with_that_log(
    last: OpId,
    above: int,
    voted_for: ServerUuid | None,
    quiet: bool,
    asked: list[VoteRequest],
) -> None:
    """Term, vote and answer are the same after every request, quiet or not."""
    kept = TermAndVote(last.term + above, voted_for)
    core = live_voter(kept, last, quiet=quiet)
    for request in asked:
        core.step(request)
        ready = core.take_ready()
        (expected,) = ready.messages
        core.advance(ready)
        given_answer = answer(request, kept, last, quiet=quiet)
        kept = given_answer.kept
        assert given_answer.message == expected
        assert kept == TermAndVote(core.term, core.voted_for)


def vote(request: VoteRequest, kept: TermAndVote, last: OpId | None) -> tuple[bool, TermAndVote]:
    given_answer = answer(request, kept, last, quiet=True)
    assert isinstance(given_answer.message, VoteResponse)
    return given_answer.message.granted, given_answer.kept


def test_one_vote_in_a_term_and_none_for_an_older_log() -> None:
    """What was acknowledged here is in every log that is elected with this vote."""
    kept, last = TermAndVote(3, None), OpId(3, 7)
    n2 = VoteRequest(GROUP, NAMES[1], ME, 4, OpId(3, 7), False, False)
    n3 = VoteRequest(GROUP, NAMES[2], ME, 4, OpId(3, 9), False, False)
    short = VoteRequest(GROUP, NAMES[3], ME, 5, OpId(3, 6), False, False)
    granted, kept = vote(n2, kept, last)
    assert granted
    assert kept == TermAndVote(4, NAMES[1])
    assert vote(n3, kept, last) == (False, kept)
    assert vote(n2, kept, last) == (True, kept)
    assert vote(short, kept, last) == (False, TermAndVote(5, None))


def test_there_is_no_vote_without_knowledge_of_the_log_that_was_here() -> None:
    """A copy of a tablet that never was here cannot say what it would lose."""
    request = VoteRequest(GROUP, NAMES[1], ME, 9, OpId(8, 100), False, False)
    assert vote(request, TermAndVote(1, None), None) == (False, TermAndVote(9, None))


def test_a_leader_of_an_older_term_learns_the_term_and_others_that_there_is_no_data() -> None:
    """So a deposed leader steps down, and a leader has the state copied."""
    kept = TermAndVote(3, NAMES[2])
    for term, told in ((2, True), (3, False), (4, False)):
        message: Message = AppendRequest(GROUP, NAMES[1], ME, term, OpId(1, 1), (), 0, 1)
        given_answer = answer(message, kept, OpId(2, 5), quiet=True)
        assert given_answer.kept == kept
        assert (given_answer.message is not None) == told
        if given_answer.message is not None:
            assert given_answer.message.term == 3
            assert given_answer.message.destination == NAMES[1]
    assert answer(TimeoutNow(GROUP, NAMES[1], ME, 3), kept, None, quiet=True).message is None


def role_of(core: Raft) -> Role:
    return core.role


def test_a_copy_that_ends_before_the_log_that_was_here_elects_nobody_with_less() -> None:
    """Neither another nor itself, until the log has come as far again."""
    first = first_configuration({name: Address(f"{name}:1") for name in NAMES})
    core = Raft(
        group_id=GROUP,
        uuid=ME,
        configuration=first,
        term_and_vote=TermAndVote(3, None),
        snapshot=Snapshot(OpId(2, 4), first, b""),
        entries=[],
        settings=SETTINGS,
        rng=random.Random(0),
        vote_floor=OpId(2, 7),
    )
    for tick in range(4 * SETTINGS.election_ticks):
        core.step(Tick(tick))
    assert role_of(core) is Role.FOLLOWER
    for term, last, granted in ((4, OpId(2, 6), False), (5, OpId(2, 7), True)):
        core.step(VoteRequest(GROUP, NAMES[1], ME, term, last, False, False))
        ready = core.take_ready()
        assert [m.granted for m in ready.messages if isinstance(m, VoteResponse)] == [granted]
        core.advance(ready)
    entries = tuple(Entry(5, index, EntryKind.NO_OP, b"") for index in (5, 6, 7))
    core.step(AppendRequest(GROUP, NAMES[1], ME, 5, OpId(2, 4), entries, 4, 1))
    ready = core.take_ready()
    core.advance(ready)
    assert core.end_of_log == OpId(5, 7)
    for tick in range(100, 100 + 4 * SETTINGS.election_ticks):
        core.step(Tick(tick))
    assert role_of(core) is Role.PRE_CANDIDATE


def test_ticks_do_not_make_a_replica_forget_that_it_is_quiet() -> None:
    """The comparison above rests on it: a restarted voter is loyal for an election timeout."""
    core = live_voter(TermAndVote(1, None), OpId(1, 1), quiet=False)
    for tick in range(SETTINGS.election_ticks - 1):
        core.step(Tick(tick))
        core.step(VoteRequest(GROUP, NAMES[1], ME, 9, OpId(8, 9), True, False))
        ready = core.take_ready()
        assert [m.granted for m in ready.messages if isinstance(m, VoteResponse)] == [False]
        core.advance(ready)
