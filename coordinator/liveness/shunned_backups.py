"""Backups that masters hear, and that do not answer those who write replicas. Pure.

A tserver reports the backups that it avoids (`Heartbeat.avoids`).

Rules:

1. A backup is *shunned* while more than half of all live tservers avoid it. One tserver alone may
   itself be cut off, so it counts alone only where it is the only one. All place new replicas on a
   shunned backup only where nothing else is left.
2. A backup that was shunned for `replica_dead_after_s` is *gone* (`GoneBackups`): its copyset is
   dissolved. It joins another one only after it was not shunned for the same time, so that a
   connection that comes and goes does not move replicas each time.

Who avoids whom is worked out when a tserver says something else, comes or goes, not for each
heartbeat that is answered.
"""

from __future__ import annotations

from stelae.coordinator.liveness.liveness import Avoidance, Liveness, Seen
from stelae.core.ids import ServerUuid


def avoided_by(liveness: Liveness, now: float) -> dict[ServerUuid, tuple[Seen, ...]]:
    """Backups that are avoided, and the live tservers that do so."""
    return _avoidance(liveness, now).by


def shunned_backups(liveness: Liveness, now: float) -> tuple[ServerUuid, ...]:
    """Backups that more than half of all live tservers avoid, in order of their UUIDs."""
    return _avoidance(liveness, now).shunned


def _avoidance(liveness: Liveness, now: float) -> Avoidance:
    roster, version = liveness.roster(now), liveness.avoids_version
    known = liveness.avoidance
    if known is not None and known.roster is roster and known.version == version:
        return known
    tservers = roster.tservers
    by: dict[ServerUuid, tuple[Seen, ...]] = {}
    for seen in tservers:
        for backup in seen.heartbeat.avoids:
            by[backup] = (*by.get(backup, ()), seen)
    # More than half is never one alone, unless it is the only one.
    shunned = tuple(sorted(uuid for uuid, who in by.items() if 2 * len(who) > len(tservers)))
    made = liveness.avoidance = Avoidance(roster, version, by, shunned)
    return made


class GoneBackups:
    """Rule 2, in the memory of one leadership. ``now`` is its monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._since: dict[ServerUuid, float] = {}
        """Shunned backups, and since when each is shunned."""
        self._shunned_at: dict[ServerUuid, float] = {}
        """Backups that are gone, and when each was last shunned."""

    def look(
        self, shunned: tuple[ServerUuid, ...], now: float, after_s: float
    ) -> tuple[ServerUuid, ...]:
        """Return the backups that count as gone, ascending. ``shunned``: those that are so now."""
        self._since = {uuid: self._since.get(uuid, now) for uuid in shunned}
        for uuid, since in self._since.items():
            if uuid in self._shunned_at or now >= since + after_s:
                self._shunned_at[uuid] = now
        at = self._shunned_at.items()
        self._shunned_at = {uuid: last for uuid, last in at if now < last + after_s}
        return tuple(sorted(self._shunned_at))
