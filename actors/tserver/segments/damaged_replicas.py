"""Replacing replicas of sealed segments that were found to be damaged, once the image is here.

A backup that holds one believes in it, and would say that it has the segment already: it is told to
free it first, and then a replica is made anew, there or elsewhere. Source: design §9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import FREE_REPLICAS, FreeReplicas
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

TRIES = 5


class Log(Protocol):
    """What the log of such a segment has."""

    runtime: Runtime
    settings: Settings
    members: Membership
    tasks: Tasks
    tablet_id: TabletId
    term: int


def replace_damaged(log: Log, segment: ReplicatedSegment, damaged: Sequence[ServerUuid]) -> None:
    """See the module; in the background. What does not succeed is found again by the next one who
    reads the replica."""
    for uuid in damaged:
        name = f"{log.tablet_id[:8]}/damaged replica of {segment.segment_id}"
        log.tasks.spawn(_replace(log, segment, uuid), name)


async def _replace(log: Log, segment: ReplicatedSegment, uuid: ServerUuid) -> None:
    for _ in range(TRIES):
        server = log.members.find(uuid)
        if server is None or uuid not in segment.holders:
            return  # it is replaced as it is, or was
        request = FreeReplicas(log.tablet_id, log.term, (segment.segment_id,))
        try:
            await log.runtime.peers.call(
                server.address,
                FREE_REPLICAS,
                request,
                timeout_s=log.settings.call_timeout_s,
                destination=uuid,
            )
        except StelaeError:
            log.runtime.metrics.count("damaged_replicas_not_freed")
            await log.runtime.clock.sleep(log.settings.heartbeat_s)
        else:
            log.runtime.metrics.count("damaged_replicas_replaced")
            segment.lose(uuid)
            return
