"""Who has to agree before an entry of a table counts (design §2)."""

from __future__ import annotations

import msgspec

from stelae.core.errors import InvalidArgument

MAX_REPLICAS = 7


class Segments(msgspec.Struct, frozen=True, tag="segments"):
    """Every backup named has the entry, each on the medium named; none for ``segments()``."""

    media: tuple[str, ...]

    def __str__(self) -> str:
        return "segments(" + ", ".join(repr(medium) for medium in self.media) + ")"


Durability = Segments


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
