"""What a proposer that has won a term does about its log, decided from the best vote.

Invariant: whatever may be committed is in the log that it goes on with. Its own log counts like any
voter's: one that is no shorter than the longest of a majority has all that majorities acknowledged
(Raft §5.4.1); so a proposer that is elected again, in a new configuration or term, keeps what it
has proposed. If a voter's is longer, that one is taken over from where the two part.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stelae.consensus.wal.history import last_common_lsn
from stelae.consensus.wal.log import ProposerLog
from stelae.consensus.wal.messages import WalVoteResponse
from stelae.core.records.timelines import LogPosition, term_at


class TakeOverKind(enum.Enum):
    KEEP = "keep"
    """Our log is the longest."""
    FETCH = "fetch"
    """Cut ours after ``common_lsn``, and fetch what follows from the voter."""
    TRIMMED = "trimmed"
    """The voter has trimmed away what follows."""
    DIVERGED = "diverged"
    """The voter lacks, or has otherwise, what was committed; ``why`` says how."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    kind: TakeOverKind
    common_lsn: int = 0
    why: str = ""


def take_over(log: ProposerLog, vote: WalVoteResponse) -> TakeOver:
    """How to go on, by the vote that names the longest log. Learns the history up to our base."""
    if log.history is None:
        log.found(vote.history)
    history = log.history
    assert history is not None
    common_lsn = last_common_lsn(vote.history, vote.flush_lsn, history, log.last.index)
    has_base = vote.flush_lsn >= log.base.index
    if common_lsn is None or not has_base or term_at(vote.history, log.base.index) != log.base.term:
        why = f"{vote.history} to {vote.flush_lsn}, but here is {history} to {log.last}"
        return TakeOver(TakeOverKind.DIVERGED, why=why)
    if LogPosition(log.last.term, log.last.index) >= vote.position:
        return TakeOver(TakeOverKind.KEEP)
    if common_lsn < log.commit_lsn:
        why = f"{vote.history} leaves ours after {common_lsn}, and {log.commit_lsn} is committed"
        return TakeOver(TakeOverKind.DIVERGED, why=why)
    if vote.horizon_lsn > common_lsn:
        return TakeOver(TakeOverKind.TRIMMED)
    return TakeOver(TakeOverKind.FETCH, common_lsn)
