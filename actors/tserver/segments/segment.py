"""One segment of a tablet's log, and its replicas on backups.

Level-triggered, after RAMCloud's ``ReplicatedSegment``: each replica's task compares what the
replica should hold with what its backup has acknowledged, and does the next step; a failure only
leaves the difference standing. The rules that order segments among each other
(`stelae.actors.tserver.tablet_log.segment_log`) reach this module as three permissions: `may_open`,
`may_fill` (data beyond the prologue) and `may_close`.

Invariants:
- A byte counts as replicated once every replica has it under the segment's present epoch, and that
  epoch, if it was ever raised, stands in the catalog (`epoch_registered`).
- A replacement gets no certificate before it has all bytes: half a copy never passes for a log.
- What a replica has received counts from its certificate on: a recovery reads nothing past that.
- A replica that is made again elsewhere does not wait for its former backup: a machine that is gone
  answers nothing, and each of its calls would hold the log's writers for a timeout.

Source: seed RAMCloud master recovery, "Master Soft State"; SOSP 2011 paper, section 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pyarrow as pa

from stelae.actors.tserver.segments.placement import place
from stelae.actors.tserver.segments.replica import (
    LogContext,
    RemoteImage,
    SegmentReplica,
)
from stelae.actors.tserver.segments.shared_appends import Append, NotSent, Told
from stelae.actors.tserver.segments.views import JOIN_BYTES, ReplicaViews, size_of, sliced
from stelae.core.errors import (
    InvalidArgument,
    LogFenced,
    Rejected,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import (
    SEAL_REPLICA,
    WRITE_REPLICA,
    Certified,
    SealReplica,
    WriteReplica,
)
from stelae.core.records.records import ServerInfo
from stelae.core.rpc import Blob

PIECE_BYTES = 8 << 20
FIRST_PAUSES = 5
"""Append timeouts for which a backup is avoided after its first failure: so many others can be
tried meanwhile."""
RETRY_PAUSE_S = 0.05
REMOTE_PAUSE_S = 1.0


class ReplicatedSegment(ReplicaViews):
    """A segment in one of three lives: open (grows), closed (rows, complete), sealed (columnar)."""

    def __init__(self, context: LogContext, segment_id: int, media: tuple[str, ...]) -> None:
        self.segment_id = segment_id
        self.replicas = [SegmentReplica(medium) for medium in media]
        self.epoch = 0
        self.epoch_registered = 0
        self.may_open = self.may_fill = self.may_close = False
        self.was_closed = False
        """Was once complete and closed on all replicas: its content is final from then on."""
        self.is_columnar = self.is_retired = False
        """Its image replaces its row form; nobody needs it any more."""
        self.image: pa.Buffer | None = None
        self.shared_bytes = 0
        """Of its content: buffers that the rows in memory are views of."""
        self._context = context
        self._content: list[Blob] = []
        self._ends: list[int] = []
        self._prologue = Certified(0, 0)
        self._certificate = Certified(0, 0)
        self._avoid: dict[ServerUuid, float] = {}
        self._freeing: dict[ServerUuid, float] = {}
        """Backups that are told to free a replica, and until when such a call may be under way."""
        self.remote: RemoteImage | None = None
        self.is_survivor = False
        """Not of the log yet: its parents are there."""

    # ---- what it holds ----------------------------------------------------------------------

    @property
    def length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def append(self, buffers: list[Blob], certificate: Certified) -> None:
        """Add an entry's bytes; the first entry is the prologue. Replicas follow by themselves."""
        end = self.length
        for buffer in buffers:
            end += size_of(buffer)
            self._content.append(buffer)
            self._ends.append(end)
        assert certificate.length == end, "a certificate covers whole entries"
        if self._prologue.length == 0:
            self._prologue = certificate
        self._certificate = certificate
        self.wake()

    def set_image(self, image: pa.Buffer) -> None:
        """The columnar form is there: replicas are replaced by it, the row form is let go."""
        assert self.was_closed, "what is not final is not sealed"
        self.image, self.is_columnar = image, True
        self._content, self._ends = [], []
        self.wake()

    def let_image_go(self) -> None:
        """A replica that is lost from now on is not replaced: the segment gives way to another."""
        assert self.is_sealed, "replicas are made of the image"
        self.former_bytes = self.image_bytes
        self.image = self.remote = None

    def retire(self) -> None:
        """Keep replicas no more."""
        for replica in self.replicas if not self.is_retired else ():
            if replica.backup is not None:
                self._context.traffic.upkeep.take(replica.backup)
        self.is_retired = True
        self.wake()

    def arrived(self, image: pa.Buffer) -> None:
        """The image of a segment that was taken over without it."""
        self.image, self.remote = image, None
        self.wake()

    def let_go(self) -> None:
        """Forget the content: the tablet was closed, and nothing is sent any more."""
        self.image = self.remote = None
        self._content, self._ends = [], []
        for replica in self.replicas:
            self._put(replica, None)

    def adopt(
        self,
        image: pa.Buffer | None,
        holders: list[tuple[ServerUuid, str]],
        remote: RemoteImage | None = None,
    ) -> None:
        """Take over a sealed segment whose replicas lie on ``holders`` (backup, medium) already.
        ``remote`` gives the image if it is not here. Without holders it is sealed for the first
        time, in no turn: somebody waits for it."""
        self.image, self.remote, self.is_columnar = image, remote, True
        self.may_open = self.may_fill = self.may_close = self.was_closed = True
        for replica in self.replicas:
            replica.is_remade = bool(holders)
        for uuid, medium in holders:
            for replica in self.replicas:
                if replica.backup is None and replica.medium == medium:
                    self._put(replica, uuid)
                    replica.sealed = replica.closed = replica.created = True
                    break

    # ---- what its replicas have -------------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        """The prologue is durable on all replicas (registration of an epoch may be pending)."""
        need = self._prologue.length
        return self.is_sealed or all(r.closed or r.certified >= need > 0 for r in self.replicas)

    def note_closed(self) -> bool:
        """Whether it was ever closed (or sealed) on all replicas, under an epoch that counts."""
        if self.is_sealed or (
            self.may_close and self._epoch_counts and all(r.closed for r in self.replicas)
        ):
            self.was_closed = True
        return self.was_closed

    # ---- driving the replicas ---------------------------------------------------------------

    def start(self) -> None:
        """Begin to keep the replicas; a task ends when its replica is sealed."""
        for replica in self.replicas:
            self._start(replica)

    def _start(self, replica: SegmentReplica) -> None:
        name = f"{self._context.tablet_id[:8]}/{self.segment_id}/{replica.medium}"
        self._context.tasks.spawn(self._keep(replica), name)

    def wake(self) -> None:
        for replica in self.replicas:
            replica.wake.set()

    def forget_dead(self) -> None:
        """After a change of membership: replace replicas whose backups are gone."""
        for replica in list(self.replicas):
            if replica.backup is None or self._context.members.find(replica.backup) is not None:
                continue
            was_sealed = replica.sealed
            self._replace(replica)
            if was_sealed:
                self._start(replica)

    def lose(self, backup: ServerUuid) -> None:
        """A live backup says that it does not hold this segment (a medium that lost its data)."""
        for replica in list(self.replicas):
            if replica.backup == backup and replica.created:
                was_sealed = replica.sealed
                self._replace(replica)
                if was_sealed:
                    self._start(replica)

    def avoid(self, backup: ServerUuid, for_s: float = 0.0) -> None:
        """Put no replica on this backup for a while: at least ``append_timeout_s``."""
        now = self._context.runtime.clock.monotonic()
        until = now + max(for_s, self._context.settings.append_timeout_s)
        self._avoid[backup] = max(until, self._avoid.get(backup, until))

    def begin_free(self, backup: ServerUuid) -> bool:
        """A backup is told to free a replica: put none there until `freed`, or until the call is
        surely over. Returns whether no earlier such call may be under way still."""
        now, settings = self._context.runtime.clock.monotonic(), self._context.settings
        is_first = self._freeing.get(backup, now) <= now
        self._freeing[backup] = now + 2 * settings.call_timeout_s
        return is_first

    def freed(self, backup: ServerUuid) -> None:
        """It has answered the only such call, so that none frees a replica that comes now."""
        self._freeing.pop(backup, None)

    def _avoided(self) -> tuple[dict[ServerUuid, float], dict[ServerUuid, float]]:
        """Backups that this segment avoids, and that all of this server do, and until when."""
        now = self._context.runtime.clock.monotonic()
        self._freeing = {uuid: until for uuid, until in self._freeing.items() if until > now}
        own = {uuid: until for uuid, until in self._avoid.items() if until > now}
        for uuid, until in self._freeing.items():
            own[uuid] = max(until, own.get(uuid, until))
        return own, self._context.traffic.avoided.at(now)

    @property
    def avoided(self) -> Collection[ServerUuid]:
        """Backups on which no replica is put just now if nobody waits for it."""
        own, shared = self._avoided()
        return {**own, **shared}

    def _replace(self, replica: SegmentReplica) -> None:
        """Start anew elsewhere. An open replica left behind is made stale by a higher epoch."""
        if replica not in self.replicas:
            return  # it was to move, and was given up while a call was under way
        if not self.is_columnar and not self.was_closed:
            self.epoch += 1
        if replica.replaces is not None:
            self.replicas.remove(replica)  # it was to move; it stays where it is
        self._put(replica, None)
        replica.is_remade = replica.is_remade or replica.sealed
        replica.troubled_since = None
        replica.length, replica.certified, replica.epoch = 0, 0, -1
        replica.closed = replica.sealed = replica.created = False
        self._forget_calls(replica)
        self.wake()
        self._context.progressed()

    def _forget_calls(self, replica: SegmentReplica) -> None:
        """Wait no longer for the replica's former backup, which may be gone without an answer."""
        replica.posted, replica.goes_alone = None, False
        if not isinstance(replica.failure, LogFenced):
            replica.failure = None
        under_way, replica.under_way = replica.under_way, None
        if under_way is not None:
            under_way.reschedule(asyncio.get_running_loop().time())

    def _put(self, replica: SegmentReplica, backup: ServerUuid | None) -> None:
        """Its place is there from now on, or nowhere."""
        upkeep = self._context.traffic.upkeep
        if self.is_retired:  # not counted any more
            replica.backup = backup
            return
        if replica.backup is not None:
            upkeep.take(replica.backup)
        if backup is not None:
            upkeep.put(backup)
        replica.backup = backup

    def move(self, source: ServerUuid, target: ServerUuid, remote: RemoteImage | None) -> bool:
        """Make a replica there, of ``remote`` if the image is not here, and then let that one go;
        false: not now."""
        found = [r for r in self.replicas if r.backup == source and r.sealed]
        used = [r.backup for r in self.replicas]
        has_image = self.image is not None or remote is not None
        if not has_image or not self.is_sealed or not found or target in used:
            return False
        moved = SegmentReplica(found[0].medium, is_remade=True, replaces=found[0], remote=remote)
        self._put(moved, target)
        self.replicas.append(moved)
        self._start(moved)
        return True

    async def _keep(self, replica: SegmentReplica) -> None:
        try:
            while not (replica.sealed or self.is_retired) and replica in self.replicas:
                if not await self._advance(replica):
                    return
        finally:
            replica.posted = None  # an answer that comes yet changes nothing

    async def _advance(self, replica: SegmentReplica) -> bool:
        """Do the next step of a replica, or wait for one; false: the log is fenced."""
        context = self._context
        replica.wake.clear()
        failure, replica.failure = replica.failure, None
        if failure is not None:
            return await self._failed(replica, failure)
        step = self._next_step(replica) if replica.posted is None else None
        if step is None:
            await replica.wake.wait()
            return True
        if not replica.is_remade:
            return await self._take_step(replica)
        if replica.backup is None and self._place(replica) is None:
            await self._wait_membership()  # in the queue it would only hold up others
            return True
        async with context.traffic.upkeep.turn(self.left_beside(replica)):
            goes_on = await self._take_step(replica)
        if goes_on and replica in self.replicas and replica.was_in_vain and not replica.sealed:
            await context.runtime.clock.sleep(REMOTE_PAUSE_S)
        return goes_on

    async def _take_step(self, replica: SegmentReplica) -> bool:
        """The next step, if there is one still."""
        context, step = self._context, self._next_step(replica)
        if step is None or self.is_retired or replica not in self.replicas:
            return True  # while it waited for its turn, perhaps
        if replica.backup is None and not self._choose(replica):
            if not replica.is_remade:
                await self._wait_membership()
            return True
        target = context.members.find(replica.backup) if replica.backup else None
        if target is None:
            self._replace(replica)
            return True
        if self._post(replica, target):
            return True
        under_way = asyncio.timeout(None)
        try:
            async with under_way:
                replica.under_way = under_way
                try:
                    await step(replica, target)
                finally:
                    replica.under_way = None
        except StelaeError as error:
            return await self._failed(replica, error)
        except TimeoutError:
            if not under_way.expired():
                raise
            return True  # its backup was given up meanwhile
        replica.troubled_since = None
        context.traffic.avoided.answered(target.uuid)
        context.progressed()
        return True

    async def _failed(self, replica: SegmentReplica, error: StelaeError) -> bool:
        if isinstance(error, LogFenced):
            self._context.fail(error)
            return False
        if isinstance(error, InvalidArgument) and replica.created:
            self._replace(replica)  # the backup has lost it (ram)
            await self._context.runtime.clock.sleep(RETRY_PAUSE_S)
        else:  # a late call of an epoch since raised, a backup with a stale stranger, no answer …
            await self._trouble(replica, error)
        return True

    def _next_step(self, replica: SegmentReplica) -> Step | None:
        if self.is_columnar:
            return self._seal if self.image_bytes or replica.remote is not None else None
        if not self.may_open or not self._content:
            return None
        behind = replica.length < self._allowed.length
        if behind or replica.epoch != self.epoch or self._should_close(replica):
            return self._write
        return None

    @property
    def _allowed(self) -> Certified:
        return self._certificate if self.may_fill else self._prologue

    def _should_close(self, replica: SegmentReplica) -> bool:
        return self.may_close and self.may_fill and not replica.closed

    def _next_write(self, replica: SegmentReplica) -> tuple[WriteReplica, int]:
        """What the replica lacks, or the first piece of it; and the length it has then."""
        context = self._context
        certificate = self._allowed
        start = replica.length
        end = min(certificate.length, start + PIECE_BYTES)
        is_last = end == certificate.length
        # A closed replica whose epoch is to be raised takes nothing but its close once more.
        close = is_last and (replica.closed or self._should_close(replica))
        request = WriteReplica(
            context.tablet_id,
            context.term,
            self.segment_id,
            self.epoch,
            replica.medium,
            start,
            certificate if is_last else None,
            create=not replica.created,
            close=close,
        )
        return request, end

    async def _write(self, replica: SegmentReplica, target: ServerInfo) -> None:
        context = self._context
        request, end = self._next_write(replica)
        reply = await context.runtime.peers.call(
            target.address,
            WRITE_REPLICA,
            request,
            timeout_s=context.settings.append_timeout_s,
            blobs=sliced(self._content, self._ends, request.offset, end),
            destination=target.uuid,
        )
        if reply.body.is_low:  # it gave this replica a frame, perhaps of its reserve
            context.members.note_low(target.uuid, replica.medium)
        self._written(replica, target, request, end)

    def _written(
        self, replica: SegmentReplica, target: ServerInfo, request: WriteReplica, end: int
    ) -> None:
        if replica.backup != target.uuid:
            return  # replaced while the call was out
        replica.created, replica.goes_alone = True, False
        replica.length = end
        if request.certificate is not None:
            replica.certified, replica.epoch = request.certificate.length, request.epoch
            replica.closed = replica.closed or request.close

    def _post(self, replica: SegmentReplica, target: ServerInfo) -> bool:
        """Send an ordinary small append, with others; its answer is taken as it comes, not by the
        task. False if it is not ordinary, or is to go by itself: it is then for `_write`."""
        context, size_bytes = self._context, self._allowed.length - replica.length
        if self.is_columnar or not replica.created or replica.troubled_since is not None:
            return False
        if size_bytes > JOIN_BYTES or replica.goes_alone:
            return False
        request, end = self._next_write(replica)
        replica.posted = posted = object()

        def done(told: Told) -> None:
            if replica.posted is posted:
                replica.posted = None
            elif not isinstance(told, LogFenced):
                return  # the backup was given up meanwhile, or the replica's task has ended
            if told is None:
                self._written(replica, target, request, end)
                context.traffic.avoided.answered(target.uuid)
                context.progressed()
            elif isinstance(told, NotSent):
                replica.goes_alone = True
            elif replica.backup == target.uuid or isinstance(told, LogFenced):
                replica.failure = told
            if replica.failure is not None or self._next_step(replica) is not None:
                replica.wake.set()

        blobs = sliced(self._content, self._ends, request.offset, end) or [b""]
        append = Append(request, blobs, size_bytes, done)
        timeout_s = context.settings.append_timeout_s
        context.traffic.appends.add(context.runtime, target, append, timeout_s)
        return True

    async def _seal(self, replica: SegmentReplica, target: ServerInfo) -> None:
        context, image = self._context, await self._image_for(replica)
        if image is None and replica.remote is not None:
            self._replace(replica)  # nobody had it: it stays where it is
        replica.was_in_vain = image is None
        if image is not None and replica.is_remade:
            rate = context.settings.rereplication_bytes_per_s
            await context.traffic.upkeep.pace(context.runtime.clock, image.size, rate)
        if image is None or self.is_retired or replica.backup != target.uuid:
            return
        request = SealReplica(
            context.tablet_id, context.term, self.segment_id, self.epoch, replica.medium
        )
        await context.runtime.peers.call(
            target.address,
            SEAL_REPLICA,
            request,
            timeout_s=context.settings.call_timeout_s,
            blobs=[image],
            destination=target.uuid,
        )
        if replica.backup != target.uuid or replica not in self.replicas:
            return
        replica.created = replica.closed = replica.sealed = True
        if replica.replaces is not None:
            former, replica.replaces, replica.remote = replica.replaces, None, None
            if former in self.replicas:
                self.replicas.remove(former)
                self._put(former, None)

    # ---- placement and trouble --------------------------------------------------------------

    def _choose(self, replica: SegmentReplica) -> bool:
        """Pick a live backup for the replica."""
        chosen = self._place(replica)
        if chosen is not None:
            self._put(replica, chosen)
        return chosen is not None

    def _place(self, replica: SegmentReplica) -> ServerUuid | None:
        """A live backup that would take the replica just now."""
        own, shared = self._avoided()
        chosen = self._place_but_on(replica, {**own, **shared})
        while chosen is None and shared and not replica.lacks_room:
            # Only backups are left that failed: the one whose pause ends first. What this segment
            # avoids stays avoided, as a call that frees a replica there may be on its way.
            del shared[min(shared, key=lambda uuid: shared[uuid])]
            chosen = self._place_but_on(replica, {**own, **shared})
        return chosen

    def _place_but_on(
        self, replica: SegmentReplica, avoided: Collection[ServerUuid]
    ) -> ServerUuid | None:
        chosen, replica.lacks_room = place(
            self._context,
            replica.medium,
            {r.backup: None for r in self.replicas if r.backup is not None},
            avoided,
            replicas=len(self.replicas),
        )
        return chosen

    async def _wait_membership(self) -> None:
        """Wait for other backups to appear; look again anyway after a while, and soon while one
        frees a replica: it may take another then."""
        pause_s = RETRY_PAUSE_S if self._freeing else self._context.settings.append_timeout_s
        try:
            async with asyncio.timeout(pause_s):
                await self._context.members.wait_change()
        except TimeoutError:
            return

    async def _trouble(self, replica: SegmentReplica, error: StelaeError) -> None:
        """Pause before the next try, or give the backup up for this replica."""
        context = self._context
        now = context.runtime.clock.monotonic()
        if replica.troubled_since is None:
            replica.troubled_since = now
        patience_s = context.settings.append_timeout_s if replica.created else RETRY_PAUSE_S
        refused = isinstance(error, RetryLater | Rejected) and not replica.created
        if refused or now - replica.troubled_since >= patience_s:
            if replica.backup is not None:
                self.avoid(replica.backup)
                if not isinstance(error, Rejected | RetryElsewhere):  # those concern this log alone
                    first_s = FIRST_PAUSES * context.settings.append_timeout_s
                    context.traffic.avoided.failed(replica.backup, now, first_s)
            self._replace(replica)
        await context.runtime.clock.sleep(RETRY_PAUSE_S)


Step = Callable[[SegmentReplica, ServerInfo], Awaitable[None]]
