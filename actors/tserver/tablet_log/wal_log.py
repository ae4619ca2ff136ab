"""The log of one ``wal(n, …)`` tablet: its tail on a timeline, its sealed segments on backups.

Entries of one turn of the event loop travel together, as one entry of the timeline, and count once
majorities of its safekeepers have them; they wait for much that is under way. A head is in memory
and in the timeline only, and ends where the prologue of the next one stands there.
Invariants:

1. A segment is sealed once the next one's prologue is committed: its content is the same for
   whoever reads the timeline from then on, so it keeps its id whoever seals it.
2. The horizon, up to which the timeline may be trimmed, is the end of the last segment that, with
   all before it, is sealed on all its media. So backups and timeline make up the log at any moment;
   where they overlap, recovery goes by the timeline.
3. The newest digest is in the timeline: the newest head's prologue is never trimmed.
4. What backups do not hold yet is bounded: beyond it, writes are refused until they do.

Source: design §10; Neon, WAL trimmed to what remote storage has; RAMCloud, log digests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.copyset_moves import Regrouping
from stelae.actors.tserver.segments.repair import ReplicaCensus, replace_damaged
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.rereplication import ShortageWatch
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.side_segments import SideSegments
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.interface import BuildImage, FoundSegment
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox, TimelineProposer
from stelae.actors.tserver.tablet_log.recovery import Intake, recovered_segments
from stelae.actors.tserver.tablet_log.trimmed_segments import TrimmedSegments
from stelae.actors.tserver.tablet_log.waiters import LogWaits
from stelae.core.config.settings import GATHER_BYTES, Settings
from stelae.core.errors import Overloaded, StelaeError
from stelae.core.ids import ServerUuid, TabletId, segment_id, segment_name
from stelae.core.messages.backups import Certified
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import SegmentFacts, Shortage
from stelae.core.records.timelines import TimelineSource
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.storage.entries.timeline_tail import Tail, TailSegment, read_tail
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.segments.recovered import RecoveredSegment

TAIL_SEGMENTS_MAX = 32
"""So many segments' bytes may wait for backups before writes are refused."""
UNDER_WAY_MAX = 2
"""Entries of the timeline beyond which what comes in is gathered: one is being synced, one waits
for that at the safekeepers. More of them would only be more messages."""


@dataclass(slots=True)
class _Live:
    """A segment whose entries the timeline still has to keep."""

    segment: ReplicatedSegment
    first_lsn: int = 0
    """Of its prologue; 0: not proposed yet."""
    size_bytes: int = 0


@dataclass(slots=True)
class _Batch:
    """Entries that become one of the timeline."""

    opens: _Live | None = None
    """The segment whose prologue it begins with."""
    parts: list[Blob] = field(default_factory=list)
    size_bytes: int = 0
    last_index: int = 0


class WalLog(LogWaits):
    """A `stelae.actors.tserver.tablet_log.interface.TabletLog`. All runs on the event loop; nothing
    blocks."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        traffic: SegmentTraffic,
        tasks: Tasks,
        *,
        tablet_id: TabletId,
        term: int,
        media: tuple[str, ...],
        source: TimelineSource,
        mailbox: AcceptorMailbox,
        build_image: BuildImage,
        on_failed: Callable[[StelaeError], None],
        intake: Intake,
        given_up: Sequence[int] = (),
    ) -> None:
        """``given_up``: segments that an operator has accepted as lost."""
        super().__init__(on_failed)
        self.runtime = runtime
        self.settings = settings
        self.members = members
        self.traffic = traffic
        self.tasks = tasks
        self.tablet_id = tablet_id
        self.term = term
        self.pending_bytes = 0
        self._media = media
        self._build_image = build_image
        self._trimmed = TrimmedSegments(self, intake, given_up)
        self._segments: dict[int, ReplicatedSegment] = {}
        self._live: deque[_Live] = deque()
        """Those after the horizon, oldest first; the last one is the head."""
        self._live_bytes = 0
        self._sealing: deque[_Live] = deque()
        """Those of them that are not sealed, or whose successor is not committed."""
        self._tail: dict[int, TailSegment] = {}
        self._head_bytes = 0
        self._batches: deque[_Batch] = deque()
        self._proposed: deque[tuple[int, _Batch]] = deque()
        self._flush_due = False
        self._seal_work = asyncio.Event()
        self._segments_made = 0
        self.side = SideSegments(self, self._segments, media)
        self._shortage = ShortageWatch()
        self._proposer = TimelineProposer(
            runtime,
            settings,
            members,
            tasks,
            mailbox,
            source=source,
            term=term,
            on_progress=self.progressed,
            on_failed=self.fail,
        )

    # ---- opening ----------------------------------------------------------------------------

    async def read(
        self, sources: Sequence[SegmentSource], codec: KeyCodec
    ) -> Sequence[FoundSegment]:
        """Be elected, and read what the newest digest names: from backups what the timeline was
        trimmed of, all the rest from the timeline."""
        entries = await self._proposer.elect()
        tail = await self.runtime.offload(read_tail, entries, self.tablet_id)
        del entries
        trimmed = await self._read_trimmed(tail, sources, codec)
        found = []
        for segment in tail.of_log:
            where = f"segment {segment_name(segment.segment_id)} of timeline {self.tablet_id}"
            rows = await self.runtime.offload(
                RecoveredSegment.from_entries, segment.entries, codec, where
            )
            segment.entries.clear()
            self._tail[segment.segment_id] = segment
            found.append(FoundSegment(rows))
        return [*trimmed, *found]

    async def _read_trimmed(
        self, tail: Tail, sources: Sequence[SegmentSource], codec: KeyCodec
    ) -> list[FoundSegment]:
        fetched = await self._trimmed.fetch(tail, sources)
        segments = await recovered_segments(self.runtime, fetched, self.next_id, codec, self.term)
        return [FoundSegment.of(one, rows) for one, rows in zip(fetched, segments, strict=True)]

    async def adopt(self, segment: FoundSegment, remote: RemoteImage | None = None) -> None:
        """Take over a loaded segment: one that is on backups as it is there; one of the timeline
        is sealed in its turn."""
        adopted = ReplicatedSegment(self, segment.segment_id, self._media)
        self._segments[segment.segment_id] = adopted
        tail = self._tail.pop(segment.segment_id, None)
        if tail is not None:
            self._follow(_Live(adopted, tail.first_lsn, tail.size_bytes))
            return
        image = None if segment.image is None else segment.image.buffer
        assert segment.is_remote or image, "backups hold sealed segments of timelines only"
        adopted.epoch = adopted.epoch_registered = segment.epoch
        adopted.adopt(image, segment.holders, remote)
        adopted.start()

    def arrived(self, segment_id: int, image: pa.Buffer, damaged: Sequence[ServerUuid]) -> None:
        self._segments[segment_id].arrived(image)
        replace_damaged(self, self._segments[segment_id], damaged)

    def _follow(self, live: _Live) -> None:
        self._live.append(live)
        self._sealing.append(live)
        self._live_bytes += live.size_bytes

    def start(self) -> None:
        """Begin to follow membership and to seal; the tasks end with the tablet."""
        name = self.tablet_id[:8]
        self.tasks.spawn(self._follow_membership(), f"{name}/membership")
        self.tasks.spawn(self._seal_closed(), f"{name}/seal")

    async def wait_opened(self, head: int) -> None:
        """The head's prologue, and so all before it, is committed."""
        (live,) = [each for each in self._live if each.segment.segment_id == head]
        await self.wait_until(lambda: 0 < live.first_lsn <= self._proposer.committed_lsn)

    def hand_over(self) -> None:
        """From now on strays on backups are freed."""
        census = ReplicaCensus(self, self._media)
        self.tasks.spawn(census.run(), f"{self.tablet_id[:8]}/census")
        regrouping = Regrouping(self, self._media)
        self.tasks.spawn(regrouping.run(), f"{self.tablet_id[:8]}/copysets")

    @property
    def timeline_generation(self) -> int:
        return self._proposer.generation

    def learn(self, timeline: TimelineSource) -> None:
        self._proposer.learn(timeline)

    @property
    def waits_for(self) -> str:
        return self._trimmed.waits_for or self._proposer.waits_for

    @property
    def unreached(self) -> tuple[ServerUuid, ...]:
        return self._trimmed.unreached or self._proposer.unreached

    @property
    def lacks(self) -> tuple[SegmentFacts, ...]:
        return self._trimmed.lacks

    @property
    def on_backups(self) -> list[int]:
        in_timeline = {live.segment.segment_id for live in self._live}
        return [segment for segment in self._segments if segment not in in_timeline]

    @property
    def is_on_backups(self) -> bool:
        return False

    @property
    def inherits(self) -> bool:
        return False

    # ---- segments ---------------------------------------------------------------------------

    @property
    def digest(self) -> tuple[int, ...]:
        """Ids of all live segments, ascending."""
        return tuple(sorted(self._segments))

    @property
    def segments(self) -> list[ReplicatedSegment]:
        """All of which replicas are kept, also what no digest names yet, or for long."""
        return self.side.all()

    @property
    def head_is_leaving(self) -> bool:
        return False  # it is on the timeline

    @property
    def short_medium(self) -> str:
        return self.members.short_medium(self._media)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def content_bytes(self) -> int:
        """Bytes kept for safekeepers alone."""
        waiting = sum(batch.size_bytes for batch in self._batches)
        return waiting + self._proposer.content_bytes

    @property
    def under_replicated(self) -> int:
        sealed = [segment for segment in self._segments.values() if segment.is_columnar]
        return sum(1 for segment in [*sealed, *self.side.retired] if segment.missing_replicas)

    @property
    def shortage(self) -> Shortage | None:
        missing = sum(segment.missing_bytes for segment in self._segments.values())
        sealed = [segment for segment in self._segments.values() if segment.is_columnar]
        unheld = sum(not each.is_held for each in [*sealed, *self.side.retired])
        return self._shortage.look(self.under_replicated, missing, unheld)

    @property
    def holders(self) -> list[list[ServerUuid]]:
        """Of sealed segments: the others are in the timeline."""
        needed = [*self._segments.values(), *self.side.retired]
        return [each.holders for each in needed if each.is_columnar]

    def next_id(self) -> int:
        """An id for a new segment: above all others of the log, and of no other owner's."""
        self._segments_made += 1
        return segment_id(self.term, self._segments_made)

    # ---- appending --------------------------------------------------------------------------

    def open_head(self, segment_id: int, prologue: list[Blob], certificate: Certified) -> None:
        """Entries go to this head from now on; its prologue begins an entry of the timeline."""
        segment = ReplicatedSegment(self, segment_id, self._media)
        self._segments[segment_id] = segment
        live = _Live(segment)
        self._follow(live)
        self.side.head_opened(segment_id)
        self._batches.append(_Batch(live))
        self._head_bytes = 0
        self._add(prologue, certificate.length, 0)

    def append(
        self, buffers: list[Blob], certificate: Certified, index: int, shared_bytes: int = 0
    ) -> int:
        """Add an entry to the batch that goes next; `wait_committed` tells when it counts."""
        self.check_alive()
        size_bytes = certificate.length - self._head_bytes
        if not self._batches or self._batches[-1].size_bytes + size_bytes > self._batch_bytes:
            self._batches.append(_Batch())
        self._add(buffers, size_bytes, index)
        return certificate.length

    def _add(self, buffers: list[Blob], size_bytes: int, index: int) -> None:
        batch, head = self._batches[-1], self._live[-1]
        batch.parts += buffers
        batch.size_bytes += size_bytes
        batch.last_index = index
        head.size_bytes += size_bytes
        self._live_bytes += size_bytes
        self._head_bytes += size_bytes
        self.pending_bytes += size_bytes
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    @property
    def _batch_bytes(self) -> int:
        return self.settings.group_commit_bytes

    def check(self) -> None:
        """Raise what ended the log; Overloaded while backups do not take what is sealed."""
        self.check_alive()
        limit_bytes = TAIL_SEGMENTS_MAX * self.settings.segment_bytes
        if self._live_bytes > limit_bytes:
            what = f"tablet {self.tablet_id}'s log in bytes that backups do not hold yet"
            raise Overloaded(what, limit_bytes)

    @property
    def waits_for_roll(self) -> bool:
        return not self._is_committed(self._live[-1])

    def may_clean(self, segment: int) -> bool:
        """Whether it is sealed on all its replicas, and the timeline need not keep it."""
        is_live = any(each.segment.segment_id == segment for each in self._live)
        return not is_live and self.side.is_settled(segment)

    def _flush(self) -> None:
        """Propose what has come in, all of a turn in one piece."""
        self._flush_due = False
        if self._failure is None and self._propose():
            self._proposer.turn()

    def _propose(self) -> bool:
        """Whether anything was: the rest waits until the proposer leads, or has room."""
        proposed = False
        while self._batches and self._proposer.leads and not self._gathers:
            batch = self._batches[0]
            try:
                lsn = self._proposer.propose(_joined(batch.parts))
            except Overloaded:
                break
            self._batches.popleft()
            batch.parts.clear()
            self._proposed.append((lsn, batch))
            if batch.opens is not None:
                batch.opens.first_lsn = lsn
            proposed = True
        return proposed

    @property
    def _gathers(self) -> bool:
        """Whether what came in, if it fits one entry of the timeline, waits for what is under way:
        rows of many callers share that entry then, and one sync of each safekeeper."""
        first = self._batches[0]
        if len(self._batches) > 1 or first.opens is not None:
            return False
        few = 1 if first.size_bytes < GATHER_BYTES else UNDER_WAY_MAX
        return len(self._proposed) >= few

    def progressed(self) -> None:
        """Level-triggered: from what is committed, and on backups, see what follows."""
        if self._failure is not None:
            return
        committed_lsn = self._proposer.committed_lsn
        while self._proposed and self._proposed[0][0] <= committed_lsn:
            _, batch = self._proposed.popleft()
            self.pending_bytes -= batch.size_bytes
            self.committed_index = max(self.committed_index, batch.last_index)
        self.side.progressed(self._ends_log)
        self._answer()
        if self._may_seal:
            self._seal_work.set()
        self._advance_horizon()
        self._flush()

    def _ends_log(self, head: int) -> bool:
        """Whether whoever reads the timeline finds this head's digest, or a later one."""
        live = [each for each in self._live if each.segment.segment_id == head]
        return not live or self._is_committed(live[0])

    @property
    def _may_seal(self) -> bool:
        """Whether the oldest unsealed segment has its end: the next prologue is committed."""
        return len(self._sealing) > 1 and self._is_committed(self._sealing[1])

    def _is_committed(self, live: _Live) -> bool:
        return 0 < live.first_lsn <= self._proposer.committed_lsn

    def _advance_horizon(self) -> None:
        """Let the timeline be trimmed of what is on all media, in order."""
        while len(self._live) > 1:
            oldest, following = self._live[0], self._live[1]
            if not oldest.segment.is_sealed or not self._is_committed(following):
                return
            self._live.popleft()
            self._live_bytes -= oldest.size_bytes
            self._proposer.trim(following.first_lsn - 1)

    # ---- the end ----------------------------------------------------------------------------

    def fail(self, error: StelaeError) -> None:
        """Another server owns the tablet, or this one gives it up."""
        super().fail(error)
        self._proposer.close()

    def let_go(self) -> None:
        """Forget all content. The log has failed, and none of its tasks runs any more."""
        self.side.let_go()
        for held in (self._segments, self._live, self._sealing, self._batches, self._proposed):
            held.clear()

    # ---- background -------------------------------------------------------------------------

    async def _follow_membership(self) -> None:
        """Replace what dead backups held; also what had died before anybody looked."""
        while True:
            for segment in self.segments:
                segment.forget_dead()
            await self.members.wait_change()

    async def _seal_closed(self) -> None:
        """Turn closed segments into images, oldest first, and have replicas made of them."""
        while True:
            await self._seal_work.wait()
            self._seal_work.clear()
            while self._may_seal:
                segment = self._sealing[0].segment
                image = await self._build_image(segment.segment_id)
                self._sealing.popleft()
                segment.adopt(image, [])
                segment.start()
                self.progressed()


def _joined(parts: Sequence[Blob]) -> bytes:
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    return b"".join(parts)
