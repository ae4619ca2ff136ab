"""Which change of its members brings a tablet's replicas nearer to what they should be.

Pure rules over one group as it is now; at most one step at a time, each a compare-and-set on the
committed configuration, so that a step decided from an outdated look does nothing. 3-4-3: a lost
voter is replaced before it is let go, so that the group is at no moment further from losing data
than it was. A voter that came back in the meantime makes the replacement superfluous, and the
replacement goes.

A follower to whom leadership was handed on in vain is left alone for a pause, and comes last after
that. Where all are paused the leader stays, and the other steps go on: a lost voter is replaced
also while nobody can take the leadership from a server in maintenance.

Nothing is begun that the group could not commit: a majority of its voters must be healthy, and of
the voters after the step. Nobody evicts the leader, which has all there is.

Source: seed Kudu tablet copy (healing by adding a PRE_VOTER); Kudu's ShouldAddReplica,
ShouldEvictReplica, ShouldStepDownLeaderForReplacement (quorum_util.cc, 3-4-3).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stelae.core.ids import ServerUuid


class Health(enum.IntEnum):
    """Of one member; the higher, the sooner it is let go."""

    HEALTHY = 0
    UNKNOWN = 1
    """Not heard just now, or being brought up: it counts neither as there nor as lost."""
    FAILED = 4
    """Not heard for so long that it is replaced. It may come back."""
    BROKEN = 8
    """It said itself that it cannot go on: it will not come back by itself."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group."""

    uuid: ServerUuid
    voter: bool
    health: Health
    leaving: bool = False
    """It is to be replaced, though nothing is wrong with it."""
    may_lead: bool = True
    """False: leadership should be elsewhere, e.g. while its server is in maintenance."""
    refused_until: float | None = None
    """When the pause ends that follows a hand-on to it that failed; None: none has failed."""
    burden: tuple[int, int, int] = (0, 0, 0)
    """Other members on its server's node, those in its rack, and replicas on its server: the more,
    the better it is let go, if nothing else tells it from the others."""

    @property
    def is_lost(self) -> bool:
        return self.health >= Health.FAILED


@dataclass(frozen=True, slots=True)
class Add:
    """One more replica, on a server that has none; it enters as a non-voter."""


@dataclass(frozen=True, slots=True)
class Evict:
    uuid: ServerUuid
    reason: str


@dataclass(frozen=True, slots=True)
class HandOn:
    """The leader is to make another the leader."""

    target: ServerUuid


Step: TypeAlias = Add | Evict | HandOn


def majority(count: int) -> int:
    return count // 2 + 1


def next_step(
    members: Sequence[Member],
    leader: ServerUuid,
    wanted: int,
    *,
    has_spare: bool,
    now: float = 0.0,
) -> Step | None:
    """The one step to take now, or None: all is well, or has to be waited for.

    ``wanted``: so many voters there should be. ``has_spare``: there is a live server without a
    replica. ``now``: of the same clock as `Member.refused_until`. The group has a leader that is
    heard, and no change under way.
    """
    group = _Group(tuple(members), leader, wanted, now)
    return group.evict_learner() or group.evict_voter(has_spare) or group.hand_on() or group.add()


@dataclass(frozen=True, slots=True)
class _Group:
    members: tuple[Member, ...]
    leader: ServerUuid
    wanted: int
    now: float

    @property
    def voters(self) -> list[Member]:
        return [member for member in self.members if member.voter]

    @property
    def learners(self) -> list[Member]:
        return [member for member in self.members if not member.voter]

    @property
    def healthy(self) -> int:
        """Voters that are there now."""
        return sum(voter.health is Health.HEALTHY for voter in self.voters)

    @property
    def viable(self) -> int:
        """Voters that are there now, and are to stay."""
        return sum(v.health is Health.HEALTHY and not v.leaving for v in self.voters)

    def can_commit(self) -> bool:
        return self.healthy >= majority(len(self.voters))

    def add(self) -> Step | None:
        """A non-voter for each voter that is missing, lost, or leaving."""
        staying = sum(not voter.leaving and not voter.is_lost for voter in self.voters)
        coming = sum(not learner.is_lost and not learner.leaving for learner in self.learners)
        return Add() if staying + coming < self.wanted and self.can_commit() else None

    def evict_learner(self) -> Step | None:
        """Non-voters that are lost, or that nobody needs any more."""
        if not self.can_commit():
            return None
        for learner in _worst_first(self.learners):
            if learner.is_lost:
                return Evict(learner.uuid, "it was lost before it was a voter")
            if learner.leaving:
                return Evict(learner.uuid, "its server is to be left")
            if self.viable >= self.wanted:
                return Evict(learner.uuid, f"there are {self.viable} good voters without it")
        return None

    def evict_voter(self, has_spare: bool) -> Step | None:
        """The worst voter, if there are more than enough; a broken one if nothing else helps."""
        others = [voter for voter in self.voters if voter.uuid != self.leader]
        if not others or self.healthy < majority(len(self.voters) - 1):
            return None
        worst = _worst_first(others)[0]
        if len(self.voters) <= self.wanted:
            helpless = worst.health is Health.BROKEN and not has_spare and not self.learners
            enough = self.healthy >= majority(len(self.voters))
            if helpless and enough and len(self.voters) > 1:
                return Evict(worst.uuid, "it is broken, and no server is left to replace it on")
            return None
        if worst.is_lost:
            return Evict(worst.uuid, "it is lost, and replaced")
        if self.viable > self.wanted:
            return Evict(worst.uuid, f"there are {self.viable} good voters; one less is enough")
        if self.viable >= self.wanted and worst.health is Health.UNKNOWN:
            return Evict(worst.uuid, "there are enough good voters without it")
        if worst.leaving and self.healthy > self.wanted:
            return Evict(worst.uuid, "its server is to be left, and it is replaced")
        return None

    def hand_on(self) -> Step | None:
        """A leader that should not lead, once somebody else can do it just as well."""
        leader = next((member for member in self.members if member.uuid == self.leader), None)
        if leader is None or (leader.may_lead and not leader.leaving):
            return None
        if leader.may_lead and self.healthy <= self.wanted:
            return None  # it is not replaced yet
        good = [
            voter
            for voter in self.voters
            if voter.health is Health.HEALTHY and voter.may_lead and not voter.leaving
            if voter.uuid != self.leader and self.now >= (voter.refused_until or self.now)
        ]
        # Those to whom it failed come last, in the order in which their pauses ended.
        best = min(good, key=lambda voter: voter.refused_until or 0.0, default=None)
        return None if best is None else HandOn(best.uuid)


def _worst_first(members: Sequence[Member]) -> list[Member]:
    """By how bad they are; of equals those that are to leave, those that are placed worst, and
    then in the order given."""

    def rank(member: Member) -> tuple[int, bool, int, int, int]:
        on_node, in_rack, held = member.burden
        return -member.health, not member.leaving, -on_node, -in_rack, -held

    return sorted(members, key=rank)
