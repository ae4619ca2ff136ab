"""What safekeepers have said of one configuration, and what follows from it.

Only answers given *in* that configuration count: a safekeeper that has switched to it refuses the
leaders of all earlier ones, so nothing that it has not got now can be acknowledged there later.

The four conditions of a switch (research on the published TLA+ spec names them) all hold for one
and the same majority of the new members: an old majority is in the joint configuration, and took
part in `sync_point`; each of the new majority is (`caught_up`) in the joint configuration, at the
position, and at the term.

Implements seed 004, steps 4 to 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from stelae.coordinator.timelines.migration_steps import PullTimeline, PutConfiguration, Step
from stelae.core.records.configurations import FIRST_GENERATION, TimelineRecord
from stelae.core.records.timelines import LogPosition, SafekeeperId, SwitchReply, has_majority


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """How far a new majority has to come (the seed's ``sync_position`` and ``sync_term``)."""

    position: LogPosition
    term: int
    collected: dict[SafekeeperId, SwitchReply]
    """From whom it was taken: for the trace."""


@dataclass(slots=True)
class Knowledge:
    """Of one record's configuration. Another configuration begins with an empty one."""

    record: TimelineRecord
    replies: dict[SafekeeperId, SwitchReply] = field(default_factory=dict)
    absent: dict[SafekeeperId, None] = field(default_factory=dict)
    """They said that the timeline is not there."""
    pinged: dict[SafekeeperId, None] = field(default_factory=dict)
    excluded: dict[SafekeeperId, None] = field(default_factory=dict)
    notified: bool = False
    sync: SyncPoint | None = None

    def heard(self, safekeeper: SafekeeperId, reply: SwitchReply | None) -> None:
        """Note an answer given in this configuration (or None: nothing is there)."""
        if reply is None:
            self.replies.pop(safekeeper, None)
            self.absent[safekeeper] = None
            return
        assert reply.conf.generation == self.record.generation
        self.absent.pop(safekeeper, None)
        self.replies[safekeeper] = reply

    def has_old_majority(self) -> bool:
        """Whether a majority of the old members is in the joint configuration."""
        return has_majority(self.record.configuration.sk_set, self.replies)

    def take_sync_point(self) -> SyncPoint:
        """Of the old members that have answered, which are a majority."""
        old = self.record.configuration.sk_set
        collected = {member: self.replies[member] for member in old if member in self.replies}
        position = max(reply.position for reply in collected.values())
        term = max(reply.term for reply in collected.values())
        self.sync = SyncPoint(position, term, collected)
        return self.sync

    def has_term(self, safekeeper: SafekeeperId) -> bool:
        reply = self.replies.get(safekeeper)
        return self.sync is not None and reply is not None and reply.term >= self.sync.term

    def has_position(self, safekeeper: SafekeeperId) -> bool:
        reply = self.replies.get(safekeeper)
        return self.sync is not None and reply is not None and reply.position >= self.sync.position

    def caught_up(self, safekeeper: SafekeeperId) -> bool:
        """In the joint configuration, and neither term nor position is missing: by one answer."""
        return self.has_term(safekeeper) and self.has_position(safekeeper)

    def is_ready(self, safekeeper: SafekeeperId, step: Step) -> bool:
        """Whether a new member has what steps 5, 6 and 7 give it."""
        if step is Step.PULL:
            return safekeeper in self.replies
        return self.has_term(safekeeper) if step is Step.RAISE_TERM else self.caught_up(safekeeper)

    def sources(self, target: SafekeeperId) -> list[SafekeeperId]:
        """Whom to copy from: all that have enough, the most advanced first."""
        enough = self.sync.position if self.sync is not None else LogPosition(0, 0)
        able = [
            (reply.position, member)
            for member, reply in self.replies.items()
            if member != target and reply.position >= enough
        ]
        able.sort(key=lambda one: (one[0], -one[1]), reverse=True)
        return [member for _, member in able]

    def put(self, safekeeper: SafekeeperId, min_term: int = 0) -> PutConfiguration:
        """Tell it the configuration. Who was there from the beginning, and has nothing yet, begins:
        it has acknowledged nothing that could be missed."""
        record = self.record
        is_first = record.generation == FIRST_GENERATION
        return PutConfiguration(
            safekeeper, record.timeline, record.configuration, min_term, is_first
        )

    def pull(
        self, safekeeper: SafekeeperId, at_least: LogPosition, turn: int
    ) -> PullTimeline | None:
        """Let it copy from one of the sources, in turn; None if there is no source."""
        sources = self.sources(safekeeper)
        if not sources:
            return None
        source, record = sources[turn % len(sources)], self.record
        return PullTimeline(safekeeper, source, record.timeline, record.configuration, at_least)

    @property
    def measure(self) -> int:
        """Grows with what is known, as long as nothing is taken back: by it a driver sees whether
        anything moves."""
        told = len(self.pinged) + len(self.replies) + len(self.excluded) + self.notified
        return told + sum(self.caught_up(member) for member in self.replies)

    def what_is_done(self, gone: set[SafekeeperId]) -> TimelineRecord:
        """The record with all that has been done since it was read.

        Args:
            gone: decommissioned: nothing has to be told to them, nor removed from them.
        """
        record = self.record
        members = set(record.configuration.members) - gone
        departed = tuple(
            one for one in record.departed if one not in self.excluded and one not in gone
        )
        told = record.deleted or record.configuration.is_joint or members <= set(self.replies)
        delivered = record.generation if told and not record.configuration.is_joint else 0
        return msgspec.structs.replace(
            record,
            departed=departed,
            delivered_generation=max(record.delivered_generation, delivered),
            notified_generation=(
                record.generation if self.notified else record.notified_generation
            ),
        )
