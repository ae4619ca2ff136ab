"""What the model of timelines knows of one safekeeper, one proposer and one migrator.

Values of `stelae.simulation.timelines.trace`, which has the actions; named as in `spec/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    TimelineConfiguration,
    has_majority,
)
from stelae.simulation.timelines.log import TermLog

Moment: TypeAlias = tuple[int, int, LogPosition]
"""Generation, term and position of a safekeeper: what its answers tell."""


@dataclass(slots=True)
class Acceptor:
    """``generation`` outlives the copy: it is the tombstone's then."""

    here: bool = False
    configuration: TimelineConfiguration | None = None
    generation: int = 0
    term: int = 0
    voted_for: str = ""
    log: TermLog = field(default_factory=TermLog)
    moments: dict[Moment, TermLog] = field(default_factory=dict)

    def note(self) -> None:
        self.moments[self.generation, self.term, self.log.position] = self.log


@dataclass(slots=True)
class Proposer:
    """A campaign, and the leader that it made: of one life of a proposer in one term."""

    configuration: TimelineConfiguration
    term: int
    is_leader: bool = False
    votes: dict[SafekeeperId, TermLog] = field(default_factory=dict)
    log: TermLog = field(default_factory=TermLog)
    acked: dict[SafekeeperId, int] = field(default_factory=dict)
    commit_lsn: int = 0

    def count(self) -> None:
        """The model's CommitLsn: entries of the own term commit, and all before them."""
        lsn = min(self.configuration.agreed_lsn(self.acked), self.log.end)
        if lsn > self.commit_lsn and self.log.term_at(lsn) == self.term:
            self.commit_lsn = lsn


@dataclass(slots=True)
class Migrator:
    configuration: TimelineConfiguration
    heard: set[SafekeeperId] = field(default_factory=set)
    position: LogPosition = field(default_factory=lambda: LogPosition(0, 0))
    term: int = 0
    confirmed: set[SafekeeperId] = field(default_factory=set)

    @property
    def collected(self) -> bool:
        return has_majority(self.configuration.sk_set, self.heard)

    @property
    def has_confirmed(self) -> bool:
        return has_majority(self.configuration.new_sk_set or (), self.confirmed)
