"""Backups that were lost and are back: how long each is left out of copysets. Pure.

A backup that comes and goes, each time for longer than it takes to count as lost, would dissolve
its group and join a new one each time. Owners move the segments of a dissolved group, so replicas
would be copied without an end.

Rules:

1. A backup that was lost joins a copyset only after it was present without a break for a time: at
   first `replica_dead_after`, doubled with each further loss, up to ten minutes.
2. A break begins that time again. It is another loss only once the backup counts as lost.
3. Losses are forgotten once the backup was present without a break for three times the longest such
   time, or once nobody counts on it any more.
4. Where the others are too few for a single copyset, those join that have least left to wait.

In memory only, and lost with the leadership. The next leader master takes a backup in at once that
is present, and counts its losses from one again: the price is one more move of its replicas.
Decisions §84.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stelae.core.backoff import doubled_s
from stelae.core.ids import ServerUuid

LONGEST_WAIT_S = 600.0
"""Upper bound on the time of rule 1, unless `replica_dead_after` itself is longer."""
FORGOTTEN_WAITS = 3
"""Number of longest waits without a break after which losses are forgotten."""


@dataclass(slots=True)
class _Returning:
    """A backup that was lost at least once."""

    losses: int = 0
    is_lost: bool = False
    """It counts as lost now, so that one absence is one loss."""
    present_since: float | None = None
    """None: it is not present."""


class ReturningBackups:
    """See the module. ``now`` is the leader's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._known: dict[ServerUuid, _Returning] = {}

    @property
    def known(self) -> tuple[ServerUuid, ...]:
        """The backups that were lost, ascending."""
        return tuple(sorted(self._known))

    def look(
        self,
        lost: Collection[ServerUuid],
        present: Collection[ServerUuid],
        now: float,
        after_s: float,
    ) -> tuple[ServerUuid, ...]:
        """Return the backups that are left out, those first that have least left to wait.

        ``lost``: backups that count as lost. ``present``: those that are live and answer.
        ``after_s``: time after which an absent backup counts as lost. The same arguments again
        change nothing.
        """
        for uuid in lost:
            self._known.setdefault(uuid, _Returning())
        left_out = []
        longest_s = max(after_s, LONGEST_WAIT_S)
        for uuid in self.known:
            each = self._known[uuid]
            each.losses += uuid in lost and not each.is_lost
            each.is_lost = uuid in lost
            if uuid not in present:
                each.present_since = None
            elif each.present_since is None:
                each.present_since = now
            since = now if each.present_since is None else each.present_since
            left_s = since + doubled_s(after_s, each.losses - 1, longest_s) - now
            if now >= since + FORGOTTEN_WAITS * longest_s:  # rule 3
                del self._known[uuid]
            elif left_s > 0:
                left_out.append((left_s, uuid))
        return tuple(uuid for _, uuid in sorted(left_out))

    def forget(self, counted_on: Collection[ServerUuid]) -> None:
        """Forget backups that the cluster does not count on any more (rule 3)."""
        self._known = {uuid: each for uuid, each in self._known.items() if uuid in counted_on}
