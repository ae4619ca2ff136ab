"""Timelines: logs of `wal` tablets on safekeepers, and the configurations that name their members.

One function, `has_majority`, is the quorum of one member set; a joint configuration applies it once
to each of its two sets and never mixes them (Neon RFC 035, "Definitions" and "Compute changes").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NewType

import msgspec

from stelae.core.ids import Address, ServerUuid, TableId, TabletId

SafekeeperId = NewType("SafekeeperId", int)
"""How operators and configurations call a safekeeper (a node id of the seed); never reused."""

NO_GENERATION = 0
"""Of a safekeeper that has been given no configuration yet; the first one has generation 1."""


class TimelineConfiguration(msgspec.Struct, frozen=True):
    """The members of a timeline; ``new_sk_set`` is there while they change: it is joint then.

    Field names are the seed's: it is also a body of the HTTP API.
    """

    generation: int
    sk_set: tuple[SafekeeperId, ...]
    new_sk_set: tuple[SafekeeperId, ...] | None = None

    @property
    def is_joint(self) -> bool:
        return self.new_sk_set is not None

    @property
    def member_sets(self) -> tuple[tuple[SafekeeperId, ...], ...]:
        """The sets of which each must agree."""
        return (self.sk_set,) if self.new_sk_set is None else (self.sk_set, self.new_sk_set)

    @property
    def members(self) -> tuple[SafekeeperId, ...]:
        """Of any set, each once, in ascending order."""
        return tuple(sorted({member for members in self.member_sets for member in members}))

    def agreed(self, agreeing: Collection[SafekeeperId]) -> bool:
        """Whether each member set has a majority in ``agreeing``."""
        return all(has_majority(members, agreeing) for members in self.member_sets)

    def agreed_lsn(self, lsns: Mapping[SafekeeperId, int]) -> int:
        """The highest LSN that a majority of each member set has reached; 0 of who is not named."""
        return min(majority_lsn(members, lsns) for members in self.member_sets)


class SafekeeperPlace(msgspec.Struct, frozen=True, array_like=True):
    """Which server a safekeeper of a configuration is, and where it was when this was written.

    Its address changes when it restarts: whoever has a newer list of live servers looks there.
    """

    safekeeper_id: SafekeeperId
    uuid: ServerUuid
    address: Address


class TimelineSource(msgspec.Struct, frozen=True):
    """Where a tablet's timeline lies, for the tablet server that is to propose to it.

    The configuration is a hint: the safekeepers tell of a higher one in their greetings, and only
    they bind. ``safekeepers`` names all of its members; those of a higher one are found among the
    live servers.
    """

    table_id: TableId
    """The seed's tenant."""
    tablet_id: TabletId
    """The seed's timeline."""
    configuration: TimelineConfiguration
    safekeepers: tuple[SafekeeperPlace, ...]


class LogPosition(msgspec.Struct, frozen=True, array_like=True, order=True):
    """How far a log goes, so that logs compare: the term of its last entry, then its length."""

    last_log_term: int
    flush_lsn: int


class SwitchReply(msgspec.Struct, frozen=True):
    """A safekeeper's answer to a configuration: all of it taken at one point, after the switch to
    the higher of both is durable (the seed's ConfigurationSwitchResponse)."""

    conf: TimelineConfiguration
    term: int
    last_log_term: int
    flush_lsn: int

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last_log_term, self.flush_lsn)


def has_majority(members: Collection[SafekeeperId], agreeing: Collection[SafekeeperId]) -> bool:
    """Whether more than half of one member set agrees; others who do are not counted."""
    return 2 * sum(member in agreeing for member in members) > len(members)


def majority_lsn(members: Collection[SafekeeperId], lsns: Mapping[SafekeeperId, int]) -> int:
    """The highest LSN that more than half of one member set has reached."""
    reached = sorted((lsns.get(member, 0) for member in members), reverse=True)
    return reached[len(reached) // 2] if reached else 0
