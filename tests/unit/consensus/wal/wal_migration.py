"""A simple driver of the nine steps, for lives of timelines: a generator of rounds of calls.

It yields the calls of one round and is sent the replies that came by the round's deadline; it can
be dropped at any point, and others can run beside it. Step numbers are those of Neon RFC 035.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stelae.consensus.wal.messages import BumpTerm, Exclude, SwitchConfiguration
from stelae.core.ids import TabletId
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    has_majority,
)

TIMELINE = TabletId("timeline")
ROUNDS_MAX = 12


@dataclass(frozen=True)
class Pull:
    """Copy the timeline from ``source``, unless there is one."""

    source: SafekeeperId
    configuration: TimelineConfiguration


Call: TypeAlias = SwitchConfiguration | BumpTerm | Exclude | Pull
Calls: TypeAlias = dict[SafekeeperId, Call]
Replies: TypeAlias = Mapping[SafekeeperId, Any]
Steps: TypeAlias = Generator[Calls, Replies, None]


class GaveUp(Exception):
    """Another driver is ahead, or too few answer: somebody may begin again."""


@dataclass
class Store:
    """One configuration under compare-and-set on its generation."""

    configurations: list[TimelineConfiguration] = field(default_factory=list)

    @property
    def current(self) -> TimelineConfiguration:
        return self.configurations[-1]

    def write(self, configuration: TimelineConfiguration) -> None:
        if configuration.generation != self.current.generation + 1:
            raise GaveUp
        self.configurations.append(configuration)


@dataclass
class Driver:
    """One attempt. ``bug`` leaves out what a step demands."""

    store: Store
    rng: random.Random
    desired: tuple[SafekeeperId, ...]
    bug: str = ""
    may_abort: bool = True

    def run(self) -> Steps:
        """The nine steps, or what is left of them."""
        current = self.store.current  # step 1
        if not current.is_joint:
            if set(current.sk_set) == set(self.desired):
                yield from self.finish(current, current.sk_set)
                return
            joint = TimelineConfiguration(current.generation + 1, current.sk_set, self.desired)
            self.store.write(joint)  # step 3
        else:
            joint = current  # step 2: finish the ongoing change, whatever was desired
        assert joint.new_sk_set is not None
        union = joint.members
        if self.may_abort and self.rng.random() < 0.3:
            back = TimelineConfiguration(joint.generation + 1, joint.sk_set)
            self.store.write(back)
            yield from self.finish(back, union)
            return
        final = yield from self.change(joint, joint.new_sk_set)
        yield from self.finish(final, union)

    def change(
        self, joint: TimelineConfiguration, new: tuple[SafekeeperId, ...]
    ) -> Generator[Calls, Replies, TimelineConfiguration]:
        replies = yield from self.switch_old(joint)  # step 4
        position = max((each.position for each in replies.values()), default=LogPosition(0, 0))
        term = max((each.term for each in replies.values()), default=0)
        if self.bug == "no term bump":
            term = 0
        best = [sk for sk, each in replies.items() if each.position == position]
        donor = self.rng.choice(best or list(joint.sk_set))
        yield {sk: Pull(donor, joint) for sk in new if sk != donor}  # step 5
        rides = self.rng.random() < 0.5  # the term goes with the configuration
        if not rides:
            yield from self.until(  # step 6
                new,
                lambda: BumpTerm(TIMELINE, joint.generation, term),
                lambda sk, reply: reply.term >= term,
            )

        def caught_up(sk: SafekeeperId, reply: SwitchReply) -> bool:
            if reply.conf.generation > joint.generation:
                raise GaveUp
            reached = reply.position >= position or self.bug == "finish without catching up"
            return reached and reply.term >= term

        ride = term if rides else 0
        yield from self.until(  # step 7
            new, lambda: SwitchConfiguration(TIMELINE, joint, ride), caught_up
        )
        final = TimelineConfiguration(joint.generation + 1, new)
        self.store.write(final)  # step 8
        return final

    def switch_old(
        self, joint: TimelineConfiguration
    ) -> Generator[Calls, Replies, dict[SafekeeperId, SwitchReply]]:
        """Deliver the joint configuration to a majority of the old set: what they have by then."""
        collected: dict[SafekeeperId, SwitchReply] = {}
        for _ in range(ROUNDS_MAX):
            replies = yield {sk: SwitchConfiguration(TIMELINE, joint) for sk in joint.sk_set}
            for sk, reply in replies.items():
                if reply.conf.generation > joint.generation:
                    raise GaveUp
                collected[sk] = reply
            if self.bug == "finish without old majority" and collected:
                return dict([self.rng.choice(list(collected.items()))])
            if has_majority(joint.sk_set, collected):
                return collected
        raise GaveUp

    def until(
        self,
        members: tuple[SafekeeperId, ...],
        call: Callable[[], Call],
        good: Callable[[SafekeeperId, Any], bool],
    ) -> Generator[Calls, Replies, None]:
        """Repeat a call until it went well at a majority."""
        done: set[SafekeeperId] = set()
        for _ in range(ROUNDS_MAX):
            replies = yield {sk: call() for sk in members if sk not in done}
            done |= {sk for sk, reply in replies.items() if good(sk, reply)}
            if has_majority(members, done):
                return
        raise GaveUp

    def finish(
        self, final: TimelineConfiguration, before: tuple[SafekeeperId, ...]
    ) -> Generator[Calls, Replies, None]:
        """Step 9: deliver the final configuration, and clean up."""
        members = final.sk_set
        yield from self.until(
            members,
            lambda: SwitchConfiguration(TIMELINE, final),
            lambda sk, reply: reply.conf.generation >= final.generation,
        )
        yield {sk: Exclude(TIMELINE, final) for sk in before if sk not in members}
