"""What becomes of a wish, by what the store says now: step 2, and again whenever a record is read.

The only memory is what this run itself has brought into the store or seen there; without it, the
same record gives the same judgement to every driver.

Implements seed 004 (steps 2 and 3, abort, ``FinishPending``, consideration 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    FinishPending,
    MoveTo,
    Remove,
    Request,
    Statuses,
    Verdict,
    check_target,
)
from stelae.core.errors import InvalidArgument
from stelae.core.records.configurations import FIRST_GENERATION, TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration


@dataclass(frozen=True, slots=True)
class Decided:
    """The verdict; what the record leaves to be done is done all the same."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The verdict, and nothing is to be done."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Join:
    """A change is to begin, once those who are to join have answered."""

    desired: tuple[SafekeeperId, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """This is to be the next configuration."""

    record: TimelineRecord


@dataclass(frozen=True, slots=True)
class GoOn:
    """The change under way is the one that is wanted."""


Judgement: TypeAlias = Decided | Ended | Join | Write | GoOn


class Wish:
    """One request, and what has come of it so far."""

    def __init__(self, request: Request, statuses: Statuses, members_min: int) -> None:
        self.request = request
        self._statuses = statuses
        self._members_min = members_min
        self._has_begun = False
        """The change that is wanted was in the store."""
        self._taken_back: tuple[SafekeeperId, ...] | None = None
        """Of an abort: the members to go back to."""

    def judge_nothing(self, timeline: TimelineId) -> Write | Ended:
        """There is no such timeline yet."""
        if not isinstance(self.request, Create):
            return Ended(Verdict.NOT_FOUND, "the store has no such timeline")
        nobody = TimelineConfiguration(0, ())
        try:
            check_target(self.request.members, nobody, self._statuses, self._members_min)
        except InvalidArgument as error:
            return Ended(Verdict.REJECTED, str(error))
        first = TimelineConfiguration(FIRST_GENERATION, self.request.members)
        return Write(TimelineRecord(timeline, first))

    def judge(self, record: TimelineRecord) -> Judgement:
        if record.deleted:
            is_wish = isinstance(self.request, Remove)
            return Decided(Verdict.DONE if is_wish else Verdict.DELETED, "the timeline is deleted")
        match self.request:
            case Create():
                return Decided(Verdict.DONE)
            case MoveTo():
                return self._judge_move(self.request.desired, record)
            case Abort():
                return self._judge_abort(record)
            case Remove():
                return Write(record.removed())
            case FinishPending():
                return GoOn() if record.configuration.is_joint else Decided(Verdict.DONE)

    def _judge_move(self, desired: tuple[SafekeeperId, ...], record: TimelineRecord) -> Judgement:
        configuration = record.configuration
        if configuration.new_sk_set is not None:
            if _same(configuration.new_sk_set, desired):
                self._has_begun = True
                return GoOn()
            ongoing = f"a change to {list(configuration.new_sk_set)} is under way"
            if self._has_begun:
                return Decided(Verdict.ABORTED, f"it was taken back, and {ongoing}")
            return Decided(Verdict.REFUSED, ongoing)
        if _same(configuration.sk_set, desired):
            return Decided(Verdict.DONE)
        if self._has_begun:
            return Decided(Verdict.ABORTED, "it was taken back")
        try:
            check_target(desired, configuration, self._statuses, self._members_min)
        except InvalidArgument as error:
            return Ended(Verdict.REJECTED, str(error))
        return Join(desired)

    def _judge_abort(self, record: TimelineRecord) -> Judgement:
        configuration = record.configuration
        if configuration.is_joint:
            self._taken_back = configuration.sk_set
            return Write(record.aborted())
        if self._taken_back is None:
            return Decided(Verdict.DONE, "there is nothing to take back")
        if self._taken_back == configuration.sk_set:
            return Decided(Verdict.ABORTED)
        return Decided(Verdict.DONE, "it was finished before it could be taken back")


def _same(one: tuple[SafekeeperId, ...], other: tuple[SafekeeperId, ...]) -> bool:
    """Whether both name the same members, each once."""
    return sorted(one) == sorted(other)
