"""One replica of a segment as its log knows it, and what the segments of one log share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """The image of a sealed segment whose rows are with backups yet."""

    size_bytes: int
    load: Callable[[], Awaitable[pa.Buffer | None]]
    """Tries once to have it, when there is time for it; None: not now, or it has come to stay."""


@dataclass(slots=True, eq=False)
class SegmentReplica:
    """Where one replica is and what its backup has acknowledged."""

    medium: str
    backup: ServerUuid | None = None
    length: int = 0
    """Bytes that its backup has received."""
    certified: int = 0
    """Bytes of them under a certificate: all that the backup would give to a recovery."""
    epoch: int = -1
    closed: bool = False
    sealed: bool = False
    created: bool = False
    troubled_since: float | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    posted: object | None = None
    """Of an append whose answer is awaited without a task: what tells it from any other."""
    under_way: asyncio.Timeout | None = None
    """Of a call that the replica's task waits for: what ends the wait once its backup is given
    up."""
    goes_alone: bool = False
    """What it lacks is to be sent by itself, by the replica's task."""
    failure: StelaeError | None = None
    """How the last such append ended, if it failed; for the replica's task to see to."""
    is_remade: bool = False
    """In the background, of a sealed segment that had all its replicas before: in its turn."""
    lacks_room: bool = False
    """No live backup has room for it."""
    was_in_vain: bool = False
    """Nobody had its image when it had its turn."""
    replaces: SegmentReplica | None = None
    """The one that is let go once this one is there: it moves."""
    remote: RemoteImage | None = None
    """What gives it the image while it moves, where memory has less of the segment by now."""


class LogContext(Protocol):
    """What the segments of one log share."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic
    tasks: Tasks
    tablet_id: TabletId
    term: int

    def progressed(self) -> None:
        """Some replica acknowledged something: see what follows for the log."""

    def fail(self, error: StelaeError) -> None:
        """The log was fenced: its tablet belongs to another server now."""
