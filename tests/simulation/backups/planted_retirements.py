"""Bugs of the retirement of backups, planted on purpose: each must be found by the scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.actors.backup.server import Backup
from stelae.actors.tserver.segments.copyset_moves import Regrouping
from tests.simulation.world.planting import planting


def _ended_with_heads() -> Any:
    """Count as held what is sealed only: heads are lost with the backup."""

    def count(self: Backup) -> int:
        holdings = self._holdings
        held = [holdings.find(log, s) for log in holdings.logs for s in holdings.segments(log)]
        return sum(
            r is not None and r.facts is not None and r.facts.state == "sealed" for r in held
        )

    return patch.object(Backup, "_count_held", count)


def _freed_before_it_is_elsewhere() -> Any:
    """Let go of a replica as soon as another one is begun."""

    async def step(self: Regrouping, segment: Any) -> bool:
        leaving = self._log.members.leaving_backups
        for replica in segment.replicas:
            if replica.backup in leaving and replica.sealed:
                source = replica.backup
                segment._put(replica, None)
                replica.sealed = replica.closed = replica.created = False
                segment._start(replica)
                await self._free(segment, source)
                return True
        return False

    return patch.object(Regrouping, "_step", step)


PLANTED: dict[str, Callable[[], Any]] = {
    "ended_with_heads": _ended_with_heads,
    "freed_before_it_is_elsewhere": _freed_before_it_is_elsewhere,
}

planted = planting(PLANTED)
