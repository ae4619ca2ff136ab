"""What the replicas of a segment are like, all together, and views of its content as blobs."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from stelae.actors.tserver.segments.replica import LogContext, RemoteImage, SegmentReplica
from stelae.actors.tserver.segments.rereplication import AFTER_ALL
from stelae.core.ids import ServerUuid
from stelae.core.rpc import Blob


class ReplicaViews(ABC):
    """Nothing here changes anything."""

    replicas: list[SegmentReplica]
    epoch: int
    epoch_registered: int
    may_fill: bool
    is_columnar: bool
    is_survivor: bool
    image: pa.Buffer | None
    remote: RemoteImage | None
    """The image that is not here yet, since it was taken over."""
    is_inherited: bool = False
    """It lies in the log of a tablet that was split, and has no replicas in this one."""
    former_bytes: int = 0
    """Of the image that was let go."""
    _context: LogContext

    @property
    @abstractmethod
    def length(self) -> int:
        """Of its content in row form."""

    @property
    @abstractmethod
    def is_opened(self) -> bool:
        """The prologue is durable on all replicas (registration of an epoch may be pending)."""

    @property
    def _epoch_counts(self) -> bool:
        return self.epoch_registered == self.epoch

    @property
    def is_sealed(self) -> bool:
        return self.is_columnar and all(r.sealed for r in self.replicas)

    @property
    def committed_length(self) -> int:
        """Bytes that every replica has under a certificate, in an epoch that counts."""
        if self.is_columnar:
            return self.length
        if not (self.may_fill and self._epoch_counts):
            return 0
        if any(r.epoch != self.epoch and not r.closed for r in self.replicas):
            return 0
        # Not what they have received: without its certificate a piece is lost with this server.
        return min((r.certified for r in self.replicas), default=self.length)

    @property
    def epoch_is_everywhere(self) -> bool:
        return all(r.epoch == self.epoch or r.sealed for r in self.replicas) and self.is_opened

    def left_beside(self, replica: SegmentReplica) -> int:
        """How many replicas there are beside this one: what has lost more is made anew first."""
        if replica.replaces is not None or (replica.was_in_vain and self.image is None):
            return AFTER_ALL
        left = sum(each.sealed for each in self.replicas)
        # A survivor as if it lacked one, and not as what may be gone: its parents are there.
        return max(left, len(self.replicas) - 1, 1) if self.is_survivor else left

    @property
    def lacks_image(self) -> bool:
        """Whether there is nothing to make a replica of that it lacks."""
        stay = [replica for replica in self.replicas if replica.replaces is None]
        return self.is_columnar and not self.image_bytes and not all(r.sealed for r in stay)

    @property
    def image_bytes(self) -> int:
        """Of what replicas are made of, here or not; 0: there is none."""
        if self.image is not None:
            return int(self.image.size)
        return 0 if self.remote is None else self.remote.size_bytes

    async def _image_for(self, replica: SegmentReplica) -> pa.Buffer | None:
        """What a replica is made of; None: it is not to be had now."""
        remote = self.remote or replica.remote
        if self.image is None and remote is not None:
            return await remote.load() or self.image
        return self.image

    @property
    def stands_without_strays(self) -> bool:
        """Whether all that was acknowledged is on the present replicas, and recoveries know it.

        Until then, what a replaced replica still holds may be the only copy of it.
        """
        return self._epoch_counts and all(
            r.sealed or r.closed or r.epoch == self.epoch for r in self.replicas
        )

    @property
    def missing_replicas(self) -> int:
        """Replicas that are on no live backup, or not complete there."""
        find = self._context.members.find
        wanted = [r for r in self.replicas if r.replaces is None]
        half = [r for r in wanted if r.is_remade and not r.sealed]
        gone = (r for r in wanted if r.backup is None or find(r.backup) is None)
        return len(half) + sum(1 for r in gone if r not in half)

    @property
    def is_held(self) -> bool:
        """Whether a live backup has all of it that was acknowledged."""
        find = self._context.members.find
        whole = (r for r in self.replicas if r.sealed or r.closed or r.epoch == self.epoch)
        return any(r.backup is not None and find(r.backup) is not None for r in whole)

    @property
    def missing_bytes(self) -> int:
        """To be sent for them, of what is sealed."""
        return self.image_bytes * self.missing_replicas

    @property
    def lacks_room(self) -> bool:
        """A replica is on no backup, as none has room."""
        return any(r.lacks_room and r.backup is None for r in self.replicas)

    @property
    def holders(self) -> list[ServerUuid]:
        """The backups whose replica has everything, under the present epoch."""
        return [
            r.backup
            for r in self.replicas
            if r.backup is not None
            and (r.sealed or r.closed or (r.certified == self.length and r.epoch == self.epoch))
        ]


JOIN_BYTES = 64 << 10
"""Many small entries up to this size go out as one blob: each blob costs something at every hop."""
VIEWS_MAX = 256
"""Above it, small neighbours are joined: a message takes a bounded number of blobs."""


def gathered(views: list[Blob]) -> list[Blob]:
    """The same bytes in fewer blobs: neighbours are copied together up to `JOIN_BYTES`."""
    joined: list[Blob] = []
    waiting: list[Blob] = []
    size = 0
    for view in views:
        if waiting and size + size_of(view) > JOIN_BYTES:
            joined.append(b"".join(waiting) if len(waiting) > 1 else waiting[0])
            waiting, size = [], 0
        waiting.append(view)
        size += size_of(view)
    joined.append(b"".join(waiting) if len(waiting) > 1 else waiting[0])
    return joined


def size_of(buffer: Blob) -> int:
    """Bytes of any buffer."""
    return buffer.size if isinstance(buffer, pa.Buffer) else memoryview(buffer).nbytes


def sliced(content: Sequence[Blob], ends: Sequence[int], start: int, end: int) -> list[Blob]:
    """Bytes [start, end) of buffers that end at ``ends``: views, or one copy where they are small
    and many."""
    views: list[Blob] = []
    join = end - start <= JOIN_BYTES
    at = bisect.bisect_right(ends, start)
    while start < end:
        begin = ends[at - 1] if at else 0
        buffer, stop = content[at], ends[at]
        if start > begin or stop > end:
            stop = min(end, stop)
            buffer = memoryview(buffer)[start - begin : stop - begin]
        views.append(buffer)
        start, at = stop, at + 1
    if join and len(views) > 1:
        return [b"".join(views)]
    return views if len(views) <= VIEWS_MAX else gathered(views)
