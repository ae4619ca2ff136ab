"""What the replicas of a segment are like, all together: a part of a replicated segment."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from stelae.actors.segment_replica import LogContext, RemoteImage, SegmentReplica
from stelae.core.ids import ServerUuid


class ReplicaViews(ABC):
    """Nothing here changes anything."""

    replicas: list[SegmentReplica]
    epoch: int
    is_columnar: bool
    image: pa.Buffer | None
    remote: RemoteImage | None
    """The image that is not here yet, since it was taken over."""
    _context: LogContext

    @property
    @abstractmethod
    def length(self) -> int:
        """Of its content in row form."""

    @property
    @abstractmethod
    def _epoch_counts(self) -> bool: ...

    @property
    def is_sealed(self) -> bool:
        return self.is_columnar and all(r.sealed for r in self.replicas)

    @property
    def lacks_image(self) -> bool:
        """Whether there is nothing to make a replica of that it lacks."""
        return self.is_columnar and not self.image_bytes and not self.is_sealed

    @property
    def image_bytes(self) -> int:
        """Of what replicas are made of, here or not; 0: there is none."""
        if self.image is not None:
            return int(self.image.size)
        return 0 if self.remote is None else self.remote.size_bytes

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
            and (r.sealed or r.closed or (r.length == self.length and r.epoch == self.epoch))
        ]
