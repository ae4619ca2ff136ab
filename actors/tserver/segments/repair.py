"""Mending the replicas of a log: what it believes is compared with what each backup says it holds.

Needed when a backup comes back: on its disk lie replicas that were replaced meanwhile (strays, to
be freed), and from its memory others are gone (lost, to be replaced). So is one that it has found
to be damaged, whose frames are to be freed besides. Level-triggered: a backup is asked once for
each of its incarnations, and all are asked again now and then.

A stray is freed only once the replicas that took its place hold all that was acknowledged, under an
epoch that recoveries know: while replacements are under way it may be the only whole copy left.
Later it is of no use to anybody: an open one is stale by its epoch, a final one is one too many.

While a backup is told to free a stray its segment puts no replica there: the call could free that
one. A head in a higher epoch waits for the answer alone, as the call names the stray's epoch. In a
rolling restart of backups writers would else wait until enough of them are no longer avoided.

Only the owner that serves a tablet runs this: before the hand-over, what looks like a stray may be
what another owner needs.

Source: RAMCloud, orphan collection of restarted backups, turned round: the owner asks, because it
alone knows its log.

Replicas of sealed segments that were found to be damaged are replaced once the image is here. A
backup that holds one believes in it, and would say that it has the segment already: it is told to
free it first, and then a replica is made anew, there or elsewhere. Source: design §9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.inventories import inventory_of
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.side_segments import SideSegments
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.backups import (
    ANY_EPOCH,
    FREE_REPLICAS,
    FreeReplicas,
    LogInventory,
    ReplicaState,
)
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

FULL_ROUND_S = 60.0
SOON_S = 2.0
"""Before a backup is asked again that did not answer, or holds strays that are needed yet."""


class CensusedLog(Protocol):
    """What a census asks of a log."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
    tablet_id: TabletId
    term: int
    side: SideSegments

    @property
    def segments(self) -> Sequence[ReplicatedSegment]:
        """All of the log, ascending."""


class ReplicaCensus:
    """One log's census of the backups."""

    def __init__(self, log: CensusedLog, media: tuple[str, ...]) -> None:
        self._log = log
        self._media = tuple(sorted(set(media)))
        self._asked: dict[ServerUuid, int] = {}
        self._begin_round()

    async def run(self) -> None:
        """Ask each new incarnation of each backup; for ever."""
        log = self._log
        while True:
            for medium in self._media:
                for backup in log.members.backups(medium):
                    if self._asked.get(backup.uuid) != backup.incarnation:
                        await self._ask(backup)
            await self._rest()

    async def _rest(self) -> None:
        """Until membership changes, somebody is to be asked again, or a full round is due."""
        log, now = self._log, self._log.runtime.clock.monotonic()
        live = [b for medium in self._media for b in log.members.backups(medium)]
        is_done = all(self._asked.get(backup.uuid) == backup.incarnation for backup in live)
        pause_s = self._full_round_at - now if is_done else SOON_S
        try:
            async with asyncio.timeout(max(0.0, pause_s)):
                await log.members.wait_change()
        except TimeoutError:
            if log.runtime.clock.monotonic() >= self._full_round_at:
                self._begin_round()

    def _begin_round(self) -> None:
        self._asked.clear()
        self._full_round_at = self._log.runtime.clock.monotonic() + FULL_ROUND_S

    async def _ask(self, backup: ServerInfo) -> None:
        log = self._log
        believed = {
            (segment.segment_id, replica.sealed)
            for segment in log.segments
            for replica in segment.replicas
            if replica.backup == backup.uuid and replica.created
        }
        logs = await inventory_of(log.runtime, log.settings, backup, (log.tablet_id,))
        if logs is None:
            return
        is_done = True
        try:
            for held in logs:
                if held.tablet_id == log.tablet_id:
                    is_done = await self._compare(backup, held, believed)
        except StelaeError:
            log.runtime.metrics.count("inventories_failed")
            return
        if is_done:
            self._asked[backup.uuid] = backup.incarnation

    async def _compare(
        self, backup: ServerInfo, held: LogInventory, believed: set[tuple[int, bool]]
    ) -> bool:
        """Replace what is lost, free what is over; False if some of that has to wait."""
        log, is_done = self._log, True
        states = {replica.segment_id: replica.state for replica in held.replicas}
        epochs = {replica.segment_id: replica.epoch for replica in held.replicas}
        damaged = set(held.damaged)
        strays: dict[int, int] = {}
        """Segments, each with the highest epoch of which replicas are freed."""
        replaced = []
        for segment in log.segments:
            mine = [r for r in segment.replicas if r.backup == backup.uuid]
            state = states.pop(segment.segment_id, None)
            is_damaged = segment.segment_id in damaged
            damaged.discard(segment.segment_id)
            for replica in mine:
                was_there = (segment.segment_id, replica.sealed) in believed
                if was_there and replica.created and _is_less(state, replica.sealed):
                    segment.lose(backup.uuid)
            if mine or (state is None and not is_damaged):
                is_done &= not is_damaged  # where it is made anew will be seen
                continue
            if not segment.stands_without_strays:
                is_done = False
            else:
                # The call below must not free a later replica.
                is_first = segment.begin_free(backup.uuid)
                told = epochs.get(segment.segment_id, ANY_EPOCH)
                is_replaced = told < segment.epoch  # while it was open, so in a higher epoch
                # A backup of an earlier version minds no epoch: an order that was given up may
                # reach it after the answer to this one.
                replaced += [segment] if is_replaced and is_first else []
                strays[segment.segment_id] = told if is_replaced else ANY_EPOCH
        strays |= dict.fromkeys(sorted({*states, *damaged}), ANY_EPOCH)
        if strays:
            log.runtime.metrics.count("stray_replicas_freed", len(strays))
            await log.runtime.peers.call(
                backup.address,
                FREE_REPLICAS,
                FreeReplicas(
                    *(log.tablet_id, log.term, tuple(strays), log.side.heads_from),
                    epochs=tuple(strays.values()),
                ),
                timeout_s=log.settings.call_timeout_s,
                destination=backup.uuid,
            )
            for segment in replaced:
                segment.freed(backup.uuid)
        return is_done


def _is_less(state: ReplicaState | None, sealed: bool) -> bool:
    """Whether a backup holds less than it had acknowledged."""
    return state is None or (sealed and state is not ReplicaState.SEALED)


TRIES = 5


class Log(Protocol):
    """What the log of such a segment has."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
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
