"""Members of timelines that never get the log, and safekeepers that were chosen in vain. Pure.

A change of members needs a majority of the new ones, so it also ends if the one that was to join
gets nothing: its disk is full, or others do not reach it, though masters hear it.

Rules:

1. A member lacks the log while its safekeeper lives, has told this leader all that it holds, and
   holds nothing of the timeline.
2. A member that has lacked it for the grace time gives way to another safekeeper, as a lost one.
3. A safekeeper that was chosen in vain is left alone by that timeline for a pause that doubles. It
   is chosen last after that. Where no other is free, it is chosen after the first pause already
   (`stelae.coordinator.timelines.safekeepers`).

Only in memory: a new leader tries everything once more, which costs one grace time.

Source: decisions §61, §62.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from stelae.coordinator.timelines.safekeepers import Avoided, Pause
from stelae.core.backoff import doubled_s
from stelae.core.ids import TabletId
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 300.0
"""Pauses before a safekeeper is chosen again that was chosen in vain."""
FORGOTTEN_AFTER_S = 7200.0
"""Time after such a pause until the failures are forgotten."""

Holds = Callable[[SafekeeperId], Container[TabletId] | None]
"""Timelines that a safekeeper says it holds; None: not known."""
_Key = tuple[TimelineId, SafekeeperId]


@dataclass(slots=True)
class _Failure:
    count: int
    pause: Pause


class VainMembers:
    """See the module. ``now`` is the leader's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._since: dict[_Key, float] = {}
        """Members that lack the log."""
        self._counted: dict[_Key, None] = {}
        """Those of them that are remembered as failures."""
        self._failures: dict[_Key, _Failure] = {}

    def look(
        self, records: Iterable[TimelineRecord], holds: Holds, now: float, grace_s: float
    ) -> None:
        """Note which members lack the log. ``records``: all of the store."""
        known, self._since = self._since, {}
        for record in records:
            if record.deleted or record.configuration.is_joint:
                members: tuple[SafekeeperId, ...] = ()
            else:
                members = record.configuration.sk_set
            for member in members:
                held = holds(member)
                key = record.timeline, member
                if held is None and key in known:
                    self._since[key] = known[key]  # silence says nothing new
                elif held is not None and record.timeline.tablet_id not in held:
                    self._since[key] = known.get(key, now)
        self._counted = {key: None for key in self._counted if key in self._since}
        for key, since in self._since.items():
            if now >= since + grace_s and key not in self._counted:
                self._counted[key] = None
                self.failed(*key, now)
        old = now - FORGOTTEN_AFTER_S
        self._failures = {
            key: each for key, each in self._failures.items() if each.pause.ends_at > old
        }

    def failed(self, timeline: TimelineId, safekeeper: SafekeeperId, now: float) -> None:
        """The safekeeper was chosen for the timeline, and did not become a member with its log."""
        known = self._failures.setdefault((timeline, safekeeper), _Failure(0, Pause(now, now)))
        pause_s = doubled_s(FIRST_PAUSE_S, known.count, LONGEST_PAUSE_S)
        known.pause = Pause(now + pause_s, now + FIRST_PAUSE_S)
        known.count += 1

    def lasting(self, now: float, grace_s: float) -> dict[TimelineId, tuple[SafekeeperId, ...]]:
        """Members that have lacked the log for so long, by timeline."""
        found: dict[TimelineId, tuple[SafekeeperId, ...]] = {}
        for (timeline, member), since in self._since.items():
            if now >= since + grace_s:
                found[timeline] = (*found.get(timeline, ()), member)
        return found

    @property
    def avoid(self) -> Avoided:
        """Of each timeline: safekeepers chosen in vain, and how long each is left alone."""
        found: dict[TimelineId, dict[SafekeeperId, Pause]] = {}
        for (timeline, safekeeper), each in self._failures.items():
            found.setdefault(timeline, {})[safekeeper] = each.pause
        return found
