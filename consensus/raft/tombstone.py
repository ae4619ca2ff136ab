"""What is left of a replica whose data is deleted or being copied: it votes, and forgets nothing.

It keeps term, vote and the last OpId of the log that it had, for ever: a server that forgot them
could elect a leader without entries that it had acknowledged ("amnesia", seed "Tablet copy", Note
on deleted tablets). The rules are those of a live voter in `stelae.consensus.raft.raft`, with the
kept OpId for the log. It takes no entries, and leads nothing.

Invariants: what an answer promises is persisted before it is sent; no vote goes to a log older
than the one that was here; a leader's lease holds, because votes are withheld for an election
timeout after this server last followed somebody, which may have been right before its data went.
A copy that takes its place reaches the kept OpId, or else its host gives that to the live replica
as ``vote_floor``. (Tablet servers finish no copy that does not reach it.)
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.consensus.raft.election import holds_enough
from stelae.consensus.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from stelae.core.ids import OpId, ServerUuid
from stelae.core.records.replication import TermAndVote


@dataclass(frozen=True, slots=True)
class TombstoneAnswer:
    """``kept`` is to be made durable, where it differs from what is; then ``message`` is sent.

    ``message`` is None for a leader that may lead: it must be told that there is no data here.
    """

    kept: TermAndVote
    message: VoteResponse | AppendResponse | None


def answer(
    message: Message, kept: TermAndVote, last: OpId | None, *, quiet: bool
) -> TombstoneAnswer:
    """Answer one message.

    ``last`` is of the log that was here; None if that is not known: then there is no vote.
    ``quiet``: an election timeout has passed since this server last followed a leader, or began.
    """
    if isinstance(message, VoteRequest):
        return _vote(message, kept, last, quiet)
    if isinstance(message, AppendRequest | SnapshotRequest) and message.term < kept.term:
        ends = (message.group_id, message.destination, message.source)
        stale = AppendResponse(*ends, kept.term, False, 0, last or OpId(0, 0), 0)
        return TombstoneAnswer(kept, stale)
    return TombstoneAnswer(kept, None)


def _vote(
    request: VoteRequest, kept: TermAndVote, last: OpId | None, quiet: bool
) -> TombstoneAnswer:
    granted = False
    if request.transfer or quiet:
        if request.term > kept.term and not request.pre:
            kept = TermAndVote(request.term, None)
        granted = last is not None and may_vote(request, kept) and holds_enough(request, last)
    if granted and not request.pre:
        kept = TermAndVote(kept.term, request.source)
    term = request.term if granted else kept.term
    ends = (request.group_id, request.destination, request.source)
    return TombstoneAnswer(kept, VoteResponse(*ends, term, request.pre, granted))


def may_vote(
    request: VoteRequest, kept: TermAndVote, leader_uuid: ServerUuid | None = None
) -> bool:
    """Whether term and vote allow it; ``leader_uuid`` is whom this server follows in its term."""
    if request.term != kept.term:
        return request.term > kept.term  # a pre-vote: real ones have raised the term by now
    if kept.voted_for is not None:
        return kept.voted_for == request.source
    return leader_uuid is None
