"""What a leader sends to one that does not answer, and what it thinks of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.messages import AppendRequest, AppendResponse, VoteRequest, VoteResponse
from stelae.consensus.raft.progress import Progress, ProgressState
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Tick, Unreachable
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.errors import TabletNotReady
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Entry, EntryKind, TermAndVote, first_configuration

GROUP = TabletId("group")
UUIDS = tuple(ServerUuid(f"n{number}") for number in range(1, 5))
N1, N2, N3, N4 = UUIDS


class Leading:
    """N1 leads term 2 after five entries of 100 bytes; the others are played."""

    def __init__(self, members: Sequence[ServerUuid] = UUIDS[:3], **settings: Any) -> None:
        self.now_us = 0
        self.told: list[int] = []
        self.failed: list[int] = []
        self.core = Raft(
            group_id=GROUP,
            uuid=N1,
            configuration=first_configuration({u: Address(f"{u}:1") for u in members}),
            term_and_vote=TermAndVote(1, None),
            snapshot=None,
            entries=[Entry(1, index, EntryKind.COMMAND, b"x" * 100) for index in range(1, 6)],
            settings=RaftSettings(**settings),
            rng=random.Random(0),
        )
        asked: list[VoteRequest] = []
        while not asked:
            asked = [m for m in self.turn(1).messages if isinstance(m, VoteRequest)]
        self.first = Ready(None, None, (), (), (), (), ())
        for pre in (True, False):
            for voter in members[1:3]:
                self.core.step(VoteResponse(GROUP, voter, N1, 2, pre, True))
            self.first = self.turn()
        assert self.core.leader is not None

    def turn(self, ticks: int = 0, sending: tuple[ServerUuid, ...] = ()) -> Ready:
        """All that is ready is done; the first of it."""
        for _ in range(ticks):
            self.now_us += 1000
            self.core.step(Tick(self.now_us, sending))
        first = ready = self.core.take_ready()
        while ready:
            self.told += [read.request for read in ready.reads]
            self.failed += ready.failed_reads
            self.core.advance(ready)
            ready = self.core.take_ready()
        self.core.check_invariants()
        return first

    def beat(self, sending: tuple[ServerUuid, ...] = ()) -> Ready:
        return self.turn(2, sending)

    def answer(self, uuid: ServerUuid, index: int, *, accepted: bool = True) -> Ready:
        """Of the newest round; a refusal is of what follows ``index``, of which it has nothing."""
        assert self.core.leader is not None
        number = self.core.leader._round
        hint = OpId(2, index) if accepted else OpId(1, 0)
        self.core.step(AppendResponse(GROUP, uuid, N1, 2, accepted, index, hint, number))
        return self.turn()


def to(uuid: ServerUuid, ready: Ready) -> list[tuple[int, list[int]]]:
    """(index of the entry before, indexes sent) of each request to one follower."""
    found = [m for m in ready.messages if isinstance(m, AppendRequest) and m.destination == uuid]
    return [(m.previous.index, [entry.index for entry in m.entries]) for m in found]


def test_a_silent_follower_is_sent_its_entries_once() -> None:
    """Heartbeats after an unanswered probe say where it began, and carry nothing; its first sign of
    life brings the entries again."""
    group = Leading()
    assert to(N2, group.first) == [(5, [6])]
    for _ in range(3):
        assert to(N2, group.beat()) == [(5, [])]
        group.answer(N3, 6)
    assert to(N2, group.answer(N2, 5)) == [(5, [6])]


def test_who_was_never_heard_by_this_leader_does_not_count_as_answering() -> None:
    """N2 and N3 elected it and answer, N4 never did: without N3 two of three would be left, of
    which one is silent, and without N2 too. A leader before may have heard it; this one has not."""
    group = Leading(UUIDS)
    group.answer(N2, 6)
    assert group.core.leader is not None
    peers = group.core.leader.peers()
    assert [peers[uuid].is_heard for uuid in (N2, N3, N4)] == [True, False, False]
    group.answer(N3, 6)
    group.core.propose(b"y")
    group.turn()
    group.answer(N2, 7)
    group.answer(N3, 7)
    assert not group.core.leader.progress[N4].is_heard
    group.core.change_members(MemberChange(ChangeKind.REMOVE, N3))
    group.turn()
    group.answer(N2, 8)
    with pytest.raises(TabletNotReady, match="only 1 answer"):
        group.core.change_members(MemberChange(ChangeKind.REMOVE, N2))


def test_before_a_voter_leaves_the_others_must_answer_anew() -> None:
    """N2 and N3 answered a moment ago. What counts before N3 leaves is an answer of N2 to what is
    sent from now on; before N2 leaves, one of N3."""
    group = Leading()
    for uuid in (N2, N3):
        group.answer(uuid, 6)
    group.core.read(7, leaving=N3)
    group.core.read(8, leaving=N2)
    group.turn()
    assert group.told == []
    group.answer(N2, 6)
    assert group.told == [7]
    group.answer(N3, 6)
    assert group.told == [7, 8]


def test_who_waits_for_answers_is_told_when_the_leader_leads_no_more() -> None:
    """A leader that nobody answers steps down, and says so."""
    group = Leading()
    group.core.read(7, leaving=N3)
    for _ in range(5):
        group.beat()
    assert group.core.leader is None
    assert group.failed == [7]


def test_a_leader_that_nobody_answers_leads_no_longer_than_an_election_timeout() -> None:
    """The votes that made it leader are no answers to it."""
    group = Leading()
    for _ in range(5):
        group.beat()
    assert group.core.leader is None


def large() -> Leading:
    """Entries from 50 bytes on count as large; N2 streams, and has all but what comes now."""
    group = Leading(large_bytes=50)
    for uuid in (N2, N3):
        group.answer(uuid, 6)
    return group


def propose(group: Leading, size_bytes: int) -> Ready:
    group.core.propose(b"z" * size_bytes)
    return group.turn()


def test_a_heartbeat_that_overtakes_a_large_entry_does_not_ask_for_it() -> None:
    """While it is on its way they speak of what is matched; then of all that was sent."""
    group = large()
    assert to(N2, propose(group, 60)) == [(6, [7])]
    assert to(N2, group.beat(sending=(N2,))) == [(6, [])]
    assert to(N2, group.answer(N2, 6)) == []
    assert to(N2, group.beat()) == [(7, [])]


def test_what_overtakes_a_large_entry_is_sent_again_once_that_has_arrived() -> None:
    """A small entry was refused as the large one before it was missing: only the small one goes
    again, and at once."""
    group = large()
    propose(group, 60)
    propose(group, 10)
    assert to(N2, group.answer(N2, 7, accepted=False)) == []
    assert to(N2, group.answer(N2, 7)) == [(7, [8])]


def test_a_large_entry_that_was_lost_is_sent_again_once_it_is_on_its_way_no_more() -> None:
    """Whether its call failed, or nobody knows what became of it."""
    group = large()
    propose(group, 60)
    group.beat(sending=(N2,))
    group.core.step(Unreachable(N2))
    assert to(N2, group.turn()) == []
    assert to(N2, group.beat()) == [(6, [])]
    assert to(N2, group.answer(N2, 6)) == [(6, [7])]
    assert to(N2, group.beat()) == [(7, [])]
    group.core.step(AppendResponse(GROUP, N2, N1, 2, False, 7, OpId(2, 6), 1))
    assert to(N2, group.turn()) == [(6, [7])]


def state_of(progress: Progress) -> ProgressState:
    return progress.state


def test_a_probe_with_a_large_entry_is_trusted_to_arrive() -> None:
    """A heartbeat that is answered meanwhile makes the follower one that streams."""
    group = Leading(large_bytes=50)
    group.answer(N3, 6)
    progress = group.core.leader.progress[N2] if group.core.leader is not None else None
    assert progress is not None
    group.answer(N2, 5, accepted=False)  # it has nothing: all is sent, in one batch
    assert state_of(progress) is ProgressState.PROBE
    group.beat(sending=(N2,))
    assert to(N2, group.answer(N2, 0)) == []
    assert state_of(progress) is ProgressState.REPLICATE
    assert progress.next_index == 7


def test_what_is_on_its_way_is_bounded_by_bytes() -> None:
    """One entry may be larger than the bound; the next ones wait for its answer."""
    group = Leading(inflight_bytes_max=150)
    for uuid in (N2, N3):
        group.answer(uuid, 6)
    assert to(N2, propose(group, 100)) == [(6, [7])]
    assert to(N2, propose(group, 1000)) == [(7, [8])]
    assert to(N2, propose(group, 10)) == []
    assert to(N2, group.answer(N2, 8)) == [(8, [9])]


def test_a_follower_that_writes_answers_for_what_is_durable_and_promises_anew() -> None:
    """Between `take_ready` and `advance`: to the leader that it follows, and to nobody else."""
    core = Raft(
        group_id=GROUP,
        uuid=N2,
        configuration=first_configuration({u: Address(f"{u}:1") for u in UUIDS[:3]}),
        term_and_vote=TermAndVote(2, N1),
        snapshot=None,
        entries=(Entry(1, 1, EntryKind.NO_OP, b""),),
        settings=RaftSettings(),
        rng=random.Random(0),
    )
    entry = Entry(2, 2, EntryKind.COMMAND, b"")
    core.step(AppendRequest(GROUP, N1, N2, 2, OpId(1, 1), (entry,), 2, 1))
    for now_us in range(5):
        core.step(Tick(now_us))
    ready = core.take_ready()
    beat = AppendRequest(GROUP, N1, N2, 2, OpId(2, 2), (), 2, 9)
    answer = core.answer_while_busy(beat)
    assert answer is not None
    assert (answer.accepted, answer.index, answer.round) == (True, 1, 9)
    assert core._election.quiet_ticks == 0
    assert core.answer_while_busy(AppendRequest(GROUP, N3, N2, 2, OpId(2, 2), (), 2, 9)) is None
    assert core.answer_while_busy(AppendRequest(GROUP, N1, N2, 3, OpId(2, 2), (), 2, 9)) is None
    core.advance(ready)
    answer = core.answer_while_busy(beat)
    assert answer is not None
    assert answer.index == 2
