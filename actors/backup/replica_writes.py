"""How replicas come to a backup and change: appends, copies, seals, and what gives way to them.

Invariants:
- Durable, then answered: a write is acknowledged when its medium has it
  (`stelae.actors.backup.media`).
- One change at a time for a segment; what takes another replica's place does so in a single step to
  whoever looks, and only once it is durable itself. A crash in between leaves the former one, or
  both: then the newer one counts (`stelae.actors.backup.holdings`).

Rules of a single replica: `stelae.actors.backup.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from stelae.actors.backup.closing import Closing
from stelae.actors.backup.fences import Fences
from stelae.actors.backup.holdings import Holdings, check_certificate, checksum
from stelae.actors.backup.media import Medium
from stelae.actors.backup.replicas import (
    Batch,
    Facts,
    Replica,
    blob_size,
    joined,
    plan_write,
    skip_bytes,
)
from stelae.actors.backup.shared_writes import SharedWrites
from stelae.core.errors import CorruptData, InvalidArgument, StaleTerm
from stelae.core.ids import TabletId
from stelae.core.messages.backups import (
    SEAL_REPLICA,
    WRITE_REPLICA,
    Certified,
    ReplicaState,
    SealReplica,
    WriteReplica,
    WriteReplicaReply,
)
from stelae.core.rpc import EMPTY, Blob, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES, summary_range

HAS_ROOM, IS_LOW = Reply(WriteReplicaReply()), Reply(WriteReplicaReply(is_low=True))


class ReplicaWrites:
    """Those of one backup. ``check``: whether a log of that term may be changed here."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        media: Mapping[str, Medium],
        holdings: Holdings,
        fences: Fences,
        closing: Closing,
        check: Callable[[TabletId, int], None],
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._media = media
        self._holdings = holdings
        self._fences = fences
        self._closing = closing
        self._check = check

    def handlers(self) -> Handlers:
        return {
            WRITE_REPLICA: self._write_replica,
            **SharedWrites(self._take).handlers(),
            SEAL_REPLICA: self._seal_replica,
        }

    # ---- which medium -----------------------------------------------------------------------

    def _medium(self, name: str) -> Medium:
        medium = self._media.get(name)
        if medium is None:
            raise InvalidArgument(f"backup {self._name} has no medium {name!r}: {[*self._media]}")
        return medium

    def _medium_for(self, name: str, held: Replica | None) -> Medium:
        """The medium asked for; but what outlives this process does not give way to what does not.
        Its owner, who had given it up, makes all replicas anew: it may be the only lasting copy.
        """
        asked = self._medium(name)
        if held is None or held.wanted is None:
            return asked
        there = self._media[held.medium]
        return there if there.is_lasting and not asked.is_lasting else asked

    # ---- appends and copies -----------------------------------------------------------------

    @prompt
    async def _write_replica(self, call: Call[WriteReplica]) -> Reply[WriteReplicaReply]:
        batch = await self._take(call.body, call.blobs)
        if batch is not None:
            await batch.wait()
        return IS_LOW if self._medium(call.body.medium).is_low else HAS_ROOM

    async def _take(self, request: WriteReplica, blobs: Sequence[memoryview]) -> Batch | None:
        async with self._holdings.lock(request.tablet_id, request.segment_id):
            with self._arrival(request.tablet_id, request.segment_id):
                return await self._write(request, blobs)

    def _arrival(self, log: TabletId, segment_id: int) -> AbstractContextManager[None]:
        """While it writes what is new here; half of a copy is. Raises RetryLater: it takes nothing
        any more."""
        held = self._holdings.find(log, segment_id)
        is_new = held is None or held.wanted is None
        return self._closing.arrival() if is_new else nullcontext()

    async def _write(self, request: WriteReplica, blobs: Sequence[memoryview]) -> Batch | None:
        """Carry out a write; it counts when the batch returned is durable."""
        log = request.tablet_id
        self._check(log, request.term)
        there = self._there(request)
        medium = self._medium_for(request.medium, there)
        held = there if there is None or there.medium == medium.name else None
        plan = plan_write(held, request, blob_size(blobs))
        views = skip_bytes(blobs, plan.skip)
        replica = held or Replica(log, request.segment_id, medium.name)
        base, certificate = plan.certify_from, request.certificate
        if base is not None and certificate is not None and _brings(request, blobs, base):
            await check_certificate(self._runtime, base, certificate, views, replica.where)
            base = None  # what came in pieces is checked below, once all of it is there
        try:
            if views:
                await medium.write(replica, request.offset + plan.skip, views)
            if base is not None and certificate is not None:
                await self._certify_written(replica, base, certificate)
            self._fences.check(log, request.term)  # it may have risen during the write
        except BaseException:  # a disk's error and a cancelled call too: no frame stays taken
            if held is None:
                medium.free(replica)
            raise
        self._fences.observe(log, request.term)
        if held is None and there is not None:
            return await self._take_place_of(there, replica, plan.facts)
        if held is None:
            self._holdings.enter(replica)
        if plan.facts is not None and held is not None and held.wanted is not None:
            held.may_be_short &= plan.facts.epoch == held.wanted.epoch  # or else it was copied anew
        if plan.facts is None:
            return replica.batch if request.certificate is not None else None
        return await medium.stage(replica, plan.facts)

    def _there(self, request: WriteReplica) -> Replica | None:
        """The replica to write to, or, on another medium, the one that is to give way."""
        held = self._holdings.find(request.tablet_id, request.segment_id)
        if held is None or held.wanted is None:
            self._fences.check_may_open(request)
        if held is None or held.medium == self._medium_for(request.medium, held).name:
            return held
        if request.create and request.offset == 0 and _gives_way(held, request):
            return held
        raise InvalidArgument(f"{held.where} is on medium {held.medium!r} here")

    async def _take_place_of(
        self, former: Replica, replica: Replica, facts: Facts | None
    ) -> Batch | None:
        """Let a replica that was written follow one on another medium: at once if that is half of
        a copy, which is nothing; else once it is durable."""
        batch = None
        if facts is not None:
            batch = await self._media[replica.medium].stage(replica, facts)
        if batch is not None and former.wanted is not None:
            await batch.wait()
        self._holdings.replace(former, replica)
        return batch

    async def _certify_written(self, replica: Replica, base: Certified, new: Certified) -> None:
        """Check the certificate of bytes that came in several pieces, as the medium has them."""
        data = await self._media[replica.medium].read(
            replica, base.length, new.length - base.length
        )
        try:
            await check_certificate(self._runtime, base, new, [memoryview(data)], replica.where)
        except InvalidArgument:
            replica.written = base.length
            raise

    # ---- seals ------------------------------------------------------------------------------

    async def _seal_replica(self, call: Call[SealReplica]) -> Reply[Empty]:
        request = call.body
        views = skip_bytes(call.blobs, 0)
        length = blob_size(views)
        image = joined(views) if views else b""
        where = f"image of segment {request.segment_id} of tablet {request.tablet_id}"
        try:
            summary_range(image[-IMAGE_TRAILER_BYTES:], length, where)
        except CorruptData as error:
            raise InvalidArgument(str(error)) from error
        crc = await checksum(self._runtime, image)
        async with self._holdings.lock(request.tablet_id, request.segment_id):
            with self._arrival(request.tablet_id, request.segment_id):
                await self._seal(request, image, Certified(length, crc))
        return EMPTY

    async def _seal(self, request: SealReplica, image: Blob, certificate: Certified) -> None:
        log = request.tablet_id
        self._check(log, request.term)
        held = self._holdings.find(log, request.segment_id)
        medium = self._medium_for(request.medium, held)
        old = held.wanted if held is not None else None
        if held is not None and old is not None and request.epoch < old.epoch:
            raise StaleTerm(f"epoch of {held.where}", request.epoch, old.epoch)
        facts = Facts(
            request.term,
            request.epoch,
            ReplicaState.SEALED,
            certificate.length,
            certificate.crc,
        )
        same = old is not None and (old.state, old.certificate) == (facts.state, certificate)
        same = same and held is not None and not held.damaged
        if held is not None and same and held.medium == medium.name:
            batch = held.batch if old == facts else await medium.stage(held, facts)
            if batch is not None:
                await batch.wait()
            self._fences.observe(log, request.term)
            return
        replica = Replica(log, request.segment_id, medium.name)
        try:
            await medium.write(replica, 0, [image])
            self._fences.check(log, request.term)
            batch = await medium.stage(replica, facts)
        except BaseException:
            medium.free(replica)
            raise
        self._fences.observe(log, request.term)
        if batch is not None:
            await batch.wait()
        if held is not None:
            self._holdings.replace(held, replica)
        else:
            self._holdings.enter(replica)


def _gives_way(held: Replica, request: WriteReplica) -> bool:
    """Whether a replica is of no use to anybody beside the one that is written now."""
    facts = held.wanted
    if facts is None:
        return True
    is_stale = facts.term == request.term and facts.epoch < request.epoch
    return facts.state is ReplicaState.OPEN and is_stale and request.certificate is not None


def _brings(request: WriteReplica, blobs: Sequence[memoryview], base: Certified) -> bool:
    """Whether the request has all bytes between ``base`` and its certificate."""
    end = request.offset + blob_size(blobs)
    certificate = request.certificate
    return certificate is not None and request.offset <= base.length and certificate.length <= end
