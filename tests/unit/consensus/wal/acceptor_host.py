"""A safekeeper's acceptor with the disk and the network of a test."""

from __future__ import annotations

from typing import Any

from stelae.consensus.wal.acceptor import AcceptorReady, WalAcceptor
from stelae.consensus.wal.messages import (
    ProposerElected,
    ProposerGreeting,
    WalAppendRequest,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    AcceptorState,
    LogExtent,
    ProposerId,
    SafekeeperId,
    TermStart,
    TimelineConfiguration,
    history_of,
)

TIMELINE = TabletId("timeline")
ME, OTHER, THIRD, FOURTH = (SafekeeperId(n) for n in (1, 2, 3, 4))
FIRST = TimelineConfiguration(1, (ME, OTHER, THIRD))
P, Q = ProposerId("p"), ProposerId("q")


def entries_of(*terms: int, first: int = 1) -> tuple[Entry, ...]:
    return tuple(
        Entry(term, lsn, EntryKind.COMMAND, b"%d" % lsn) for lsn, term in enumerate(terms, first)
    )


class Host:
    """An acceptor with a disk, and what it sent."""

    def __init__(self, *terms: int, **state: Any) -> None:
        self.log = list(entries_of(*terms))
        self.base_lsn = 0
        self.state = AcceptorState(FIRST, **{"term": terms[-1] if terms else 0, **state})
        self.sequences: dict[tuple[str, int], int] = {}
        self.start()

    def start(self) -> None:
        last_lsn = self.base_lsn + len(self.log)
        self.core = WalAcceptor(
            timeline_id=TIMELINE,
            safekeeper=ME,
            state=self.state,
            log=LogExtent(self.base_lsn, last_lsn, history_of(self.log)),
        )

    def flush(self) -> AcceptorReady:
        """Carry out what is ready; answers are those of one batch."""
        ready = self.core.take_ready()
        if not ready:
            return ready
        if ready.state is not None:
            self.state = ready.state
        if ready.restart_after is not None:
            self.base_lsn, self.log = ready.restart_after, []
        if ready.cut_after is not None:
            del self.log[ready.cut_after - self.base_lsn :]
        self.log.extend(ready.entries)
        self.core.advance(ready)
        self.core.check_invariants()
        return ready

    def say(self, kind: Any, *fields: Any, term: int = 1, **header: Any) -> Any:
        """Send one message in its session; the answer."""
        message = self.make(kind, *fields, term=term, **header)
        self.core.receive(message)
        (answer,) = self.flush().messages
        return answer

    def make(self, kind: Any, *fields: Any, term: int = 1, **header: Any) -> Any:
        proposer, session = header.get("proposer", P), header.get("session", 1)
        is_greeting = kind is ProposerGreeting
        sequence = 0 if is_greeting else self.sequences.get((proposer, session), 0) + 1
        self.sequences[proposer, session] = sequence
        generation = header.get("generation", 0 if is_greeting else self.core.generation)
        head = (TIMELINE, proposer, ME, term, generation, session, sequence)
        return kind(*head, *fields)

    def greet(self, configuration: TimelineConfiguration | None = None, **header: Any) -> Any:
        generation = configuration.generation if configuration is not None else 0
        return self.say(ProposerGreeting, configuration, generation=generation, **header)

    def elect(self, term: int, *starts: tuple[int, int], horizon: int = 0, **header: Any) -> Any:
        """Greet and be elected, with that history and an own entry at the last start."""
        self.greet(**header)
        history = tuple(TermStart(*start) for start in starts)
        return self.say(ProposerElected, history, horizon, term=term, **header)

    def append(self, previous: OpId, *entries: Entry, term: int, **fields: Any) -> Any:
        tail = (fields.pop("commit", 0), fields.pop("horizon", 0), fields.pop("round", 0))
        return self.say(WalAppendRequest, previous, entries, *tail, term=term, **fields)
