"""Majority arithmetic against deliberately dumb twins."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stelae.consensus.raft.quorum import VoteResult, count_votes, majority, reached_by_majority
from stelae.core.ids import ServerUuid

NAMES = [ServerUuid(name) for name in "abcdefg"]
VOTERS = st.integers(1, 7).map(lambda count: NAMES[:count])


@given(voters=VOTERS)
def test_any_two_majorities_overlap_and_none_smaller_does(voters: list[ServerUuid]) -> None:
    """The least size of groups that must share a member."""
    size = majority(len(voters))
    groups = [set(group) for group in itertools.combinations(voters, size)]
    assert all(a & b for a in groups for b in groups)
    smaller = [set(group) for group in itertools.combinations(voters, size - 1)]
    assert any(not a & b for a in smaller for b in smaller)


@given(voters=VOTERS, positions=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9)))
def test_the_position_reached_is_the_highest_that_enough_voters_have(
    voters: list[ServerUuid], positions: dict[ServerUuid, int]
) -> None:
    """Counting down from the top gives the same; non-voters never count."""
    needed = majority(len(voters))
    expected = next(
        position
        for position in range(9, -1, -1)
        if sum(positions.get(voter, 0) >= position for voter in voters) >= needed
    )
    assert reached_by_majority(positions, voters) == expected


@given(voters=VOTERS, votes=st.dictionaries(st.sampled_from(NAMES), st.booleans()))
def test_an_election_is_decided_exactly_when_no_further_vote_can_change_it(
    voters: list[ServerUuid], votes: dict[ServerUuid, bool]
) -> None:
    """Trying all ways in which the missing voters may answer gives the same verdict."""
    missing = [voter for voter in voters if voter not in votes]
    outcomes = set()
    for answers in itertools.product([True, False], repeat=len(missing)):
        final = {**votes, **dict(zip(missing, answers, strict=True))}
        granted = sum(final[voter] for voter in voters)
        outcomes.add(granted >= majority(len(voters)))
    result = count_votes(votes, voters)
    if len(outcomes) == 2:
        assert result is VoteResult.PENDING
    else:
        assert result is (VoteResult.WON if outcomes == {True} else VoteResult.LOST)
