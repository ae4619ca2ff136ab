"""What a recovery reads of logs that lie on this machine: past the backups that have them.

A summary that comes through a backup is copied four times, by two processes that have work of their
own. So backups are asked where their replicas lie, once for all that is wanted of a log, and what
the kernel has in memory of those is read from their files. All else comes as ever, from the
backups: what lies on other machines, in no file, or not in memory.

The backups know nothing of these reads, and go on writing: by then the frames may be another's.

Invariant: nothing is believed but by checksums that the backup has told: an image's end is the one
that it has said, and has those of all else; rows have its certificate. What does not fit says
nothing of the replica: it is read from a backup then, which finds out.
Source: HDFS "short-circuit local reads" (HDFS-347); seed RAMCloud master recovery (partial replay).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stelae.core.buffers import BufferPool
from stelae.core.errors import CorruptData, StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.memory import populate
from stelae.core.messages.backups import (
    LOCATE_REPLICAS,
    ImagePlace,
    LocatedReplica,
    LocateReplicas,
    ReplicaInfo,
    ReplicaState,
)
from stelae.core.messages.servers import SegmentSource
from stelae.core.runtime import NearFile, ReplyMemory, Runtime
from stelae.storage.segments.image import summary_range

T = TypeVar("T")
ALIGNMENT = 64
LOCATE_TIMEOUT_S = 0.5
"""Whoever does not say it by then is asked for the bytes."""


@dataclass(frozen=True, slots=True)
class NearReplica:
    """What is needed of a segment, as it was in the backup's file: not checked yet."""

    info: ReplicaInfo
    data: memoryview
    """An image or its tail; or the rows that the certificate is of."""
    where: str


@dataclass(frozen=True, slots=True)
class _Group:
    """What is to be asked of one backup."""

    backup: ServerUuid
    address: Address
    log: TabletId
    sources: list[tuple[int, SegmentSource]]
    """Each with its place among those that are wanted."""


class NearReplicas:
    """Those that one server, or one task, can read."""

    def __init__(self, runtime: Runtime, pool: BufferPool | None = None) -> None:
        """``pool``: of memory for what is soon let go of again, log by log; else each segment has
        new memory of its own."""
        self._runtime = runtime
        self._pool = pool
        self._far: dict[ServerUuid, None] = {}
        """Backups whose files are not to be had here: they are not asked again."""
        self._turn = asyncio.Semaphore(1)
        """At reading: the first log is merged while the next is read."""

    async def read(
        self, tablet_id: TabletId, sources: Sequence[SegmentSource]
    ) -> dict[int, NearReplica]:
        """What can be had from here, each by its place among ``sources``."""
        found = await asyncio.gather(
            *(self._read_group(group) for group in self._groups(tablet_id, sources))
        )
        read = {place: near for part in found for place, near in part.items()}
        if read:
            self._runtime.metrics.count("near_replicas_read", len(read))
        return read

    def _groups(self, tablet_id: TabletId, sources: Sequence[SegmentSource]) -> list[_Group]:
        """Each source with one backup that may be near. Of a head nothing but the longest replica
        is read so: whoever merges elsewhere reads that one too."""
        groups: dict[tuple[ServerUuid, TabletId], _Group] = {}
        for place, source in enumerate(sources):
            replicas = source.replicas[:1] if source.is_head else source.replicas
            near = [(uuid, at) for uuid, at, _ in replicas if uuid not in self._far]
            if not near:
                continue
            uuid, address = self._runtime.rng.choice(near)
            log = source.log or tablet_id
            group = groups.setdefault((uuid, log), _Group(uuid, address, log, []))
            group.sources.append((place, source))
        return list(groups.values())

    async def _read_group(self, group: _Group) -> dict[int, NearReplica]:
        segments = tuple([source.segment_id for _, source in group.sources])
        by_segment, files = await self._locate(group.backup, group.address, group.log, segments)
        located = [
            (place, by_segment[source.segment_id])
            for place, source in group.sources
            if source.segment_id in by_segment
        ]
        try:
            async with self._turn:
                return await self._runtime.offload(
                    _read_all, files, located, str(group.address), self._pool
                )
        finally:
            for file in files.values():
                file.close()

    async def read_image(
        self,
        log: TabletId,
        segment_id: int,
        at: tuple[ServerUuid, Address],
        memory: ReplyMemory,
        check: Callable[[NearReplica], T],
    ) -> T | None:
        """What ``check`` makes of all of an image, on the thread that has read it; None: it cannot
        be had from here. ``memory`` gives the place for it. Raises as ``check`` does."""
        backup, address = at
        if backup in self._far:
            return None
        by_segment, files = await self._locate(backup, address, log, (segment_id,))
        located = by_segment.get(segment_id)
        try:
            if located is None or located.info.state is not ReplicaState.SEALED:
                return None
            file = files.get(located.place.file)
            if file is None:
                return None
            return await self._runtime.offload(
                _read_and_check, file, located, memory, str(address), check
            )
        finally:
            for each in files.values():
                each.close()

    async def _locate(
        self, backup: ServerUuid, address: Address, log: TabletId, segments: tuple[int, ...]
    ) -> tuple[dict[int, LocatedReplica], dict[str, NearFile]]:
        """Where a backup says that replicas lie, by segment; and the files there that are here."""
        try:
            reply = await self._runtime.peers.call(
                address,
                LOCATE_REPLICAS,
                LocateReplicas(log, segments),
                timeout_s=LOCATE_TIMEOUT_S,
                destination=backup,
            )
        except StelaeError:
            self._runtime.metrics.count("replicas_not_located")
            return {}, {}
        files = self._open({located.place.file: None for located in reply.body.replicas})
        if reply.body.replicas and not files:
            self._far[backup] = None
        return {located.info.segment_id: located for located in reply.body.replicas}, files

    def _open(self, places: dict[str, None]) -> dict[str, NearFile]:
        opened = {place: self._runtime.disk.open_near(place) for place in places}
        return {place: file for place, file in opened.items() if file is not None}


def _read_all(
    files: dict[str, NearFile],
    replicas: Sequence[tuple[int, LocatedReplica]],
    address: str,
    pool: BufferPool | None,
) -> dict[int, NearReplica]:
    """What lies in memory of some replicas. Runs off the event loop."""
    wanted = [
        (place, located, part)
        for place, located in replicas
        if located.place.file in files and (part := _part(located)) is not None
    ]
    sizes = [length for _, _, (_, length) in wanted]
    rooms = [None] * len(wanted) if pool is None else _carve(pool, sizes)
    found: dict[int, NearReplica] = {}
    for (place, located, (offset, length)), given in zip(wanted, rooms, strict=True):
        room = _new(length) if given is None else given
        near = _read_one(files[located.place.file], located, offset, room, address)
        if near is not None:
            found[place] = near
    return found


def _read_and_check(
    file: NearFile,
    located: LocatedReplica,
    memory: ReplyMemory,
    address: str,
    check: Callable[[NearReplica], T],
) -> T | None:
    found = _read_one(file, located, 0, memory(located.info.length), address)
    return None if found is None else check(found)


def _read_one(
    file: NearFile, located: LocatedReplica, offset: int, room: memoryview, address: str
) -> NearReplica | None:
    """Read a replica from ``offset`` to its end; None: it does not lie in memory, or its frames
    are another's by now."""
    trailer = located.trailer
    if not fill(file, located.place, offset, room):
        return None
    if bytes(room[len(room) - len(trailer) :]) != trailer:
        return None
    name = segment_name(located.info.segment_id)
    return NearReplica(located.info, room, f"segment {name} in a file of {address}")


def _part(located: LocatedReplica) -> tuple[int, int] | None:
    """(offset, length) of what a merge needs of a replica; None: its backup is to say."""
    info = located.info
    if info.state is not ReplicaState.SEALED:
        return 0, info.length
    try:
        return summary_range(located.trailer, info.length, segment_name(info.segment_id))
    except CorruptData:
        return None


def _new(length: int) -> memoryview:
    room = np.empty(length, np.uint8).data
    populate(room)
    return room


def _carve(pool: BufferPool, sizes: Sequence[int]) -> list[memoryview]:
    """Rooms of these sizes, each aligned, in one buffer."""
    ends = list(itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
    whole = pool.take(ends[-1] if ends else 0)
    return [whole[start : start + size] for start, size in zip([0, *ends], sizes, strict=False)]


def fill(file: NearFile, place: ImagePlace, offset: int, room: memoryview) -> bool:
    """Read bytes of a replica; false: not all of them lie in memory."""
    start = done = 0
    for at, size in place.pieces:
        if start < offset + len(room) and offset < start + size:
            first = max(offset, start)
            count = min(offset + len(room), start + size) - first
            if not file.fill_cached(at + first - start, room[done : done + count]):
                return False
            done += count
        start += size
    return done == len(room)
