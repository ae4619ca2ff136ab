"""Media of a backup: where segment replicas are kept, and when they count as kept.

`Medium` is what a backup asks of one; `MemoryMedium` keeps replicas in memory, and
`stelae.actors.backup.disk_medium` in a frame file. What a replica *means* is for
`stelae.actors.backup.replicas`; here bytes become durable. (Seed 003, "Pluggable storage backends")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from stelae.actors.backup.frames import (
    MediumSpec,
)
from stelae.actors.backup.replicas import Batch, Facts, Replica, blob_size, skip_bytes
from stelae.core.errors import CorruptData, NoSpace
from stelae.core.messages.backups import ImagePlace, ReplicaState
from stelae.core.rpc import Blob

PIECE_BYTES = 1 << 20
MEASURED_BYTES = 256 << 10
REMEMBERED = 0.9


class Medium(Protocol):
    """What a backup asks of a medium. A failed sync ends `run`, and with it the server."""

    is_lasting: ClassVar[bool]
    """Whether what it holds outlives the process."""
    is_low: bool
    """Whether it had its reserve left, and no more, when that was looked at last."""

    @property
    def name(self) -> str: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int: ...

    @property
    def capacity_bytes(self) -> int:
        """Bytes that it has in all, and of which a share is its reserve."""
        ...

    @property
    def bytes_per_s(self) -> float:
        """What it was seen to do of late; 0: nothing was measured."""
        ...

    async def run(self) -> None:
        """Make changes durable, for as long as the server runs."""
        ...

    async def write(self, replica: Replica, offset: int, blobs: Sequence[Blob]) -> None:
        """Write bytes past the certificate; durable once staged and waited for.

        Raises:
            NoSpace: there is no room; nothing was written.
            Overloaded: too much is waiting to be synced; nothing was written.
            DiskFailed: the disk failed the write; part of it may be there.
        """
        ...

    async def stage(self, replica: Replica, facts: Facts) -> Batch | None:
        """Put ``facts``, and the bytes they certify, into the batch returned (None: it is done).

        Whoever made the call waits for the batch; only then do they count.
        """
        ...

    async def settle(self) -> None:
        """Make everything so far durable."""
        ...

    def free(self, replica: Replica) -> None:
        """Give the replica up. That may be undone by a crash until the next sync."""
        ...

    async def read(self, replica: Replica, offset: int, length: int) -> Blob:
        """Read bytes. Raises `CorruptData` if the medium has fewer."""
        ...

    def fill(self, replica: Replica, offset: int, buffer: memoryview) -> None:
        """Read a few bytes into a buffer, at once. Raises `CorruptData` if the medium has fewer."""
        ...

    def place_of(self, replica: Replica, length: int) -> ImagePlace | None:
        """Where a replica of so many bytes lies; None: in no file."""
        ...

    def close(self) -> None: ...


class MeasuredRate:
    """Bytes a second of what a medium read and wrote of late; the older, the less it counts."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def note(self, size_bytes: int, seconds: float) -> None:
        """So much took so long. What is small says something of delays, and nothing of the rate."""
        if size_bytes >= MEASURED_BYTES and seconds > 0:
            self._bytes = self._bytes * REMEMBERED + size_bytes
            self._seconds = self._seconds * REMEMBERED + seconds

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds if self._seconds else 0.0


class MemoryMedium:
    """Replicas in memory: at once as durable as they will be, and gone when the process ends."""

    is_lasting: ClassVar[bool] = False

    def __init__(self, spec: MediumSpec, server: str) -> None:
        assert spec.size_bytes is not None
        self.name = spec.name
        self.used_bytes = 0
        self.is_low = False
        self.bytes_per_s = 0.0
        self._limit_bytes = spec.size_bytes
        self._server = server

    @property
    def capacity_bytes(self) -> int:
        return self._limit_bytes

    @property
    def free_bytes(self) -> int:
        return self._limit_bytes - self.used_bytes

    async def run(self) -> None:
        return

    async def write(self, replica: Replica, offset: int, blobs: Sequence[Blob]) -> None:
        end = offset + blob_size(blobs)
        growth = max(0, end - len(replica.content))
        if growth > self.free_bytes:
            raise NoSpace(self._server, self.name)
        self.used_bytes += growth
        for view in skip_bytes(blobs, 0):
            replica.content[offset : offset + view.nbytes] = view
            offset += view.nbytes
        replica.written = max(replica.written, end)

    async def stage(self, replica: Replica, facts: Facts) -> Batch | None:
        replica.wanted = replica.facts = facts
        return None

    async def settle(self) -> None:
        return

    def free(self, replica: Replica) -> None:
        assert not replica.freed, "a replica is freed once"
        replica.freed = True
        self.used_bytes -= len(replica.content)

    async def read(self, replica: Replica, offset: int, length: int) -> Blob:
        if offset + length > len(replica.content):
            raise CorruptData(replica.where, len(replica.content), "memory ends here")
        if replica.facts is None or replica.facts.state is ReplicaState.OPEN:
            return bytes(memoryview(replica.content)[offset : offset + length])  # it may grow yet
        return memoryview(replica.content).toreadonly()[offset : offset + length]

    def fill(self, replica: Replica, offset: int, buffer: memoryview) -> None:
        content = memoryview(replica.content)[offset : offset + len(buffer)]
        if len(content) < len(buffer):
            raise CorruptData(replica.where, len(replica.content), "memory ends here")
        buffer[:] = content

    def place_of(self, replica: Replica, length: int) -> ImagePlace | None:
        return None

    def close(self) -> None:
        return
