"""The durabilities over which the tests of tables run."""

from __future__ import annotations

from typing import Any

from stelae.core.schema.durability import (
    Durability,
    Replicas,
    Segments,
    Wal,
    replicas,
    segments,
    wal,
)

ALL: tuple[Durability, ...] = (
    segments(),
    segments("ram"),
    segments("disk", "disk"),
    replicas(1),
    replicas(3),
    wal(3, ("disk",)),
)
ONE_OF_EACH_KIND: tuple[Durability, ...] = (segments("ram", "ram"), replicas(3), wal(3, ("ram",)))


def as_json(durability: Durability) -> dict[str, Any]:
    """As HTTP has it."""
    match durability:
        case Segments(media):
            return {"segments": list(media)}
        case Wal(count, media):
            return {"wal": count, "segments": list(media)}
        case Replicas(count):
            return {"replicas": count}
