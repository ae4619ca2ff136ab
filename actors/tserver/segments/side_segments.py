"""Segments beside a log: survivors that no digest names yet, and parents that one still names.

A survivor is replicated like any image, in any order and as slowly as may be: nothing counts on it
before a digest names it. Once all of its replicas have it, it takes its parents' place for digests
to come. **Barrier**: the parents are freed, on backups, when a head that opened after that is
durable on all its backups, and so are the ends of all heads before it. Until then a recovery may go
by an older digest, which names the parents; from then on none can (`stelae.recovery.plan`). Until
then parents are kept like all other segments: replicas that are lost are made anew, and the census
does not take them for strays. What has no image to make them of any more is told as missing, and
worth a head.

What a crash leaves on backups, of survivors in no digest and of parents in none any more, the
census of the next owner frees.

Source: RAMCloud, ``SideLog`` and ``SegmentManager``. The barrier is an addition: RAMCloud may free
cleaned segments before the head whose digest omits them is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from stelae.actors.tserver.segments.replica import LogContext
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import FREE_REPLICAS, FreeReplicas

FREED_AT_ONCE = 64
"""Segments in one call to a backup."""


class SideContext(LogContext, Protocol):
    """What is asked of the log beside that which its segments ask."""

    @property
    def has_failed(self) -> bool: ...
    async def wait_until(self, holds: Callable[[], bool]) -> None: ...


@dataclass(slots=True)
class _Retired:
    """Parents that have made way, and the head whose digest is the first without them."""

    segments: list[ReplicatedSegment]
    since_s: float
    is_worth_a_head: bool
    head: int = 0
    """0: none was opened yet."""

    @property
    def is_in_need(self) -> bool:
        """Whether one lacks a replica, and there is no image to make it of."""
        return any(segment.missing_replicas and segment.lacks_image for segment in self.segments)


@dataclass(slots=True)
class SideSegments:
    """Of one log. All methods run on the event loop; none blocks."""

    log: SideContext
    segments: dict[int, ReplicatedSegment]
    """The log's own, all of which are in digests to come."""
    media: tuple[str, ...]
    heads_from: int = 0
    """Heads before this one are closed for good, and what their digests name may be freed."""
    _side: dict[int, ReplicatedSegment] = field(default_factory=dict)
    _retired: list[_Retired] = field(default_factory=list)

    # ---- what there is ----------------------------------------------------------------------

    def all(self) -> list[ReplicatedSegment]:
        """All segments of which replicas are kept, ascending."""
        found = [*self.segments.values(), *self._side.values(), *self.retired]
        return sorted(found, key=lambda segment: segment.segment_id)

    def is_settled(self, segment_id: int) -> bool:
        """Whether a segment of the log is sealed on all its replicas."""
        segment = self.segments.get(segment_id)
        return segment is not None and segment.is_sealed

    def is_lost(self, segment_id: int) -> bool:
        """Whether it lacks a replica, and there is no image to make one of."""
        segment = self.segments.get(segment_id)
        return segment is not None and segment.lacks_image

    @property
    def has_lost(self) -> bool:
        """Whether that is so of any."""
        return any(segment.lacks_image for segment in self.segments.values())

    @property
    def is_waiting(self) -> bool:
        """Whether parents that are worth a head are on backups yet."""
        return any(each.is_worth_a_head for each in self._retired)

    @property
    def retired(self) -> list[ReplicatedSegment]:
        """Parents that a recovery may ask for yet."""
        return [segment for each in self._retired for segment in each.segments]

    @property
    def waits_since_s(self) -> float | None:
        """Since when parents wait for a head whose digest is without them, if they are worth it, or
        lack a replica that nothing can be made of; None: none do."""
        waiting = [each for each in self._retired if not each.head]
        return next((e.since_s for e in waiting if e.is_worth_a_head or e.is_in_need), None)

    # ---- survivors --------------------------------------------------------------------------

    def let_image_go(self, segment_id: int) -> None:
        """Memory has less of the segment now than its replicas."""
        self.segments[segment_id].let_image_go()

    def begin(self, segment_id: int, image: pa.Buffer) -> None:
        """Put a survivor on backups."""
        segment = ReplicatedSegment(self.log, segment_id, self.media)
        segment.adopt(image, [])
        segment.is_survivor = True
        for replica in segment.replicas:
            replica.is_remade = True  # in the background, at the rate of all that is made anew
        self._side[segment_id] = segment
        segment.start()

    async def wait_sealed(self, segment_id: int, timeout_s: float) -> bool:
        """Wait until all its replicas are there; false: that takes too long. Raises what ended the
        log."""
        segment = self._side[segment_id]
        try:
            async with asyncio.timeout(timeout_s):
                await self.log.wait_until(lambda: segment.is_sealed)
        except TimeoutError:
            return False
        return True

    def give_up(self, segment_id: int) -> None:
        """Free a survivor that is not admitted."""
        segment = self._side.pop(segment_id, None)
        if segment is not None:
            self._free([segment])

    def admit(self, parents: Sequence[int], survivor: int, is_worth_a_head: bool = True) -> None:
        """The survivor (0: nothing was kept) is in the place of its parents in digests to come.

        ``is_worth_a_head``: else they are freed when a head is opened anyway.
        """
        retired = [self.segments.pop(parent) for parent in parents]
        if survivor:
            admitted = self.segments[survivor] = self._side.pop(survivor)
            admitted.is_survivor = False
        now_s = self.log.runtime.clock.monotonic()
        self._retired.append(_Retired(retired, now_s, is_worth_a_head))
        self.log.progressed()

    # ---- the barrier ------------------------------------------------------------------------

    def head_opened(self, segment_id: int) -> None:
        """A head has been begun whose digest is that of now."""
        for each in self._retired:
            each.head = each.head or segment_id

    def progressed(self, counts: Callable[[int], bool]) -> None:
        """Free what no recovery can ask for any more. ``counts``: whether a head, with its digest,
        is durable, and all before it are closed for good."""
        passed = [each for each in self._retired if each.head and counts(each.head)]
        if passed:
            self._retired = [each for each in self._retired if each not in passed]
            segments = [segment for each in passed for segment in each.segments]
            self.heads_from = max(self.heads_from, *(each.head for each in passed))
            self._free(segments)

    def _free(self, segments: Iterable[ReplicatedSegment]) -> None:
        by_backup: dict[ServerUuid, list[int]] = {}
        for segment in segments:
            for replica in segment.replicas:
                if replica.backup is not None and replica.created:
                    by_backup.setdefault(replica.backup, []).append(segment.segment_id)
            segment.retire()
        if by_backup and not self.log.has_failed:  # else it is the next owner's affair
            name = f"{self.log.tablet_id[:8]}/free"
            self.log.tasks.spawn(self._free_on(by_backup), name)

    async def _free_on(self, by_backup: dict[ServerUuid, list[int]]) -> None:
        """Backups that do not answer are asked by the census what they hold."""
        log = self.log
        for uuid, held in by_backup.items():
            for first in range(0, len(held), FREED_AT_ONCE):
                backup = log.members.find(uuid)
                if backup is None:
                    break
                ids = tuple(held[first : first + FREED_AT_ONCE])
                try:
                    await log.runtime.peers.call(
                        backup.address,
                        FREE_REPLICAS,
                        FreeReplicas(log.tablet_id, log.term, ids, self.heads_from),
                        timeout_s=log.settings.call_timeout_s,
                        destination=uuid,
                    )
                except StelaeError:
                    log.runtime.metrics.count("frees_failed")
                else:
                    log.runtime.metrics.count("replicas_freed", len(ids))

    def let_go(self) -> None:
        """Forget all content: the log has failed."""
        for segment in self.all():
            segment.let_go()
        self._side.clear()
        self._retired.clear()
