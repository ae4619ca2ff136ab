"""The log of one ``segments(…)`` tablet: its heads, the order between them, and what is committed.

Order rules (RAMCloud), each enforced in `SegmentLog._permit`:

1. A head opens only when its predecessor is open on all replicas and that one's predecessor is
   closed on all: opens become durable in order, and at most two open heads exist.
2. The old head closes only after the new head, with its digest, is durable on all replicas.
3. No data beyond the prologue enters the new head before the old one is closed on all replicas.

So of two open heads the older ends the log. A lost replica of a segment that is not yet closed
everywhere is replaced under a higher epoch; before anything more is acknowledged the epoch is
durable in the catalog, in segment order, so that the stale replica can never be taken for whole.
Not before the tablet is handed over, though: until then the log is what the former owner left, and
a mark above its open head would make that one stale. Nothing is acknowledged before, either.

Writes never wait for a roll: entries go into the new head's content at once, and their replication
waits for rule 3. The tablet bounds how much may wait.

Source: seed RAMCloud master recovery; ramcloud ReplicaManager, the three rules of allocateHead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.copyset_moves import Regrouping
from stelae.actors.tserver.segments.inherited_replicas import InheritedReplicas
from stelae.actors.tserver.segments.repair import ReplicaCensus, replace_damaged
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.rereplication import ShortageWatch
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.side_segments import SideSegments
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.interface import BuildImage, FoundSegment
from stelae.actors.tserver.tablet_log.recovery import Intake, fetch_segments, recovered_segments
from stelae.actors.tserver.tablet_log.waiters import LogWaits
from stelae.core.config.settings import Settings
from stelae.core.errors import NoSpace, StelaeError, TabletNotReady
from stelae.core.ids import ServerUuid, TabletId, segment_id
from stelae.core.messages.backups import Certified
from stelae.core.messages.servers import SegmentSource
from stelae.core.records.losses import SegmentFacts, Shortage
from stelae.core.records.records import Inheritance
from stelae.core.records.timelines import TimelineSource
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.core.schema.shares import ALL, Share
from stelae.core.tasks import Tasks
from stelae.storage.keys.codec import KeyCodec

RaiseEpoch = Callable[[int, int], Awaitable[None]]
"""(segment id, epoch): durable in the catalog on return; raises StaleTerm if fenced."""


STILL_S = 2.0
"""Time without progress after which a log names the backups that its server avoids."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An entry that not all replicas have yet."""

    segment: ReplicatedSegment
    end: int
    index: int
    size: int


class SegmentLog(LogWaits):
    """Segments in order, the last one the head. All methods run on the event loop; none blocks."""

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
        raise_epoch: RaiseEpoch,
        build_image: BuildImage,
        on_failed: Callable[[StelaeError], None],
        intake: Intake,
        share: Share = ALL,
        inherits: Inheritance | None = None,
    ) -> None:
        """``share``: of the rows of a log that it ``inherits``, those that it takes."""
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
        self._raise_epoch = raise_epoch
        self._build_image = build_image
        self._intake = intake
        self._share = share
        self._inherits = inherits
        self._segments: dict[int, ReplicatedSegment] = {}
        self._unsealed: list[ReplicatedSegment] = []
        self._rewritten: list[int] = []
        """What the former owner left in row form, under new ids."""
        self._pending: deque[_Pending] = deque()
        self._epoch_work = asyncio.Event()
        self._handed_over = asyncio.Event()
        self._seal_work = asyncio.Event()
        self._segments_made = 0
        self._mark: tuple[int, tuple[tuple[int, bool], ...]] = (0, ())
        """How far the log was at the last look of `unreached`."""
        self._still_since = 0.0
        self.side = SideSegments(self, self._segments, media)
        self._shortage = ShortageWatch()

    def start(self) -> None:
        """Begin to follow membership and to seal; the tasks end with the tablet."""
        name = self.tablet_id[:8]
        self.tasks.spawn(self._follow_membership(), f"{name}/membership")
        self.tasks.spawn(self._register_epochs(), f"{name}/epochs")
        self.tasks.spawn(self._seal_closed(), f"{name}/seal")

    def hand_over(self) -> None:
        """The catalog says that this log is the tablet's: raised epochs may stand there too."""
        self._handed_over.set()
        census = ReplicaCensus(self, self._media)
        self.tasks.spawn(census.run(), f"{self.tablet_id[:8]}/census")
        regrouping = Regrouping(self, self._media)
        self.tasks.spawn(regrouping.run(), f"{self.tablet_id[:8]}/copysets")
        if self._inherits is not None:
            theirs = InheritedReplicas(self, self._media, self._inherits, self._share)
            self.tasks.spawn(theirs.run(), f"{self.tablet_id[:8]}/inherited replicas")

    @property
    def timeline_generation(self) -> int:
        return 0

    def learn(self, timeline: TimelineSource) -> None:
        raise TabletNotReady(self.tablet_id, "not on a timeline")

    # ---- what a former owner left -----------------------------------------------------------

    async def read(
        self, sources: Sequence[SegmentSource], codec: KeyCodec
    ) -> Sequence[FoundSegment]:
        """All segments of the log, each from one of its replicas."""
        if not sources:
            return ()
        fetched = await fetch_segments(
            self.runtime, self.settings, self.tablet_id, sources, self._intake
        )
        of_term = self.next_id, codec, self.term
        segments = await recovered_segments(self.runtime, fetched, *of_term, self._share)
        found = [FoundSegment.of(one, rows) for one, rows in zip(fetched, segments, strict=True)]
        for one, segment in zip(fetched, found, strict=True):
            if one.is_rewritten:
                self._rewrite(segment)
        return found

    def _rewrite(self, segment: FoundSegment) -> None:
        """What was in row form (the old head above all) is sealed on all replicas, as a new
        segment, before the log is opened: from the hand-over on, open replicas of earlier terms are
        ignored. Under a new id, because two recoveries may read different ends of one old head.
        Backups get it while all else is merged."""
        assert segment.image is not None, "what was in row form was sealed"
        self._rewritten.append(segment.segment_id)
        self.adopt_image(segment.segment_id, segment.image.buffer, [], 0)

    async def adopt(self, segment: FoundSegment, remote: RemoteImage | None = None) -> None:
        """Take over a loaded segment."""
        if segment.segment_id in self._segments:
            return  # it was rewritten
        assert segment.is_remote or segment.image is not None, "row form was rewritten"
        if segment.log:
            self._inherit(segment.segment_id)
            return
        image = None if segment.image is None else segment.image.buffer
        self.adopt_image(segment.segment_id, image, segment.holders, segment.epoch, remote)

    def _inherit(self, segment: int) -> None:
        """It is in digests, and its replicas are another log's: here it gets none, but gives way to
        a survivor (`stelae.actors.tserver.owned_tablet.inheriting`)."""
        inherited = ReplicatedSegment(self, segment, ())
        inherited.adopt(None, [])
        inherited.is_inherited = True
        self._segments[segment] = inherited

    @property
    def inherits(self) -> bool:
        """Also one that was replaced, as long as a recovery may go by a digest that names it."""
        return bool(self.inherited)

    @property
    def inherited(self) -> list[int]:
        """Those segments, ascending."""
        needed = [*self._segments.values(), *self.side.retired]
        return sorted(segment.segment_id for segment in needed if segment.is_inherited)

    def arrived(self, segment_id: int, image: pa.Buffer, damaged: Sequence[ServerUuid]) -> None:
        self._segments[segment_id].arrived(image)
        replace_damaged(self, self._segments[segment_id], damaged)

    async def wait_opened(self, head: int) -> None:
        """The head's prologue is on all replicas, and so is all of what was rewritten."""
        opened = self._segments[head]
        await self.wait_until(lambda: opened.is_opened)
        await self.wait_until(lambda: self.are_sealed(self._rewritten))

    @property
    def lacks(self) -> tuple[SegmentFacts, ...]:
        return ()  # it is not opened without a plan that has all of it

    @property
    def waits_for(self) -> str:
        """Missing backups show in ``under_replicated``; here only what stops it."""
        silent = len(self.unreached)
        return f"waits for its head's replicas; {silent} backups do not answer" if silent else ""

    @property
    def unreached(self) -> tuple[ServerUuid, ...]:
        """Backups that its server avoids, once the log has not moved for `STILL_S`."""
        now = self.runtime.clock.monotonic()
        is_waiting = bool(self._unsealed) and (bool(self._pending) or not self.head.is_opened)
        replicas = [(each.length, each.sealed) for s in self._unsealed for each in s.replicas]
        mark = (self.committed_index, tuple(replicas))
        if not is_waiting or self._mark != mark:
            self._mark, self._still_since = mark, now
        if now - self._still_since < STILL_S:
            return ()
        return tuple(self.traffic.avoided.at(now))

    @property
    def on_backups(self) -> list[int]:
        return list(self._segments) if self._media else []

    @property
    def is_on_backups(self) -> bool:
        return True

    # ---- segments ---------------------------------------------------------------------------

    @property
    def head(self) -> ReplicatedSegment:
        return self._unsealed[-1]

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
        leaving = self.members.leaving_backups
        return (
            bool(leaving and self._unsealed)
            and any(replica.backup in leaving for replica in self.head.replicas)
            and self.members.can_spare(self._media)
        )

    @property
    def short_medium(self) -> str:
        return self.members.short_medium(self._media)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def content_bytes(self) -> int:
        """Bytes in row form kept for replicas alone: of heads, and of what is not sealed."""
        return sum(segment.length - segment.shared_bytes for segment in self._unsealed)

    @property
    def under_replicated(self) -> int:
        needed = [*self._segments.values(), *self.side.retired]
        return sum(1 for each in needed if each.missing_replicas or each.is_inherited)

    @property
    def shortage(self) -> Shortage | None:
        missing = sum(segment.missing_bytes for segment in self._segments.values())
        needed = [*self._segments.values(), *self.side.retired]
        unheld = sum(bool(each.replicas) and not each.is_held for each in needed)
        return self._shortage.look(self.under_replicated, missing, unheld)

    @property
    def holders(self) -> list[list[ServerUuid]]:
        heads = {segment.segment_id for segment in self._unsealed}
        sealed = [each.holders for i, each in self._segments.items() if i not in heads]
        sealed += [each.holders for each in self.side.retired]  # until no digest names them
        return [*sealed, *[segment.holders for segment in self._unsealed]]

    @property
    def unclosed_heads(self) -> int:
        """Heads in whose content bytes may wait for the order rules (1 in quiet times)."""
        return sum(1 for segment in self._unsealed if not segment.was_closed)

    def next_id(self) -> int:
        """An id for a new segment: above all others of the log, and of no other owner's."""
        self._segments_made += 1
        return segment_id(self.term, self._segments_made)

    def adopt_image(
        self,
        segment: int,
        image: pa.Buffer | None,
        holders: list[tuple[ServerUuid, str]],
        epoch: int,
        remote: RemoteImage | None = None,
    ) -> ReplicatedSegment:
        """Take over a segment of the log from before a recovery, in its last epoch.

        It is in the digest of every head opened from now on. Missing replicas are made anew, of
        what ``remote`` gives if the image is not here.
        """
        adopted = ReplicatedSegment(self, segment, self._media)
        adopted.epoch = adopted.epoch_registered = epoch
        adopted.adopt(image, holders, remote)
        self._segments[segment] = adopted
        adopted.start()
        return adopted

    def open_head(self, segment_id: int, prologue: list[Blob], certificate: Certified) -> None:
        """Make the next head current; its replicas follow as the order rules permit."""
        segment = ReplicatedSegment(self, segment_id, self._media)
        segment.append(prologue, certificate)
        self._segments[segment.segment_id] = segment
        self._unsealed.append(segment)
        self.side.head_opened(segment_id)
        segment.start()
        self.progressed()

    # ---- appending --------------------------------------------------------------------------

    def append(
        self, buffers: list[Blob], certificate: Certified, index: int, shared_bytes: int = 0
    ) -> int:
        """Add an entry to the head; `wait_committed` tells when it counts."""
        self.check()
        head = self.head
        start = head.length
        head.append(buffers, certificate)
        head.shared_bytes += shared_bytes
        length = certificate.length
        size = length - start
        self._pending.append(_Pending(head, length, index, size))
        self.pending_bytes += size
        if not self._media:
            self.progressed()
        return length

    def are_sealed(self, segments: Sequence[int]) -> bool:
        """Whether these segments are in columnar form on all replicas."""
        return all(self._segments[segment].is_sealed for segment in segments)

    @property
    def waits_for_roll(self) -> bool:
        return self.unclosed_heads > 1

    def may_clean(self, segment: int) -> bool:
        """Whether it is sealed on all its replicas."""
        return self.side.is_settled(segment)

    def progressed(self) -> None:
        """Level-triggered: from what replicas have, see what is permitted and what is committed."""
        self._permit()
        while self._pending:
            entry = self._pending[0]
            if entry.segment.committed_length < entry.end and not entry.segment.was_closed:
                break
            self._pending.popleft()
            self.pending_bytes -= entry.size
            self.committed_index = entry.index
        self.side.progressed(self._ends_log)
        self._answer()
        if len(self._unsealed) > 1 and self._unsealed[0].was_closed:
            self._seal_work.set()
        if any(s.epoch_registered < s.epoch for s in self._unsealed):
            self._epoch_work.set()

    def _ends_log(self, head: int) -> bool:
        """Whether no recovery can go by a digest from before this head's any more."""
        segment = self._segments.get(head)
        if segment is None or segment.was_closed:
            return True
        return segment.may_fill and segment.is_opened

    def _permit(self) -> None:
        """Grant what the order rules of the module docstring allow by now."""
        before_closed = True
        last = len(self._unsealed) - 1
        for place, segment in enumerate(self._unsealed):
            previous = self._unsealed[place - 1] if place else None
            opens = previous is None or previous.is_opened
            older_closed = place < 2 or self._unsealed[place - 2].was_closed
            changed = False
            if not segment.may_open and opens and older_closed:
                segment.may_open = changed = True
            if not segment.may_fill and before_closed and segment.may_open:
                segment.may_fill = changed = True
            successor = self._unsealed[place + 1] if place < last else None
            followed = successor is not None and successor.may_open and successor.is_opened
            if followed and not segment.may_close:
                segment.may_close = changed = True
            if changed:
                segment.wake()
            before_closed = before_closed and segment.note_closed()

    def check(self) -> None:
        """Raise what ended the log, if something did; or that no backup has room for its head."""
        if self._failure is not None:
            raise self._failure
        if self._unsealed and self.head.lacks_room:
            raise NoSpace("every live backup", "/".join(dict.fromkeys(self._media)))

    def let_go(self) -> None:
        """Forget all content. The log has failed, and none of its tasks runs any more."""
        self.side.let_go()
        self._segments.clear()
        self._unsealed.clear()
        self._pending.clear()

    # ---- background -------------------------------------------------------------------------

    async def _follow_membership(self) -> None:
        """Replace what dead backups held; also what had died before anybody looked."""
        while True:
            for segment in self.segments:
                segment.forget_dead()
            await self.members.wait_change()

    async def _register_epochs(self) -> None:
        """Make raised epochs durable in the catalog, in segment order, once handed over."""
        await self._handed_over.wait()
        while True:
            await self._epoch_work.wait()
            self._epoch_work.clear()
            for segment in list(self._unsealed):
                while segment.epoch_registered < segment.epoch and segment.epoch_is_everywhere:
                    epoch = segment.epoch
                    try:
                        await self._raise_epoch(segment.segment_id, epoch)
                    except StelaeError as error:
                        self.fail(error)
                        return
                    segment.epoch_registered = max(segment.epoch_registered, epoch)
                    self.progressed()
                if not segment.was_closed:
                    break

    async def _seal_closed(self) -> None:
        """Turn closed heads into their columnar form, oldest first."""
        while True:
            await self._seal_work.wait()
            self._seal_work.clear()
            while len(self._unsealed) > 1 and self._unsealed[0].was_closed:
                segment = self._unsealed[0]
                segment.set_image(await self._build_image(segment.segment_id))
                self._unsealed.remove(segment)
                self.progressed()
