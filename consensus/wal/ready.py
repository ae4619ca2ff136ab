"""What goes into a proposer and comes out of it, beside messages: settings, effects, its status."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stelae.consensus.wal.link import LinkState
from stelae.consensus.wal.messages import ToAcceptor
from stelae.core.errors import InvalidArgument
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration


@dataclass(frozen=True, slots=True)
class ProposerSettings:
    """How one proposer behaves. Times are in ticks, so that the core needs no clock."""

    heartbeat_ticks: int = 2
    silence_ticks: int = 10  # after which an unanswered session is given up
    batch_entries_max: int = 1024
    batch_bytes_max: int = 1 << 20
    inflight_bytes_max: int = 8 << 20  # unanswered, per safekeeper
    retained_bytes_max: int = 64 << 20  # of applied entries, for safekeepers that lag
    uncommitted_bytes_max: int = 64 << 20  # beyond which writes are refused
    fetch_bytes_max: int = 4 << 20
    pending_reads_max: int = 10_000
    apply_entries_max: int = 4096  # handed out in one batch
    apply_bytes_max: int = 1 << 20  # the same, but at least one

    def __post_init__(self) -> None:
        """Raises InvalidArgument for values that cannot work together."""
        if self.silence_ticks < 2 * self.heartbeat_ticks or self.heartbeat_ticks < 1:
            raise InvalidArgument("silence_ticks must be at least twice heartbeat_ticks")
        limits = (
            self.batch_entries_max,
            self.batch_bytes_max,
            self.inflight_bytes_max,
            self.uncommitted_bytes_max,
            self.fetch_bytes_max,
            self.pending_reads_max,
            self.apply_entries_max,
            self.apply_bytes_max,
        )
        if min(limits) < 1 or self.retained_bytes_max < 0:
            raise InvalidArgument("limits must be positive")


class Phase(enum.Enum):
    """How far a proposer has come; a higher configuration leads back to the first."""

    GREETING = "greeting"
    """It looks for the highest configuration, until majorities of its sets have greeted."""
    VOTING = "voting"
    RECOVERING = "recovering"
    """It is elected, and fetches what it lacks of the log."""
    LEADING = "leading"
    ENDED = "ended"
    """It does nothing more, unless its owner has it campaign anew."""


class EndReason(enum.Enum):
    DEPOSED = "deposed"
    """Somebody has, or asks for, a higher term. Campaigning again is safe, if its owner may."""
    TRIMMED = "trimmed"
    """Safekeepers have trimmed away entries after the base: its owner needs a newer one."""
    DIVERGED = "diverged"
    """What the safekeepers have contradicts what was committed: a broken promise, never ours."""
    CLOSED = "closed"
    """Its owner ended it."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask ``source`` for these entries (`FetchEntries`), and tell the proposer what came of it:
    `WalProposer.fetched` or `fetch_failed`, by the call's deadline."""

    number: int
    source: SafekeeperId
    term: int
    generation: int
    first_lsn: int
    last_lsn: int
    size_max_bytes: int
    recovers: bool = False
    """The log's tail for the proposer itself, which campaigns anew without it; else it is for a
    safekeeper that lags."""


@dataclass(frozen=True, slots=True)
class WalReadReady:
    """That read may run once everything up to ``lsn`` is applied."""

    request: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ProposerReady:
    """One batch of effects. Nothing of it has to be durable at the proposer.

    ``rewound_to`` comes first: entries above it, which were proposed, are no part of the log any
    more, and never were committed; whoever had applied them must go back. ``committed`` follow
    what was handed out before. ``lagging`` are members that need entries which no other one can
    give at the moment. ``alarms`` say what no correct peer does.
    """

    rewound_to: int | None
    messages: tuple[ToAcceptor, ...]
    fetches: tuple[Fetch, ...]
    committed: tuple[Entry, ...]
    reads: tuple[WalReadReady, ...]
    failed_reads: tuple[int, ...]
    lagging: tuple[SafekeeperId, ...]
    alarms: tuple[str, ...]

    def __bool__(self) -> bool:
        done = self.messages or self.fetches or self.committed or self.reads or self.failed_reads
        return bool(done or self.lagging or self.alarms) or self.rewound_to is not None


@dataclass(frozen=True, slots=True)
class LinkStatus:
    state: LinkState
    is_heard: bool
    flush_lsn: int
    """So far its log is surely equal to the proposer's; of this term only."""
    generation: int


@dataclass(frozen=True, slots=True)
class ProposerStatus:
    phase: Phase
    end: EndReason | None
    term: int
    configuration: TimelineConfiguration | None
    """The one established; None before that."""
    start_lsn: int
    """Of the first entry in this term, once it leads; else 0."""
    commit_lsn: int
    last_lsn: int
    horizon_lsn: int
    links: dict[SafekeeperId, LinkStatus]
