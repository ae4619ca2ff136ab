"""What a simulated file holds, and what of that a crash may take back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pending:
    """One operation on a file since its last sync; ``data`` None means truncate to ``offset``."""

    offset: int
    data: bytes | None


class Content:
    """What a file holds: as read (``live``), as a crash would leave at least (``durable``)."""

    __slots__ = ("allocated", "durable", "live", "pending", "sync_failed", "synced", "unreadable")

    def __init__(self, data: bytes = b"") -> None:
        self.live = bytearray(data)
        self.durable = bytearray(data)
        self.pending: list[Pending] = []
        self.synced = 0  # operations ever made durable, so that overlapping syncs agree
        self.allocated = len(data)
        self.unreadable = False
        self.sync_failed = False  # what it covered is in the cache, clean, and maybe not on disk

    def apply(self, operation: Pending) -> None:
        apply(self.live, operation)
        self.pending.append(operation)
        self.allocated = max(self.allocated, len(self.live))

    def forget_cache(self) -> None:
        """Read again from the disk, and what was written since on top of it."""
        self.sync_failed = False
        self.live = bytearray(self.durable)
        for operation in self.pending:
            apply(self.live, operation)

    def sync_to(self, mark: int) -> None:
        """Make the operations up to the ``mark``-th ever durable."""
        count = mark - self.synced
        if count > 0:
            for operation in self.pending[:count]:
                apply(self.durable, operation)
            del self.pending[:count]
            self.synced = mark


def apply(target: bytearray, operation: Pending) -> None:
    if operation.data is None:
        size = operation.offset
        if len(target) > size:
            del target[size:]
        else:
            target.extend(bytes(size - len(target)))
        return
    if len(target) < operation.offset:
        target.extend(bytes(operation.offset - len(target)))
    target[operation.offset : operation.offset + len(operation.data)] = operation.data
