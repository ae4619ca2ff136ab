"""Bringing a tablet's log back from the backups, at the tserver that takes it over.

Of sealed segments only summaries are fetched at first (`Settings.metadata_first`); their rows come
while the tablet is served (`stelae.actors.tserver.row_loading.loader`). All segments of all tablets
that a server takes over are asked for at once, and fetched in that order, a bounded number at a
time: the first tablets are merged while the next are read. What lies on this machine is read past
the backups. All else comes from any of its replicas: one that is gone or damaged is answered for by
the next. What comes back is checked before it is believed. The merge itself is
`stelae.storage.keys.merge`, run here (native) or by Spark.

Source: seed RAMCloud master recovery, phase 1; design §9.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from stelae.core.buffers import BufferPool
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, DataLost, SegmentsMissing, StelaeError
from stelae.core.ids import Address, ServerUuid, TabletId, segment_name
from stelae.core.messages.backups import (
    READ_REPLICA,
    READ_SUMMARIES,
    Certified,
    ReadReplica,
    ReadSummaries,
    ReplicaInfo,
    ReplicaState,
)
from stelae.core.messages.servers import SegmentSource
from stelae.core.rpc import Blob
from stelae.core.runtime import Clock, ObjectHandle, Runtime
from stelae.core.schema.shares import ALL, Share
from stelae.recovery.near_replicas import NearReplica, NearReplicas
from stelae.storage.entries.entry import Entry, read_entries
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.segments.image import Image, Tail, build_image, read_tail
from stelae.storage.segments.recovered import RecoveredSegment
from stelae.storage.segments.remote import comes_in_pieces
from stelae.storage.segments.shares import cut_to_share

logger = logging.getLogger(__name__)

CONCURRENT_FETCHES = 6
"""Of one server: enough to keep the backups at work; more would only be memory they need."""
ROUNDS = 3
IMAGE_BYTES_KEPT = 96 << 20
"""Memory of fetches that waits for the next one, until all tablets are back."""
OPENING_PATIENCE_S = 1.0
"""For so long a segment that nobody has asked for waits for tablets that are not served yet."""
LOADS_AT_ONCE = 4
"""Segments of which a server loads the rows in the background at the same time."""


class Intake:
    """What the recoveries of all tablets that come back to one server share."""

    def __init__(
        self,
        has_room: Callable[[int], bool] = lambda _: True,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``has_room``: for so many bytes of rows more; ``count``: they are here now."""
        self.has_room = has_room
        self.count = count
        self.loads = asyncio.Semaphore(LOADS_AT_ONCE)
        """At loading rows that nobody has asked for yet."""
        self._next_load_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self.turns = asyncio.Semaphore(CONCURRENT_FETCHES)
        """At fetching a segment."""
        self.images = BufferPool(IMAGE_BYTES_KEPT)
        """Memory of segments on their way into shared memory."""
        self._opening = self._loading = 0
        self._near: NearReplicas | None = None

    def near(self, runtime: Runtime) -> NearReplicas:
        """What can be read past the backups."""
        if self._near is None:
            self._near = NearReplicas(runtime)
        return self._near

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While a tablet comes back, or an index is filled from one that has."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While one that comes back waits for somebody else, perhaps for long: it holds up none."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While rows of a tablet are loaded in the background."""
        self._loading += 1
        try:
            yield
        finally:
            self._loading -= 1
            self._let_go()

    def _let_go(self) -> None:
        """Memory that the next tablet would have to touch anew goes once there is none."""
        if not self._opening and not self._loading:
            self.images.clear()

    def _begin(self) -> None:
        self._opening += 1
        self._idle.clear()

    def _end(self) -> None:
        self._opening -= 1
        if not self._opening:
            self._idle.set()
            self._let_go()

    async def pace(self, clock: Clock, size_bytes: int, bytes_per_s: float) -> None:
        """Wait until so much may be loaded in the background: tablets that are not served yet come
        first (if they are not held up by others), and the rate is bounded (0: it is not)."""
        try:
            async with asyncio.timeout(OPENING_PATIENCE_S):
                await self._idle.wait()
        except TimeoutError:
            pass
        if bytes_per_s <= 0.0:
            return
        now = clock.monotonic()
        begin = max(now, self._next_load_at)
        self._next_load_at = begin + size_bytes / bytes_per_s
        if begin > now:
            await clock.sleep(begin - now)


@dataclass(slots=True)
class FetchedSegment:
    """A segment as it came from a backup: an image, its tail, or the entries of its rows."""

    source: SegmentSource
    where: str
    tail: Tail | None = None
    """Of an image of which the rest comes later."""
    damaged: tuple[ServerUuid, ...] = ()
    """Backups whose replica was found to be damaged."""
    image: Image | None = None
    """Over a buffer in shared memory."""
    handle: ObjectHandle | None = None
    """Of that buffer."""
    entries: list[Entry] = field(default_factory=list)
    is_rewritten: bool = False
    """It was in row form, and the image was made here: no backup has it yet."""


async def fetch_segments(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    sources: Sequence[SegmentSource],
    intake: Intake,
) -> list[FetchedSegment]:
    """Fetch and check all segments of a log, in the order of ``sources``.

    Raises:
        SegmentsMissing: none of a segment's replicas could be read; the message names them all.
    """
    near = await _read_near(runtime, settings, tablet_id, sources, intake)
    left = [source for place, source in enumerate(sources) if place not in near]
    others = await asyncio.gather(
        *(_fetch_any(runtime, settings, tablet_id, source, intake) for source in left)
    )
    rest = iter(others)
    fetched = [near[place] if place in near else next(rest) for place in range(len(sources))]
    missing = [s.segment_id for s, f in zip(sources, fetched, strict=True) if f is None]
    if missing:
        names = ", ".join(segment_name(segment) for segment in missing)
        raise SegmentsMissing(tablet_id, f"a readable replica of segments {names}")
    return [segment for segment in fetched if segment is not None]


async def _read_near(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    sources: Sequence[SegmentSource],
    intake: Intake,
) -> dict[int, FetchedSegment]:
    """What lies on this machine, by its place among the sources. What is not as it is to be says
    nothing yet: it is fetched from a backup."""
    wanted = [p for p, source in enumerate(sources) if settings.metadata_first or not source.sealed]
    found = await intake.near(runtime).read(tablet_id, [sources[place] for place in wanted])

    def check() -> dict[int, FetchedSegment]:
        checked: dict[int, FetchedSegment] = {}
        for number, replica in found.items():
            place = wanted[number]
            try:
                one = _check_near(sources[place], replica)
            except CorruptData as error:
                unlike.append(error)
                continue
            if one is not None:
                checked[place] = one
        return checked

    unlike: list[CorruptData] = []
    checked = await runtime.offload(check)
    if unlike:
        runtime.metrics.count("near_replicas_unlike", len(unlike))
        logger.info("fetched from backups instead: %s", unlike[0])
    return checked


def _check_near(source: SegmentSource, replica: NearReplica) -> FetchedSegment | None:
    """As what a backup serves. Raises CorruptData."""
    is_image = replica.info.state is ReplicaState.SEALED
    if is_image != source.sealed:
        return None
    if is_image:
        return _check_tail(source, replica.info, replica.data, replica.where)
    return _check(source, replica.info, replica.data, replica.where)


async def _fetch_any(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    source: SegmentSource,
    intake: Intake,
) -> FetchedSegment | None:
    """Try each replica: of a head the longest first, else a random one, to share the load."""
    replicas = list(source.replicas)
    if not source.is_head:
        runtime.rng.shuffle(replicas)
    damaged: dict[ServerUuid, None] = {}
    for _ in range(ROUNDS):
        for uuid, address, _medium in replicas:
            try:
                async with intake.turns:
                    found = await _fetch(
                        runtime, settings, tablet_id, source, (uuid, address), intake, damaged
                    )
            except DataLost as error:
                damaged[uuid] = None  # the next look has the backup see for itself
                logger.warning("another replica is read: %s", error)
                runtime.metrics.count("replicas_corrupt")
            except StelaeError:
                runtime.metrics.count("replica_reads_failed")
            else:
                found.damaged = tuple(damaged)
                return found
        await runtime.clock.sleep(settings.heartbeat_s)
    return None


async def _fetch(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    source: SegmentSource,
    at: tuple[ServerUuid, Address],
    intake: Intake,
    damaged: dict[ServerUuid, None],
) -> FetchedSegment:
    """What recovery needs of a replica. One that looks damaged is read whole: then its backup sees
    for itself, and does not offer it any more."""
    is_damaged = at[0] in damaged
    if settings.metadata_first and source.sealed and not is_damaged:
        try:
            found = await _fetch_tail(runtime, settings, tablet_id, source, at)
        except CorruptData as error:
            logger.warning("all of the replica is read: %s", error)
        else:
            if found is not None:
                return found
    found = await fetch_all(runtime, settings, tablet_id, source, at, intake, verify=is_damaged)
    damaged.pop(at[0], None)
    return found


async def _fetch_tail(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    source: SegmentSource,
    at: tuple[ServerUuid, Address],
) -> FetchedSegment | None:
    """What recovery merges of a sealed segment. None: it is to be read whole."""
    uuid, address = at
    reply = await runtime.peers.call(
        address,
        READ_SUMMARIES,
        ReadSummaries(source.log or tablet_id, (source.segment_id,)),
        timeout_s=settings.call_timeout_s,
        destination=uuid,
    )
    info, blob = reply.body.infos[0], reply.blobs[0]
    where = f"segment {segment_name(source.segment_id)} from {address}"
    return await runtime.offload(_check_tail, source, info, blob, where)


def _check_tail(
    source: SegmentSource, info: ReplicaInfo, data: Blob, where: str
) -> FetchedSegment | None:
    """Believe an image's tail only if its checksums say so. None: all of it is to be read."""
    if info.segment_id != source.segment_id or info.state is not ReplicaState.SEALED:
        return None
    if info.length != source.length:
        raise CorruptData(where, 0, "another replica than the one that was planned for")
    tail = read_tail(data, where)
    columns = tail.meta.stored_columns(where)
    if columns is None or not comes_in_pieces(columns):
        return None
    return FetchedSegment(source, where, tail)


async def fetch_all(
    runtime: Runtime,
    settings: Settings,
    tablet_id: TabletId,
    source: SegmentSource,
    at: tuple[ServerUuid, Address],
    intake: Intake,
    *,
    verify: bool = False,
) -> FetchedSegment:
    """A replica with its rows, checked; an image is in shared memory then."""
    if source.sealed and not verify:
        near = await _image_near(runtime, source, source.log or tablet_id, at, intake)
        if near is not None:
            return await _shared(runtime, near)
    uuid, address = at
    reply = await runtime.peers.call(
        address,
        READ_REPLICA,
        ReadReplica(source.log or tablet_id, source.segment_id, verify=verify),
        timeout_s=settings.call_timeout_s,
        destination=uuid,
        memory=intake.images.take,
    )
    where = f"segment {segment_name(source.segment_id)} from {address}"
    found = await runtime.offload(_check, source, reply.body.info, reply.blobs[0], where)
    del reply  # its memory is for the next one
    return await _shared(runtime, found)


async def _image_near(
    runtime: Runtime,
    source: SegmentSource,
    log: TabletId,
    at: tuple[ServerUuid, Address],
    intake: Intake,
) -> FetchedSegment | None:
    """A whole image past its backup. What is not as it is to be says nothing yet."""

    def check(replica: NearReplica) -> FetchedSegment:
        return _check(source, replica.info, replica.data, replica.where)

    near = intake.near(runtime)
    try:
        found = await near.read_image(log, source.segment_id, at, intake.images.take, check)
    except CorruptData as error:
        logger.info("fetched from its backup instead: %s", error)
        runtime.metrics.count("near_replicas_unlike")
        return None
    if found is not None:
        runtime.metrics.count("near_images_read")
    return found


async def _shared(runtime: Runtime, found: FetchedSegment) -> FetchedSegment:
    """Put an image, which has been checked, into shared memory, as those sealed here are."""
    if found.image is not None:
        found.handle, buffer = await runtime.objects.move(found.image.buffer)
        found.image = Image.open(buffer, found.where, check_rows=False)
    return found


def _check(source: SegmentSource, info: ReplicaInfo, data: Blob, where: str) -> FetchedSegment:
    """Believe a replica's bytes only if their checksums say so. Runs off the event loop."""
    if info.segment_id != source.segment_id or (info.epoch < source.epoch and source.is_head):
        raise CorruptData(where, 0, "another replica than the one that was planned for")
    if info.state is ReplicaState.SEALED:
        return FetchedSegment(source, where, image=Image.open(data, where))
    certificate = Certified(info.length, info.crc)
    if source.crc is not None:  # what is beyond does not count
        certificate = Certified(source.length, source.crc)
    return FetchedSegment(source, where, entries=list(read_entries(data, certificate, where)))


async def recovered_segments(
    runtime: Runtime,
    fetched: Sequence[FetchedSegment],
    next_id: Callable[[], int],
    codec: KeyCodec,
    term: int,
    share: Share = ALL,
) -> list[RecoveredSegment]:
    """The fetched segments in the form of the merge; one in row form is sealed here, under the next
    new id and in this term, with its rows of this share."""
    segments: list[RecoveredSegment] = []
    for one in fetched:
        if one.tail is not None:
            columns = one.tail.meta.stored_columns(one.where)
            assert columns is not None, "a tail that says no columns is not used"
            segments.append(RecoveredSegment.from_tail(one.tail, one.source.length, columns))
        elif one.image is not None:
            segments.append(RecoveredSegment.from_image(one.image))
        else:
            segments.append(await runtime.offload(_sealed, one, codec, next_id(), term, share))
    return segments


def _sealed(
    one: FetchedSegment, codec: KeyCodec, segment_id: int, term: int, share: Share
) -> RecoveredSegment:
    """The rows of a segment that died in row form, as the image that takes its place."""
    found = RecoveredSegment.from_entries(one.entries, codec, one.where)
    assert found.batch is not None, "entries are rows"
    batch = cut_to_share(found.batch, share, codec)
    meta = msgspec.structs.replace(
        found.meta, segment_id=segment_id, term=term, row_count=batch.num_rows
    )
    built = build_image(batch, meta, codec)
    image = Image.open(built, f"the image of segment {segment_name(segment_id)}", check_rows=False)
    one.entries, one.image, one.is_rewritten = [], image, True
    return dataclasses.replace(
        found,
        meta=image.meta,
        batch=image.batch,
        summary=image.summary(),
        size_bytes=image.buffer.size,
    )
