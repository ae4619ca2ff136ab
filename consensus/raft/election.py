"""When a replica asks for votes, who has given one, and for how long it votes for nobody itself.

A part of `stelae.consensus.raft.raft`, which owns term and vote. The timer is drawn anew each time,
so that two replicas seldom ask at once (Raft §5.2); a replica that hears a leader, or may have
before it restarted, votes for nobody for an election timeout (thesis §4.2.3).
"""

from __future__ import annotations

import random

from stelae.consensus.raft.messages import VoteRequest
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.ids import OpId, ServerUuid


class Election:
    """Of one replica. ``is_new``: of a group without a term yet, so there is no leader to hear."""

    def __init__(self, settings: RaftSettings, rng: random.Random, *, is_new: bool) -> None:
        self.taken_back: OpId | None = None
        """The change of members that this replica took back when it led that term (`holds_enough`),
        until there is a leader again."""
        self.votes: dict[ServerUuid, bool] = {}
        self.is_transfer = False
        self.quiet_ticks = 0 if not is_new else settings.election_ticks
        self._least_ticks = settings.election_ticks
        self._rng = rng
        self._elapsed = self._timeout = 0
        self.restart_timer()
        if is_new:
            self._timeout = rng.randint(1, settings.election_ticks)

    def restart_timer(self) -> None:
        self._elapsed = 0
        self._timeout = self._rng.randrange(self._least_ticks, 2 * self._least_ticks)

    def heard(self) -> None:
        """A leader is there."""
        self.restart_timer()
        self.quiet_ticks, self.taken_back = 0, None

    def hurry(self) -> None:
        """The only voter waits for nobody."""
        self._timeout = 1

    def is_due(self) -> bool:
        """Count a tick without a leader here; true if it is time to ask for votes."""
        self._elapsed += 1
        if self._elapsed < self._timeout:
            return False
        self.restart_timer()
        return True

    def begin(self, own: ServerUuid, *, transfer: bool) -> None:
        """Nobody has voted yet but the candidate itself."""
        self.votes = {own: True}
        self.is_transfer = transfer

    @property
    def is_quiet(self) -> bool:
        """Whether no leader was heard for so long that another may be elected."""
        return self.quiet_ticks >= self._least_ticks


def holds_enough(request: VoteRequest, end: OpId) -> bool:
    """Whether the candidate's log has all that counts of a log that ends with ``end``.

    What its leader took back, without ever having committed it, does not count: that is the entry
    ``taken_back``, and what followed it in that term. Had a leader of a later term committed it,
    then a majority would have an entry of that later term, and one of them refuses its vote here.
    """
    gone = request.taken_back
    is_void = gone is not None and end.term == gone.term and end.index >= gone.index
    return is_void or request.last >= end
