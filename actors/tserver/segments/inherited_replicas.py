"""Keeping the replicas of a log that parts of a split tablet inherit, for as long as one needs it.

Nobody owns that log any more, and where parts lack the memory for its rows they need it for long.
So each part that serves sees to what it inherits: it asks all backups what they have of it, and of
each segment that has too few replicas it makes another one, of one that is there, in the turns, at
the rate and in the places of all that is made anew. No memory is needed for that but for an image
on its way.

Invariants:
- Only sealed segments are copied, byte by byte, and of the replicas that a recovery would read:
  what parts read is the same with and without. (What that log has in row form is in the log of a
  part since it serves.)
- All is written in the one term in which the inherited log is fenced, so that parts do not shut out
  each other: all of them write the same bytes. What comes after the log was dropped is reported by
  its backup, and dropped as well.
- A segment lacks replicas only if all live backups have answered.

Parts of one tablet begin at different segments, so that they seldom make the same replica; one too
many goes with the log.

Source: `docs/decisions.md`, §41.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.inventories import inventory_of
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.replica_images import fetch_image
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.messages.backups import LogInventory
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.records import Inheritance, ServerInfo
from stelae.core.runtime import Runtime
from stelae.core.schema.shares import Share
from stelae.core.tasks import Tasks
from stelae.recovery.plan import final_source, is_final, segments_of

LOOK_S = 60.0
"""Between looks while the same backups live."""
SOON_S = 2.0
"""The same if one did not answer, or something could not be made."""
AT_ONCE = 16
"""Segments between two looks: a sibling may have made the others meanwhile."""
PATIENCE_S = 60.0
"""For a replica to be made."""
STEP_S = 0.1
"""Between looks at whether it is there."""


class Heir(Protocol):
    """The log of the part."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
    tasks: Tasks

    @property
    def inherited(self) -> list[int]:
        """Segments of the other log that a recovery may go by, ascending."""


class InheritedReplicas:
    """Those of one part; to the segments it is the log that they are of."""

    def __init__(
        self, heir: Heir, media: tuple[str, ...], inherits: Inheritance, share: Share
    ) -> None:
        self.runtime = heir.runtime
        self.settings = heir.settings
        self.members = heir.members
        self.traffic = heir.traffic
        self.tasks = heir.tasks
        self.tablet_id = inherits.log
        self.term = inherits.term
        self._heir = heir
        self._media = media
        self._share = share
        self._is_fenced = False
        self._in_vain: dict[int, None] = {}
        """Segments of which nothing could be made the last time: others go first."""

    def progressed(self) -> None:
        """Only `_make` waits for that, and looks."""

    def fail(self, error: StelaeError) -> None:
        """Backups know a later term: nothing of the kind is written any more."""
        del error
        self._is_fenced = True

    async def run(self) -> None:
        """Until nothing is inherited any more."""
        while self._heir.inherited and not self._is_fenced:
            live = self.members.all_backups()
            is_done = await self._restore(live)
            try:
                async with asyncio.timeout(LOOK_S if is_done else SOON_S):
                    while self.members.all_backups() == live:
                        await self.members.wait_change()
            except TimeoutError:
                continue

    async def _restore(self, live: Sequence[ServerInfo]) -> bool:
        """Make what is missing; false: not all of it could be made, or is known."""
        while found := await self._lacking(live):
            made = await asyncio.gather(*(self._make(source) for source in found[:AT_ONCE]))
            if not all(made):
                return False
        return found is not None

    async def _lacking(self, live: Sequence[ServerInfo]) -> list[SegmentSource] | None:
        """Where segments lie that have too few replicas; None: not all backups have answered."""
        answers = await asyncio.gather(*(self._ask(backup) for backup in live))
        held = {b: answer for b, answer in zip(live, answers, strict=True) if answer is not None}
        if len(held) < len(live):
            return None
        by_segment, needed = segments_of(held), self._heir.inherited
        first = len(needed) * self._share.value >> self._share.bits
        found = []
        for segment in (*needed[first:], *needed[:first]):
            replicas = by_segment.get(segment, [])
            source = final_source(segment, replicas) if is_final(replicas) else None
            if source is not None and source.sealed and self._lacks(source):
                found.append(source)
        return sorted(found, key=lambda source: source.segment_id in self._in_vain)

    async def _ask(self, backup: ServerInfo) -> LogInventory | None:
        logs = await inventory_of(self.runtime, self.settings, backup, (self.tablet_id,))
        return next((log for log in logs or () if log.tablet_id == self.tablet_id), None)

    def _lacks(self, source: SegmentSource) -> bool:
        there = Counter(medium for _, _, medium in source.replicas)
        return bool(Counter(self._media) - there)

    async def _make(self, source: SegmentSource) -> bool:
        """What it lacks, if that can be had in a while."""
        clock = self.runtime.clock
        segment = ReplicatedSegment(self, source.segment_id, self._media)
        segment.epoch = segment.epoch_registered = source.epoch
        holders = [(uuid, medium) for uuid, _, medium in source.replicas]
        load = partial(fetch_image, self, source.segment_id, [uuid for uuid, _ in holders])
        segment.adopt(None, holders, RemoteImage(source.length, load))
        segment.start()
        until_s = clock.monotonic() + PATIENCE_S
        try:
            while not segment.is_sealed and not self._is_fenced and clock.monotonic() < until_s:
                await clock.sleep(STEP_S)
        finally:
            segment.retire()
        if segment.is_sealed:
            self._in_vain.pop(source.segment_id, None)
        else:
            self._in_vain[source.segment_id] = None
        return segment.is_sealed
