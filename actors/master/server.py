"""The master: one of 2N+1 that keep the catalog; the leader among them is the coordinator.

It hosts a replica of the catalog's Raft group and, while it leads and has applied all that was
committed before its term, runs the coordinator. What clients ask is answered in
`stelae.actors.master.client_requests`, what servers report in
`stelae.actors.master.heartbeat_requests`.

Invariants:
- every answer that must be linearizable, every lease and every refusal by term comes after a read
  barrier that began when the call was here: a deposed leader gives none;
- a failed replication fails the operation, never the master.

Source: seed "Multi-master support for Kudu 1.0"; design §7.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from stelae.actors.cas_store.catalog import CatalogConfigurations
from stelae.actors.cas_store.server import RemoteConfigurations
from stelae.actors.master.client_requests import ClientRequests, status_inputs
from stelae.actors.master.gauges import MasterGauges
from stelae.actors.master.heartbeat_requests import ServerRequests
from stelae.actors.master.index_requests import IndexRequests
from stelae.actors.master.leader.backups import BackupKeeper
from stelae.actors.master.leader.coordinator import Coordinator
from stelae.actors.master.leader.migration_ports import MasterPorts, SafekeeperPorts
from stelae.actors.master.leader.migration_runner import RunnerSettings
from stelae.actors.master.leader.timelines import TimelineKeeper
from stelae.actors.master.loss_requests import LossRequests
from stelae.actors.master.member_requests import MasterMembers, MemberRequests
from stelae.actors.master.operator_requests import OperatorRequests
from stelae.actors.master.peers import MasterGroup
from stelae.actors.master.safekeeper_requests import SafekeeperRequests
from stelae.actors.master.token_requests import TokenRequests
from stelae.actors.master.turn_requests import TurnRequests
from stelae.actors.raft.leadership_transfer import hand_over
from stelae.actors.raft.replica import Replica, RoleChange, raft_handlers
from stelae.actors.raft.staleness import Freshness
from stelae.actors.raft.types import catalog_replica_settings
from stelae.actors.server.identity import listen_as, take_identity
from stelae.coordinator.catalog.catalog import CATALOG_ID, Catalog, CatalogBatch
from stelae.coordinator.catalog.operations import Operations
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.status.events import Chronicle, EventLog, ServerEvents
from stelae.coordinator.timelines.migration_steps import MigrationSettings
from stelae.coordinator.timelines.placement import draft_notified, where_is
from stelae.core.config.settings import Settings
from stelae.core.errors import NotLeader, TooStale
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.masters import MasterState
from stelae.core.records.configurations import ConfigurationStore, MigrationOrder, TimelineRecord
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import Handlers
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.recovery.engine import EnginePolicy, SparkEngine

ON_ITS_WAY = 64
"""Entries that another master may be behind with, and keeps up all the same."""
CATALOG_FOLDER = "catalog"
CATALOG_METADATA = f"{CATALOG_FOLDER}/consensus-meta"


def runner_settings(settings: Settings) -> RunnerSettings:
    """How migrations run. How many safekeepers a timeline has, its table says."""
    migration = MigrationSettings(call_timeout_s=settings.call_timeout_s, members_min=1)
    return RunnerSettings(migration=migration, store_timeout_s=settings.call_timeout_s)


class Master:
    """One master. ``masters`` are all of them by name, this one included."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        cluster: str,
        masters: Mapping[str, Address],
        settings: Settings,
        engine: EnginePolicy = "auto",
        joining: bool = False,
        has_cas_store: bool = False,
        is_encrypted: bool = False,
        migrations: RunnerSettings | None = None,
    ) -> None:
        """Addresses may be empty, and come by `update_master_address` once they are known.

        ``masters`` found the group. One that is ``joining``, on an empty disk, founds nothing, but
        waits to be added, and then is what the replicated configuration makes of it, as every
        master is. With ``has_cas_store`` configurations of timelines are kept by servers of the
        configuration store, which heartbeat; else the catalog is the store. ``is_encrypted``: the
        cluster's connections have TLS, as the status says.
        """
        self.tasks = Tasks()
        self.catalog = Catalog()
        self.events = EventLog(runtime.clock.monotonic)
        self._chronicle = Chronicle(self.catalog, self.events)
        self.liveness = Liveness(settings)
        self.liveness.is_replaced = lambda uuid: self.catalog.mark(uuid).replaced
        self.coordinator: Coordinator | None = None
        """While this master leads; and so is ``timelines``."""
        self.timelines: TimelineKeeper | None = None
        self._backups: asyncio.Task[None] | None = None
        self.spark_engine: SparkEngine | None = None
        """Set by the host where Spark is to be had."""
        self._runtime = runtime
        self._name = name
        self.cluster = cluster
        self.settings = settings
        self._engine = engine
        self._joining = joining
        self._has_cas_store = has_cas_store
        self.is_encrypted = is_encrypted
        self._migrations = migrations or runner_settings(settings)
        self.group = MasterGroup(runtime, self.tasks, settings, name, masters)
        self.group.word = lambda: (self.term, self.leader_uuid)
        self._replicas: dict[TabletId, Replica] = {}
        self.members = MasterMembers(runtime, self.group, lambda: self._replicas[CATALOG_ID])
        self.freshness: Freshness | None = None
        """Once it has joined the others."""
        self._gauges = MasterGauges(runtime.metrics, runtime.clock.monotonic)

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the identity from disk and listen; the catalog follows once the others are found."""
        runtime = self._runtime
        has_catalog = bool(await runtime.disk.list(CATALOG_METADATA))
        await self.group.prepare(joining=self._joining, has_catalog=has_catalog)
        instance = await take_identity(runtime, self.cluster, ServerKind.MASTER, self._name)
        self.group.begin(await listen_as(runtime, instance, self._handlers()))
        self.tasks.spawn(self._join(), "join the masters")

    async def _join(self) -> None:
        """Start the replica of the catalog, once it is known who has the others."""
        members: Mapping[ServerUuid, Address] = {}
        if await self._runtime.disk.list(CATALOG_METADATA):
            await self.group.learn_founders()  # the rest is in the catalog's own files
        else:
            members = await self.group.first_members()
        replica = Replica(
            self._runtime,
            self.tasks,
            CATALOG_ID,
            self.info.uuid,
            members,
            self._chronicle,
            catalog_replica_settings(self.settings),
            folder=CATALOG_FOLDER,
            names=self.group.founders,
        )
        replica.on_role_change(self._on_role_change)
        await replica.start()
        self._chronicle.old_until = replica.status().last.index
        self._replicas[CATALOG_ID] = replica
        self.group.follow(replica.members)
        self.freshness = Freshness(self._runtime, self.settings, replica)
        self.tasks.spawn(self.freshness.run(), "freshness of the catalog")
        self.group.on_address(self._on_master_address)

    def use_engine(self, policy: EnginePolicy) -> None:
        """Recover with this engine from now on, until this process ends."""
        self._engine = policy
        if self.coordinator is not None:
            self.coordinator.use_engine(policy)

    async def hand_over(self, timeout_s: float) -> int:
        """Before a planned `stop`: let another master lead, if this one does. Returns 1 if no other
        leads yet, else 0."""
        return len(await hand_over(self._runtime, self._replicas.values, timeout_s))

    async def stop(self) -> None:
        """Stop; a durable log needs no farewell."""
        self._resign()
        for replica in self._replicas.values():
            await replica.stop()
        try:
            await self.tasks.close()
        finally:
            await self._runtime.peers.close()

    @property
    def info(self) -> ServerInfo:
        """This master, once it has started."""
        return self.group.info

    @property
    def runtime(self) -> Runtime:
        """Where this master runs."""
        return self._runtime

    @property
    def term(self) -> int:
        """The masters' Raft term, as far as this one knows; 0 before it has joined."""
        replica = self._replicas.get(CATALOG_ID)
        return replica.term if replica is not None else 0

    @property
    def leader_uuid(self) -> ServerUuid | None:
        """Who leads, as far as this master knows."""
        replica = self._replicas.get(CATALOG_ID)
        return replica.core.leader_uuid if replica is not None else None

    @property
    def is_leader(self) -> bool:
        """Whether it leads and is ready to, as far as it knows."""
        return self.coordinator is not None

    def keeps_up(self, uuid: ServerUuid) -> bool:
        """Whether another master has read its log and has all that is committed, but for what is
        on its way; asked of one that leads."""
        replica = self._replicas.get(CATALOG_ID)
        if replica is None or not self.group.votes(uuid):
            return False
        status = replica.status()
        peer = status.peers.get(uuid)
        return (
            peer is not None
            and peer.is_heard
            and peer.match_index + ON_ITS_WAY >= status.commit_index
        )

    def measure(self) -> None:
        """Tell the metrics how it is, and the cluster, if it leads; for the host, now and then."""
        replica, coordinator = self._replicas.get(CATALOG_ID), self.coordinator
        if replica is None:
            return
        self._gauges.show_self(replica, self.freshness, leads=coordinator is not None)
        known = None if coordinator is None else lambda: status_inputs(self, coordinator, {})
        self._gauges.show_cluster(known)

    def server_died(self, uuid: ServerUuid, incarnation: int) -> None:
        """The host (Ray) says that this run of a server has died."""
        self.liveness.server_died(Run(uuid, incarnation))
        if self.coordinator is not None:
            self.coordinator.wake()

    def _on_master_address(self, uuid: ServerUuid, address: Address) -> None:
        self._replicas[CATALOG_ID].update_address(uuid, address)

    def _on_role_change(self, change: RoleChange) -> None:
        if CATALOG_ID in self._replicas:
            self.group.follow(self._replicas[CATALOG_ID].members)
        if not change.ready:
            self._resign()
        elif self.coordinator is None:
            self.coordinator = Coordinator(
                self._runtime,
                self.settings,
                self.tasks,
                self.catalog,
                self.liveness,
                self._replicate,
                policy=self._engine,
                spark_engine=lambda: self.spark_engine,
            )
            self.liveness.on_look = ServerEvents(self.events, self.catalog, self.liveness).look
            self.events.add(f"{self._name} leads the masters, in term {self.term}", "good")
            self.coordinator.start()
            self.timelines = self._make_keeper(self.coordinator.operations)
            self.timelines.start()
            backups = BackupKeeper(
                self._runtime,
                self.settings,
                self.catalog,
                self.liveness,
                self.coordinator.operations,
            )
            self._backups = self.tasks.spawn(backups.run(), "backups")

    def _make_keeper(self, operations: Operations) -> TimelineKeeper:
        runtime, catalog = self._runtime, self.catalog
        store: ConfigurationStore
        if self._has_cas_store:
            store = RemoteConfigurations(runtime, self._live_cas_stores)
        else:
            store = CatalogConfigurations(catalog, operations, runtime.clock, self.barrier)

        async def notify(record: TimelineRecord) -> None:
            tablet_id = record.timeline.tablet_id
            await operations.change(lambda: draft_notified(catalog, record), tablets=[tablet_id])

        def find(safekeeper: SafekeeperId) -> tuple[ServerUuid, Address] | None:
            return where_is(catalog, self.liveness, safekeeper, runtime.clock.monotonic())

        async def strike_off(decided: tuple[MigrationOrder, ...]) -> None:
            await operations.change(lambda: CatalogBatch(decided=decided))

        return TimelineKeeper(
            runtime,
            self.settings,
            self.tasks,
            catalog,
            self.liveness,
            MasterPorts(SafekeeperPorts(runtime, find), store, notify),
            self._migrations,
            strike_off,
        )

    def _live_cas_stores(self) -> list[Address]:
        now = self._runtime.clock.monotonic()
        return [s.server.address for s in self.liveness.live(ServerKind.CAS_STORE, now)]

    def _resign(self) -> None:
        if self._backups is not None:
            self._backups.cancel()
            self._backups = None
        if self.timelines is not None:
            self.timelines.stop()
            self.timelines = None
        if self.coordinator is not None:
            self.coordinator.stop()
            self.coordinator = None
            self.liveness.follow()

    async def _replicate(self, command: bytes) -> object:
        replica = self._replicas[CATALOG_ID]
        return await replica.propose(command, self.settings.call_timeout_s)

    # ---- leading ----------------------------------------------------------------------------

    def _handlers(self) -> Handlers:
        return {
            **raft_handlers(self._replicas),
            **self.group.handlers(),
            **ClientRequests(self).handlers(),
            **IndexRequests(self).handlers(),
            **LossRequests(self).handlers(),
            **MemberRequests(self, self.members).handlers(),
            **OperatorRequests(self).handlers(),
            **TokenRequests(self).handlers(),
            **TurnRequests(self).handlers(),
            **SafekeeperRequests(self).handlers(),
            **ServerRequests(self).handlers(),
        }

    def lead(self) -> Coordinator:
        """The coordinator, if this master leads. Raises `NotLeader`."""
        if self.coordinator is None:
            replica = self._replicas.get(CATALOG_ID)
            if replica is None:
                raise NotLeader(self._name, 0, "")
            if self.group.state is MasterState.REMOVED:
                former = f"{self._name}, a master no more,"
                raise NotLeader(former, replica.term, self.group.pointer)
            hint = "" if replica.is_leader else replica.leader_address or ""
            if self.group.state is MasterState.JOINING:
                hint = self.group.pointer
            raise NotLeader(self._name, replica.term, hint)
        return self.coordinator

    def lead_timelines(self) -> TimelineKeeper:
        """The care of timelines, if this master leads. Raises `NotLeader`."""
        self.lead()
        assert self.timelines is not None, "it comes and goes with the coordinator"
        return self.timelines

    async def view(self, timeout_s: float, max_staleness_s: float) -> Coordinator | None:
        """Return once this master may answer a read; the coordinator, if it leads.

        Raises NotLeader, Overloaded, DeadlineExpired; TooStale if ``max_staleness_s`` is not
        negative, this master does not lead, and its state may be older than that.
        """
        if max_staleness_s >= 0:
            age_s = math.inf if self.freshness is None else self.freshness.staleness_s()
            if age_s <= max_staleness_s:
                return self.coordinator
            if self.coordinator is None:
                age = f"{age_s:.3f} s" if age_s < math.inf else "as old as can be (no leader seen)"
                raise TooStale(self._name, age, max_staleness_s)
        return await self.barrier(timeout_s)

    async def barrier(self, timeout_s: float) -> Coordinator:
        """The coordinator, after proof that this master led when the call came.

        Raises NotLeader, Overloaded, DeadlineExpired.
        """
        coordinator = self.lead()
        replica = self._replicas[CATALOG_ID]
        await replica.read_barrier(min(timeout_s, self.settings.call_timeout_s))
        if self.coordinator is not coordinator:
            return self.lead()
        return coordinator
