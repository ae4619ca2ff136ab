"""The backup server: keeps replicas of segments, fences old owners, serves recoveries.

Invariants:
- Durable, then answered: of writes `stelae.actors.backup.replica_writes` sees to it.
- A fence is durable before it is answered; with the answer comes everything that was accepted
  before it. Whatever is not in that answer is refused: there is nothing in between.
- One change at a time for a segment; frees and seals are single steps to whoever looks.
- Handlers are never cancelled but by `stop`.
- What a recovery is told of a replica is durable, and stays until it is freed or replaced whole.

Implements seed 003 (backups), design §9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stelae.actors.backup.blobs import BackupBlobs
from stelae.actors.backup.closing import Closing
from stelae.actors.backup.disk_opening import open_frame_medium
from stelae.actors.backup.fences import Fences
from stelae.actors.backup.frames import TABLET_ID_BYTES_MAX, MediumSpec, frame_bytes_for
from stelae.actors.backup.holdings import REPLY_BYTES_MAX, Holdings
from stelae.actors.backup.media import Medium, MemoryMedium
from stelae.actors.backup.replica_writes import ReplicaWrites
from stelae.actors.backup.replicas import blob_size, is_up_to
from stelae.actors.backup.served import ServedRows
from stelae.actors.backup.served_columns import ServedColumns
from stelae.actors.backup.served_picks import ServedPicks
from stelae.actors.server.identity import listen_as, take_identity
from stelae.actors.server.master_list import MasterList
from stelae.actors.server.replaced import require_not_replaced
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, StelaeError, TooLarge
from stelae.core.ids import Address, TabletId
from stelae.core.messages.backup_loads import MediumLoad, is_low, rounded_rate, whole_segments
from stelae.core.messages.backups import (
    ANY_EPOCH,
    DROP_LOGS,
    FENCE_LOGS,
    FREE_REPLICAS,
    INVENTORY,
    LOCATE_REPLICAS,
    READ_REPLICA,
    READ_SUMMARIES,
    DropLogs,
    FenceLogs,
    FreeReplicas,
    Inventory,
    InventoryReply,
    LocateReplicas,
    LocateReplicasReply,
    LogInventory,
    ReadReplica,
    ReadReplicaReply,
    ReadSummaries,
    ReadSummariesReply,
    ReplicaInfo,
)
from stelae.core.messages.reports import Report, Reporter, log_fingerprint
from stelae.core.messages.servers import HEARTBEAT, Heartbeat, HeartbeatReply
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.rpc import EMPTY, Blob, Call, Empty, Handlers, Reply
from stelae.core.runtime import Disk, Runtime
from stelae.core.tasks import Tasks


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
        self._closing = Closing(name, self._count_held)
        self._blobs.arrival = self._closing.arrival
        self._writes = ReplicaWrites(
            runtime, name, self._media, self._holdings, self._fences, self._closing, self._check
        )
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
            **self._writes.handlers(),
            FENCE_LOGS: self._fence_logs,
            INVENTORY: self._inventory,
            READ_REPLICA: self._read_replica,
            READ_SUMMARIES: self._read_summaries,
            LOCATE_REPLICAS: self._locate_replicas,
            FREE_REPLICAS: self._free_replicas,
            DROP_LOGS: self._drop_logs,
            **self._blobs.handlers(),
            **ServedColumns(self._runtime, self._holdings).handlers(),
            **ServedPicks(self._runtime, self._holdings).handlers(),
            **self._served.handlers(),
        }

    def _count_held(self) -> int:
        """Replicas that count, and blobs."""
        return self._holdings.count + self._blobs.count

    def _check(self, log: TabletId, term: int) -> None:
        """Raises: it is no log, or the term is fenced off."""
        if not 0 < len(log.encode()) <= TABLET_ID_BYTES_MAX:
            raise InvalidArgument(f"{log!r} is no tablet id")
        self._fences.check(log, term)

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
            promised = self._fences.term(log), self._fences.heads_from(log)
            inventories.append(LogInventory(log, promised[0], replicas, damaged, promised[1]))
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

    async def _locate_replicas(self, call: Call[LocateReplicas]) -> Reply[LocateReplicasReply]:
        log, segments = call.body.tablet_id, call.body.segments
        found = [await self._holdings.locate(log, segment) for segment in segments]
        return Reply(LocateReplicasReply(tuple([each for each in found if each is not None])))

    # ---- freeing ----------------------------------------------------------------------------

    async def _free_replicas(self, call: Call[FreeReplicas]) -> Reply[Empty]:
        request, log = call.body, call.body.tablet_id
        self._check(log, request.term)
        # First: a crash in between must not leave a head freed that may be opened again.
        if request.heads_from and not await self._fences.close_heads(log, request.heads_from):
            self._runtime.metrics.count("backup_heads_not_noted")
        epochs = request.epochs or (ANY_EPOCH,) * len(request.segments)
        if len(epochs) != len(request.segments):
            raise InvalidArgument("an epoch is needed for each segment, or for none")
        for segment_id, epoch in zip(request.segments, epochs, strict=True):
            async with self._holdings.lock(log, segment_id):
                self._fences.check(log, request.term)
                replica = self._holdings.find(log, segment_id)
                if replica is not None and is_up_to(replica, epoch):
                    self._holdings.forget(replica)
        self._fences.observe(log, request.term)
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
            replicas=self._count_held(),
            closed_for=self._closing.closed_for,
            media_used_bytes=tuple([medium.used_bytes for medium in self._media.values()]),
            media_free_bytes=tuple([medium.free_bytes for medium in self._media.values()]),
        )

    def _load_of(self, medium: Medium) -> MediumLoad:
        frame_bytes = frame_bytes_for(self._settings.segment_bytes)
        free = whole_segments(medium.free_bytes, frame_bytes)
        medium.is_low = is_low(medium.capacity_bytes, medium.free_bytes, frame_bytes)
        return MediumLoad(medium.name, free, rounded_rate(medium.bytes_per_s), medium.is_low)

    def measure(self) -> None:
        """Tell the metrics of its media; for the host, now and then."""
        gauge = self._runtime.metrics.gauge
        for name, medium in self._media.items():
            gauge("backup_used_bytes", medium.used_bytes, medium=name)
            gauge("backup_free_bytes", medium.free_bytes, medium=name)
            gauge("backup_rate_bytes_per_s", medium.bytes_per_s, medium=name)
        gauge("backup_logs", len(self._holdings.logs))

    async def _obey(self, reply: HeartbeatReply) -> None:
        """Drop what the leader says is deleted. Being ``fenced`` means nothing to a backup: its
        fences are per log. Being ``replaced`` ends it."""
        require_not_replaced(reply, self.info.name)
        if not reply.is_leader:
            self._masters.hear_of(reply.masters)
        else:
            self._servers_version = reply.servers_version
            await self._masters.update(reply.masters)
            for log in reply.drop:
                await self._drop(log)
            self._closing.told(reply.mark, reply.may_close)
