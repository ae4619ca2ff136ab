"""One timeline and those who change it, in a calm world where one thing happens at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stelae.coordinator.timelines.migration import Migration
from stelae.coordinator.timelines.migration_steps import (
    Effect,
    MigrationSettings,
    MoveTo,
    Outcome,
    Passed,
    Request,
    Step,
)
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.records.configurations import StoredRecord, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from tests.simulation.wal.model_safekeepers import Copy, Rules, Slot
from tests.simulation.world.bag_of_messages import TIMELINE, BagLife

replace = msgspec.structs.replace
SETTINGS = MigrationSettings(
    first_pause_s=0.1, longest_pause_s=1.0, settle_s=0.5, stall_s=5.0, patience_s=30.0
)
STEPS = [Step.CHECK, Step.JOIN, Step.SYNC, Step.PULL, Step.RAISE_TERM, Step.CATCH_UP]
STEPS += [Step.SWITCH, Step.DELIVER]


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(map(SafekeeperId, numbers))


class Died(Exception):
    """A driver was killed where the test wanted it."""


class Story(BagLife):
    """Six safekeepers, three of them members with some log; messages in order, none lost."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ids = list(ids(1, 2, 3, 4, 5, 6))
        first = TimelineConfiguration(1, ids(1, 2, 3))
        self.slots = dict.fromkeys(self.ids, Slot())
        self.rules = {one: Rules(one) for one in self.ids}
        self.statuses = dict.fromkeys(self.ids, SafekeeperStatus.ACTIVE)
        record = TimelineRecord(TIMELINE, first, notified_generation=1, delivered_generation=1)
        self.store.history = [StoredRecord(1, record, 0.0, "creator", "1")]
        for one in first.sk_set:
            self.slots[one] = Slot(Copy(first, 3, ((1, "a"), (3, "b"))))
        self.settings = SETTINGS
        self.now = 0.0
        self.catalog = 1
        self.down: set[SafekeeperId] = set()
        self.effects: list[Effect] = []
        self.passed: list[Passed] = []
        self.on_passed: Callable[[Passed], None] = lambda passed: None
        self.on_effect: Callable[[Effect], None] = lambda effect: None
        self.last: Migration | None = None

    @property
    def record(self) -> Any:
        return self.store.current.record

    def drive(self, request: Request, limit: int = 5000) -> Outcome:
        """Run one driver to its end, with time passing when nothing else happens."""
        self.runs += 1
        migration = self.last = Migration(
            TIMELINE,
            request,
            statuses=self.statuses,
            settings=self.settings,
            writer=f"run{self.runs}",
            now=self.now,
        )
        outputs = migration.tick(self.now)
        waiting: list[tuple[int, Effect]] = []
        for _ in range(limit):
            for output in outputs:
                if isinstance(output, Passed):
                    self.passed.append(output)
                    self.on_passed(output)
                else:
                    waiting.append((output.number, output.effect))
            if migration.outcome is not None:
                return migration.outcome
            if not waiting:
                assert migration.wake_s > self.now
                self.now = migration.wake_s
                outputs = migration.tick(self.now)
                continue
            number, effect = waiting.pop(0)
            self.now += 0.001
            try:
                answer = self._one(effect)
            except StelaeError as error:
                outputs = migration.failed(number, error, self.now)
            else:
                outputs = migration.answered(number, answer, self.now)
        raise AssertionError(f"no end: {migration.progress()}")

    def _one(self, effect: Effect) -> Any:
        self.effects.append(effect)
        self.on_effect(effect)
        places = {getattr(effect, "safekeeper", None), getattr(effect, "source", None)}
        if places & self.down:
            raise OutcomeUnknown("model", "call", 1.0)
        return self.carry_out(effect)

    def count(self, kind: type[Effect]) -> int:
        return sum(isinstance(effect, kind) for effect in self.effects)

    def holders(self) -> list[SafekeeperId]:
        return [one for one in self.ids if self.slots[one].copy is not None]

    def check_finished(self, *members: int) -> None:
        assert self.record.is_finished, self.record
        assert set(self.record.configuration.sk_set) == set(members)
        assert self.holders() == sorted(members)
        for one in self.holders():
            copy = self.slots[one].copy
            assert copy is not None
            assert copy.conf == self.record.configuration
        assert self.catalog == self.record.generation


def die_at(step: Step) -> Callable[[Passed], None]:
    def die(passed: Passed) -> None:
        if passed.step is step:
            raise Died

    return die


def begun(story: Story, *desired: int, step: Step = Step.JOIN) -> None:
    """A driver asks for this, and dies after a step."""

    story.on_passed = die_at(step)
    with pytest.raises(Died):
        story.drive(MoveTo(ids(*desired)))
    story.on_passed = lambda passed: None
