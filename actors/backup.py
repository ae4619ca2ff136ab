"""The backup server: keeps replicas of segments, fences old owners, serves recoveries.

Invariants:
- Durable, then answered: a write is acknowledged when its medium has it (`stelae.storage.media`).
- A fence is durable before it is answered; with the answer comes everything that was accepted
  before it. Whatever is not in that answer is refused: there is nothing in between.
- One change at a time for a segment; frees and seals are single steps to whoever looks.
- Handlers are never cancelled but by `stop`.
- What a recovery is told of a replica is durable, and stays until it is freed or replaced whole.

Implements seed 003 (backups), design §9; rules of a single replica: `stelae.storage.replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stelae.actors.backup_blobs import BackupBlobs
from stelae.actors.identity import listen_as, take_identity
from stelae.actors.master_list import MasterList
from stelae.actors.served_columns import ServedColumns
from stelae.actors.served_rows import ServedRows
from stelae.coordinator.reports import Report, Reporter, log_fingerprint
from stelae.core.backup_views import MediumLoad, is_low, rounded_rate, whole_segments
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    StaleTerm,
    StelaeError,
    TooLarge,
)
from stelae.core.ids import Address, TabletId
from stelae.core.messages import (
    DROP_LOGS,
    FENCE_LOGS,
    FREE_REPLICAS,
    HEARTBEAT,
    INVENTORY,
    READ_REPLICA,
    READ_SUMMARIES,
    SEAL_REPLICA,
    WRITE_REPLICA,
    Certified,
    DropLogs,
    FenceLogs,
    FreeReplicas,
    Heartbeat,
    HeartbeatReply,
    Inventory,
    InventoryReply,
    LogInventory,
    ReadReplica,
    ReadReplicaReply,
    ReadSummaries,
    ReadSummariesReply,
    ReplicaInfo,
    ReplicaState,
    SealReplica,
    WriteReplica,
)
from stelae.core.records import ServerInfo, ServerKind
from stelae.core.rpc import EMPTY, Blob, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Disk, Runtime
from stelae.core.settings import Settings
from stelae.core.tasks import Tasks
from stelae.storage.fences import Fences
from stelae.storage.frame_opening import open_frame_medium
from stelae.storage.frames import TABLET_ID_BYTES_MAX, MediumSpec, frame_bytes_for
from stelae.storage.holdings import REPLY_BYTES_MAX, Holdings, check_certificate, checksum
from stelae.storage.image import IMAGE_TRAILER_BYTES, summary_range
from stelae.storage.media import Medium, MemoryMedium
from stelae.storage.replicas import (
    Batch,
    Facts,
    Replica,
    blob_size,
    joined,
    plan_write,
    skip_bytes,
)


class Backup:
    """One backup. ``disks``: for media whose folder is not in the server's own data directory."""

    info: ServerInfo

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        cluster: str,
        masters: Sequence[Address],
        settings: Settings,
        media: Mapping[str, MediumSpec],
        disks: Mapping[str, Disk] | None = None,
    ) -> None:
        self.tasks = Tasks()
        self._runtime = runtime
        self._name = name
        self._cluster = cluster
        self._masters = MasterList(runtime, self.tasks, masters)
        self._settings = settings
        self._specs = dict(media)
        self._disks = dict(disks or {})
        self._media: dict[str, Medium] = {}
        self._fences = Fences(runtime.disk)
        self._holdings = Holdings(runtime, self._media, name)
        self._blobs = BackupBlobs(runtime, name)
        self._served = ServedRows(runtime, self._holdings)
        self._servers_version = 0  # of a list that it has no use for, and need not be sent again

    async def start(self) -> None:
        """Find what is held, listen, and begin to heartbeat."""
        runtime = self._runtime
        instance = await take_identity(runtime, self._cluster, ServerKind.BACKUP, self._name)
        await self._fences.load()
        await self._blobs.load()
        for name, spec in self._specs.items():
            if spec.path is None:
                self._media[name] = MemoryMedium(spec, self._name)
                continue
            medium, replicas = await open_frame_medium(
                spec,
                runtime,
                self._disks.get(name, runtime.disk),
                server=instance.server_uuid,
                server_name=self._name,
                cluster=self._cluster,
                segment_bytes=self._settings.segment_bytes,
                unsynced_bytes_max=self._settings.queue_bytes,
            )
            self._media[name] = medium
            for replica in replicas:
                self._fences.observe(replica.tablet_id, self._holdings.enter_found(replica).term)
        for name, opened in self._media.items():
            self.tasks.spawn(opened.run(), f"{self._name}/{name}")
        self.tasks.spawn(self._served.expire(), f"{self._name}/served rows")
        self.info = await listen_as(runtime, instance, self._handlers(), tuple(self._specs))
        await self._masters.begin(self._heartbeat)

    async def stop(self) -> None:
        await self._runtime.peers.close()
        await self.tasks.close()
        for medium in self._media.values():
            medium.close()

    def _handlers(self) -> Handlers:
        return {
            WRITE_REPLICA: self._write_replica,
            SEAL_REPLICA: self._seal_replica,
            FENCE_LOGS: self._fence_logs,
            INVENTORY: self._inventory,
            READ_REPLICA: self._read_replica,
            READ_SUMMARIES: self._read_summaries,
            FREE_REPLICAS: self._free_replicas,
            DROP_LOGS: self._drop_logs,
            **self._blobs.handlers(),
            **ServedColumns(self._runtime, self._holdings).handlers(),
            **self._served.handlers(),
        }

    # ---- writing ----------------------------------------------------------------------------

    def _medium(self, name: str) -> Medium:
        medium = self._media.get(name)
        if medium is None:
            raise InvalidArgument(f"backup {self._name} has no medium {name!r}: {[*self._media]}")
        return medium

    @prompt
    async def _write_replica(self, call: Call[WriteReplica]) -> Reply[Empty]:
        request = call.body
        async with self._holdings.lock(request.tablet_id, request.segment_id):
            batch = await self._write(request, call.blobs)
        if batch is not None:
            await batch.wait()
        return EMPTY

    async def _write(self, request: WriteReplica, blobs: Sequence[memoryview]) -> Batch | None:
        """Carry out a write; it counts when the batch returned is durable."""
        log = request.tablet_id
        self._check(log, request.term)
        medium = self._medium(request.medium)
        held = self._writable(request)
        plan = plan_write(held, request, blob_size(blobs))
        views = skip_bytes(blobs, plan.skip)
        replica = held or Replica(log, request.segment_id, request.medium)
        base, certificate = plan.certify_from, request.certificate
        if base is not None and certificate is not None and _brings(request, blobs, base):
            await check_certificate(self._runtime, base, certificate, views, replica.where)
            base = None  # what came in pieces is checked below, once all of it is there
        if views:
            await medium.write(replica, request.offset + plan.skip, views)
        try:
            if base is not None and certificate is not None:
                await self._certify_written(replica, base, certificate)
            self._fences.check(log, request.term)  # it may have risen during the write
        except StelaeError:
            if held is None:
                medium.free(replica)
            raise
        self._fences.observe(log, request.term)
        if held is None:
            self._holdings.enter(replica)
        if plan.facts is not None and held is not None and held.wanted is not None:
            held.may_be_short &= plan.facts.epoch == held.wanted.epoch  # or else it was copied anew
        if plan.facts is None:
            return replica.batch if request.certificate is not None else None
        return await medium.stage(replica, plan.facts)

    def _check(self, log: TabletId, term: int) -> None:
        if not 0 < len(log.encode()) <= TABLET_ID_BYTES_MAX:
            raise InvalidArgument(f"{log!r} is no tablet id")
        self._fences.check(log, term)

    def _writable(self, request: WriteReplica) -> Replica | None:
        """The replica to write to. Half of a copy gives way to one on another medium."""
        held = self._holdings.find(request.tablet_id, request.segment_id)
        if held is None:
            self._holdings.check_may_open(request)
            return None
        if held.medium != request.medium:
            if held.wanted is None and request.create and request.offset == 0:
                self._holdings.forget(held)
                return None
            raise InvalidArgument(f"{held.where} is on medium {held.medium!r} here")
        return held

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
            await self._seal(request, image, Certified(length, crc))
        return EMPTY

    async def _seal(self, request: SealReplica, image: Blob, certificate: Certified) -> None:
        log = request.tablet_id
        self._check(log, request.term)
        medium = self._medium(request.medium)
        held = self._holdings.find(log, request.segment_id)
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
        if held is not None and same and held.medium == request.medium:
            batch = held.batch if old == facts else await medium.stage(held, facts)
            if batch is not None:
                await batch.wait()
            self._fences.observe(log, request.term)
            return
        replica = Replica(log, request.segment_id, request.medium)
        try:
            await medium.write(replica, 0, [image])
            self._fences.check(log, request.term)
            batch = await medium.stage(replica, facts)
        except StelaeError:
            medium.free(replica)
            raise
        self._fences.observe(log, request.term)
        if batch is not None:
            await batch.wait()
        if held is not None:
            self._holdings.forget(held)
        self._holdings.enter(replica)

    # ---- fencing and inventory --------------------------------------------------------------

    async def _fence_logs(self, call: Call[FenceLogs]) -> Reply[InventoryReply]:
        """Fence first, then let what was accepted before finish, then look."""
        logs = call.body.logs
        await self._fences.promise(logs)
        fenced = {log: None for log, _ in logs}
        await self._holdings.quiesce(fenced)
        for medium in self._media.values():
            await medium.settle()
        return Reply(InventoryReply(await self._inventories([*fenced])))

    async def _inventory(self, call: Call[Inventory]) -> Reply[InventoryReply]:
        logs = call.body.logs or self._holdings.logs
        return Reply(InventoryReply(await self._inventories(logs)))

    async def _inventories(self, logs: Sequence[TabletId]) -> tuple[LogInventory, ...]:
        """Of each log, also of those of which there is nothing: the answer is complete."""
        inventories: list[LogInventory] = []
        for log in logs:
            replicas, damaged = await self._holdings.describe(log)
            inventories.append(LogInventory(log, self._fences.term(log), replicas, damaged))
        return tuple(inventories)

    # ---- reading ----------------------------------------------------------------------------

    async def _read_replica(self, call: Call[ReadReplica]) -> Reply[ReadReplicaReply]:
        info, data = await self._holdings.read(call.body)
        return Reply(ReadReplicaReply(info), [data])

    async def _read_summaries(self, call: Call[ReadSummaries]) -> Reply[ReadSummariesReply]:
        infos: list[ReplicaInfo] = []
        blobs: list[Blob] = []
        total_bytes = 0
        for segment_id in call.body.segments:
            info, blob = await self._holdings.read_summary(call.body.tablet_id, segment_id)
            total_bytes += blob_size([blob])
            if total_bytes > REPLY_BYTES_MAX:
                raise TooLarge("summaries asked for at once", total_bytes, REPLY_BYTES_MAX)
            infos.append(info)
            blobs.append(blob)
        return Reply(ReadSummariesReply(tuple(infos)), blobs)

    # ---- freeing ----------------------------------------------------------------------------

    async def _free_replicas(self, call: Call[FreeReplicas]) -> Reply[Empty]:
        request = call.body
        self._check(request.tablet_id, request.term)
        self._holdings.note_heads(request.tablet_id, request.heads_from)
        for segment_id in request.segments:
            async with self._holdings.lock(request.tablet_id, segment_id):
                self._fences.check(request.tablet_id, request.term)
                replica = self._holdings.find(request.tablet_id, segment_id)
                if replica is not None:
                    self._holdings.forget(replica)
        self._fences.observe(request.tablet_id, request.term)
        return EMPTY

    async def _drop_logs(self, call: Call[DropLogs]) -> Reply[Empty]:
        for log in call.body.logs:
            await self._drop(log)
        return EMPTY

    async def _drop(self, log: TabletId) -> None:
        for segment_id in self._holdings.segments(log):
            async with self._holdings.lock(log, segment_id):
                replica = self._holdings.find(log, segment_id)
                if replica is not None:
                    self._holdings.forget(replica)
        self._holdings.forget_heads(log)
        self._fences.forget(log)
        await self._blobs.drop(log)

    # ---- heartbeats -------------------------------------------------------------------------

    async def _heartbeat(self, master: Address) -> None:
        """Tell a master, while it is one, that this backup lives and what it has room for."""
        runtime = self._runtime
        reporter = Reporter(log_fingerprint)
        while self._masters.has(master):
            held = dict.fromkeys([*self._holdings.logs, *self._blobs.tablets])
            report = reporter.next(held)
            try:
                reply = await runtime.peers.call(
                    master, HEARTBEAT, self._beat(report), timeout_s=self._settings.lease_s
                )
            except StelaeError:
                runtime.metrics.count("backup_heartbeats_lost", master=master)
                reporter.unanswered()
            else:
                await self._obey(reply.body)
                if reporter.answered(report, reply.body):
                    continue
            await runtime.clock.sleep(self._settings.heartbeat_s)

    def _beat(self, report: Report[None]) -> Heartbeat:
        memory = [m for m in self._media.values() if isinstance(m, MemoryMedium)]
        frames = [m for m in self._media.values() if not isinstance(m, MemoryMedium)]
        used = sum(medium.used_bytes for medium in memory)
        return Heartbeat(
            self.info,
            self._runtime.clock.monotonic(),
            logs=tuple([log for log, _ in report.changed]),
            memory_bytes=used,
            memory_limit_bytes=used + sum(medium.free_bytes for medium in memory),
            free_bytes=sum(medium.free_bytes for medium in frames),
            number=report.number,
            since=report.since,
            removed=report.removed,
            digest=report.digest,
            servers_version=self._servers_version,
            media=tuple([self._load_of(medium) for medium in self._media.values()]),
        )

    def _load_of(self, medium: Medium) -> MediumLoad:
        frame_bytes = frame_bytes_for(self._settings.segment_bytes)
        free = whole_segments(medium.free_bytes, frame_bytes)
        low = is_low(medium.used_bytes, medium.free_bytes, frame_bytes)
        return MediumLoad(medium.name, free, rounded_rate(medium.bytes_per_s), low)

    async def _obey(self, reply: HeartbeatReply) -> None:
        """Drop what the leader says is deleted. Being ``fenced`` means nothing to a backup: its
        fences are per log."""
        if not reply.is_leader:
            self._masters.hear_of(reply.masters)
        else:
            self._servers_version = reply.servers_version
            await self._masters.update(reply.masters)
            for log in reply.drop:
                await self._drop(log)


def _brings(request: WriteReplica, blobs: Sequence[memoryview], base: Certified) -> bool:
    """Whether the request has all bytes between ``base`` and its certificate."""
    end = request.offset + blob_size(blobs)
    certificate = request.certificate
    return certificate is not None and request.offset <= base.length and certificate.length <= end
