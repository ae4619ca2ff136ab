"""The words of a migration: what may be asked for, its steps, its effects, and how it ends.

Steps carry the seed's numbers. Every effect may be carried out twice, late, or not at all: each is
idempotent, and guarded by a generation or a revision where it changes something.

Implements seed 004 ("Algorithm", "storage_controller implementation"). The machine that uses these
words: `stelae.coordinator.timelines.migration`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.records.configurations import StoredRecord, TimelineId, TimelineRecord
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperStatus,
    SwitchReply,
    TimelineConfiguration,
)


class Step(enum.IntEnum):
    """Where a migration is: the seed's steps 1 to 9, and what comes after them."""

    FETCH = 1
    """Read the record."""
    CHECK = 2
    """Compare with what is wanted, and ping those who are to join."""
    JOIN = 3
    """Write the joint configuration."""
    SYNC = 4
    """Tell the old members of it, and take from a majority how far the log may go."""
    PULL = 5
    """Copy the timeline to new members."""
    RAISE_TERM = 6
    """Bring a majority of the new members to the highest term seen."""
    CATCH_UP = 7
    """Wait until a majority of the new members has all that may have been committed before."""
    SWITCH = 8
    """Write the configuration of the new members alone (or, of an abort, of the old ones)."""
    DELIVER = 9
    """Tell a majority of the members of it."""
    TIDY = 10
    """Tell the rest, exclude who left, notify the catalog: each as soon as it can be done."""


# ---- what may be asked for ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Begin a timeline with these members; if there is one already, it stays as it is."""

    members: tuple[SafekeeperId, ...]


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Make these the members (the seed's ``MigrationRequest::To``)."""

    desired: tuple[SafekeeperId, ...]


@dataclass(frozen=True, slots=True)
class FinishPending:
    """Finish what was begun, and begin nothing."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Go back to the old members, if the change can still be taken back."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The tablet is deleted: nobody is to keep anything of its timeline."""


Request: TypeAlias = Create | MoveTo | FinishPending | Abort | Remove


class Verdict(enum.StrEnum):
    DONE = "done"
    """What was asked for is decided in the store and known to a majority."""
    REFUSED = "refused"
    """Another change was under way; it was finished instead."""
    REJECTED = "rejected"
    """The wish itself is wrong; nothing was written."""
    UNREACHABLE = "unreachable"
    """Who is to join does not answer; nothing was written."""
    ABORTED = "aborted"
    """The change was taken back, by this request or by another."""
    OVERTAKEN = "overtaken"
    """Others write faster than this driver; what was asked for has to be asked for again."""
    DELETED = "deleted"
    NOT_FOUND = "not found"
    WAITING = "waiting"
    """Nothing moved for too long; whoever scans the store goes on from where it stands."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. Not ``finished``: a later run has something left to do."""

    verdict: Verdict
    reason: str
    stored: StoredRecord | None
    unreached: tuple[SafekeeperId, ...] = ()
    """Those that were to join, and do not answer."""

    @property
    def is_finished(self) -> bool:
        return self.stored is None or self.stored.record.is_finished


# ---- effects --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Answer: `StoredRecord` or None."""

    timeline: TimelineId


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Answer: `CasReply`. Repeated as it is until it is known whether it was done."""

    record: TimelineRecord
    expected_revision: int
    writer: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer: None."""

    safekeeper: SafekeeperId


@dataclass(frozen=True, slots=True)
class PutConfiguration:
    """Answer: `SwitchReply`, or None if the timeline is not there.

    With ``min_term`` the safekeeper also raises its term to it, in the same durable step. With
    ``create`` it begins an empty timeline if it has none, and never excluded it.
    """

    safekeeper: SafekeeperId
    timeline: TimelineId
    configuration: TimelineConfiguration
    min_term: int = 0
    create: bool = False


@dataclass(frozen=True, slots=True)
class PullTimeline:
    """Answer: `SwitchReply` of the safekeeper that pulled.

    It is to be in ``configuration``, and to have ``at_least`` so much: if it has not, it takes a
    copy of ``source`` in its own place, unless that is not ahead of what it has.
    """

    safekeeper: SafekeeperId
    source: SafekeeperId
    timeline: TimelineId
    configuration: TimelineConfiguration
    at_least: LogPosition


@dataclass(frozen=True, slots=True)
class Exclude:
    """Answer: None. Remove what is there, if its generation is not above the configuration's and
    the safekeeper is in none of its sets; with ``forever``, nothing is to come back there."""

    safekeeper: SafekeeperId
    timeline: TimelineId
    configuration: TimelineConfiguration
    forever: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Answer: None. The catalog takes the record's configuration if it is newer than its own."""

    record: TimelineRecord


Effect: TypeAlias = (
    ReadRecord | WriteRecord | Ping | PutConfiguration | PullTimeline | Exclude | Notify
)


@dataclass(frozen=True, slots=True)
class Order:
    """Carry out an effect, and tell the machine under this number how it ended."""

    number: int
    effect: Effect
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Passed:
    """A step is behind us: for the trace, and for tests that crash drivers just there."""

    step: Step
    generation: int
    replies: Mapping[SafekeeperId, SwitchReply]
    """What was known of safekeepers then, in the configuration of before the step."""


Output: TypeAlias = Order | Passed


# ---- settings and what is seen --------------------------------------------------------------


class MigrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    call_timeout_s: float = 5.0
    pull_timeout_s: float = 300.0
    first_pause_s: float = 0.1
    """Before an effect that failed is tried again; doubled each time."""
    longest_pause_s: float = 5.0
    settle_s: float = 0.5
    """A majority is enough; the others get so long to join it."""
    pings_max: int = 3
    """Tries per safekeeper, before anything is written."""
    stall_s: float = 10.0
    """Nothing moves in step 7 for so long: take the position to be reached anew (step 4)."""
    patience_s: float = 60.0
    """Nothing moves for so long: the run ends, and a scan goes on later."""
    tidy_patience_s: float = 5.0
    """The same once all is decided and delivered to a majority: runs must not wait in each other's
    way for one safekeeper that hangs."""
    races_max: int = 10
    """Lost compare-and-sets of one run."""
    members_min: int = 3

    def __post_init__(self) -> None:
        assert self.settle_s < self.stall_s < self.patience_s
        assert 0 < self.first_pause_s <= self.longest_pause_s < self.patience_s

    def patience_at(self, step: Step) -> float:
        """How long nothing may move in this step."""
        return min(self.tidy_patience_s, self.patience_s) if step is Step.TIDY else self.patience_s


SILENT = "has not been heard of lately"

Statuses: TypeAlias = Mapping[SafekeeperId, SafekeeperStatus]


def decommissioned(statuses: Statuses) -> set[SafekeeperId]:
    """Nothing has to be told to them, nor removed from them."""
    gone = SafekeeperStatus.DECOMMISSIONED
    return {safekeeper for safekeeper, status in statuses.items() if status is gone}


def check_target(
    desired: tuple[SafekeeperId, ...],
    current: TimelineConfiguration,
    statuses: Statuses,
    members_min: int,
) -> None:
    """Whether members may be asked for: before anything is written. Raises InvalidArgument."""
    named = f"safekeepers {list(desired)}"
    if len(set(desired)) != len(desired):
        raise InvalidArgument(f"{named}: one is named twice")
    if len(desired) < members_min:
        raise InvalidArgument(f"{named}: a timeline has {members_min} or more")
    for safekeeper in desired:
        status = statuses.get(safekeeper)
        if status is None:
            raise InvalidArgument(f"{named}: there is no safekeeper {safekeeper}")
        if status is SafekeeperStatus.DECOMMISSIONED:
            raise InvalidArgument(f"{named}: safekeeper {safekeeper} is decommissioned")
        if status is SafekeeperStatus.OFFLINE and safekeeper not in current.members:
            raise InvalidArgument(f"{named}: safekeeper {safekeeper} is offline, or {SILENT}")
