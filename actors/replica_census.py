"""Comparing what a log believes of its replicas with what each backup says that it holds.

Needed when a backup comes back: on its disk lie replicas that were replaced meanwhile (strays, to
be freed), and from its memory others are gone (lost, to be replaced). Level-triggered: a backup is
asked once for each of its incarnations, and all are asked again now and then.

Only the owner that serves a tablet runs this: before the hand-over, what looks like a stray may be
what another owner needs.

Source: RAMCloud, orphan collection of restarted backups (research §1.5), turned round: the owner
asks, because it alone knows its log.
"""

from __future__ import annotations

import asyncio

from stelae.actors.segment_log import SegmentLog
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.messages import (
    FREE_REPLICAS,
    INVENTORY,
    FreeReplicas,
    Inventory,
    LogInventory,
    ReplicaState,
)
from stelae.core.records import ServerInfo

FULL_ROUND_S = 60.0


class ReplicaCensus:
    """One log's census of the backups."""

    def __init__(self, log: SegmentLog, media: tuple[str, ...]) -> None:
        self._log = log
        self._media = tuple(sorted(set(media)))
        self._asked: dict[ServerUuid, int] = {}

    async def run(self) -> None:
        """Ask each new incarnation of each backup; for ever."""
        log = self._log
        while True:
            for medium in self._media:
                for backup in log.members.backups(medium):
                    if self._asked.get(backup.uuid) != backup.incarnation:
                        await self._ask(backup)
            try:
                async with asyncio.timeout(FULL_ROUND_S):
                    await log.members.wait_change()
            except TimeoutError:
                self._asked.clear()

    async def _ask(self, backup: ServerInfo) -> None:
        log = self._log
        believed = {
            (segment.segment_id, replica.sealed)
            for segment in log.segments
            for replica in segment.replicas
            if replica.backup == backup.uuid and replica.created
        }
        try:
            reply = await log.runtime.peers.call(
                backup.address,
                INVENTORY,
                Inventory((log.tablet_id,)),
                timeout_s=log.settings.call_timeout_s,
                destination=backup.uuid,
            )
            for held in reply.body.logs:
                if held.tablet_id == log.tablet_id:
                    await self._compare(backup, held, believed)
        except StelaeError:
            log.runtime.metrics.count("inventories_failed")
            return
        self._asked[backup.uuid] = backup.incarnation

    async def _compare(
        self, backup: ServerInfo, held: LogInventory, believed: set[tuple[int, bool]]
    ) -> None:
        log = self._log
        states = {replica.segment_id: replica.state for replica in held.replicas}
        strays = []
        for segment in log.segments:
            mine = [r for r in segment.replicas if r.backup == backup.uuid]
            state = states.pop(segment.segment_id, None)
            for replica in mine:
                was_there = (segment.segment_id, replica.sealed) in believed
                if was_there and replica.created and _is_less(state, replica.sealed):
                    segment.lose(backup.uuid)
            if not mine and state is not None:
                # Longer than the call below may be on its way: it must not free a later replica.
                segment.avoid(backup.uuid, 2 * log.settings.call_timeout_s)
                strays.append(segment.segment_id)
        strays += sorted(states)
        if strays:
            log.runtime.metrics.count("stray_replicas_freed", len(strays))
            await log.runtime.peers.call(
                backup.address,
                FREE_REPLICAS,
                FreeReplicas(log.tablet_id, log.term, tuple(strays)),
                timeout_s=log.settings.call_timeout_s,
                destination=backup.uuid,
            )


def _is_less(state: ReplicaState | None, sealed: bool) -> bool:
    """Whether a backup holds less than it had acknowledged."""
    return state is None or (sealed and state is not ReplicaState.SEALED)
