"""Where two logs part, as far as their term histories tell.

Of one term there is one proposer, and it writes its entries one after the other on top of one log.
So two logs that have an entry of the same term in common are equal up to there (Raft §5.3, log
matching), and histories are equal up to where the logs part. Neon compares them the same way.
"""

from __future__ import annotations

from stelae.core.records.timelines import TermHistory, cut_history


def last_common_lsn(
    ours: TermHistory, our_last_lsn: int | None, theirs: TermHistory, their_last_lsn: int
) -> int | None:
    """The last LSN up to which both logs have the same entries.

    ``our_last_lsn`` is None for a log that is known to have everything of its last term that
    anybody has: that of the proposer of this term. None is returned if the histories contradict
    each other, which cannot be unless two proposers won one term.
    """
    theirs = cut_history(theirs, their_last_lsn)
    if our_last_lsn is not None:
        ours = cut_history(ours, our_last_lsn)
    common = 0
    for our, their in zip(ours, theirs, strict=False):
        if our != their:
            if our.term == their.term:
                return None
            break
        common += 1
    if common == 0:
        return 0
    ends = [their_last_lsn if common == len(theirs) else theirs[common].start_lsn - 1]
    if common < len(ours):
        ends.append(ours[common].start_lsn - 1)
    elif our_last_lsn is not None:
        ends.append(our_last_lsn)
    return min(ends)
