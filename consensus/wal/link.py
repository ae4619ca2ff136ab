"""What a proposer knows of its session with one safekeeper, and how much it may send there now.

Invariants: a session is left for good when something in it stays unanswered for too long, so that
nothing waits for ever; content under way is bounded in bytes, whatever the safekeeper does. States
are listed in the order in which a session goes through them (after Neon's walproposer); any
trouble leads back to the first.
"""

from __future__ import annotations

import enum
from collections import deque

from stelae.consensus.wal.messages import ToProposer
from stelae.core.records.timelines import SafekeeperId

REQUESTS_MAX = 128
"""Of entries, unanswered in one session: a safekeeper keeps so many apart that came too early."""


class LinkState(enum.Enum):
    SILENT = "silent"
    """There is no session; one is opened when the wait is over."""
    GREETING = "greeting"
    """It was greeted, and has not answered."""
    GREETED = "greeted"
    VOTING = "voting"
    VOTED = "voted"
    ELECTED = "elected"
    """It was told who is elected, and has not said yet where its log parts from ours."""
    STREAMING = "streaming"


class Link:
    """One safekeeper, as its proposer sees it."""

    def __init__(self, safekeeper: SafekeeperId) -> None:
        self.safekeeper = safekeeper
        self.state = LinkState.SILENT
        self.session = 0
        self.sequence = 0
        self.generation = 0
        self.term = 0
        """These two as it last said."""
        self.next_lsn = 0
        self.horizon_lsn = 0
        self.elected_sequence = 0
        """Of the message which it was told in who is elected."""
        self.fetching: int | None = None
        """The number of the fetch whose entries are to be sent there."""
        self.retry_ticks = 0
        """Until it may be fetched for again, after that failed."""
        self.is_heard = False
        """It answered lately."""
        self.sent_round = 0
        self.idle_ticks = 0
        """Since something was sent."""
        self._wait_ticks = 0
        self._quiet_ticks = 0
        self._answered = 0  # the newest sequence that was
        self._inflight: deque[tuple[int, int]] = deque()  # last LSN and bytes of each request
        self._inflight_bytes = 0

    @property
    def may_greet(self) -> bool:
        return self.state is LinkState.SILENT and self._wait_ticks == 0

    def has_room(self, bytes_max: int) -> bool:
        """Whether more entries may be sent before an answer comes."""
        return len(self._inflight) < REQUESTS_MAX and self._inflight_bytes < bytes_max

    def open(self, session: int, generation: int) -> None:
        """Begin a session; its greeting has sequence 0, and carries that generation."""
        self.reset()
        self.session = session
        self.sequence, self._answered = 0, -1
        self.idle_ticks = 0
        self.state = LinkState.GREETING

    def reset(self, wait_ticks: int = 0) -> None:
        """Leave the session: what comes from it is ignored from now on."""
        self.state = LinkState.SILENT
        self.session = 0
        self.fetching = None
        self.sent_round = 0
        self._wait_ticks = wait_ticks
        self._quiet_ticks = self.retry_ticks = 0
        self._inflight.clear()
        self._inflight_bytes = 0

    def number(self) -> int:
        """The sequence of the next message of this session, which is sent now."""
        if self._answered == self.sequence:
            self._quiet_ticks = 0
        self.sequence += 1
        self.idle_ticks = 0
        return self.sequence

    def sent(self, last_lsn: int, size_bytes: int) -> None:
        """Entries up to that one are under way."""
        self.next_lsn = last_lsn + 1
        self._inflight.append((last_lsn, size_bytes))
        self._inflight_bytes += size_bytes

    def acked(self, flush_lsn: int) -> None:
        """The safekeeper has all up to there."""
        while self._inflight and self._inflight[0][0] <= flush_lsn:
            self._inflight_bytes -= self._inflight.popleft()[1]

    def heard(self, message: ToProposer) -> None:
        """An answer of this session came."""
        self.is_heard = True
        self._quiet_ticks = 0
        self._answered = max(self._answered, message.sequence)

    def tick(self, silence_ticks: int) -> None:
        """Time passes; a session in which an answer stays out for so long is over.

        So is one that only waits for other safekeepers: this one may have gone on meanwhile.
        """
        self._wait_ticks = max(0, self._wait_ticks - 1)
        self.retry_ticks = max(0, self.retry_ticks - 1)
        self.idle_ticks += 1
        if self.state is LinkState.SILENT:
            return
        if self._answered >= self.sequence:
            waits = self.state in (LinkState.GREETED, LinkState.VOTED)
            if waits and self.idle_ticks >= silence_ticks:
                self.reset()
            return
        self._quiet_ticks += 1
        if self._quiet_ticks >= silence_ticks:
            self.is_heard = False
            self.reset()
