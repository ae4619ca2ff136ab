"""What backups say of their media, and what the leader passes on to those who place replicas."""

from __future__ import annotations

from stelae.core.ids import ServerUuid
from stelae.core.rpc import Body

RESERVE_SHARE = 1 / 16
RESERVE_FRAMES = 64
"""Of a medium, whichever is less, rows are not written into."""


class MediumLoad(Body, frozen=True):
    """One medium of a backup, in steps so coarse that a steady one says nothing new."""

    medium: str
    free_segments: int
    """So many fit in yet, rounded down to a power of two."""
    bytes_per_s: int = 0
    """What it was seen to do when it was read and written; 0: it was not yet."""
    is_low: bool = False
    """What is left is the reserve: for cleaning, by which there is more again, and for deletes."""


class BackupLoad(Body, frozen=True):
    uuid: ServerUuid
    media: tuple[MediumLoad, ...]


class BackupsView(Body, frozen=True):
    """A hint for placement. ``version`` is made from the content; 0: there is none."""

    version: int
    loads: tuple[BackupLoad, ...] = ()
    copysets: tuple[tuple[ServerUuid, ...], ...] = ()
    """Groups of backups; where there are any, the replicas of a segment best lie in one of them."""
    retiring: tuple[ServerUuid, ...] = ()
    """Servers that are to be retired: what is on them goes elsewhere, and nothing new there."""
    needed: tuple[ServerUuid, ...] = ()
    """Those of them that are not before they are: the others are too few, or too full, without."""
    shunned: tuple[ServerUuid, ...] = ()
    """Backups that masters hear, and that do not answer those who place replicas: taken last."""


def whole_segments(free_bytes: int, frame_bytes: int) -> int:
    """``free_bytes`` as a load says it."""
    count = max(0, free_bytes) // frame_bytes
    return 1 << (count.bit_length() - 1) if count else 0


def reserve_bytes(capacity_bytes: int, frame_bytes: int) -> int:
    """Bytes of a medium that rows are not written into."""
    return int(min(RESERVE_SHARE * capacity_bytes, RESERVE_FRAMES * frame_bytes))


def is_low(capacity_bytes: int, free_bytes: int, frame_bytes: int) -> bool:
    """Whether a medium has no more free than its reserve."""
    return free_bytes < reserve_bytes(capacity_bytes, frame_bytes)


def rounded_rate(bytes_per_s: float) -> int:
    """A rate as a load says it: a power of two, or halfway between two of them."""
    whole = int(bytes_per_s)
    if whole < 2:
        return 0
    power = 1 << (whole.bit_length() - 1)
    return power + power // 2 if whole >= power + power // 2 else power
