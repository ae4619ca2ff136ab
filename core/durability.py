"""Who has to agree before an entry of a table counts (design §2)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.core.errors import InvalidArgument

MAX_REPLICAS = 7
"""Of one segment, and of one tablet."""


class Segments(msgspec.Struct, frozen=True, tag="segments"):
    """Every backup named has the entry, each on the medium named; none for ``segments()``."""

    media: tuple[str, ...]

    def __str__(self) -> str:
        return "segments(" + ", ".join(repr(medium) for medium in self.media) + ")"


class Replicas(msgspec.Struct, frozen=True, tag="replicas"):
    """A majority of ``count`` tablet replicas has the entry on its disk."""

    count: int

    def __str__(self) -> str:
        return f"replicas({self.count})"


Durability: TypeAlias = Segments | Replicas


def replicas(count: int) -> Replicas:
    """``count`` replicas of each tablet on as many tablet servers, which agree by Raft.

    A write is acknowledged once a majority has it on disk; the table serves on while a majority of
    each tablet's replicas lives. Odd, as one more replica survives no more failures.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidArgument(f"replicas({count!r}): a number of replicas")
    if not 1 <= count <= MAX_REPLICAS or count % 2 == 0:
        raise InvalidArgument(f"replicas({count}): an odd number from 1 to {MAX_REPLICAS}")
    return Replicas(count)


def checked(durability: Durability) -> Durability:
    """The same, if a table may have it. Raises `InvalidArgument`: whoever sent it made it up."""
    match durability:
        case Segments(media):
            return segments(*media)
        case Replicas(count):
            return replicas(count)


def media_of(durability: Durability) -> tuple[str, ...]:
    """The medium of each segment replica; none for tables whose tablets have no segments' log."""
    return durability.media if isinstance(durability, Segments) else ()


def segments(*media: str) -> Segments:
    """One segment replica on each medium named, e.g. ``segments("disk", "disk")``.

    A write is acknowledged once all of them have it. ``segments()`` keeps rows in memory only:
    they die with their tablet server.
    """
    if len(media) > MAX_REPLICAS:
        raise InvalidArgument(f"{len(media)} segment replicas; the limit is {MAX_REPLICAS}")
    if not all(isinstance(medium, str) and medium for medium in media):
        raise InvalidArgument(f"segments{media!r}: name a medium of cluster.yaml for each replica")
    return Segments(media)
