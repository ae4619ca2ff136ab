"""Moves replicas of sealed segments in the background: off backups that are to be retired, and into
one copyset each.

Level-triggered: whenever the groups change (one was dissolved as a member died, or a new one came
up), and now and then, it looks for segments whose replicas lie in several groups, or in none. One
replica moves at a time, in its turn behind all that is missing
(`stelae.actors.tserver.segments.rereplication`); it is let go of only once its successor is there,
so a segment never has fewer than before. What was compacted in memory is read from one of its
backups: memory has less of it than its replicas.

Source: RAMCloud, ``MinCopysetsBackupSelector`` and ``createReplicationGroups``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.placement import next_move, next_to_leave
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.replica_images import fetch_image
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.backups import FREE_REPLICAS, FreeReplicas
from stelae.core.runtime import Runtime

LOOK_S = 30.0
"""Between looks while nothing changes."""
LEAVING_LOOK_S = 1.0
"""The same while a backup is to be retired: heads are sealed, and may be moved then."""
STEP_S = 0.1
"""Between looks at whether what moves is there."""


class RegroupedLog(Protocol):
    """What it asks of a log."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
    tablet_id: TabletId
    term: int

    @property
    def segments(self) -> Sequence[ReplicatedSegment]:
        """All of the log, ascending."""


class Regrouping:
    """One log's."""

    def __init__(self, log: RegroupedLog, media: tuple[str, ...]) -> None:
        self._log = log
        self._media = media

    async def run(self) -> None:
        """For ever; only an owner that serves does it."""
        log = self._log
        while True:
            for segment in log.segments:
                while await self._step(segment):
                    log.runtime.metrics.count("replicas_regrouped")
            try:
                is_slow = not log.members.leaving_backups
                async with asyncio.timeout(LOOK_S if is_slow else LEAVING_LOOK_S):
                    await log.members.wait_change()
            except TimeoutError:
                continue

    async def _step(self, segment: ReplicatedSegment) -> bool:
        """Move one replica of a segment, if one is to move; false if none was."""
        log = self._log
        holders = segment.holders
        if segment.is_retired or not segment.is_sealed or len(holders) != len(self._media):
            return False
        avoided = segment.avoided
        move = next_to_leave(log, segment.replicas, avoided)
        move = move or next_move(log, self._media, holders, avoided)
        if move is None or not segment.move(move.source, move.target, self._remote(segment)):
            return False
        while len(segment.replicas) > len(self._media) and not segment.is_retired:
            await log.runtime.clock.sleep(STEP_S)
        if segment.is_retired or any(each.backup == move.source for each in segment.replicas):
            return False  # it was cleaned meanwhile, or the target is gone, or it is to be there
        await self._free(segment, move.source)
        return True

    def _remote(self, segment: ReplicatedSegment) -> RemoteImage | None:
        """What gives the image of a segment that was compacted; None: it is here, or will be."""
        if segment.image_bytes:
            return None
        return RemoteImage(segment.former_bytes, partial(self._fetch, segment))

    async def _fetch(self, segment: ReplicatedSegment) -> pa.Buffer | None:
        return await fetch_image(self._log, segment.segment_id, segment.holders)

    async def _free(self, segment: ReplicatedSegment, source: ServerUuid) -> None:
        """What is left behind; if the call is lost, the census frees it."""
        log = self._log
        segment.avoid(source, 2 * log.settings.call_timeout_s)
        backup = log.members.find(source)
        if backup is None:
            return
        try:
            await log.runtime.peers.call(
                backup.address,
                FREE_REPLICAS,
                FreeReplicas(log.tablet_id, log.term, (segment.segment_id,)),
                timeout_s=log.settings.call_timeout_s,
                destination=backup.uuid,
            )
        except StelaeError:
            log.runtime.metrics.count("frees_failed")
