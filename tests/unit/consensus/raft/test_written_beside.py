"""A leader that goes on while its entries are written: what counts, and from when on."""

from __future__ import annotations

import random

import pytest

from stelae.consensus.raft.messages import AppendRequest, AppendResponse, VoteRequest, VoteResponse
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Entry, EntryKind, TermAndVote, first_configuration

GROUP = TabletId("group")
N1, N2, N3 = (ServerUuid(f"n{number}") for number in range(1, 4))
FIRST = first_configuration({uuid: Address(f"{uuid}:1") for uuid in (N1, N2, N3)})


class Leading:
    """A leader of term 1, whose first entry is being written."""

    def __init__(self) -> None:
        self.core = Raft(
            group_id=GROUP,
            uuid=N1,
            configuration=FIRST,
            term_and_vote=TermAndVote(0, None),
            snapshot=None,
            entries=(),
            settings=RaftSettings(),
            rng=random.Random(0),
        )
        asked: list[VoteRequest] = []
        now_us = 0
        while not asked:
            now_us += 1000
            self.core.step(Tick(now_us))
            ready = self.core.take_ready()
            asked = [m for m in ready.messages if isinstance(m, VoteRequest)]
            if ready:
                self.core.advance(ready)
        for pre in (True, False):
            self.core.step(VoteResponse(GROUP, N2, N1, 1, pre, True))
            if pre:
                self.core.advance(self.core.take_ready())
        assert self.core.leader is not None
        self.first = self.hand_out()

    def hand_out(self) -> Ready:
        """Take what is ready; its entries are being written from now on."""
        ready = self.core.take_ready()
        self.core.advance(ready, is_written=False)
        self.core.check_invariants()
        return ready

    def accept(self, uuid: ServerUuid, index: int) -> None:
        """That follower has all up to there."""
        self.core.step(AppendResponse(GROUP, uuid, N1, 1, True, index, OpId(1, index), 0))


def test_entries_go_to_the_others_before_they_are_durable_here() -> None:
    """The no-op is sent with the first Ready, and handed out once only."""
    group = Leading()
    sent = [m for m in group.first.messages if isinstance(m, AppendRequest)]
    assert [[entry.index for entry in m.entries] for m in sent] == [[1], [1]]
    assert [entry.index for entry in group.first.entries] == [1]
    assert group.core.take_ready().entries == ()


def test_what_is_being_written_here_does_not_count() -> None:
    """One follower is no majority; with this server's own word it is."""
    group = Leading()
    group.accept(N2, 1)
    assert group.core.log.commit_index == 0
    group.core.written(OpId(1, 1))
    assert group.core.log.commit_index == 1


def test_a_majority_of_the_others_commits_without_this_disk() -> None:
    """And what is committed so may be applied here."""
    group = Leading()
    group.accept(N2, 1)
    group.accept(N3, 1)
    assert group.core.log.commit_index == 1
    assert group.core.log.stable_index == 0
    assert [entry.index for entry in group.core.take_ready().committed] == [1]


def test_who_leads_no_more_writes_again_what_was_being_written_before_it_answers() -> None:
    """A follower that answers vouches for its disk: the same entry from a new leader is not there
    yet."""
    group = Leading()
    entry = Entry(1, 1, EntryKind.NO_OP, b"")
    group.core.step(AppendRequest(GROUP, N2, N1, 2, OpId(0, 0), (entry,), 0, 1))
    ready = group.core.take_ready()
    assert ready.entries == (entry,)
    assert [m for m in ready.messages if isinstance(m, AppendResponse) and m.accepted]
    with pytest.raises(AssertionError):
        group.core.advance(ready, is_written=False)


def test_the_end_of_a_write_says_nothing_of_entries_that_were_cut_off_meanwhile() -> None:
    """Another leader's entry at that index is not durable because the one before it was written."""
    group = Leading()
    other = Entry(2, 1, EntryKind.NO_OP, b"")
    group.core.step(AppendRequest(GROUP, N2, N1, 2, OpId(0, 0), (other,), 0, 1))
    group.core.written(OpId(1, 1))
    assert group.core.log.stable_index == 0
    assert group.core.take_ready().entries == (other,)
