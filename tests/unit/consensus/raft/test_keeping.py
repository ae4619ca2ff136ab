"""What a leader keeps for others and whom it promotes, where hosts copy state."""

from __future__ import annotations

import random

import pytest

from stelae.actors.raft.members import MemberCare
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.messages import AppendRequest, AppendResponse, VoteRequest, VoteResponse
from stelae.consensus.raft.progress import ProgressState
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Entry,
    EntryKind,
    Snapshot,
    TermAndVote,
    first_configuration,
)

GROUP = TabletId("group")
N1, N2, N3, N4 = (ServerUuid(f"n{number}") for number in range(1, 5))
FIRST = first_configuration({uuid: Address(f"{uuid}:1") for uuid in (N1, N2, N3)})
ENTRIES = 20
BODY = b"0123456789"


class Group:
    """A leader of 20 entries of 10 bytes in term 1 and a no-op of term 2; the others are played."""

    def __init__(self, **settings: int) -> None:
        self.now_us = 0
        self.core = Raft(
            group_id=GROUP,
            uuid=N1,
            configuration=FIRST,
            term_and_vote=TermAndVote(1, None),
            snapshot=None,
            entries=[Entry(1, i, EntryKind.COMMAND, BODY) for i in range(1, ENTRIES + 1)],
            settings=RaftSettings(copies_by_host=True, **settings),
            rng=random.Random(0),
        )
        asked: list[VoteRequest] = []
        while not asked:
            asked = [m for m in self.turn().messages if isinstance(m, VoteRequest)]
        for pre in (True, False):
            self.core.step(VoteResponse(GROUP, N2, N1, 2, pre, True))
            self.turn(ticks=0)
        assert self.core.leader is not None

    def turn(self, ticks: int = 1) -> Ready:
        """Some ticks, and all that is ready is done; the first of it."""
        for _ in range(ticks):
            self.now_us += 1000
            self.core.step(Tick(self.now_us))
        first = ready = self.core.take_ready()
        while ready:
            self.core.advance(ready)
            ready = self.core.take_ready()
        return first

    def accept(self, uuid: ServerUuid, index: int, round_number: int = 1) -> None:
        hint = OpId(2 if index > ENTRIES else 1, index)
        assert self.core.leader is not None
        progress = self.core.leader.progress[uuid]
        if progress.state is ProgressState.PROBE and index < progress.next_index - 1:
            self.refuse(uuid, progress.next_index - 1, hint, round_number)
        self.core.step(AppendResponse(GROUP, uuid, N1, 2, True, index, hint, round_number))
        self.turn(ticks=0)

    def refuse(self, uuid: ServerUuid, index: int, hint: OpId, round_number: int) -> None:
        self.core.step(AppendResponse(GROUP, uuid, N1, 2, False, index, hint, round_number))
        self.turn(ticks=0)

    def flush(self, index: int, keep_bytes: int) -> None:
        snapshot = Snapshot(OpId(1, index), FIRST, b"")
        self.core.compact(snapshot, index + 1 - self.core.keep_from(index, keep_bytes))


def test_a_leader_keeps_what_members_lack_within_the_limit_in_bytes() -> None:
    """No more than the newest ``keep_bytes``, and nothing that all have."""
    group = Group()
    group.accept(N2, 21)
    group.accept(N3, 5)
    assert group.core.keep_from(18, 1000) == 6
    assert group.core.keep_from(18, 100) == 11
    assert group.core.keep_from(8, 0) == 9  # what is not flushed is kept in any case
    group.accept(N3, 21)
    assert group.core.keep_from(18, 1000) == 19


def test_a_follower_keeps_what_its_leader_says_that_others_need() -> None:
    """So that it can bring them up itself when it leads."""
    core = Group().core
    entry = Entry(3, 22, EntryKind.NO_OP, b"")
    core.step(AppendRequest(GROUP, N2, N1, 3, OpId(2, 21), (entry,), 21, 1, 12))
    core.advance(core.take_ready())
    assert core.keep_from(18, 1000) == 12
    assert core.keep_from(18, 30) == 18


def test_a_member_within_the_limit_is_streamed_to_and_one_beyond_it_needs_a_copy() -> None:
    """Of two that stay behind, the flush leaves only the farther one without its entries."""
    for match, state in ((12, ProgressState.REPLICATE), (5, ProgressState.COPY)):
        group = Group()
        group.accept(N2, 21)
        group.accept(N3, match)
        group.flush(18, 90)
        assert group.core.leader is not None
        progress = group.core.leader.progress[N3]
        progress.unreachable()
        ready = group.turn(ticks=2)
        named = ready.copies == (N3,)
        assert named == (state is ProgressState.COPY)
        assert (progress.state is ProgressState.COPY) == named


def test_a_follower_that_lost_what_it_had_is_believed() -> None:
    """A refusal of what was sent after it had acknowledged more; an older one is a straggler."""
    group = Group()
    group.accept(N2, 21)
    group.accept(N3, 21)
    assert group.core.leader is not None
    progress = group.core.leader.progress[N3]
    group.refuse(N3, 20, OpId(1, 4), round_number=1)
    assert progress.match_index == 21
    group.turn(ticks=2)
    group.refuse(N3, 21, OpId(1, 4), round_number=2)
    assert progress.match_index == 0
    assert progress.next_index == 5


@pytest.mark.parametrize(
    ("settings", "match", "caught_up"),
    [
        ({}, 20, False),
        ({}, 21, True),
        ({"batch_entries_max": 5}, 35, False),
        ({"batch_entries_max": 5}, 36, True),
        ({"batch_bytes_max": 30}, 38, True),
        ({"batch_bytes_max": 30}, 37, False),
    ],
)
def test_one_has_caught_up_who_lacks_at_most_one_batch(
    settings: dict[str, int], match: int, caught_up: bool
) -> None:
    """A batch is limited by entries and by bytes, whichever comes first. And it has to have taken
    something of this leader's term, which begins with entry 21: it may be unable to take any."""
    group = Group(**settings)
    for _ in range(20):
        group.core.propose(BODY)
    group.turn(ticks=0)
    group.accept(N2, 41)
    group.accept(N3, match)
    assert group.core.log.commit_index == 41
    assert group.core.status().peers[N3].has_caught_up == caught_up


def test_a_non_voter_is_not_let_go_while_its_copy_grows() -> None:
    """A large tablet takes longer to copy than a leader waits for a member without progress."""
    group = Group()
    group.accept(N2, 21)
    group.core.change_members(MemberChange(ChangeKind.ADD, N4, Address("n4:1")))
    group.turn(ticks=0)
    group.accept(N2, 22)
    care = MemberCare(abandon_member_us=1000)
    assert care.due(group.core, 0) is None
    for size_bytes in range(1, 5):
        care.copy_advanced(N4, size_bytes)
        assert care.due(group.core, 900 * size_bytes) is None
    change = care.due(group.core, 900 * 4 + 1000)
    assert change == MemberChange(ChangeKind.REMOVE, N4)


def test_a_member_that_is_added_again_has_its_whole_time_again() -> None:
    """With the clock of its former life each one would be removed the moment it is added: the
    masters would add it again, a dozen entries a second, without end."""
    group = Group()
    group.accept(N2, 21)
    care = MemberCare(abandon_member_us=1000)
    now_us, accepted = 0, 21
    for _ in range(3):
        group.core.change_members(MemberChange(ChangeKind.ADD, N4, Address("n4:1")))
        group.turn(ticks=0)
        accepted += 1
        group.accept(N2, accepted)
        assert care.due(group.core, now_us) is None
        assert care.due(group.core, now_us + 999) is None
        now_us += 1000
        removal = care.due(group.core, now_us)
        assert removal == MemberChange(ChangeKind.REMOVE, N4)
        group.core.change_members(removal)
        group.turn(ticks=0)
        accepted += 1
        group.accept(N2, accepted)  # committed, and N4 added again before the next look
