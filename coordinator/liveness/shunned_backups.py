"""Backups that masters hear, and that do not answer those who write replicas. Pure.

A tserver reports the backups that it avoids (`Heartbeat.avoids`). One tserver alone may itself be
cut off; a backup that half of all live ones avoid, or more, is *shunned*: all place new replicas on
it only where nothing else is left, and after a while its copyset is dissolved.
"""

from __future__ import annotations

from stelae.coordinator.liveness.liveness import Liveness, Seen
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind


def avoided_by(liveness: Liveness, now: float) -> dict[ServerUuid, tuple[Seen, ...]]:
    """Backups that are avoided, and the live tservers that do so."""
    found: dict[ServerUuid, tuple[Seen, ...]] = {}
    for seen in liveness.live(ServerKind.TSERVER, now):
        for backup in seen.heartbeat.avoids:
            found[backup] = (*found.get(backup, ()), seen)
    return found


def shunned_backups(liveness: Liveness, now: float) -> tuple[ServerUuid, ...]:
    """Backups that half of all live tservers avoid, or more; in order of their UUIDs."""
    count = len(liveness.live(ServerKind.TSERVER, now))
    avoided = avoided_by(liveness, now)
    return tuple(sorted(uuid for uuid, by in avoided.items() if 2 * len(by) >= count))
