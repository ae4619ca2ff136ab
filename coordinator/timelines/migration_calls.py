"""What a migration has under way, and when it may try again what did not help.

Of each kind of effect and safekeeper there is one order at a time. Once it has ended, whether well
or not, the next of its kind waits for a pause, which doubles each time; `refresh` begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.coordinator.timelines.migration_steps import (
    Effect,
    Exclude,
    MigrationSettings,
    Notify,
    Order,
    Ping,
    PullTimeline,
    PutConfiguration,
    ReadRecord,
    WriteRecord,
)
from stelae.core.backoff import doubled_s

_NAMES: dict[type[Effect], str] = {
    ReadRecord: "read the record",
    WriteRecord: "write the record",
    Ping: "ping",
    PutConfiguration: "tell the configuration to",
    PullTimeline: "copy the timeline to",
    Exclude: "exclude",
    Notify: "notify the catalog",
}


def key_of(effect: Effect) -> str:
    """What a problem is filed under, for people too: ``copy the timeline to 3``."""
    name = _NAMES[type(effect)]
    match effect:
        case Ping() | PutConfiguration() | PullTimeline() | Exclude():
            return f"{name} {effect.safekeeper}"
        case _:
            return name


@dataclass(slots=True)
class _Pace:
    tries: int = 0
    failures: int = 0
    not_before_s: float = 0.0
    number: int = 0
    """Of the order under way; 0: none."""


class Calls:
    """Orders given and not yet ended, by number; and the pace of each kind."""

    def __init__(self, settings: MigrationSettings, jitter: float) -> None:
        self.problems: dict[str, str] = {}
        self._settings = settings
        self._jitter = jitter
        self._paces: dict[str, _Pace] = {}
        self._effects: dict[int, Effect] = {}
        self._number = 0

    def order(self, effect: Effect, now: float) -> Order | None:
        """Begin it, unless one of its kind is under way or was so a moment ago."""
        pace = self._paces.setdefault(key_of(effect), _Pace())
        if pace.number or now < pace.not_before_s:
            return None
        self._number += 1
        pace.number = self._number
        pace.tries += 1
        self._effects[self._number] = effect
        pull = isinstance(effect, PullTimeline)
        timeout_s = self._settings.pull_timeout_s if pull else self._settings.call_timeout_s
        return Order(self._number, effect, timeout_s)

    def ended(self, number: int, now: float, problem: str = "") -> Effect | None:
        """What ended; None if nobody waits for it any more."""
        effect = self._effects.pop(number, None)
        if effect is None:
            return None
        key = key_of(effect)
        pace = self._paces.get(key)
        if pace is None or pace.number != number:
            return None
        first_s, longest_s = self._settings.first_pause_s, self._settings.longest_pause_s
        pause_s = doubled_s(first_s, max(pace.tries - 1, 0), longest_s)
        pace.number = 0
        pace.not_before_s = now + pause_s * self._jitter
        if problem:
            pace.failures += 1
            self.problems[key] = problem
        else:
            self.problems.pop(key, None)
        return effect

    def failures(self, effect: Effect) -> int:
        """How often such an effect has failed since `refresh`."""
        pace = self._paces.get(key_of(effect))
        return pace.failures if pace else 0

    def refresh(self, *kinds: type[Effect]) -> None:
        """Let these kinds be tried at once; what is under way goes on."""
        for key, pace in list(self._paces.items()):
            if key.startswith(tuple(_NAMES[kind] for kind in kinds)):
                self.problems.pop(key, None)
                pace.tries = pace.failures = 0
                pace.not_before_s = 0.0

    def drop(self) -> None:
        """Begin anew; whatever is under way is not waited for any more."""
        self.problems.clear()
        self._paces.clear()
        self._effects.clear()

    def is_under_way(self, kind: type[Effect]) -> bool:
        return any(isinstance(effect, kind) for effect in self._effects.values())

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What is under way, or tried again after a pause, in words."""
        under_way = [key_of(effect) for effect in self._effects.values()]
        return tuple(sorted({*under_way, *self.problems}))

    @property
    def is_idle(self) -> bool:
        return not self._effects

    def next_s(self, now: float) -> float:
        """When the next pause ends; infinite if none does."""
        ends = [pace.not_before_s for pace in self._paces.values() if not pace.number]
        return min((end for end in ends if end > now), default=float("inf"))
