"""Majorities: who has won a vote, and what a majority has reached. Pure arithmetic over voters.

Every decision by count in `stelae.consensus.raft.raft` goes through these functions. Raft §5.2,
§5.3.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from stelae.core.ids import ServerUuid


class VoteResult(enum.Enum):
    """State of an election as far as the answers so far decide it."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voter_count: int) -> int:
    """The least number of voters of which any two groups overlap."""
    assert voter_count > 0, "a group without voters decides nothing"
    return voter_count // 2 + 1


def reached_by_majority(positions: Mapping[ServerUuid, int], voters: Sequence[ServerUuid]) -> int:
    """The highest position that a majority of ``voters`` has reached; a missing voter is at 0."""
    ranked = sorted((positions.get(voter, 0) for voter in voters), reverse=True)
    return ranked[majority(len(voters)) - 1]


def count_votes(votes: Mapping[ServerUuid, bool], voters: Sequence[ServerUuid]) -> VoteResult:
    """Decide an election from the answers so far; answers of others than voters do not count."""
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return VoteResult.WON
    if len(voters) - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING
