"""How far a tablet's log is from having all its segment replicas."""

from __future__ import annotations

from stelae.core.rpc import Body


class Shortage(Body, frozen=True):
    """Replicas that are missing now, and at most since none was: the rest was made anew."""

    segments: int
    size_bytes: int
    """Of sealed segments, to be sent yet."""
    segments_at_most: int
    bytes_at_most: int
