"""What a tablet with one copy in memory needs of its log, whatever its durability (design §2).

A log is opened in this order: `read` brings back what a former owner left, `adopt` takes each of
its segments over once the tablet has loaded it, `start`, then the first `open_head` and
`wait_opened`: from then on the log is whole and durable in this term. Appended entries count in
the order of their indexes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.side_segments import SideSegments
from stelae.actors.tserver.tablet_log.recovery import FetchedSegment
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.backups import Certified
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import SegmentFacts, Shortage
from stelae.core.records.timelines import TimelineSource
from stelae.core.rpc import Blob
from stelae.core.runtime import ObjectHandle
from stelae.core.tasks import Tasks
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.segments.image import Image
from stelae.storage.segments.recovered import RecoveredSegment

BuildImage = Callable[[int], Awaitable[pa.Buffer]]
"""Segment id of a closed head: seals it in memory and returns its image."""


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment of the log as `TabletLog.read` found it."""

    rows: RecoveredSegment
    """Its meta has the id that the segment goes by from now on."""
    image: Image | None = None
    """In columnar form already; else the tablet seals it once the log asks for that."""
    handle: ObjectHandle | None = None
    """Of the image, in shared memory."""
    replicas: tuple[tuple[ServerUuid, Address, str], ...] = ()
    """(backup, its address, medium), where they may be kept as they are."""
    epoch: int = 0
    damaged: tuple[ServerUuid, ...] = ()
    """Backups whose replica was found to be damaged."""
    log: TabletId | None = None
    """Whose log the replicas are of, if not the tablet's own: there it has none yet."""

    @staticmethod
    def of(fetched: FetchedSegment, rows: RecoveredSegment) -> FoundSegment:
        """What was fetched from backups, with its rows (or summary) in the form of the merge."""
        source = fetched.source
        if fetched.is_rewritten:
            return FoundSegment(rows, fetched.image)
        return FoundSegment(
            rows,
            fetched.image,
            fetched.handle,
            source.replicas,
            source.epoch,
            fetched.damaged,
            source.log or None,
        )

    @property
    def is_remote(self) -> bool:
        """Only its summary is here: its image comes later."""
        return self.rows.batch is None

    @property
    def holders(self) -> list[tuple[ServerUuid, str]]:
        """(backup, medium) of its replicas. A damaged one is made anew at once if the image is
        here; else it counts until the image has come
        (`stelae.actors.tserver.segments.repair`)."""
        if self.log:
            return []
        whole = [r for r in self.replicas if self.is_remote or r[0] not in self.damaged]
        return [(uuid, medium) for uuid, _, medium in whole]

    @property
    def segment_id(self) -> int:
        return self.rows.meta.segment_id


class MakeLog(Protocol):
    """Makes a tablet's log: its durability's."""

    def __call__(
        self, tasks: Tasks, build_image: BuildImage, on_failed: Callable[[StelaeError], None]
    ) -> TabletLog:
        """``tasks`` are the tablet's; ``on_failed`` is told once what has ended the log."""


class TabletLog(Protocol):
    """One tablet's log in one term. All methods run on the event loop; none blocks."""

    members: Membership
    """The servers of the cluster, as far as is known."""
    committed_index: int
    """All entries up to here count; set by the tablet to the end of what it has brought back."""
    pending_bytes: int
    """Of entries that do not count yet."""

    # ---- opening ----

    async def read(
        self, sources: Sequence[SegmentSource], codec: KeyCodec
    ) -> Sequence[FoundSegment]:
        """Bring back the log, in its order. Raises SegmentsMissing, CorruptData; StaleTerm."""

    @property
    def waits_for(self) -> str:
        """What `read` or `wait_opened` cannot do without, and does not get; empty: nothing."""

    @property
    def unreached(self) -> tuple[ServerUuid, ...]:
        """Safekeepers and backups that it waits for, and that do not answer."""

    @property
    def lacks(self) -> tuple[SegmentFacts, ...]:
        """Segments without which `read` cannot go on, and which no live backup holds."""

    @property
    def on_backups(self) -> list[int]:
        """Segments that are nowhere else, beside memory; of open ones what was committed."""

    @property
    def is_on_backups(self) -> bool:
        """Whether all of the log is on backups, where others may read it too (Spark)."""

    async def adopt(self, segment: FoundSegment, remote: RemoteImage | None = None) -> None:
        """Take over a segment that the tablet has loaded; it is in every digest from now on.
        ``remote`` gives the image of one that is remote."""

    def arrived(self, segment_id: int, image: pa.Buffer, damaged: Sequence[ServerUuid]) -> None:
        """The image of a remote segment is here to stay; these backups' replicas are damaged."""

    def start(self) -> None:
        """Begin the work in the background; it ends with the tablet."""

    async def wait_opened(self, head: int) -> None:
        """Wait until that head and all before it are durable in this term. Raises what ended the
        log."""

    def hand_over(self) -> None:
        """The catalog says that this log is the tablet's."""

    @property
    def timeline_generation(self) -> int:
        """Of the newest configuration that is known of its timeline; 0 if it has none."""

    def learn(self, timeline: TimelineSource) -> None:
        """The masters know of this configuration of its timeline."""

    # ---- writing ----

    @property
    def digest(self) -> tuple[int, ...]:
        """Ids of all live segments, ascending."""

    def next_id(self) -> int:
        """An id for a new segment: above all others of the log, and of no other owner's."""

    def open_head(self, segment_id: int, prologue: list[Blob], certificate: Certified) -> None:
        """Entries go to this head from now on."""

    def append(
        self, buffers: list[Blob], certificate: Certified, index: int, shared_bytes: int = 0
    ) -> int:
        """Add an entry to the head; return how long the head is now.

        ``shared_bytes`` of it are buffers that the tablet's rows in memory are views of.
        """

    def check(self) -> None:
        """Raise why nothing can be appended: what ended the log, or Overloaded."""

    async def wait_committed(self, index: int, timeout_s: float) -> None:
        """Wait until that entry counts. Raises TimeoutError, or what ended the log."""

    # ---- cleaning ----

    @property
    def inherits(self) -> bool:
        """Whether a recovery may need segments that are in another tablet's log only."""

    @property
    def side(self) -> SideSegments:
        """Survivors on their way into the log, and what they replace."""

    @property
    def waits_for_roll(self) -> bool:
        """Whether a head was begun before that is not the log's end yet."""

    def may_clean(self, segment: int) -> bool:
        """Whether a segment's replicas are complete, and are all that there is of it."""

    @property
    def head_is_leaving(self) -> bool:
        """Whether a backup that is to be retired has a replica of the head, and others could take
        the next one's: a head is not moved, but followed by another."""
        ...

    @property
    def short_medium(self) -> str:
        """A medium on which backups have their reserves left, and no more: rows have to wait for
        the cleaner; empty: there is none."""

    # ---- what it takes, and its end ----

    @property
    def segment_count(self) -> int: ...

    @property
    def content_bytes(self) -> int:
        """Of entries kept for others to be sent, beside the rows in memory."""

    @property
    def under_replicated(self) -> int:
        """Segments that lack replicas on live backups."""

    @property
    def shortage(self) -> Shortage | None:
        """How far it is from having all replicas; None: it has."""

    @property
    def holders(self) -> list[list[ServerUuid]]:
        """Of each segment that is to be on backups, those that hold all of it; the newest last."""

    def fail(self, error: StelaeError) -> None:
        """Nothing is acknowledged any more; whoever waits is told."""

    def let_go(self) -> None:
        """Forget all content. The log has failed, and none of its tasks runs any more."""
