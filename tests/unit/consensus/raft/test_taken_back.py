"""A change of members that cannot be committed is taken back by the leader that began it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stelae.consensus.raft.election import Election, holds_enough
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    VoteRequest,
    VoteResponse,
    check_message,
)
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Role, Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.consensus.raft.tombstone import answer
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Entry, EntryKind, TermAndVote, first_configuration

GROUP = TabletId("group")
N1, N2, N3, N4 = (ServerUuid(f"n{number}") for number in range(1, 5))
CHANGE_TICKS = 25


class Leading:
    """N1 leads term 2, whose no-op is entry 6; the others are played, and answer what they get."""

    def __init__(self, members: Sequence[ServerUuid]) -> None:
        self.now_us = 0
        self.deaf: set[ServerUuid] = set()
        self.slow: set[ServerUuid] = set()
        """They answer heartbeats, and write nothing."""
        self.has: dict[ServerUuid, int] = {}
        self.asked: list[VoteRequest] = []
        self.core = Raft(
            group_id=GROUP,
            uuid=N1,
            configuration=first_configuration({u: Address(f"{u}:1") for u in members}),
            term_and_vote=TermAndVote(1, None),
            snapshot=None,
            entries=[Entry(1, index, EntryKind.COMMAND, b"x") for index in range(1, 6)],
            settings=RaftSettings(change_ticks=CHANGE_TICKS, lease_duration_us=7000),
            rng=random.Random(0),
        )
        while self.core.leader is None or not self.core.leader.settled:
            self.tick()

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_us += 1000
            self.core.step(Tick(self.now_us))
            self.turn()

    def turn(self) -> None:
        """All that is ready is done, and answered."""
        while ready := self.core.take_ready():
            self.core.advance(ready)
            for message in ready.messages:
                if message.destination not in self.deaf:
                    self.answer(message)
            self.core.check_invariants()

    def answer(self, message: Message) -> None:
        who, ends = message.destination, (GROUP, message.destination, N1, message.term)
        if isinstance(message, VoteRequest):
            self.asked.append(message)
            self.core.step(VoteResponse(*ends, message.pre, True))
        if isinstance(message, AppendRequest):
            if message.entries and who not in self.slow:
                self.has[who] = message.entries[-1].index
            index = min(self.has.get(who, 5), message.previous.index + len(message.entries))
            term = self.core.log.term_at(index)
            assert term is not None
            hint = OpId(term, index)
            is_here = index >= message.previous.index
            place = index if is_here else message.previous.index
            self.core.step(AppendResponse(*ends, is_here, place, hint, message.round))

    def reach(self, index: int) -> None:
        """The slow ones have come so far."""
        assert self.core.leader is not None
        for who in sorted(self.slow):
            hint, number = OpId(self.core.term, index), self.core.leader._round
            ends = (GROUP, who, N1, self.core.term)
            self.core.step(AppendResponse(*ends, True, index, hint, number))
            self.turn()

    def change(self, kind: ChangeKind, uuid: ServerUuid) -> OpId:
        op_id = self.core.change_members(MemberChange(kind, uuid, Address(f"{uuid}:1")))
        self.turn()
        return op_id


def grown(members: Sequence[ServerUuid] = (N1, N2, N3)) -> Leading:
    """N4 is about to be promoted, and has everything."""
    group = Leading(members)
    group.change(ChangeKind.ADD, N4)
    group.tick(2)
    return group


def test_a_promotion_whose_majority_is_gone_is_taken_back_within_an_election_timeout() -> None:
    """N2 and N4 are gone: of the three before, two are left, and go on."""
    group = grown()
    group.deaf = {N2, N4}
    promoted = group.change(ChangeKind.PROMOTE, N4)
    assert group.core.log.unfinished_change == promoted
    group.tick(RaftSettings().election_ticks * 2)
    assert group.core.role is Role.LEADER
    assert group.core.term == promoted.term + 1
    assert group.core.changes_taken_back == 1
    assert group.core.configuration.voters == (N1, N2, N3)
    assert group.core.configuration.non_voters[0].uuid == N4
    assert group.core.log.term_at(promoted.index) == group.core.term, "another entry is there"
    assert group.core.log.commit_index >= promoted.index
    assert all(each.taken_back == promoted and each.transfer for each in group.asked[-2:])


def test_a_promotion_that_has_its_majority_is_committed() -> None:
    """One of four may be gone."""
    group = grown()
    group.deaf = {N2}
    group.change(ChangeKind.PROMOTE, N4)
    group.tick(CHANGE_TICKS * 2)
    assert group.core.configuration.voters == (N1, N2, N3, N4)
    assert group.core.changes_taken_back == 0


def test_the_only_voter_goes_on_alone_if_who_becomes_the_second_takes_nothing() -> None:
    """It answers heartbeats, as its disk hangs: it is not promoted again before it writes."""
    group = grown((N1,))
    group.slow = {N4}
    promoted = group.change(ChangeKind.PROMOTE, N4)
    group.core.propose(b"y")
    group.tick(CHANGE_TICKS - 1)
    assert group.core.log.commit_index < promoted.index, "two of two have it, or nobody"
    group.tick(2)
    assert group.core.configuration.voters == (N1,)
    assert group.core.log.commit_index == promoted.index, "the no-op of its new term"
    assert group.core.leader is not None
    group.tick(4)
    assert group.core.leader.progress[N4].is_heard
    assert not group.core.leader.has_caught_up(N4)
    group.slow = set()
    group.core.propose(b"z")
    group.turn()
    group.tick(4)
    assert group.core.leader.has_caught_up(N4)


def test_a_change_that_comes_nearer_has_its_time() -> None:
    """As long as anything is committed: what is before it in the log may take long."""
    group = grown()
    group.slow = {N2, N3}
    for _ in range(3):
        group.core.propose(b"y")
    promoted = group.change(ChangeKind.PROMOTE, N4)
    for index in range(promoted.index - 3, promoted.index + 1):
        assert group.core.log.commit_index == index - 1
        group.tick(CHANGE_TICKS - 4)
        group.has[N2] = group.has[N3] = index
        group.reach(index)
    assert group.core.log.commit_index == promoted.index
    assert group.core.changes_taken_back == 0
    assert group.core.configuration.voters == (N1, N2, N3, N4)


def test_a_removal_that_cannot_be_committed_is_taken_back() -> None:
    """The one that stays is gone, and the one that was to go is there."""
    group = Leading((N1, N2, N3))
    group.tick(4)
    group.deaf = {N2}
    group.change(ChangeKind.REMOVE, N3)
    group.tick(RaftSettings().election_ticks * 2)
    assert group.core.role is Role.LEADER
    assert group.core.configuration.voters == (N1, N2, N3)


def test_another_terms_change_is_not_taken_back() -> None:
    """Its leader may have committed it: only that one can know."""
    group = grown()
    group.deaf = {N2, N3, N4}
    promoted = group.change(ChangeKind.PROMOTE, N4)
    restarted = Raft(
        group_id=GROUP,
        uuid=N1,
        configuration=first_configuration({u: Address(f"{u}:1") for u in (N1, N2, N3)}),
        term_and_vote=TermAndVote(promoted.term, N1),
        snapshot=None,
        entries=group.core.log.slice(1, 100, 1 << 20),
        settings=RaftSettings(),
        rng=random.Random(0),
    )
    for tick in range(60):
        restarted.step(Tick(tick * 1000))
        ready = restarted.take_ready()
        asked = [m for m in ready.messages if isinstance(m, VoteRequest)]
        assert all(m.taken_back is None and m.last == promoted for m in asked)
        if ready:
            restarted.advance(ready)
    assert restarted.configuration.voters == (N1, N2, N3, N4)


@pytest.mark.parametrize(
    ("end", "enough"),
    [
        (OpId(3, 9), True),  # before the change
        (OpId(3, 10), True),  # the change itself, and
        (OpId(3, 14), True),  # what followed it in its term
        (OpId(4, 10), False),  # a later leader's entry: the change may be committed
        (OpId(2, 30), True),  # an older term's is no newer than what the candidate has
    ],
)
def test_what_was_taken_back_is_not_missed_in_a_candidates_log(end: OpId, enough: bool) -> None:
    """By a replica, or by the tombstone of one."""
    request = VoteRequest(GROUP, N1, N2, 4, OpId(3, 9), False, True, OpId(3, 10))
    assert holds_enough(request, end) is enough
    without = VoteRequest(GROUP, N1, N2, 4, OpId(3, 9), False, True)
    assert holds_enough(without, end) is (end <= OpId(3, 9))
    given = answer(request, TermAndVote(3, None), end, quiet=True).message
    assert isinstance(given, VoteResponse)
    assert given.granted is enough


def test_what_came_before_a_change_that_was_taken_back_counts() -> None:
    """It may be committed: a candidate without it gets no vote, whatever it took back later."""
    request = VoteRequest(GROUP, N1, N2, 4, OpId(3, 8), False, True, OpId(3, 10))
    assert not holds_enough(request, OpId(3, 9))
    assert holds_enough(request, OpId(3, 8))


def test_nothing_is_taken_back_any_more_once_there_is_a_leader_again() -> None:
    """What a later leader does with the entry is not for this replica to say."""
    election = Election(RaftSettings(), random.Random(0), is_new=False)

    def state() -> tuple[OpId | None, bool]:
        return election.taken_back, election.is_quiet

    election.taken_back, election.quiet_ticks = OpId(3, 10), 99
    assert state() == (OpId(3, 10), True)
    election.heard()
    assert state() == (None, False)


def test_nobody_takes_back_what_it_is_only_about_to_lead() -> None:
    """A correct candidate asks in a later term than that of which it speaks."""
    request = VoteRequest(GROUP, N1, N2, 4, OpId(3, 9), False, True, OpId(4, 10))
    with pytest.raises(InvalidArgument, match="cannot have led"):
        check_message(request)
