"""Sessions of proposers with one safekeeper: their messages once, in order, or not at all.

Invariants: of one proposer only the newest session counts; a message is taken only after all that
came before it in its session; what waits for an earlier one is bounded in number and in bytes, and
so are the proposers that are remembered. What is dropped here the proposer finds out by silence:
it greets again. Stands in for the TCP connections of Neon RFC 035.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stelae.consensus.wal.messages import ProposerGreeting, ToAcceptor, WalAppendRequest
from stelae.core.records.timelines import ProposerId

PROPOSERS_MAX = 16
WAITING_MAX = 256
WAITING_BYTES_MAX = 16 << 20


@dataclass
class Session:
    """``elected_term`` is set once that session's proposer said that it won that term."""

    number: int
    next_sequence: int = 1
    elected_term: int = 0
    waiting: dict[int, ToAcceptor] = field(default_factory=dict)
    waiting_bytes: int = 0

    def arrivals(self, message: ToAcceptor) -> Iterator[ToAcceptor]:
        """That message, if it is its turn, and those that waited for it; a double is dropped."""
        self._keep(message)
        while self.next_sequence in self.waiting:
            following = self.waiting.pop(self.next_sequence)
            self.waiting_bytes -= _size_bytes(following)
            self.next_sequence += 1
            yield following

    def _keep(self, message: ToAcceptor) -> None:
        sequence, size_bytes = message.sequence, _size_bytes(message)
        if sequence < self.next_sequence or sequence in self.waiting:
            return
        is_next = sequence == self.next_sequence
        has_room = self.waiting_bytes + size_bytes <= WAITING_BYTES_MAX
        if is_next or (has_room and len(self.waiting) < WAITING_MAX):
            self.waiting[sequence] = message
            self.waiting_bytes += size_bytes


class Sessions:
    """The newest session of each proposer; the one that was longest silent is forgotten first."""

    def __init__(self) -> None:
        self._sessions: dict[ProposerId, Session] = {}

    def open(self, greeting: ProposerGreeting) -> bool:
        """Begin a session; False: the greeting is doubled, or of an older one."""
        known = self._sessions.pop(greeting.proposer, None)
        is_new = known is None or greeting.session > known.number
        self._sessions[greeting.proposer] = (
            Session(greeting.session) if known is None or is_new else known
        )
        if len(self._sessions) > PROPOSERS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return is_new

    def find(self, message: ToAcceptor) -> Session | None:
        """The session of this message, or a newer one of its proposer; None: neither is known."""
        session = self._sessions.get(message.proposer)
        if session is None or session.number < message.session:
            return None
        self._sessions[message.proposer] = self._sessions.pop(message.proposer)
        return session

    def end(self, proposer: ProposerId) -> None:
        """Something went wrong in it: it has to be opened anew."""
        self._sessions.pop(proposer, None)


def _size_bytes(message: ToAcceptor) -> int:
    if isinstance(message, WalAppendRequest):
        return sum(len(entry.body) for entry in message.entries)
    return 0
