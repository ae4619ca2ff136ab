"""The safekeeper: keeps the logs of ``wal`` tablets, and votes for who may write to them.

It starts with what lies on its disk, heartbeats to every master, and answers proposers, masters and
other safekeepers. Invariants: durable, then answered; its id is durable before it is used; nothing
that the masters say but a deletion for ever makes it forget anything. A planned stop needs no
hand-over: it leads nothing.

Implements seed 004, "Safekeeper changes"; design §10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from stelae.actors.safekeeper.offload import BackupOffload
from stelae.actors.safekeeper.pull_sources import PullSources
from stelae.actors.safekeeper.pulls import PullReceiver
from stelae.actors.safekeeper.reopening import Reopening
from stelae.actors.safekeeper.safekeeper_id import load_safekeeper_id, store_safekeeper_id
from stelae.actors.safekeeper.timeline_store.log import FILE_BYTES
from stelae.actors.safekeeper.timelines import SafekeeperTimelines
from stelae.actors.safekeeper.upkeep import Upkeep
from stelae.actors.server.identity import listen_as, take_identity
from stelae.actors.server.master_list import MasterList
from stelae.actors.server.membership import Membership
from stelae.actors.server.replaced import require_not_replaced
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import Address, TabletId
from stelae.core.messages.reports import Report, Reporter, log_fingerprint
from stelae.core.messages.servers import HEARTBEAT, Heartbeat, HeartbeatReply
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.records.timelines import SafekeeperId
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)


class Safekeeper:
    """One safekeeper. ``file_bytes`` is the size from which on a WAL begins another file."""

    info: ServerInfo

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        cluster: str,
        masters: Sequence[Address],
        settings: Settings,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self.tasks = Tasks()
        self.members = Membership()
        self._runtime = runtime
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._masters = MasterList(runtime, self.tasks, masters)
        self._wake: dict[Address, asyncio.Event] = {}
        self._adopting = asyncio.Lock()
        self._is_dropping = False
        blobs = BackupOffload(runtime, settings, self.members)
        self.timelines = SafekeeperTimelines(
            runtime, self.tasks, name, blobs=blobs, file_bytes=file_bytes
        )
        self.sources = PullSources(runtime, settings, self.tasks, self.timelines)
        self.pulls = PullReceiver(runtime, settings, self.timelines)
        self.upkeep = Upkeep(runtime, settings, self.timelines, self.pulls, blobs)
        self.reopening = Reopening(runtime, self.timelines)

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read and check what is held, listen, and begin to heartbeat."""
        runtime = self._runtime
        instance = await take_identity(runtime, self._cluster, ServerKind.SAFEKEEPER, self._name)
        given = await load_safekeeper_id(runtime.disk, instance.server_uuid)
        if given is not None:
            await self.timelines.open(given)
        handlers = {
            **self.timelines.handlers(),
            **self.sources.handlers(),
            **self.pulls.handlers(),
        }
        self.info = replace(await listen_as(runtime, instance, handlers), safekeeper_id=given)
        self.tasks.spawn(self.sources.expire(), "pull sessions")
        self.tasks.spawn(self.upkeep.run(), "upkeep of timelines")
        self.tasks.spawn(self.reopening.run(), "reopening of timelines")
        await self._masters.begin(self._heartbeat)

    async def stop(self) -> None:
        await self._runtime.peers.close()  # first: no handler may begin anything any more
        await self.tasks.close()
        await self.timelines.close()

    @property
    def safekeeper_id(self) -> SafekeeperId | None:
        return self.timelines.safekeeper_id

    async def adopt_id(self, safekeeper_id: SafekeeperId) -> None:
        """The masters call this safekeeper so.

        Raises InvalidArgument: it has another id; that disk and these masters do not belong
        together, and it does nothing any more.
        """
        async with self._adopting:
            known = self.safekeeper_id
            if known is None:
                await store_safekeeper_id(self._runtime.disk, self.info.uuid, safekeeper_id)
                await self.timelines.open(safekeeper_id)
                self.info = replace(self.info, safekeeper_id=safekeeper_id)
                for wake in self._wake.values():
                    wake.set()
            elif known != safekeeper_id:
                raise InvalidArgument(
                    f"{self._name} is safekeeper {known} by its disk, and {safekeeper_id} by the "
                    f"masters' catalog; give it another data_dir"
                )

    # ---- heartbeats -------------------------------------------------------------------------

    async def _heartbeat(self, master: Address) -> None:
        """Tell a master, while it is one, that this safekeeper lives and what it has."""
        wake = self._wake.setdefault(master, asyncio.Event())
        reporter = Reporter(log_fingerprint)
        while self._masters.has(master):
            held = self.timelines.held if reporter.wants_report else ()
            report = reporter.next(dict.fromkeys(held))
            try:
                reply = await self._runtime.peers.call(
                    master, HEARTBEAT, self._beat(report), timeout_s=self._settings.lease_s
                )
            except StelaeError:
                self._runtime.metrics.count("safekeeper_heartbeats_lost", master=master)
                reporter.unanswered()
            else:
                await self._obey(reply.body)
                if reporter.answered(report, reply.body):
                    continue
            wake.clear()
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await wake.wait()
            except TimeoutError:
                continue

    def _beat(self, report: Report[None]) -> Heartbeat:
        return Heartbeat(
            self.info,
            self._runtime.clock.monotonic(),
            logs=tuple([log for log, _ in report.changed]),
            number=report.number,
            since=report.since,
            removed=report.removed,
            digest=report.digest,
            servers_version=self.members.version,
            backups_version=self.members.backups_view.version,
        )

    async def _obey(self, reply: HeartbeatReply) -> None:
        """Do what the leader says. Being ``fenced`` means nothing to a safekeeper: its promises are
        kept on its disk. Being ``replaced`` ends it."""
        require_not_replaced(reply, self.info.name)
        if not reply.is_leader:
            self._masters.hear_of(reply.masters)
            return
        if not reply.fenced:
            self.members.heed(reply)
        await self._masters.update(reply.masters)
        if reply.safekeeper_id is not None:
            await self.adopt_id(reply.safekeeper_id)
        if reply.drop and not self._is_dropping:
            self._is_dropping = True
            self.tasks.spawn(self._drop(reply.drop), "deletion of timelines")

    async def _drop(self, tablets: Sequence[TabletId]) -> None:
        """Not in a heartbeat's time: many deletions take longer than others wait for one."""
        for tablet_id in tablets:
            try:
                await self.timelines.exclude(tablet_id, None)
            except StelaeError as error:  # the next heartbeat says it again
                self._runtime.metrics.count("timelines_not_dropped")
                logger.warning("timeline %s is not dropped yet: %s", tablet_id, error)
        self._is_dropping = False
